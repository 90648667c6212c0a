/* The plan of a running engine: with the memory, the devices and the division of experts that it has. */
#include <math.h>
#include <stdio.h>

#include "engine/engine_internal.h"
#include "engine/planning_internal.h"
#include "ranks/ranks.h"
#include "vulkan/vulkan.h"

/* Whose experts are where. */
static void look_at_division(const moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    const struct division *d = &g->model->division;
    int64_t n_all = 0, n_here = 0;
    size_t all = 0;
    s->n_cpu_moe = 0;
    for (int i = 0; g->places.n_place && i < p->facts.n_moe; i++) {
        s->n_cpu_moe += (division_holders(d, i, 0) & 1) == 0;
        for (int32_t k = 0; k < p->facts.layers[i].n_expert; k++, n_all++)
            n_here += (int64_t)(division_holders(d, i, k) & 1);
        all += (size_t)p->facts.layers[i].n_expert * p->facts.layers[i].slot_bytes;
    }
    if (engine_has_cache(g)) {
        s->split = PLAN_SPLIT_CACHE;
        s->gpu_share = all ? (double)engine_cache_bytes(g, experts_max_bytes) / (double)all : 0;
    } else if (g->asked.split.kind == SPLIT_EXPERTS && n_here < n_all) {
        s->split = PLAN_SPLIT_SHARE;
        s->gpu_share = (double)n_here / (double)n_all;
    }
}

/* GPU i with the memory that the engine holds there or that is free, and with the speeds that were measured. */
static struct machine_gpu gpu_of(const struct machine *m, const moebius_engine *g, int i)
{
    const struct engine_device *d = &g->devices[i];
    struct machine_gpu gpu = {0};
    if (d->asked.number < m->n_gpu)
        gpu = m->gpus[d->asked.number];
    snprintf(gpu.name, sizeof gpu.name, "%s", d->name);
    gpu.free_bytes = vulkan_get_memory(d->vulkan).allocated_bytes + backend_room_bytes(d->device);
    return gpu;
}

/* The GPUs that run the layers. */
static void look_at_gpus(moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    const struct machine m = p->machine;
    bool has_stages = engine_has_stages(g);
    if (!engine_has_own_memory(g, 0))
        return;
    p->machine.n_gpu = has_stages ? g->n_stage : 1;
    for (int i = 0; i < p->machine.n_gpu; i++)
        p->machine.gpus[i] = gpu_of(&m, g, i);
    s->uses_gpu = true;
    s->vram_bytes = 0;
    s->n_gpu = p->machine.n_gpu;
    if (has_stages || (!g->places.n_place && engine_is_streaming(g))) /* what GPUs have no room for is read */
        s->split = PLAN_SPLIT_STAGES;
    else
        look_at_division(p, g, s);
}

/* Of layers that are divided among devices, plans know only those on GPUs with memory of their own. */
static bool can_plan(const moebius_engine *g)
{
    bool all = true;
    for (int i = 0; i < g->n_stage; i++)
        all &= engine_has_own_memory(g, i);
    return all || !engine_has_stages(g);
}

/* Threads that compute, not those that only load for a GPU. */
static int n_computing_threads(const moebius_engine *g)
{
    int n = 0;
    for (int i = 0; i < g->n_device; i++)
        n += g->devices[i].asked.is_vulkan ? 0 : g->devices[i].asked.n_threads;
    return n ? n : g->asked.devices[0].n_threads;
}

/* A running engine's memory is what it was given, whatever else is free now. */
static void take_memory(moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    s->own_bytes = 0;
    s->ram_bytes = g->bound_bytes;
    if (!g->bound_bytes)
        p->machine.ram_bytes = p->machine.free_bytes = 0;
    s->expert_bytes = (uint64_t)g->options.expert_ram_bytes;
    s->expert_share = g->options.expert_ram_share;
    s->state_bytes = (uint64_t)g->options.state_bytes;
    s->n_threads = n_computing_threads(g);
}

/* Which part of the experts rank 0 and the busiest rank compute, and the longest round trip, as a layer waits for all
 * ranks. Of a replica each holder counts as computing an equal part. */
static void look_at_ranks(moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    const struct ranks *r = engine_ranks(g);
    double did[DIVISION_MAX_PLACE] = {0}, n_all = 0, n_here = 0;
    p->machine.n_rank = r ? ranks_n(r) : 0;
    p->machine.rank_round_trip_s = 0;
    for (int i = 1; i < p->machine.n_rank; i++)
        p->machine.rank_round_trip_s =
            fmax(p->machine.rank_round_trip_s, (double)ranks_link(r, i).round_trip_ns * 1e-9);
    for (int i = 0; r && i < p->facts.n_moe; i++)
        for (int32_t k = 0; k < p->facts.layers[i].n_expert; k++, n_all++) {
            uint64_t holders = division_holders(&g->model->division, i, k);
            n_here += (double)(holders & 1);
            for (int rank = 0; rank < p->machine.n_rank; rank++)
                did[rank] += (double)(holders >> rank & 1) / __builtin_popcountll(holders);
        }
    for (int rank = 0; rank < p->machine.n_rank && n_all > 0; rank++)
        s->rank_most = fmax(s->rank_most, did[rank] / n_all);
    s->rank_part = n_all > 0 ? n_here / n_all : 0;
}

err_code planning_of_engine(moebius_plan *p, const void *engine, const moebius_plan_options *o, struct err *e)
{
    const moebius_engine *g = engine;
    struct planning_facts_params params = planning_facts_params_of(o);
    params.process_bytes = g->facts.process_bytes;
    params.mtp = g->options.mtp;
    if (engine_ranks(g) && engine_has_own_memory(g, 0))
        return err_set(e, ERR_UNSUPPORTED, "a plan of several processes with GPUs");
    if (!can_plan(g))
        return err_set(e, ERR_UNSUPPORTED, "a plan of layers on several devices in the machine's memory");
    TRY(planning_machine_read(&p->machine, NULL, e));
    TRY(planning_facts_describe(&p->facts, g->gguf, gguf_file_path(g->gguf, 0), &params, e));
    struct plan_settings s = planning_settings_of(p, o);
    s.is_running = true;
    take_memory(p, g, &s);
    s.place_bytes = engine_places_bytes(g, s.n_batch);
    if (o->kv == g->refused.kv && s.n_ctx >= g->refused.n_ctx)
        s.least_bytes = g->refused.need_bytes;
    look_at_ranks(p, g, &s);
    look_at_gpus(p, g, &s);
    s.sort_cutoff = tuning_measured_cutoff(engine_tuning(g), p->facts.fingerprint);
    return planning_make(p, o, &s, e);
}
