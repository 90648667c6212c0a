/* What the places are and did, for the public interface. */
#include "engine/engine_internal.h"
#include "engine/sized.h"

int moebius_n_place(const moebius_engine *engine)
{
    const struct moebius_engine *g = engine;
    return g->places.n_place ? g->places.n_place : g->model->experts ? 1 : 0;
}

uint64_t moebius_expert_places(const moebius_engine *engine, int layer, int64_t expert)
{
    const struct division *d = engine->places.division;
    const moebius_moe_layer l = moebius_moe_layer_at(engine, layer);
    if (expert < 0 || expert >= l.n_expert)
        return 0;
    return d ? d->holders[layer * d->n_expert + expert] : 1;
}

static err_code check_place(const moebius_engine *g, int i, struct err *e)
{
    int n = moebius_n_place(g);
    return i >= 0 && i < n ? ERR_OK : err_set(e, ERR_USAGE, "place %d of %d: expected 0 to %d", i, n, n - 1);
}

static err_code layer_stats(const moebius_engine *g, int place, int layer, struct place_layer_stats *out, struct err *e)
{
    if (place > 0)
        return place_layer_stats(g->place[place], layer, out, e);
    const struct experts_layer_counters c = experts_layer_counters(model_experts_of(g->model, layer), layer);
    *out = g->own ? g->own[layer] : (struct place_layer_stats){0};
    out->n_found = c.n_found;
    out->n_read = c.n_read;
    out->read_wait_ns = c.wait_ns;
    out->n_missed = c.n_missed;
    out->n_moved = c.n_moved;
    return ERR_OK;
}

/* Adds what a place did in a layer. */
static err_code add_layer(const moebius_engine *g, int place, int layer, moebius_place_stats *sum, struct err *e)
{
    struct place_layer_stats s;
    TRY(layer_stats(g, place, layer, &s, e));
    sum->n_call += s.n_call;
    sum->n_row += s.n_row;
    sum->n_replica_row += s.n_replica_row;
    sum->n_found += s.n_found;
    sum->n_read += s.n_read;
    sum->compute_ns += s.compute_ns;
    sum->read_wait_ns += s.read_wait_ns;
    sum->finish_wait_ns += s.finish_wait_ns;
    sum->to_bytes += s.n_to_bytes;
    sum->from_bytes += s.n_from_bytes;
    sum->n_missed += s.n_missed;
    sum->n_moved += s.n_moved;
    sum->moved_bytes += s.n_moved * experts_slot_bytes(model_experts_of(g->model, layer), layer);
    sum->move_ns += s.move_ns;
    if (place == 0) /* with several places there are no substitutes */
        sum->n_substituted += experts_layer_counters(g->model->experts, layer).n_substituted;
    return ERR_OK;
}

static err_code did(const moebius_engine *g, int place, int layer, moebius_place_stats *out, struct err *e)
{
    int n = moebius_n_moe_layer(g), first = layer < 0 ? 0 : layer, end = layer < 0 ? n : layer + 1;
    TRY(check_place(g, place, e));
    if (layer < -1 || layer >= n)
        return err_set(e, ERR_USAGE, "MoE layer %d: expected 0 to %d, or -1 for all", layer, n - 1);
    for (int i = first; i < end; i++)
        TRY(add_layer(g, place, i, out, e));
    return ERR_OK;
}

moebius_status moebius_place_did_sized(const moebius_engine *engine, int i, int layer, moebius_place_stats *out,
                                       size_t out_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_place_stats sum = {0};
    err_code code = did(engine, i, layer, &sum, &e);
    sized_give(out, out_bytes, &sum, sizeof sum);
    return engine_status(code, &e, error);
}

/* Bytes of the experts that a place computed, and the time that it took. */
static err_code measure(const moebius_engine *g, int place, double *bytes_per_s, struct err *e)
{
    double n_bytes = 0, n_ns = 0;
    for (int i = 0; i < g->model->n_moe_layer; i++) {
        struct place_layer_stats s;
        TRY(layer_stats(g, place, i, &s, e));
        n_bytes += (double)(s.n_found + s.n_read) * (double)experts_slot_bytes(model_experts_of(g->model, i), i);
        n_ns += (double)s.compute_ns;
    }
    *bytes_per_s = n_ns > 0 ? n_bytes * 1e9 / n_ns : 0;
    return ERR_OK;
}

static void count_experts(const moebius_engine *g, int place, moebius_place *out)
{
    const struct division *d = g->places.division;
    for (int l = 0; !d && l < g->model->n_moe_layer; l++)
        out->n_expert += (uint64_t)moebius_moe_layer_at(g, l).n_expert;
    for (int64_t i = 0; d && i < d->n_layer * d->n_expert; i++) {
        uint64_t is_here = d->holders[i] >> place & 1;
        out->n_expert += is_here;
        out->n_replica += is_here && d->holders[i] != UINT64_C(1) << place;
    }
}

static err_code describe(const moebius_engine *g, int place, moebius_place *out, struct err *e)
{
    struct place_facts f = {.name = engine_has_stages(g) ? "all stages" : g->devices[0].name};
    TRY(check_place(g, place, e));
    if (place > 0) {
        TRY(place_facts(g->place[place], &f, e));
    } else {
        for (int i = 0; i < g->model->n_stage; i++) {
            f.open_bytes += experts_open_bytes(g->model->stages[i].experts);
            f.all_bytes += experts_max_bytes(g->model->stages[i].experts);
        }
    }
    *out = (moebius_place){.name = f.name, .bytes = f.open_bytes, .all_bytes = f.all_bytes};
    count_experts(g, place, out);
    if (place == 0 && engine_has_cache(g)) {
        out->is_cache = true;
        out->n_expert = (uint64_t)experts_n_slot(g->model->experts);
        out->is_off_decode = g->cache.trials[CACHE_WATCH_DECODE].loses;
        out->is_off_prompts = g->cache.trials[CACHE_WATCH_PROMPT].loses;
    }
    return measure(g, place, &out->bytes_per_s, e);
}

moebius_status moebius_place_at_sized(const moebius_engine *engine, int i, moebius_place *out, size_t out_bytes,
                                      moebius_error *error)
{
    struct err e = {0};
    moebius_place place = {0};
    err_code code = describe(engine, i, &place, &e);
    sized_give(out, out_bytes, &place, sizeof place);
    return engine_status(code, &e, error);
}
