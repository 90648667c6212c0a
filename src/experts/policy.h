/* Which experts stay in a pool of slots: the eviction policy, without bytes, threads or time of day.
 *
 * The live cache and the replay of a recorded trace use this same object, so that a trace replays to the hits that the
 * run had. Time is counted in tokens, by each layer for itself: the layers behind the current one in the same token are
 * not older than it. A layer keeps a floor of slots (its top-k, or its share when the pool affords less), because a
 * pool smaller than one token's cycle would otherwise evict each expert just before it is chosen again.
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

/* What n_tok tokens chose in a layer: ids[t * n_used + rank], -1: nothing that this policy is about. */
void policy_observe(struct policy *p, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used);

/* Makes an expert as hot as if a share `rate` of all tokens had chosen it so far: what earlier runs are worth. */
void policy_seed(struct policy *p, int layer, int32_t expert, double rate);

/* The slot an expert is in, or -1. */
int64_t policy_find(const struct policy *p, int layer, int32_t expert);

/* A slot for an expert that has none, held: a free one, else the coldest expert's that nobody holds. -1 when every open
 * slot is held. *evicted: whether an expert lost its slot. */
int64_t policy_take(struct policy *p, int layer, int32_t expert, bool *evicted);
void policy_hold(struct policy *p, int64_t slot);
void policy_release(struct policy *p, int64_t slot);
/* The slot's expert is gone, and the slot free; nobody may hold it. */
void policy_drop(struct policy *p, int64_t slot);

/* Whether the policy would rather have this expert, which has no slot, than what it would give up for it. */
bool policy_prefers(const struct policy *p, int layer, int32_t expert);
/* The hottest expert without a slot, of those that were seen, if there is a free slot or it is hotter by `least` than
 * what would lose its slot for it: in doublings of the count (lru: in tokens). False: there is none. */
bool policy_find_better(const struct policy *p, double least, int *layer, int32_t *expert);
/* What slots that are a cache ask for: an expert moves in once it is twice as hot as another one. */
enum { POLICY_MOVE_GAIN = 1 }; /* so that two that are alike don't change places again and again */
/* All open slots become free, and what was observed is forgotten; nobody may hold one. */
void policy_forget(struct policy *p);

/* A closed slot, or -1; opening one makes it free. */
int64_t policy_find_closed(const struct policy *p);
void policy_open_slot(struct policy *p, int64_t slot);
/* Experts of this layer keep their slots, as if held; -1: of none. */
void policy_pin_layer(struct policy *p, int layer);

/* Whether more than n_min slots are open and one of them is free or can be taken from its expert. */
bool policy_can_spare(const struct policy *p, int64_t n_min);
/* Closes a slot when one can be spared: a free one, else the coldest expert's that nobody holds. Returns it. */
int64_t policy_close_slot(struct policy *p, int64_t n_min);

bool policy_is_open(const struct policy *p, int64_t slot);
bool policy_has_free(const struct policy *p);
int64_t policy_n_open(const struct policy *p);

#endif
