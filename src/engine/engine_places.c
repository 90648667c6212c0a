/* The places that compute routed experts beside the device that runs the layers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "base/units_text.h"
#include "engine/engine_internal.h"
#include "engine/gate_file.h"
#include "engine/planning.h"
#include "places/worker.h"
#include "ranks/ranks.h"

/* Rounds that a worker with cores of its own waits for the next layer before it sleeps: attention takes some hundred
 * microseconds. */
enum { WORKER_N_SPIN = 20000 };

static int n_place(const moebius_engine *g)
{
    return engine_ranks(g) ? ranks_n(engine_ranks(g)) : g->n_device;
}

/* ---- what the gate says ------------------------------------------------------------------------------------------ */

static size_t all_expert_bytes(const struct expert_layer *layers, const size_t *slot_bytes, int n_layer)
{
    size_t all = 0;
    for (int i = 0; i < n_layer; i++)
        all += (size_t)layers[i].n_expert * slot_bytes[i];
    return all;
}

/* What was measured of this model and machine. False: nothing, and slots watch themselves. */
static bool ask_gate(moebius_engine *g, double share, struct gate *out)
{
    struct gate_curve curve;
    struct machine m;
    struct err e = {0};
    bool is_there = false;
    const struct asked_device *d = g->devices[0].asked.is_vulkan ? NULL : &g->devices[0].asked;
    if (!g->options.usage) /* nothing of earlier runs is to be used */
        return false;
    err_code code = gate_file_read(&curve, gguf_fingerprint(g->gguf), &is_there, &e);
    if (code == ERR_OK && is_there)
        code = planning_machine_read(&m, NULL, &e);
    if (code != ERR_OK)
        log_line(&g->log, LOG_WARN, "what moebius profile --gate found is not known: %s", e.text);
    if (code != ERR_OK || !is_there)
        return false;
    const struct gate_costs costs =
        gate_costs(&m, curve.expert_bytes, d ? d->n_threads : 0, g->devices[1].asked.n_threads);
    gate_decide(out, &curve, share, &costs);
    return true;
}

/* Slots of single experts, or as many whole layers as the first place has room for. */
static void obey_gate(moebius_engine *g, double share, int n_layer)
{
    struct gate gate;
    struct split *s = &g->asked.split;
    bool is_known = ask_gate(g, share, &gate);
    s->kind = SPLIT_CACHE;
    if (!is_known) {
        log_line(&g->log, LOG_INFO, "slots for %.0f%% of the experts beside %s, which has them all (--split cache)",
                 100 * share, g->devices[1].name);
        return;
    }
    if (!gate.passes) {
        s->kind = SPLIT_LAST;
        s->n_last = n_layer - (int)(share * n_layer + 1e-9);
    }
    log_line(&g->log, LOG_INFO, "the gate %s: %s", gate.passes ? "passes (--split cache)" : "holds (whole layers)",
             gate.reason);
}

/* A GPU whose memory has no room for all experts, and a processor, are divided as the gate says where nobody asked for
 * a split. */
static err_code choose_split(moebius_engine *g, const struct expert_layer *layers, const size_t *slot_bytes,
                             int n_layer, struct err *e)
{
    const struct engine_device *first = &g->devices[0];
    const struct split *s = &g->asked.split;
    double all = (double)all_expert_bytes(layers, slot_bytes, n_layer), room = (double)g->speeds[0].room_bytes;
    bool is_pair = g->n_device == 2 && !engine_ranks(g), is_asked = s->kind == SPLIT_GATE;
    bool is_lent = is_pair && first->asked.is_vulkan && !g->devices[1].asked.is_vulkan && engine_has_own_memory(g, 0);
    if (is_asked && !is_pair)
        return err_set(e, ERR_USAGE, "the gate decides between two devices of one process: expected two of them");
    if (!is_asked && (g->options.split || s->kind == SPLIT_LAST || !is_lent || all <= room))
        return ERR_OK;
    double share = s->cache_share > 0 ? s->cache_share : room / all;
    if (share >= 1 && is_asked)
        return err_set(e, ERR_USAGE, "--split gate, and room for all experts on the first device: expected gate:N%%");
    obey_gate(g, share, n_layer);
    return ERR_OK;
}

/* What replicas may take: devices in the host's memory share what all experts leave of it, others what they have. */
static void set_replica_rooms(moebius_engine *g, size_t all_bytes)
{
    size_t room = engine_expert_room(g, all_bytes), n = 0;
    for (int i = 0; i < g->n_device; i++)
        n += !engine_has_own_memory(g, i);
    size_t each = n > 0 && room > all_bytes ? (room - all_bytes) / n : 0;
    for (int i = 0; i < n_place(g); i++) {
        bool is_apart = engine_ranks(g) || engine_has_own_memory(g, i) || room == SIZE_MAX;
        g->speeds[i].replica_bytes = is_apart ? SIZE_MAX : each;
    }
    g->asked.split.replica_bytes = (size_t)g->options.replica_bytes;
    g->asked.split.replica_share = g->options.replica_share;
}

static void report_replicas(const moebius_engine *g, const struct division *d, size_t all_bytes)
{
    const struct split *s = &g->asked.split;
    double wanted = s->replica_bytes ? (double)s->replica_bytes : s->replica_share * (double)all_bytes,
           most = (double)all_bytes * (d->n_place - 1 - d->has_cache),
           lacks = fmin(wanted, most) - (double)d->replica_bytes;
    if (wanted <= 0)
        return;
    bool is_short = s->kind != SPLIT_RANDOM && lacks > (double)all_bytes / 100;
    log_line(&g->log, is_short ? LOG_WARN : LOG_INFO, "replicas of the hottest experts: %s%s",
             units_size(d->replica_bytes).s, is_short ? ", as memory leaves no room for more" : "");
}

err_code engine_divide(void *engine, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                       struct division *out, struct err *e)
{
    moebius_engine *g = engine;
    int n = n_place(g);
    int64_t n_expert = 0;
    size_t all_bytes = all_expert_bytes(layers, slot_bytes, n_layer);
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
    TRY(choose_split(g, layers, slot_bytes, n_layer, e));
    set_replica_rooms(g, all_bytes);
    for (int i = 0; i < n_layer; i++)
        n_expert = max_i64(n_expert, layers[i].n_expert);
    TRY(engine_past_usage(g, n_layer, n_expert, &past, e));
    err_code code =
        division_make(out, layers, slot_bytes, n_layer, g->speeds, n, &g->asked.split, past.count ? &past : NULL, e);
    usage_close(&past);
    if (code == ERR_OK)
        report_replicas(g, out, all_bytes);
    return code == ERR_OK && engine_ranks(g) ? ranks_divide(engine_ranks(g), out, e) : code;
}

/* Whether device 0 uses the cores of a device that computes nothing. */
static bool lends_cores(const moebius_engine *g, int device)
{
    return !g->devices[0].asked.is_vulkan && !g->devices[device].asked.is_vulkan;
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
                                    .n_spin = engine_has_core_each(g) && !lends_cores(g, i) ? WORKER_N_SPIN : 0};
    return worker_open(&g->place[i], &p, e);
}

err_code engine_open_places(moebius_engine *g, struct err *e)
{
    if (g->n_device > 1 && !engine_has_stages(g) && !g->model->n_moe_layer)
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
    place_speeds_init(&g->place_speeds, &g->model->division, g->speeds, g->options.deterministic);
    bool has_more = pool_n_threads(g->pool) > g->devices[0].asked.n_threads;
    g->places = (struct moe_places){.division = &g->model->division,
                                    .speeds = &g->place_speeds,
                                    .places = g->place,
                                    .n_place = n_place(g),
                                    .is_cache_used = true,
                                    .own = g->own,
                                    .pool = has_more ? g->pool : NULL,
                                    .n_own_thread = g->devices[0].asked.n_threads};
    g->cache.is_fixed = g->options.deterministic;
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
    for (int i = engine_has_cache(g); i < g->model->n_device; i++)
        n += bytes(g->model->devices[i].experts);
    return n;
}

bool engine_is_streaming(const moebius_engine *g)
{
    bool any = false;
    for (int i = engine_has_cache(g); i < g->model->n_device; i++)
        any |= !experts_all_resident(g->model->devices[i].experts);
    return any;
}

/* A part of n_bytes, as large as one number is of another. */
static size_t part_of(size_t n_bytes, size_t n, size_t of)
{
    return of ? (size_t)((double)n_bytes * ((double)n / (double)of)) : 0;
}

static err_code open_slots(moebius_engine *g, int device, size_t spare_bytes, const struct usage *past, struct err *e)
{
    struct experts *x = g->model->devices[device].experts;
    if (engine_has_own_memory(g, device))
        spare_bytes = engine_gpu_spare(g, device);
    if (device >= g->n_stage)
        return place_open(g->place[device], spare_bytes, past, e);
    TRY(experts_open(x, spare_bytes, e));
    return past ? experts_warm(x, past, e) : ERR_OK;
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
    for (int i = engine_has_cache(g); i < g->model->n_device; i++)
        left += closed_bytes(g, i);
    for (int i = engine_has_cache(g); i < g->model->n_device; i++) {
        size_t here = closed_bytes(g, i), room = mem_room_bytes(), spare = engine_kept_bytes(g);
        if (room > spare && room - spare < left) /* others' part is left, too */
            spare += part_of(room - spare, left - here, left);
        left -= here;
        TRY(open_slots(g, i, spare, past, e));
    }
    return engine_has_cache(g) ? open_slots(g, 0, engine_kept_bytes(g), past, e) : ERR_OK; /* copies come last */
}

static void reclaim(moebius_engine *g, int device, size_t n_bytes)
{
    if (engine_has_own_memory(g, device))
        return;
    if (device >= g->n_stage)
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
    if (device < g->n_stage)
        return experts_open_bytes(g->model->devices[device].experts);
    return place_facts(g->place[device], &f, &e) == ERR_OK ? f.open_bytes : 0;
}

void engine_reclaim_experts(moebius_engine *g, size_t n_bytes)
{
    int n_place = engine_ranks(g) ? 1 : g->places.n_place; /* another rank's memory is its own */
    int n_device = n_place ? n_place : g->model->n_device ? g->n_stage : 0;
    size_t open[ENGINE_MAX_DEVICE], all = 0, room, lack;
    if (engine_has_cache(g)) /* what it holds is there twice */
        reclaim(g, 0, n_bytes);
    room = mem_room_bytes();
    lack = n_bytes > room ? n_bytes - room : 0;
    for (int i = 0; i < n_device; i++)
        all += open[i] = open_bytes(g, i);
    for (int i = 0; i + 1 < n_device; i++) {
        room += part_of(lack, open[i], all);
        reclaim(g, i, room);
    }
    for (int i = n_device; i-- > 0 && mem_room_bytes() < n_bytes;) /* what one could not spare */
        reclaim(g, i, n_bytes);
}
