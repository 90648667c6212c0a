/* An engine whose experts are divided among processes: what rank 0 does besides, and what the others do instead. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "engine/sized.h"
#include "ranks/ranks.h"

/* Of the room that is left for experts when everything else is loaded, one part in so many is kept for what is not yet
 * there: a context and its work space, or work space and messages. At most the second number. */
enum { RESERVE_SHARE = 16 };
static const size_t max_reserve_bytes = (size_t)512 << 20;

struct moebius_ranks {
    struct ranks *ranks;
    bool is_used; /* an engine has been opened on them */
};

bool moebius_ranks_are_wanted(void)
{
    return ranks_are_wanted();
}

moebius_status moebius_ranks_open(moebius_ranks **out, void (*lost)(void *user, const char *sentence), void *user,
                                  moebius_error *error)
{
    struct err e = {0};
    const struct ranks_params params = {lost, user};
    moebius_ranks *r = *out = mem_calloc(1, sizeof *r);
    err_code code = r ? ranks_open(&r->ranks, &params, &e) : err_nomem(&e, sizeof *r, "the ranks");
    if (code != ERR_OK)
        moebius_ranks_close(out);
    return engine_status(code, &e, error);
}

void moebius_ranks_close(moebius_ranks **ranks)
{
    if (*ranks)
        ranks_close(&(*ranks)->ranks);
    mem_free(*ranks);
    *ranks = NULL;
}

int moebius_rank(const moebius_ranks *ranks)
{
    return ranks_self(ranks->ranks);
}

int moebius_n_rank(const moebius_ranks *ranks)
{
    return ranks_n(ranks->ranks);
}

double moebius_rank_round_trip_s(const moebius_ranks *ranks, int rank)
{
    return (double)ranks_link(ranks->ranks, rank).round_trip_ns / 1e9;
}

double moebius_rank_bytes_per_s(const moebius_ranks *ranks, int rank)
{
    return ranks_link(ranks->ranks, rank).bytes_per_s;
}

struct ranks *engine_ranks(const moebius_engine *g)
{
    return g->options.ranks ? g->options.ranks->ranks : NULL;
}

int engine_rank(const moebius_engine *g)
{
    return engine_ranks(g) ? ranks_self(engine_ranks(g)) : 0;
}

err_code engine_check_ranks(moebius_engine *g, struct err *e)
{
    moebius_ranks *r = g->options.ranks;
    if (!r)
        return ERR_OK;
    if (r->is_used)
        return err_set(e, ERR_USAGE,
                       "%d processes were started together for one model: expected that it is opened once",
                       ranks_n(r->ranks));
    int n = cpu_n_available(), n_all = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!g->options.n_threads && n * ranks_n_here(r->ranks) < n_all)
        log_line(
            &g->log, LOG_WARN,
            "%s may use %d of the machine's %d processors: mpirun binds processes unless it is told --bind-to none",
            ranks_name(r->ranks, ranks_self(r->ranks)), n, n_all);
    r->is_used = true;
    return ERR_OK;
}

/* ---- what a rank brings ---------------------------------------------------------------------------------------- */

size_t engine_expert_room(const moebius_engine *g, size_t all_bytes)
{
    size_t room = mem_room_bytes(), wanted = (size_t)g->options.expert_ram_bytes;
    if (!wanted)
        wanted = (size_t)(g->options.expert_ram_share * (double)all_bytes);
    if (room == SIZE_MAX)
        return wanted ? wanted : SIZE_MAX;
    size_t reserve = room / RESERVE_SHARE;
    room -= reserve < max_reserve_bytes ? reserve : max_reserve_bytes;
    return wanted && wanted < room ? wanted : room;
}

/* The model's fingerprint is that of its weights: those of ranks must be the same, not only of the same shapes. */
static err_code make_offer(moebius_engine *g, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                           struct rank_offer *out, struct err *e)
{
    size_t all = 0;
    uint64_t fingerprint;
    TRY(engine_fingerprint(g, &fingerprint, e));
    for (int i = 0; i < n_layer; i++)
        all += (size_t)layers[i].n_expert * slot_bytes[i];
    struct rank_offer o = {.fingerprint = fingerprint,
                           .room_bytes = engine_expert_room(g, 0),
                           .bytes_per_s = engine_read_speed(g, all),
                           .is_reference = g->options.reference,
                           .n_threads = (uint32_t)pool_n_threads(g->pool)};
    if (o.room_bytes < all) /* else nothing is ever read again */
        o.reads_per_s = engine_drive_speed(g);
    for (int i = 0; i < gguf_n_files(g->gguf); i++)
        o.n_file_bytes += gguf_file_bytes(g->gguf, i);
    *out = o;
    return ERR_OK;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

err_code engine_ask_ranks(moebius_engine *g, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                          struct err *e)
{
    struct ranks *r = engine_ranks(g);
    struct rank_offer own;
    const struct rank_offer *offers;
    bool is_known = true;
    TRY(make_offer(g, layers, slot_bytes, n_layer, &own, e));
    TRY(ranks_offers(r, &own, &offers, e));
    for (int i = 0; i < ranks_n(r); i++)
        is_known &= offers[i].bytes_per_s > 0;
    for (int i = 0; i < ranks_n(r); i++)
        g->speeds[i] = (struct division_place){.room_bytes = offers[i].room_bytes,
                                               .bytes_per_s = is_known ? offers[i].bytes_per_s : offers[i].n_threads,
                                               .reads_per_s = offers[i].reads_per_s,
                                               .share = i < g->asked.n_share ? g->asked.shares[i] : 0};
    return ERR_OK;
}

err_code engine_open_ranks(moebius_engine *g, struct err *e)
{
    struct ranks *r = engine_ranks(g);
    TRY(ranks_wait_ready(r, e));
    for (int i = 1; i < ranks_n(r); i++)
        TRY(ranks_place(&g->place[i], r, i, g->model->n_moe_layer, g->speeds[i].bytes_per_s, e));
    return ERR_OK;
}

err_code engine_warm_ranks(moebius_engine *g, const struct usage *past, struct err *e)
{
    for (int i = 1; engine_ranks(g) && i < g->places.n_place; i++)
        TRY(place_open(g->place[i], g->spare_bytes, past, e));
    return ERR_OK;
}

/* ---- other ranks ------------------------------------------------------------------------------------------------- */

/* As model_load_params.divide: what rank 0 says. */
static err_code take_division(void *engine, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                              struct division *out, struct err *e)
{
    moebius_engine *g = engine;
    struct rank_offer offer;
    int64_t n_expert = 0;
    TRY(make_offer(g, layers, slot_bytes, n_layer, &offer, e));
    for (int i = 0; i < n_layer; i++)
        n_expert = max_i64(n_expert, layers[i].n_expert);
    return ranks_offer(engine_ranks(g), &offer, n_layer, n_expert, out, e);
}

static void has_read(void *engine, uint64_t n_bytes)
{
    ranks_step(engine_ranks(engine));
}

/* Layers lie on a device that holds nothing; experts on the processor's. */
static err_code load_experts(moebius_engine *g, struct err *e)
{
    const struct model_device experts = {.device = g->device, .pool = g->pool, .place = engine_rank(g)};
    const struct model_load_params params = {
        .device = g->no_layers, .devices = &experts, .n_device = 1, .divide = take_division, .progress = has_read};
    return engine_load_model(g, &params, e);
}

static uint64_t count_experts(const moebius_engine *g)
{
    const struct division *d = &g->model->division;
    uint64_t n = 0;
    for (int64_t i = 0; i < d->n_layer * d->n_expert; i++)
        n += d->holders[i] >> engine_rank(g) & 1;
    return n;
}

static err_code compute(moebius_engine *g, struct err *e)
{
    struct model_device *d = g->model->devices;
    TRY(compute_create(&g->devices[0].compute, g->device, d->experts, d->rules, g->model->n_moe_layer, e));
    const struct rank_service service = {.compute = g->devices[0].compute,
                                         .experts = d->experts,
                                         .pool = g->pool,
                                         .rules = d->rules,
                                         .division = &g->model->division,
                                         .n_layer = g->model->n_moe_layer,
                                         .rank = engine_rank(g),
                                         .n_expert = count_experts(g)};
    return ranks_serve(engine_ranks(g), &service, e);
}

static err_code load(moebius_engine *g, const char *path, struct err *e)
{
    TRY(engine_check_options(g, e));
    TRY(engine_open_devices(g, e));
    topology_bind_caller(g->topology);
    TRY(backend_null_open(&g->no_layers, e));
    TRY(engine_open_gguf(g, path, e));
    TRY(engine_size_model(g, e));
    TRY(engine_open_store(g, e));
    TRY(engine_memory_bound(g, e));
    TRY(load_experts(g, e));
    if (g->model->n_device == 0)
        return err_set(e, ERR_USAGE, "%s has no routed experts to divide among processes: expected one process", path);
    return engine_tune(g, e);
}

moebius_status moebius_ranks_serve_sized(moebius_ranks *ranks, const char *path, const moebius_engine_options *options,
                                         size_t options_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_engine *g = mem_calloc(1, sizeof *g);
    if (!g)
        return engine_status(err_nomem(&e, sizeof *g, "the engine"), &e, error);
    err_code code = sized_take(&g->options, sizeof g->options, options, options_bytes, "engine options", &e);
    g->options.ranks = ranks;
    g->options.usage = NULL; /* rank 0 keeps the counts */
    engine_begin_log(g);
    if (code == ERR_OK)
        code = load(g, path, &e);
    if (code == ERR_OK)
        code = compute(g, &e);
    if (code != ERR_OK && code != ERR_CANCELLED)
        ranks_fail(ranks->ranks, &e);
    topology_release_caller(g->topology);
    moebius_engine_close(&g);
    return engine_status(code, &e, error);
}
