/* Reading ahead: what the next turn will probably want, while the drive has nothing better to do. */
#include <string.h>

#include "experts/experts_internal.h"

/* Of a group's slots: one in so many may be held for a guess. */
enum { HELD_SHARE = 4 };

void prefetch_end(struct experts *x)
{
    struct prefetch *a = &x->prefetch;
    if (a->layer < 0)
        return;
    const struct layer_experts *l = &x->layers[a->layer];
    struct policy *policy = group_of(x, a->layer)->policy;
    for (int64_t i = 0; i < a->n_held; i++)
        policy_release(policy, policy_find(policy, l->index, a->held[i]));
    for (int i = 0; i < x->n_request; i++) {
        struct read_request *f = &x->requests[i];
        if (f->busy && !f->wanted && !f->given_up && f->layer == a->layer)
            request_give_up(x, f);
    }
    a->layer = -1;
    a->n_held = 0;
}

void experts_prefetch(struct experts *x, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    struct prefetch *a = &x->prefetch;
    struct group *g = group_of(x, layer);
    prefetch_end(x);
    if (g->resident)
        return;
    a->layer = layer;
    a->is_likely = is_likely;
    a->n = a->next = 0;
    a->n_most = (policy_n_open(g->policy) + HELD_SHARE - 1) / HELD_SHARE;
    memset(x->seen, 0, (size_t)x->layers[layer].d.n_expert * sizeof *x->seen);
    for (int64_t i = 0; i < n; i++) {
        if (!x->seen[ids[i]] && policy_find(g->policy, x->layers[layer].index, ids[i]) < 0)
            a->ids[a->n++] = ids[i];
        x->seen[ids[i]] = true;
    }
    fetch_feed(x);
}

bool experts_may_guess(const struct experts *x)
{
    const struct fetch *t = &x->fetch;
    return t->open && t->n_ready < t->n_left && (x->prefetch.layer < 0 || x->prefetch.next == 0);
}

/* A likely guess may fill the queue. Another is read one expert at a time, when there is no other read, neither on its
 * way nor waiting: if it is wrong, what is needed instead has little to wait for. */
void prefetch_feed(struct experts *x)
{
    struct prefetch *a = &x->prefetch;
    struct read_request *f;
    while (a->layer >= 0 && a->next < a->n && a->next < a->n_most &&
           (a->is_likely || x->n_reading + x->n_waiting == 0) &&
           request_start(x, a->layer, a->ids[a->next], false, &f)) {
        x->guessed[a->layer * x->usage.n_expert + a->ids[a->next]] = true;
        a->next++;
        x->counters.n_prefetched++;
    }
}

void prefetch_take(struct experts *x, int layer, int32_t expert)
{
    struct prefetch *a = &x->prefetch;
    struct policy *policy = group_of(x, layer)->policy;
    if (layer == a->layer)
        a->held[a->n_held++] = expert;
    else
        policy_release(policy, policy_find(policy, x->layers[layer].index, expert));
}
