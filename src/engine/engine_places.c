/* The places that compute routed experts beside the device that runs the layers. */
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "places/worker.h"
#include "ranks/ranks.h"

/* Rounds that a worker waits for the next layer before it sleeps: attention takes some hundred microseconds. */
enum { WORKER_N_SPIN = 20000 };

static int n_place(const moebius_engine *g)
{
    return engine_ranks(g) ? ranks_n(engine_ranks(g)) : g->n_device;
}

err_code engine_parse_split(moebius_engine *g, struct err *e)
{
    const char *text = g->options.split;
    if (!text)
        return ERR_OK;
    TRY(split_parse(text, &g->split, g->shares, &g->n_share, e));
    if (g->n_share && g->n_share != n_place(g))
        return err_set(e, ERR_USAGE, "split %s names %d shares for %d places: expected one for each", text, g->n_share,
                       n_place(g));
    return ERR_OK;
}

err_code engine_divide(void *engine, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                       struct division *out, struct err *e)
{
    moebius_engine *g = engine;
    int n = n_place(g);
    g->place = mem_calloc((size_t)n, sizeof(struct place *));
    g->speeds = mem_calloc((size_t)n, sizeof *g->speeds);
    if (!g->place || !g->speeds)
        return err_nomem(e, (size_t)n * sizeof *g->speeds, "the places");
    if (engine_ranks(g))
        return engine_divide_ranks(g, layers, slot_bytes, n_layer, out, e);
    for (int i = 0; i < n; i++)
        g->speeds[i] = (struct division_place){
            .room_bytes = SIZE_MAX, /* the devices share the process's memory, each what its experts take of it */
            .bytes_per_s = g->devices[i].n_threads,
            .share = i < g->n_share ? g->shares[i] : 0};
    return division_make(out, layers, slot_bytes, n_layer, g->speeds, n, &g->split, NULL, e);
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
    if (!g->place && engine_ranks(g))
        return err_set(e, ERR_USAGE, "%s has no routed experts to divide among processes: expected one process",
                       gguf_file_path(g->gguf, 0));
    if (!g->place) /* one device, or no experts */
        return ERR_OK;
    for (int i = 1; i < g->n_device; i++)
        TRY(open_worker(g, i, e));
    if (engine_ranks(g))
        TRY(engine_open_ranks(g, e));
    g->places = (struct moe_places){&g->model->division, g->speeds, g->place, n_place(g)};
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
    mem_free(g->speeds);
}
