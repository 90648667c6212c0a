/* Reading ahead: what the next turn will probably want, while the drive has nothing better to do. */
#include <string.h>

#include "experts/experts_internal.h"

/* Of a group's slots: one in so many may be held for a guess. */
enum { HELD_SHARE = 4 };

void ahead_end(struct experts *x)
{
    struct ahead *a = &x->ahead;
    if (a->layer < 0)
        return;
    const struct layer_experts *l = &x->layers[a->layer];
    struct policy *policy = group_of(x, a->layer)->policy;
    for (int64_t i = 0; i < a->n_held; i++)
        policy_release(policy, policy_find(policy, l->index, a->held[i]));
    for (int i = 0; i < x->n_flight; i++) {
        struct flight *f = &x->flights[i];
        if (f->busy && !f->wanted && !f->given_up && f->layer == a->layer)
            flight_give_up(x, f);
    }
    a->layer = -1;
    a->n_held = 0;
}

void experts_prefetch(struct experts *x, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    struct ahead *a = &x->ahead;
    struct group *g = group_of(x, layer);
    ahead_end(x);
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
    turn_feed(x);
}

bool experts_may_guess(const struct experts *x)
{
    const struct turn *t = &x->turn;
    return t->open && t->n_ready < t->n_left && (x->ahead.layer < 0 || x->ahead.next == 0);
}

/* A likely guess may fill the queue. Another is read one expert at a time, when there is no other read, neither on its
 * way nor waiting: if it is wrong, what is needed instead has little to wait for. */
void ahead_feed(struct experts *x)
{
    struct ahead *a = &x->ahead;
    struct flight *f;
    while (a->layer >= 0 && a->next < a->n && a->next < a->n_most &&
           (a->is_likely || x->n_reading + x->n_waiting == 0) &&
           flight_start(x, a->layer, a->ids[a->next], false, &f)) {
        x->guessed[a->layer * x->usage.n_expert + a->ids[a->next]] = true;
        a->next++;
        x->counters.n_prefetched++;
    }
}

void ahead_take(struct experts *x, int layer, int32_t expert)
{
    struct ahead *a = &x->ahead;
    struct policy *policy = group_of(x, layer)->policy;
    if (layer == a->layer)
        a->held[a->n_held++] = expert;
    else
        policy_release(policy, policy_find(policy, x->layers[layer].index, expert));
}
