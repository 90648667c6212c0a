/* Experts on their way into slots that are a cache of what other places have: from those places' memory where they are
 * in this process, else from the store. */
#include "base/clock.h"
#include "engine/engine_internal.h"

bool engine_has_cache(const moebius_engine *g)
{
    return g->places.n_place && g->places.division->has_cache;
}

size_t engine_cache_bytes(const moebius_engine *g, size_t (*bytes)(const struct experts *x))
{
    return engine_has_cache(g) ? bytes(g->model->experts) : 0;
}

static bool find_lender(const moebius_engine *g, int layer, int32_t expert, struct expert_bytes *out)
{
    uint64_t holders = division_holders(g->places.division, layer, expert);
    for (int i = 1; i < g->places.n_place; i++)
        if (holders >> i & 1 && place_lend(g->place[i], layer, expert, out))
            return true;
    return false;
}

static bool move(const moebius_engine *g, int layer, int32_t expert)
{
    struct expert_bytes from;
    bool is_lent = find_lender(g, layer, expert, &from);
    return experts_cache_move(g->model->experts, layer, expert, is_lent ? &from : NULL);
}

void engine_fill_cache(moebius_engine *g)
{
    struct experts *x = g->model->experts;
    int layer;
    int32_t expert;
    /* one that can't be read would be wanted again and again */
    for (int64_t left = experts_n_slot(x); left > 0 && experts_cache_wants(x, &layer, &expert); left--) {
        if (move(g, layer, expert))
            continue;
        experts_cache_settle(x, true);
        if (!move(g, layer, expert))
            break;
    }
    experts_cache_settle(x, true);
}

void engine_move_experts(moebius_engine *g)
{
    struct experts *x = g->model->experts;
    int layer;
    int32_t expert;
    while (cache_watch_may_move(&g->cache) && experts_cache_settle(x, false) == 0) {
        int64_t begin_ns = clock_ns();
        if (!experts_cache_wants(x, &layer, &expert) || !move(g, layer, expert))
            return;
        int64_t took_ns = clock_ns() - begin_ns;
        g->own[layer].move_ns += took_ns;
        cache_watch_moved(&g->cache, took_ns);
    }
}
