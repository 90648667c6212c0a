/* The places that compute routed experts beside the device that runs the layers. */
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "places/worker.h"
#include "ranks/ranks.h"

/* Rounds that a worker waits for the next layer before it sleeps: attention takes some hundred microseconds. */
enum { WORKER_N_SPIN = 20000 };

static int n_place(const moebius_engine *g)
{
    return engine_ranks(g) ? ranks_n(engine_ranks(g)) : g->n_device;
}

err_code engine_divide(void *engine, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                       struct division *out, struct err *e)
{
    moebius_engine *g = engine;
    int n = n_place(g);
    int64_t n_expert = 0;
    struct usage past;
    g->place = mem_calloc((size_t)n, sizeof(struct place *));
    g->speeds = mem_calloc((size_t)n, sizeof *g->speeds);
    if (!g->place || !g->speeds)
        return err_nomem(e, (size_t)n * sizeof *g->speeds, "the places");
    if (engine_ranks(g))
        TRY(engine_ask_ranks(g, layers, slot_bytes, n_layer, e));
    else
        device_options_places(&g->asked, g->speeds);
    if (!engine_ranks(g))
        engine_gpu_rooms(g, g->speeds);
    for (int i = 0; i < n_layer; i++)
        n_expert = max_i64(n_expert, layers[i].n_expert);
    TRY(engine_past_usage(g, n_layer, n_expert, &past, e));
    err_code code =
        division_make(out, layers, slot_bytes, n_layer, g->speeds, n, &g->asked.split, past.count ? &past : NULL, e);
    usage_close(&past);
    return code == ERR_OK && engine_ranks(g) ? ranks_divide(engine_ranks(g), out, e) : code;
}

static err_code open_worker(moebius_engine *g, int i, struct err *e)
{
    struct engine_device *d = &g->devices[i];
    const struct model_device *m = &g->model->devices[i];
    TRY(compute_create(&d->compute, d->device, m->experts, m->rules, g->model->n_moe_layer, e));
    const struct worker_params p = {.name = d->name,
                                    .compute = d->compute,
                                    .n_layer = g->model->n_moe_layer,
                                    .device = d->device,
                                    .pool = d->pool,
                                    .experts = m->experts,
                                    .n_spin = engine_has_core_each(g) ? WORKER_N_SPIN : 0};
    return worker_open(&g->place[i], &p, e);
}

err_code engine_open_places(moebius_engine *g, struct err *e)
{
    if (g->n_device > 1 && !g->model->n_moe_layer)
        log_line(&g->log, LOG_WARN, "this model has no routed experts: the first device alone computes");
    if (!g->place && engine_ranks(g))
        return err_set(e, ERR_USAGE, "%s has no routed experts to divide among processes: expected one process",
                       gguf_file_path(g->gguf, 0));
    if (!g->place)
        return ERR_OK;
    for (int i = 1; i < g->n_device; i++)
        TRY(open_worker(g, i, e));
    if (engine_ranks(g))
        TRY(engine_open_ranks(g, e));
    size_t n_layer = (size_t)g->model->n_moe_layer;
    g->own = mem_calloc(n_layer, sizeof *g->own);
    if (!g->own)
        return err_nomem(e, n_layer * sizeof *g->own, "figures of layers");
    g->places = (struct moe_places){&g->model->division, g->speeds, g->place, n_place(g), g->own};
    g->model->places = &g->places;
    return ERR_OK;
}

void engine_close_places(moebius_engine *g)
{
    for (int i = 1; g->place && i < n_place(g); i++)
        place_close(&g->place[i]);
    for (int i = 0; i < g->n_device; i++)
        compute_close(&g->devices[i].compute);
    mem_free(g->place);
    mem_free(g->own);
    mem_free(g->speeds);
}

size_t engine_expert_bytes(const moebius_engine *g, size_t (*bytes)(const struct experts *x))
{
    size_t n = 0;
    for (int i = 0; i < g->model->n_device; i++)
        n += bytes(g->model->devices[i].experts);
    return n;
}

bool engine_is_streaming(const moebius_engine *g)
{
    bool any = false;
    for (int i = 0; i < g->model->n_device; i++)
        any |= !experts_all_resident(g->model->devices[i].experts);
    return any;
}

/* A part of n_bytes, as large as one number is of another. */
static size_t part_of(size_t n_bytes, size_t n, size_t of)
{
    return of ? (size_t)((double)n_bytes * ((double)n / (double)of)) : 0;
}

/* What a device's slots that are not open would take of the host's memory. */
static size_t closed_bytes(const moebius_engine *g, int device)
{
    const struct experts *x = g->model->devices[device].experts;
    return engine_has_own_memory(g, device) ? 0 : experts_max_bytes(x) - experts_open_bytes(x);
}

err_code engine_open_slots(moebius_engine *g, const struct usage *past, struct err *e)
{
    size_t left = 0; /* to open in the host's memory */
    for (int i = 0; i < g->model->n_device; i++)
        left += closed_bytes(g, i);
    for (int i = 0; i < g->model->n_device; i++) {
        struct experts *x = g->model->devices[i].experts;
        size_t here = closed_bytes(g, i), room = mem_room_bytes(), spare = g->spare_bytes;
        if (room > spare && room - spare < left) /* others' part is left, too */
            spare += part_of(room - spare, left - here, left);
        left -= here;
        if (engine_has_own_memory(g, i))
            spare = engine_gpu_spare(g, i);
        if (i > 0) {
            TRY(place_open(g->place[i], spare, past, e));
            continue;
        }
        TRY(experts_open(x, spare, e));
        if (past)
            TRY(experts_warm(x, past, e));
    }
    return ERR_OK;
}

static void reclaim(moebius_engine *g, int device, size_t n_bytes)
{
    if (engine_has_own_memory(g, device))
        return;
    if (device > 0)
        place_reclaim(g->place[device], n_bytes);
    else
        experts_reclaim(g->model->devices[device].experts, n_bytes);
}

/* Of a device's slots in the host's memory. Other devices may be computing meanwhile. */
static size_t open_bytes(const moebius_engine *g, int device)
{
    struct place_facts f = {0};
    struct err e;
    if (engine_has_own_memory(g, device))
        return 0;
    if (device == 0)
        return experts_open_bytes(g->model->devices[0].experts);
    return place_facts(g->place[device], &f, &e) == ERR_OK ? f.open_bytes : 0;
}

void engine_reclaim_experts(moebius_engine *g, size_t n_bytes)
{
    int n_device = g->places.n_place ? g->places.n_place : g->model->n_device ? 1 : 0;
    size_t open[ENGINE_MAX_DEVICE], all = 0, room = mem_room_bytes(), lack = n_bytes > room ? n_bytes - room : 0;
    for (int i = 0; i < n_device; i++)
        all += open[i] = open_bytes(g, i);
    for (int i = 0; i + 1 < n_device; i++) {
        room += part_of(lack, open[i], all);
        reclaim(g, i, room);
    }
    for (int i = n_device; i-- > 0 && mem_room_bytes() < n_bytes;) /* what one could not spare */
        reclaim(g, i, n_bytes);
}
