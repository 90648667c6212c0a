/* A layer's turn: who was chosen, who is there, who must be read, who is ready. */
#include <assert.h>
#include <string.h>

#include "experts/experts_internal.h"

/* Experts given at once while others are still to be read: few enough that the reads behind them keep the drive busy
 * until the next look at it. */
enum { WAVE = 8 };

static void release(struct experts *x, int32_t *experts, int64_t *n)
{
    struct layer_experts *l = &x->layers[x->fetch.layer];
    struct policy *policy = group_of(x, x->fetch.layer)->policy;
    for (int64_t i = 0; i < *n; i++)
        policy_release(policy, policy_find(policy, l->index, experts[i]));
    *n = 0;
}

void experts_fetch_end(struct experts *x)
{
    struct fetch *t = &x->fetch;
    if (!t->open)
        return;
    release(x, t->given, &t->n_given);
    release(x, t->ready, &t->n_ready);
    for (int i = 0; i < x->n_request; i++)
        x->requests[i].wanted = false;
    t->open = false;
}

/* Sorts a chosen expert in: at hand, on its way, or to be read. */
static void choose(struct experts *x, int32_t expert)
{
    struct fetch *t = &x->fetch;
    struct group *g = group_of(x, t->layer);
    struct read_request *f = x->n_busy ? request_find(x, t->layer, expert) : NULL;
    int64_t slot = policy_find(g->policy, x->layers[t->layer].index, expert);
    bool hit = slot >= 0 && !f, *guessed = &x->guessed[t->layer * x->usage.n_expert + expert];
    x->counters.n_prefetch_used += *guessed && slot >= 0;
    *guessed = false;
    if (f) {
        request_want(x, f);
    } else if (hit) {
        policy_hold(g->policy, slot);
        t->ready[t->n_ready++] = expert;
    } else {
        t->todo[t->n_todo++] = expert;
    }
    t->n_left++;
    *(hit ? &x->counters.n_hit : &x->counters.n_miss) += 1;
    if (t->n_tok == 1)
        *(hit ? &x->counters.n_decode_hit : &x->counters.n_decode_miss) += 1;
}

void fetch_feed(struct experts *x)
{
    struct fetch *t = &x->fetch;
    struct read_request *f;
    while (t->open && t->next < t->n_todo && request_start(x, t->layer, t->todo[t->next], false, &f)) {
        f->wanted = true;
        t->next++;
    }
    if (!t->open || t->next == t->n_todo)
        prefetch_feed(x);
    requests_feed(x);
}

void fetch_observe(struct experts *x, int layer, const int32_t *wanted, int64_t n_tok, int64_t n_used)
{
    experts_fetch_end(x);
    assert(!group_of(x, layer)->resident);
    if (layer <= x->fetch.layer) /* the layers come in ascending order */
        backfill_choose(x);
    policy_observe(group_of(x, layer)->policy, x->layers[layer].index, wanted, n_tok, n_used);
    usage_add(&x->usage, layer, wanted, (size_t)(n_tok * n_used));
}

void fetch_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used)
{
    struct fetch *t = &x->fetch;
    const struct layer_experts *l = &x->layers[layer];
    t->open = true;
    t->layer = layer;
    t->n_tok = n_tok;
    t->n_left = t->n_todo = t->next = 0;
    t->code = ERR_OK;
    memset(x->seen, 0, (size_t)l->d.n_expert * sizeof *x->seen);
    for (int64_t i = 0; i < n_tok * n_used; i++)
        x->seen[ids[i]] = true;
    for (int32_t i = 0; i < l->d.n_expert; i++) /* ascending, as they lie in the file */
        if (x->seen[i])
            choose(x, i);
    prefetch_end(x);
    fetch_feed(x);
}

void experts_fetch_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used)
{
    fetch_observe(x, layer, ids, n_tok, n_used);
    fetch_begin(x, layer, ids, n_tok, n_used);
    logical_fetch(x, layer, ids, n_tok, n_used);
}

err_code experts_fetch_next(struct experts *x, int32_t *table, int64_t *n, struct err *e)
{
    struct fetch *t = &x->fetch;
    const struct layer_experts *l = &x->layers[t->layer];
    assert(t->open);
    *n = 0;
    release(x, t->given, &t->n_given);
    err_code code = requests_open(x, e);
    if (code == ERR_OK) {
        fetch_feed(x);
        requests_complete(x, false);
        while (t->code == ERR_OK && t->n_ready == 0 && t->n_left > 0) {
            assert(x->n_busy > 0); /* nothing is held here but by flights and a guess, which begins when all this
                                      turn lacks is on its way: so a slot can always be had */
            requests_complete(x, true);
        }
        code = t->code == ERR_OK ? ERR_OK : err_set(e, t->code, "%s", t->err.text);
    }
    if (code != ERR_OK) {
        experts_fetch_end(x);
        return code;
    }
    memset(table, 0xff, (size_t)l->d.n_expert * sizeof *table); /* all -1 */
    bool reading = x->n_busy > 0 || t->next < t->n_todo;
    while (t->n_ready > 0 && (*n < WAVE || !reading)) {
        int32_t expert = t->ready[--t->n_ready];
        table[expert] = (int32_t)policy_find(group_of(x, t->layer)->policy, l->index, expert);
        t->given[t->n_given++] = expert;
        ++*n;
    }
    t->n_left -= *n;
    return ERR_OK;
}
