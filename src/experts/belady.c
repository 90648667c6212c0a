#include "experts/belady.h"

#include <assert.h>

#include "base/mem.h"

/* next[i]: the access after i to the same key, or n for none. last: [n_key] of work space. */
static void find_next(const int32_t *keys, size_t n, int32_t n_key, size_t *next, size_t *last)
{
    for (int32_t k = 0; k < n_key; k++)
        last[k] = n;
    for (size_t i = n; i-- > 0;) {
        next[i] = last[keys[i]];
        last[keys[i]] = i;
    }
}

struct belady_slots {
    int32_t *key;     /* [n_slot] */
    size_t *next;     /* [n_slot] when the key is wanted again */
    int64_t *slot_of; /* [n_key], -1: none */
    int64_t n_used, n_slot;
};

/* The slot whose key is wanted last, other than those that this fetch put in or found: they are wanted at `busy`. */
static int64_t farthest(const struct belady_slots *s)
{
    int64_t best = 0;
    for (int64_t i = 1; i < s->n_slot; i++)
        if (s->next[i] > s->next[best])
            best = i;
    return best;
}

static uint64_t run(struct belady_slots *s, const int32_t *keys, const size_t *next, const size_t *fetch_end,
                    size_t n_fetch)
{
    uint64_t n_hit = 0;
    for (size_t t = 0, begin = 0; t < n_fetch; begin = fetch_end[t++]) {
        for (size_t i = begin; i < fetch_end[t]; i++) /* what the fetch finds is held: wanted now */
            if (s->slot_of[keys[i]] >= 0) {
                s->next[s->slot_of[keys[i]]] = 0;
                n_hit++;
            }
        for (size_t i = begin; i < fetch_end[t]; i++) {
            if (s->slot_of[keys[i]] >= 0)
                continue;
            int64_t slot = s->n_used < s->n_slot ? s->n_used++ : farthest(s);
            if (s->key[slot] >= 0)
                s->slot_of[s->key[slot]] = -1;
            s->key[slot] = keys[i];
            s->slot_of[keys[i]] = slot;
            s->next[slot] = 0;
        }
        for (size_t i = begin; i < fetch_end[t]; i++)
            s->next[s->slot_of[keys[i]]] = next[i];
    }
    return n_hit;
}

err_code belady_hits(const int32_t *keys, size_t n, const size_t *fetch_end, size_t n_fetch, int32_t n_key,
                     int64_t n_slot, uint64_t *n_hit, struct err *e)
{
    assert(n_slot >= 1);
    struct arena a = {0};
    struct belady_slots s = {.n_slot = n_slot};
    size_t *next = arena_calloc(&a, n, sizeof *next), *last = arena_calloc(&a, (size_t)n_key, sizeof *last);
    s.key = arena_calloc(&a, (size_t)n_slot, sizeof *s.key);
    s.next = arena_calloc(&a, (size_t)n_slot, sizeof *s.next);
    s.slot_of = arena_calloc(&a, (size_t)n_key, sizeof *s.slot_of);
    if (!next || !last || !s.key || !s.next || !s.slot_of) {
        arena_close(&a);
        return err_nomem(e, n * sizeof *next, "the offline optimum");
    }
    find_next(keys, n, n_key, next, last);
    for (int64_t i = 0; i < n_slot; i++)
        s.key[i] = -1;
    for (int32_t k = 0; k < n_key; k++)
        s.slot_of[k] = -1;
    *n_hit = run(&s, keys, next, fetch_end, n_fetch);
    arena_close(&a);
    return ERR_OK;
}
