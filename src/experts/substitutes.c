#include "experts/substitutes.h"

#include <assert.h>
#include <string.h>

static bool is_in_slot(const struct substitutes *s, int layer, int32_t expert)
{
    return slots_find(s->slots, layer, expert) >= 0 && !requests_find(s->fetch->reads, layer, expert);
}

void substitutes_look(const struct substitutes *s, int layer, bool *at_hand)
{
    const struct slot_layer *l = &s->slots->layers[layer];
    const struct policy *logical = l->group->logical;
    for (int32_t i = 0; i < l->d.n_expert; i++)
        at_hand[i] = logical ? policy_find(logical, l->index, i) >= 0 : is_in_slot(s, layer, i);
}

void substitutes_note(struct substitutes *s, int layer, const struct experts_choice *c)
{
    int64_t n_expert = s->slots->layers[layer].d.n_expert;
    for (int64_t i = 0; i < c->n_car * c->n_used; i++) {
        if (c->ids[i] == c->wanted[i])
            continue;
        s->n_substituted++;
        s->fetch->counters[layer].n_substituted++;
        s->ratio_sum += (double)c->ratio[i];
        s->n_spared += (int64_t)is_in_slot(s, layer, c->ids[i]) - is_in_slot(s, layer, c->wanted[i]);
        backfill_queue_add(&s->queue, layer, c->wanted[i], c->scores[i / c->n_used * n_expert + c->wanted[i]]);
    }
    s->n_backfill = c->n_backfill;
}

void substitutes_logical_fetch(struct substitutes *s, const int32_t *wanted, int64_t n_used)
{
    const struct fetch *f = s->fetch;
    const struct slot_layer *l = &s->slots->layers[f->layer];
    struct policy *p = l->group->logical;
    bool together = f->n_tok == 1, evicted; /* a token's experts all fit, those of many tokens may not */
    int64_t slot;
    if (!p)
        return;
    policy_observe(p, l->index, wanted, f->n_tok, n_used);
    for (int32_t i = 0; together && i < l->d.n_expert; i++)
        if (f->is_chosen[i] && (slot = policy_find(p, l->index, i)) >= 0)
            policy_hold(p, slot);
    for (int32_t i = 0; i < l->d.n_expert; i++)
        if (f->is_chosen[i] && policy_find(p, l->index, i) < 0) {
            slot = policy_take(p, l->index, i, &evicted);
            assert(slot >= 0);
            if (!together)
                policy_release(p, slot);
        }
    for (int32_t i = 0; together && i < l->d.n_expert; i++)
        if (f->is_chosen[i])
            policy_release(p, policy_find(p, l->index, i));
}

void substitutes_new_token(struct substitutes *s)
{
    struct backfill_entry b;
    bool evicted;
    s->n_pending = 0;
    backfill_queue_age(&s->queue);
    while (s->n_pending < s->n_backfill && backfill_queue_pop(&s->queue, &b)) {
        const struct slot_layer *l = &s->slots->layers[b.layer];
        struct policy *logical = l->group->logical, *p = logical ? logical : l->group->policy;
        if (policy_find(p, l->index, b.expert) >= 0 || !policy_prefers(p, l->index, b.expert))
            continue;
        if (logical)
            policy_release(p, policy_take(p, l->index, b.expert, &evicted));
        s->pending[s->n_pending++] = b;
    }
    s->n_backfill = 0; /* until the next token has substitutes */
}

void substitutes_backfill(struct substitutes *s)
{
    const struct fetch *f = s->fetch;
    if (f->reads->n_busy > 0 || (f->is_open && f->next < f->n_missing))
        return;
    while (s->n_pending > 0) {
        const struct backfill_entry *b = &s->pending[0];
        bool has_slot = slots_find(s->slots, b->layer, b->expert) >= 0;
        if (!has_slot && !requests_start(f->reads, b->layer, b->expert, false))
            return;
        s->n_pending--;
        memmove(s->pending, s->pending + 1, (size_t)s->n_pending * sizeof *s->pending);
        if (!has_slot) {
            s->n_backfilled++;
            return;
        }
    }
}

void substitutes_forget(struct substitutes *s)
{
    for (int i = 0; i < s->slots->n_group; i++)
        if (s->slots->groups[i].logical)
            policy_forget(s->slots->groups[i].logical);
    s->queue.n = s->n_pending = 0;
    s->n_backfill = 0;
}
