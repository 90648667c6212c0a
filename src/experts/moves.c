#include "experts/moves.h"

#include <string.h>

err_code moves_create(struct moves *m, struct expert_slots *slots, struct fetch *fetch, struct arena *arena,
                      struct err *e)
{
    *m = (struct moves){.slots = slots, .fetch = fetch};
    m->held = arena_calloc(arena, (size_t)slots->n_expert, sizeof *m->held);
    return m->held ? ERR_OK : err_nomem(e, (size_t)slots->n_expert * sizeof *m->held, "a cache of experts");
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

void moves_end(struct moves *m)
{
    for (int64_t i = 0; i < m->n_held; i++)
        slots_release(m->slots, m->layer, m->held[i]);
    m->n_held = 0;
}

/* The slot of an expert whose bytes are there, or -1. */
static int64_t find_whole(const struct moves *m, int layer, int32_t expert)
{
    return requests_find(m->fetch->reads, layer, expert) ? -1 : slots_find(m->slots, layer, expert);
}

int64_t moves_begin(struct moves *m, int layer, const int32_t *ids, int64_t n, bool is_used, int32_t *table)
{
    enum { NONE = -1, MISSED = -2 };
    struct experts_layer_counters *c = &m->fetch->counters[layer];
    int64_t n_expert = m->slots->layers[layer].d.n_expert;
    moves_end(m);
    m->layer = layer;
    for (int64_t i = 0; i < n_expert; i++)
        table[i] = NONE;
    for (int64_t i = 0; i < n; i++) {
        int32_t expert = ids[i];
        if (table[expert] != NONE)
            continue;
        int64_t slot = is_used ? find_whole(m, layer, expert) : NONE;
        table[expert] = slot < 0 ? MISSED : (int32_t)slot;
        *(slot < 0 ? &c->n_missed : &c->n_found) += 1;
        if (slot < 0)
            continue;
        slots_hold(m->slots, layer, expert);
        m->held[m->n_held++] = expert;
    }
    for (int64_t i = 0; i < n_expert; i++)
        table[i] = table[i] == MISSED ? NONE : table[i];
    return m->n_held;
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

/* The layer with an index in a group. */
static int layer_of(const struct moves *m, const struct slot_group *g, int index)
{
    int i = 0;
    while (m->slots->layers[i].group != g || m->slots->layers[i].index != index)
        i++;
    return i;
}

/* Some expert without a slot, of those that nobody has chosen yet: alike of all layers. False: there is none. */
static bool find_unseen(const struct moves *m, const struct slot_group *g, int *layer, int32_t *expert)
{
    for (int32_t i = 0; i < m->slots->n_expert; i++)
        for (int l = 0; l < m->slots->n_layer; l++) {
            const struct slot_layer *y = &m->slots->layers[l];
            if (y->group != g || i >= y->d.n_expert || slots_find(m->slots, l, i) >= 0)
                continue;
            *layer = l;
            *expert = i;
            return true;
        }
    return false;
}

static bool find_in_group(const struct moves *m, const struct slot_group *g, int *layer, int32_t *expert)
{
    int index;
    if (!policy_find_better(g->policy, POLICY_MOVE_GAIN, &index, expert))
        return policy_has_free(g->policy) && find_unseen(m, g, layer, expert);
    *layer = layer_of(m, g, index);
    return true;
}

bool moves_find(struct moves *m, int *layer, int32_t *expert)
{
    for (int i = 0; i < m->slots->n_group; i++) {
        int group = (m->group + i) % m->slots->n_group;
        if (!find_in_group(m, &m->slots->groups[group], layer, expert))
            continue;
        m->group = group + 1;
        return true;
    }
    return false;
}

bool moves_start(struct moves *m, int layer, int32_t expert, const struct expert_bytes *from)
{
    struct read_requests *r = m->fetch->reads;
    moves_end(m);
    if (!r->queue || !(from ? requests_copy(r, layer, expert, from) : requests_start(r, layer, expert, false)))
        return false;
    m->fetch->counters[layer].n_moved++;
    fetch_advance(m->fetch, false); /* a copy may be there */
    return true;
}

int moves_settle(struct moves *m, bool wait)
{
    moves_end(m);
    fetch_advance(m->fetch, false);
    while (wait && m->fetch->reads->n_busy > 0)
        fetch_advance(m->fetch, true);
    return m->fetch->reads->n_busy;
}
