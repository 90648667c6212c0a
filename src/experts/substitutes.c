/* Turns in which experts stand in for others: who is at hand, what is learnt from the router's own choice, and what is
 * read later.
 *
 * The logical cache of the deterministic mode is one more policy object a group. It has as many slots as the group may
 * have, sees every turn, and gives what a turn lacks a slot at once, whatever the drive does, so that what it holds
 * follows from the turns alone. What the slots hold may differ from it, which costs a read at most. */
#include <assert.h>
#include <string.h>

#include "experts/experts_internal.h"

static bool is_in_slot(struct experts *x, int layer, int32_t expert)
{
    return policy_find(group_of(x, layer)->policy, x->layers[layer].index, expert) >= 0 &&
           !(x->n_busy && request_find(x, layer, expert));
}

void experts_look(struct experts *x, int layer, bool *at_hand)
{
    const struct layer_experts *l = &x->layers[layer];
    const struct policy *logical = group_of(x, layer)->logical;
    for (int32_t i = 0; i < l->d.n_expert; i++)
        at_hand[i] = logical ? policy_find(logical, l->index, i) >= 0 : is_in_slot(x, layer, i);
}

void logical_fetch(struct experts *x, int layer, const int32_t *wanted, int64_t n_tok, int64_t n_used)
{
    const struct layer_experts *l = &x->layers[layer];
    struct policy *p = group_of(x, layer)->logical;
    bool together = n_tok == 1, evicted; /* a token's experts all fit, those of many tokens may not */
    int64_t slot;
    if (!p)
        return;
    policy_observe(p, l->index, wanted, n_tok, n_used);
    for (int32_t i = 0; together && i < l->d.n_expert; i++)
        if (x->seen[i] && (slot = policy_find(p, l->index, i)) >= 0)
            policy_hold(p, slot);
    for (int32_t i = 0; i < l->d.n_expert; i++)
        if (x->seen[i] && policy_find(p, l->index, i) < 0) {
            slot = policy_take(p, l->index, i, &evicted);
            assert(slot >= 0);
            if (!together)
                policy_release(p, slot);
        }
    for (int32_t i = 0; together && i < l->d.n_expert; i++)
        if (x->seen[i])
            policy_release(p, policy_find(p, l->index, i));
}

void experts_fetch_begin_instead(struct experts *x, int layer, const struct experts_choice *c)
{
    fetch_observe(x, layer, c->wanted, 1, c->n_used);
    for (int64_t i = 0; i < c->n_used; i++) {
        if (c->ids[i] == c->wanted[i])
            continue;
        x->counters.n_substituted++;
        x->counters.ratio_sum += (double)c->ratio[i];
        x->counters.n_spared += (int64_t)is_in_slot(x, layer, c->ids[i]) - is_in_slot(x, layer, c->wanted[i]);
        backfill_queue_add(&x->backfill_queue, layer, c->wanted[i], c->scores[c->wanted[i]]);
    }
    x->n_backfill = c->n_backfill;
    fetch_begin(x, layer, c->ids, 1, c->n_used);
    logical_fetch(x, layer, c->wanted, 1, c->n_used);
}

/* ---- reading what was stood in for ---------------------------------------------------------------------------- */

void backfill_choose(struct experts *x)
{
    struct backfill_entry w;
    bool evicted;
    x->n_pending = 0;
    backfill_queue_age(&x->backfill_queue);
    while (x->n_pending < x->n_backfill && backfill_queue_pop(&x->backfill_queue, &w)) {
        struct group *g = group_of(x, w.layer);
        struct policy *p = g->logical ? g->logical : g->policy;
        int index = x->layers[w.layer].index;
        if (policy_find(p, index, w.expert) >= 0 || !policy_prefers(p, index, w.expert))
            continue;
        if (g->logical)
            policy_release(p, policy_take(p, index, w.expert, &evicted));
        x->pending[x->n_pending++] = w;
    }
    x->n_backfill = 0; /* until the next token has stand-ins */
}

void experts_backfill(struct experts *x)
{
    struct read_request *f;
    if (x->n_busy > 0 || (x->fetch.open && x->fetch.next < x->fetch.n_todo))
        return;
    while (x->n_pending > 0) {
        const struct backfill_entry *w = &x->pending[0];
        bool there = policy_find(group_of(x, w->layer)->policy, x->layers[w->layer].index, w->expert) >= 0;
        if (!there && !request_start(x, w->layer, w->expert, false, &f))
            return;
        x->n_pending--;
        memmove(x->pending, x->pending + 1, (size_t)x->n_pending * sizeof *x->pending);
        if (!there) {
            x->counters.n_backfilled++;
            return;
        }
    }
}

void experts_forget(struct experts *x)
{
    experts_fetch_end(x);
    prefetch_end(x);
    while (x->n_busy > 0) /* nobody wants them, so that failures are not reported */
        requests_complete(x, true);
    for (int i = 0; i < x->n_group; i++) {
        if (!x->groups[i].resident)
            policy_forget(x->groups[i].policy);
        if (x->groups[i].logical)
            policy_forget(x->groups[i].logical);
    }
    memset(x->guessed, 0, (size_t)(x->n_layer * x->usage.n_expert) * sizeof *x->guessed);
    x->backfill_queue.n = x->n_pending = x->n_backfill = 0;
}
