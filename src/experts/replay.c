/* A trace against a policy, or against the offline optimum: the live cache's fetches without bytes. */
#include <stdlib.h>

#include "base/mem.h"
#include "experts/belady.h"
#include "experts/budget.h"
#include "experts/trace.h"

struct replay_group {
    struct budget_group size;
    int first_layer;
    int64_t n_choice; /* of a token, in all its layers */
    int64_t n_slot;
    struct policy *policy;
};

struct plan {
    struct arena arena;
    struct replay_group *groups;
    int n_group;
    int *index;      /* [n_layer] in its group */
    int *next;       /* [n_layer] the next layer of the same group, or n_layer */
    int32_t *missed; /* [n_used] of the layer with most: experts of one fetch */
};

static void close_plan(struct plan *p)
{
    for (int i = 0; p->groups && i < p->n_group; i++)
        policy_close(&p->groups[i].policy);
    arena_close(&p->arena);
}

static err_code divide(struct plan *p, double share, struct err *e)
{
    struct budget_group *s = arena_calloc(&p->arena, (size_t)p->n_group, sizeof *s);
    int64_t *n_slot = arena_calloc(&p->arena, (size_t)p->n_group, sizeof *n_slot);
    if (!s || !n_slot)
        return err_nomem(e, (size_t)p->n_group * sizeof *s, "a replay");
    for (int i = 0; i < p->n_group; i++)
        s[i] = p->groups[i].size;
    size_t least = budget_min_bytes(s, p->n_group), most = budget_max_bytes(s, p->n_group);
    size_t bytes = (size_t)(share * (double)most);
    if (bytes < least)
        return err_set(e, ERR_LIMIT, "a budget of %.2f%%: the top-k experts of one layer need %.2f%%", 100 * share,
                       100 * (double)least / (double)most);
    budget_divide(s, p->n_group, bytes, n_slot);
    for (int i = 0; i < p->n_group; i++)
        p->groups[i].n_slot = n_slot[i];
    return ERR_OK;
}

/* A layer goes to its group: layers are added from the last to the first. */
static void add_layer(struct plan *p, const struct trace *t, int layer)
{
    const struct trace_layer *l = &t->layers[layer];
    struct replay_group *g = &p->groups[l->group];
    p->n_group = l->group >= p->n_group ? l->group + 1 : p->n_group;
    p->next[layer] = budget_add_layer(&g->size, l->n_expert, l->n_used) > 0 ? g->first_layer : t->n_layer;
    g->first_layer = layer;
    g->size.slot_bytes = (size_t)l->slot_bytes;
    g->n_choice += l->n_used;
}

/* Groups and their slots; closes itself on failure. */
static err_code make_plan(struct plan *p, const struct trace *t, double share, struct err *e)
{
    int64_t most = 0;
    *p = (struct plan){0};
    for (int i = 0; i < t->n_layer; i++)
        most = t->layers[i].n_used > most ? t->layers[i].n_used : most;
    p->groups = arena_calloc(&p->arena, (size_t)t->n_layer, sizeof *p->groups);
    p->index = arena_calloc(&p->arena, (size_t)t->n_layer, sizeof *p->index);
    p->next = arena_calloc(&p->arena, (size_t)t->n_layer, sizeof *p->next);
    p->missed = arena_calloc(&p->arena, (size_t)most, sizeof *p->missed);
    bool ok = p->groups && p->index && p->next && p->missed;
    err_code code = ok ? ERR_OK : err_nomem(e, (size_t)t->n_layer * sizeof *p->groups, "a replay");
    for (int i = t->n_layer - 1; i >= 0 && code == ERR_OK; i--)
        add_layer(p, t, i);
    for (int g = 0; g < p->n_group && code == ERR_OK; g++)
        for (int i = p->groups[g].first_layer, n = 0; i < t->n_layer; i = p->next[i])
            p->index[i] = n++;
    if (code == ERR_OK)
        code = divide(p, share, e);
    if (code != ERR_OK)
        close_plan(p);
    return code;
}

/* ---- policies --------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* One layer's fetch for one token. */
static void replay_fetch(struct plan *p, const struct trace *t, int layer, const int32_t *ids, struct replay *out)
{
    const struct trace_layer *l = &t->layers[layer];
    struct policy *policy = p->groups[l->group].policy;
    int index = p->index[layer];
    size_t n_missed = 0;
    bool evicted;
    policy_observe(policy, index, ids, 1, l->n_used);
    for (int64_t i = 0; i < l->n_used; i++) {
        int64_t slot = policy_find(policy, index, ids[i]);
        if (slot < 0)
            p->missed[n_missed++] = ids[i];
        else
            policy_hold(policy, slot);
    }
    out->n_hit += (uint64_t)l->n_used - n_missed;
    out->n_missed_bytes += n_missed * l->slot_bytes;
    qsort(p->missed, n_missed, sizeof *p->missed, ascending); /* the order in which the live cache reads */
    for (size_t i = 0; i < n_missed; i++)
        policy_take(policy, index, p->missed[i], &evicted);
    for (int64_t i = 0; i < l->n_used; i++)
        policy_release(policy, policy_find(policy, index, ids[i]));
}

static err_code open_policies(struct plan *p, enum policy_kind kind, struct err *e)
{
    for (int i = 0; i < p->n_group; i++) {
        struct replay_group *g = &p->groups[i];
        const struct policy_desc d = {kind, g->size.n_layer, g->size.n_expert_most, g->size.n_used, g->n_slot};
        TRY(policy_create(&g->policy, &d, e));
        for (int64_t s = 0; s < g->n_slot; s++)
            policy_open_slot(g->policy, s);
    }
    return ERR_OK;
}

static const int32_t *choices(const struct trace *t, int64_t token, int layer)
{
    return t->ids + token * t->n_choice + t->layers[layer].first;
}

err_code trace_replay(const struct trace *t, enum policy_kind kind, double share, struct replay *out, struct err *e)
{
    struct plan p;
    *out = (struct replay){.n_all = (uint64_t)(t->n_tok * t->n_choice)};
    TRY(make_plan(&p, t, share, e));
    err_code code = open_policies(&p, kind, e);
    for (int64_t i = 0; i < t->n_tok && code == ERR_OK; i++)
        for (int l = 0; l < t->n_layer; l++)
            replay_fetch(&p, t, l, choices(t, i, l), out);
    close_plan(&p);
    return code;
}

/* ---- a cache ---------------------------------------------------------------------------------------------------- */

static void replay_look(struct plan *p, const struct trace *t, int layer, const int32_t *ids, struct replay *out)
{
    const struct trace_layer *l = &t->layers[layer];
    struct policy *policy = p->groups[l->group].policy;
    policy_observe(policy, p->index[layer], ids, 1, l->n_used);
    for (int64_t i = 0; i < l->n_used; i++)
        out->n_hit += policy_find(policy, p->index[layer], ids[i]) >= 0;
}

static void replay_moves(struct plan *p, int64_t most, struct replay *out)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_group && n < most; i++) {
        struct policy *policy = p->groups[i].policy;
        int layer;
        int32_t expert;
        bool evicted;
        for (; n < most && policy_find_better(policy, POLICY_MOVE_GAIN, &layer, &expert); n++)
            policy_release(policy, policy_take(policy, layer, expert, &evicted));
    }
    out->n_moved += (uint64_t)n;
}

err_code trace_replay_cache(const struct trace *t, enum policy_kind kind, double share, int64_t most_moves,
                            struct replay *out, struct err *e)
{
    struct plan p;
    *out = (struct replay){.n_all = (uint64_t)(t->n_tok * t->n_choice)};
    TRY(make_plan(&p, t, share, e));
    err_code code = open_policies(&p, kind, e);
    for (int64_t i = 0; i < t->n_tok && code == ERR_OK; i++) {
        for (int l = 0; l < t->n_layer; l++)
            replay_look(&p, t, l, choices(t, i, l), out);
        replay_moves(&p, most_moves, out);
    }
    close_plan(&p);
    return code;
}

/* ---- the optimum ------------------------------------------------------------------------------------------------ */

/* The accesses of one group's layers as keys. */
static err_code best_of_group(struct plan *p, const struct trace *t, int group, struct replay *out, struct err *e)
{
    struct replay_group *g = &p->groups[group];
    size_t n_tok = (size_t)t->n_tok, n = 0, n_fetch = 0;
    int32_t *keys = mem_calloc(n_tok * (size_t)g->n_choice, sizeof *keys);
    size_t *end = mem_calloc(n_tok * (size_t)g->size.n_layer, sizeof *end);
    uint64_t n_hit = 0;
    err_code code = keys && end ? ERR_OK : err_nomem(e, n_tok * (size_t)g->n_choice * sizeof *keys, "a replay");
    for (int64_t i = 0; i < t->n_tok && code == ERR_OK; i++)
        for (int l = g->first_layer; l < t->n_layer; l = p->next[l]) {
            for (int64_t r = 0; r < t->layers[l].n_used; r++)
                keys[n++] =
                    (int32_t)(p->index[l] * g->size.n_expert_most) + t->ids[i * t->n_choice + t->layers[l].first + r];
            end[n_fetch++] = n;
        }
    if (code == ERR_OK)
        code = belady_hits(keys, n, end, n_fetch, (int32_t)(g->size.n_layer * g->size.n_expert_most), g->n_slot, &n_hit,
                           e);
    out->n_hit += n_hit;
    out->n_missed_bytes += (n - n_hit) * g->size.slot_bytes;
    mem_free(keys);
    mem_free(end);
    return code;
}

err_code trace_replay_best(const struct trace *t, double share, struct replay *out, struct err *e)
{
    struct plan p;
    err_code code = ERR_OK;
    *out = (struct replay){.n_all = (uint64_t)(t->n_tok * t->n_choice)};
    TRY(make_plan(&p, t, share, e));
    for (int i = 0; i < p.n_group && code == ERR_OK; i++)
        code = best_of_group(&p, t, i, out, e);
    close_plan(&p);
    return code;
}
