#include "experts/policy.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Tokens in which a count halves; 0: only the last use counts. Measured on recorded traces (docs/tiers.md). */
static const double half_lives[POLICY_N_KIND] = {[POLICY_LFRU] = 64, [POLICY_LRU] = 0, [POLICY_LFU] = 4096};

enum { FREE = -1, CLOSED = -2 };

struct policy_slot {
    int32_t layer;
    int32_t expert; /* or FREE, CLOSED */
    int32_t n_held;
};

struct policy {
    struct policy_desc d;
    struct arena arena;
    struct policy_slot *slots; /* [n_slot] */
    int32_t *slot_of;          /* [n_layer][n_expert], -1: none */
    double *score;             /* [n_layer][n_expert], comparable within a layer */
    int64_t *now;              /* [n_layer] tokens seen */
    double *age;               /* [n_layer] to be subtracted from a layer's scores, to compare them between layers */
    int64_t *n_in;             /* [n_layer] slots that the layer's experts have */
    int64_t n_open, n_free;
    double half_life;
    int layer;  /* the one that was observed last */
    int pinned; /* the layer whose experts keep their slots, or -1 */
};

static const char *const names[POLICY_N_KIND] = {"lfru", "lru", "lfu"};

const char *policy_name(enum policy_kind kind)
{
    return names[kind];
}

bool policy_parse(const char *name, enum policy_kind *out)
{
    for (int i = 0; i < POLICY_N_KIND; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum policy_kind)i;
            return true;
        }
    return false;
}

static void forget_scores(struct policy *p)
{
    for (int64_t i = 0; i < p->d.n_layer * p->d.n_expert; i++)
        p->score[i] = -DBL_MAX;
}

err_code policy_create(struct policy **out, const struct policy_desc *d, struct err *e)
{
    *out = NULL;
    struct policy *p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p, "a cache policy");
    size_t n_all = (size_t)d->n_layer * (size_t)d->n_expert;
    *p = (struct policy){.d = *d, .half_life = half_lives[d->kind], .pinned = -1};
    p->slots = arena_calloc(&p->arena, (size_t)d->n_slot, sizeof *p->slots);
    p->slot_of = arena_calloc(&p->arena, n_all, sizeof *p->slot_of);
    p->score = arena_calloc(&p->arena, n_all, sizeof *p->score);
    p->now = arena_calloc(&p->arena, (size_t)d->n_layer, sizeof *p->now);
    p->age = arena_calloc(&p->arena, (size_t)d->n_layer, sizeof *p->age);
    p->n_in = arena_calloc(&p->arena, (size_t)d->n_layer, sizeof *p->n_in);
    if (!p->slots || !p->slot_of || !p->score || !p->now || !p->age || !p->n_in) {
        policy_close(&p);
        return err_nomem(e, n_all * sizeof *p->score, "a cache policy");
    }
    for (int64_t i = 0; i < d->n_slot; i++)
        p->slots[i].expert = CLOSED;
    for (size_t i = 0; i < n_all; i++)
        p->slot_of[i] = -1;
    forget_scores(p);
    *out = p;
    return ERR_OK;
}

void policy_close(struct policy **p)
{
    if (*p)
        arena_close(&(*p)->arena);
    mem_free(*p);
    *p = NULL;
}

/* ---- what an expert is worth ----------------------------------------------------------------------------------

 * A count that halves every H tokens is a sum over an expert's uses of 2^((t - now) / H). Leaving out 2^(-now / H), the
 * same for all experts of a layer, and taking the logarithm gives a score that only its own uses change. */

static void add_use(struct policy *p, int layer, int32_t expert, double weight)
{
    double *s = &p->score[(int64_t)layer * p->d.n_expert + expert], now = (double)p->now[layer];
    if (p->half_life == 0) {
        *s = now;
        return;
    }
    double use = now / p->half_life + log2(weight), high = fmax(*s, use), low = fmin(*s, use);
    *s = low == -DBL_MAX ? high : high + log2(1 + exp2(low - high));
}

void policy_observe(struct policy *p, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used)
{
    p->layer = layer;
    for (int64_t t = 0; t < n_tok; t++) {
        p->now[layer]++;
        for (int64_t i = 0; i < n_used; i++)
            if (ids[t * n_used + i] >= 0)
                add_use(p, layer, ids[t * n_used + i], 1);
    }
    p->age[layer] = (double)p->now[layer] / (p->half_life == 0 ? 1 : p->half_life);
}

void policy_seed(struct policy *p, int layer, int32_t expert, double rate)
{
    double *s = &p->score[(int64_t)layer * p->d.n_expert + expert];
    if (rate <= 0)
        return;
    if (p->half_life == 0)
        *s = (double)p->now[layer] - 1 / rate;
    else /* a count that halves settles at rate / (1 - 2^(-1 / H)) */
        add_use(p, layer, expert, rate / (1 - exp2(-1 / p->half_life)));
}

/* How hot an expert is, comparable between layers. */
static double value(const struct policy *p, int layer, int32_t expert)
{
    return p->score[(int64_t)layer * p->d.n_expert + expert] - p->age[layer];
}

/* ---- slots --------------------------------------------------------------------------------------------------- */

int64_t policy_find(const struct policy *p, int layer, int32_t expert)
{
    return p->slot_of[(int64_t)layer * p->d.n_expert + expert];
}

/* The slot to evict: that of the coldest expert that nobody holds, if possible of `layer` itself or of a layer with
 * more slots than its floor. Among equals, that of the layer whose next turn is farthest away. */
static int64_t find_victim(const struct policy *p, int layer)
{
    int64_t share = p->n_open / p->d.n_layer, floor = share < p->d.n_used ? share : p->d.n_used;
    int64_t best[2] = {-1, -1}; /* above the floor; any */
    double least[2] = {0, 0};
    int distance[2] = {0, 0};
    for (int64_t i = 0; i < p->d.n_slot; i++) {
        const struct policy_slot *s = &p->slots[i];
        if (s->expert < 0 || s->n_held || s->layer == p->pinned)
            continue;
        double v = value(p, s->layer, s->expert);
        if (best[0] >= 0 && v > least[0]) /* colder ones are known, whatever the layer */
            continue;
        int behind = (p->layer - s->layer + p->d.n_layer) % p->d.n_layer;
        for (int k = s->layer == layer || p->n_in[s->layer] > floor ? 0 : 1; k < 2; k++)
            if (best[k] < 0 || v < least[k] || (v == least[k] && behind < distance[k])) {
                best[k] = i;
                least[k] = v;
                distance[k] = behind;
            }
    }
    return best[0] >= 0 ? best[0] : best[1];
}

static void empty(struct policy *p, int64_t slot)
{
    struct policy_slot *s = &p->slots[slot];
    p->slot_of[(int64_t)s->layer * p->d.n_expert + s->expert] = -1;
    p->n_in[s->layer]--;
    s->expert = FREE;
    p->n_free++;
}

static int64_t find_state(const struct policy *p, int32_t state)
{
    for (int64_t i = 0; i < p->d.n_slot; i++)
        if (p->slots[i].expert == state)
            return i;
    return -1;
}

int64_t policy_take(struct policy *p, int layer, int32_t expert, bool *evicted)
{
    assert(policy_find(p, layer, expert) < 0);
    int64_t slot = p->n_free ? find_state(p, FREE) : find_victim(p, layer);
    *evicted = slot >= 0 && !p->n_free;
    if (*evicted)
        empty(p, slot);
    if (slot < 0)
        return -1;
    p->slots[slot] = (struct policy_slot){.layer = layer, .expert = expert, .n_held = 1};
    p->slot_of[(int64_t)layer * p->d.n_expert + expert] = (int32_t)slot;
    p->n_in[layer]++;
    p->n_free--;
    return slot;
}

void policy_hold(struct policy *p, int64_t slot)
{
    assert(p->slots[slot].expert >= 0);
    p->slots[slot].n_held++;
}

void policy_release(struct policy *p, int64_t slot)
{
    assert(p->slots[slot].n_held > 0);
    p->slots[slot].n_held--;
}

void policy_drop(struct policy *p, int64_t slot)
{
    assert(p->slots[slot].expert >= 0 && p->slots[slot].n_held == 0);
    empty(p, slot);
}

bool policy_prefers(const struct policy *p, int layer, int32_t expert)
{
    int64_t slot = p->n_free ? -1 : find_victim(p, layer);
    const struct policy_slot *s = &p->slots[slot < 0 ? 0 : slot];
    return p->n_free > 0 || (slot >= 0 && value(p, s->layer, s->expert) < value(p, layer, expert));
}

bool policy_find_better(const struct policy *p, double least, int *layer, int32_t *expert)
{
    double best = 0;
    *layer = -1;
    for (int l = 0; l < p->d.n_layer; l++)
        for (int32_t i = 0; i < p->d.n_expert; i++) {
            double v = value(p, l, i);
            if (v > -DBL_MAX && policy_find(p, l, i) < 0 && (*layer < 0 || v > best)) {
                *layer = l;
                *expert = i;
                best = v;
            }
        }
    if (*layer < 0 || p->n_free > 0)
        return *layer >= 0;
    int64_t slot = find_victim(p, *layer);
    return slot >= 0 && value(p, p->slots[slot].layer, p->slots[slot].expert) + least < best;
}

void policy_forget(struct policy *p)
{
    for (int64_t i = 0; i < p->d.n_slot; i++)
        if (p->slots[i].expert >= 0)
            policy_drop(p, i);
    memset(p->now, 0, (size_t)p->d.n_layer * sizeof *p->now);
    memset(p->age, 0, (size_t)p->d.n_layer * sizeof *p->age);
    p->layer = 0;
    forget_scores(p);
}

int64_t policy_find_closed(const struct policy *p)
{
    return p->n_open < p->d.n_slot ? find_state(p, CLOSED) : -1;
}

void policy_open_slot(struct policy *p, int64_t slot)
{
    assert(p->slots[slot].expert == CLOSED);
    p->slots[slot].expert = FREE;
    p->n_free++;
    p->n_open++;
}

void policy_pin_layer(struct policy *p, int layer)
{
    p->pinned = layer;
}

bool policy_can_spare(const struct policy *p, int64_t n_min)
{
    return p->n_open > n_min && (p->n_free > 0 || find_victim(p, p->layer) >= 0);
}

int64_t policy_close_slot(struct policy *p, int64_t n_min)
{
    assert(policy_can_spare(p, n_min));
    int64_t slot = p->n_free ? find_state(p, FREE) : find_victim(p, p->layer);
    if (p->slots[slot].expert >= 0)
        empty(p, slot);
    p->slots[slot].expert = CLOSED;
    p->n_free--;
    p->n_open--;
    return slot;
}

bool policy_is_open(const struct policy *p, int64_t slot)
{
    return p->slots[slot].expert != CLOSED;
}

bool policy_has_free(const struct policy *p)
{
    return p->n_free > 0;
}

int64_t policy_n_open(const struct policy *p)
{
    return p->n_open;
}
