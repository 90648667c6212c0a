#include "experts/prefetch.h"

#include <string.h>

/* One in so many of a group's slots may be held for a prediction. */
enum { HELD_SHARE = 4 };

static size_t n_all(const struct prefetch *p)
{
    return (size_t)p->slots->n_layer * (size_t)p->slots->n_expert;
}

err_code prefetch_create(struct prefetch *p, struct expert_slots *slots, struct read_requests *reads,
                         struct arena *arena, struct err *e)
{
    size_t most = (size_t)slots->n_expert;
    *p = (struct prefetch){.slots = slots, .reads = reads, .layer = -1};
    p->ids = arena_calloc(arena, most, sizeof *p->ids);
    p->held = arena_calloc(arena, most, sizeof *p->held);
    p->was_prefetched = arena_calloc(arena, n_all(p), sizeof *p->was_prefetched);
    p->is_seen = arena_calloc(arena, most, sizeof *p->is_seen);
    return p->ids && p->held && p->was_prefetched && p->is_seen ? ERR_OK : err_nomem(e, n_all(p), "prefetching");
}

void prefetch_end(struct prefetch *p)
{
    if (p->layer < 0)
        return;
    for (int64_t i = 0; i < p->n_held; i++)
        slots_release(p->slots, p->layer, p->held[i]);
    for (int i = 0; i < p->reads->n_request; i++) {
        struct read_request *q = &p->reads->requests[i];
        if (q->is_busy && !q->is_wanted && !q->is_abandoned && q->layer == p->layer)
            request_abandon(p->reads, q);
    }
    p->layer = -1;
    p->n_held = 0;
}

void prefetch_predict(struct prefetch *p, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    const struct slot_layer *l = &p->slots->layers[layer];
    prefetch_end(p);
    if (l->group->is_resident)
        return;
    p->layer = layer;
    p->is_likely = is_likely;
    p->n = p->next = 0;
    p->n_most = (policy_n_open(l->group->policy) + HELD_SHARE - 1) / HELD_SHARE;
    memset(p->is_seen, 0, (size_t)l->d.n_expert * sizeof *p->is_seen);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || !slots_is_here(p->slots, layer, ids[i]))
            continue;
        if (!p->is_seen[ids[i]] && slots_find(p->slots, layer, ids[i]) < 0)
            p->ids[p->n++] = ids[i];
        p->is_seen[ids[i]] = true;
    }
}

/* A likely prediction may fill the queue. Another is read one expert at a time, when no other part is being read or
 * waits: if it is wrong, what is asked for instead has little to wait for. */
void prefetch_feed(struct prefetch *p)
{
    while (p->layer >= 0 && p->next < p->n && p->next < p->n_most &&
           (p->is_likely || p->reads->n_reading + p->reads->n_waiting == 0) &&
           requests_start(p->reads, p->layer, p->ids[p->next], false)) {
        p->was_prefetched[p->layer * p->slots->n_expert + p->ids[p->next]] = true;
        p->next++;
        p->n_prefetched++;
    }
}

void prefetch_take(struct prefetch *p, int layer, int32_t expert)
{
    if (layer == p->layer && p->n_held < p->n_most)
        p->held[p->n_held++] = expert;
    else
        slots_release(p->slots, layer, expert);
}

void prefetch_note_use(struct prefetch *p, int layer, int32_t expert, bool has_slot)
{
    bool *was_prefetched = &p->was_prefetched[layer * p->slots->n_expert + expert];
    p->n_used += *was_prefetched && has_slot;
    *was_prefetched = false;
}

void prefetch_forget(struct prefetch *p)
{
    memset(p->was_prefetched, 0, n_all(p) * sizeof *p->was_prefetched);
}
