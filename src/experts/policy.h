/* Which experts stay in a pool of slots: the eviction policy, without bytes, threads or time of day.
 *
 * The live cache and the replay of a recorded trace use this same object, so that a replayed trace has the same hits as
 * the run. Time is counted in tokens, in each layer separately, so that within a token later layers' experts don't
 * count as older. A layer keeps a floor of slots (its top-k, or its share if the pool is too small for that), because a
 * pool smaller than what one token uses in all layers would otherwise evict each expert just before it is chosen again.
 *
 *   lru   goes by the last token that chose an expert
 *   lfu   by how many tokens chose it, ageing slowly
 *   lfru  by a count that halves every 64 tokens, which makes it something between the two (D. Lee et al., LRFU, 2001)
 *
 * Slots start closed, may be opened and closed again, and are taken by an expert while open and free. Held slots are
 * never taken away. Thread-safety: one thread at a time. */
#ifndef EXPERTS_POLICY_H
#define EXPERTS_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum policy_kind { POLICY_LFRU, POLICY_LRU, POLICY_LFU, POLICY_N_KIND };

const char *policy_name(enum policy_kind kind); /* "lfru" ... */
bool policy_parse(const char *name, enum policy_kind *out);

struct policy;

struct policy_desc {
    enum policy_kind kind;
    int n_layer;
    int64_t n_expert, n_used; /* of the layer with most */
    int64_t n_slot;
};

MUST_USE err_code policy_create(struct policy **out, const struct policy_desc *d, struct err *e);
void policy_close(struct policy **p);

/* Tells the policy what n_tok tokens chose in a layer: ids[t * n_used + rank]; -1 is ignored. */
void policy_observe(struct policy *p, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used);

/* Makes an expert as hot as if a share `rate` of all tokens had chosen it so far, as it was in earlier runs. */
void policy_seed(struct policy *p, int layer, int32_t expert, double rate);

/* The slot an expert is in, or -1. */
int64_t policy_find(const struct policy *p, int layer, int32_t expert);

/* Gives a slot to an expert that has none, and holds it: a free slot, else that of the coldest expert that nobody
 * holds. -1: every open slot is held. *evicted: whether an expert lost its slot. */
int64_t policy_take(struct policy *p, int layer, int32_t expert, bool *evicted);
void policy_hold(struct policy *p, int64_t slot);
void policy_release(struct policy *p, int64_t slot);
/* Frees a slot, whose expert no longer has one; nobody may hold it. */
void policy_drop(struct policy *p, int64_t slot);

/* Whether this expert, which has no slot, is hotter than the one that would lose its slot to it. */
bool policy_prefers(const struct policy *p, int layer, int32_t expert);
/* Finds the hottest expert without a slot, of those that were ever observed, if there is a free slot or the expert is
 * hotter by `least` than the one that would lose its slot. `least` counts doublings (lru: tokens). False: none. */
bool policy_find_better(const struct policy *p, double least, int *layer, int32_t *expert);
/* `least` for slots that are a cache: an expert moves in once it is twice as hot as another one, so that two equally
 * hot experts don't change places again and again. */
enum { POLICY_MOVE_GAIN = 1 };
/* Frees all open slots and forgets what was observed; nobody may hold a slot. */
void policy_forget(struct policy *p);

/* A closed slot, or -1; opening one makes it free. */
int64_t policy_find_closed(const struct policy *p);
void policy_open_slot(struct policy *p, int64_t slot);
/* Pins a layer, whose experts then keep their slots as if they were held, in place of the one before; -1: none. */
void policy_pin_layer(struct policy *p, int layer);

/* Whether a slot can be closed: more than n_min are open, and one of them is free or can be taken from its expert. */
bool policy_can_spare(const struct policy *p, int64_t n_min);
/* Closes a slot if policy_can_spare: a free one, else that of the coldest expert that nobody holds. Returns it. */
int64_t policy_close_slot(struct policy *p, int64_t n_min);

bool policy_is_open(const struct policy *p, int64_t slot);
bool policy_has_free(const struct policy *p);
int64_t policy_n_open(const struct policy *p);

#endif
