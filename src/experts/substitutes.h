/* Fetches in which experts stand in for others (moe/car.h): which experts are at hand, what is counted, and which of
 * those that were stood in for are read later, in idle time.
 *
 * The logical cache of the deterministic mode is one more policy a group. It has as many slots as the group may have,
 * sees every fetch, and gives what a fetch lacks a slot at once, whatever the drive does, so that what it holds follows
 * from the choices alone. What the slots hold may differ from it, which costs a read at most. */
#ifndef EXPERTS_SUBSTITUTES_H
#define EXPERTS_SUBSTITUTES_H

#include "experts/backfill_queue.h"
#include "experts/fetch.h"

struct substitutes {
    struct expert_slots *slots; /* these two are borrowed */
    struct fetch *fetch;
    struct backfill_queue queue; /* experts that were stood in for */
    struct backfill_entry
        pending[EXPERTS_MAX_BACKFILL]; /* of these, those to be read until the next token, best first */
    int n_pending;
    int64_t n_backfill; /* how many the token in hand permits */
    uint64_t n_substituted, n_backfilled;
    double ratio_sum;
    int64_t n_spared;
};

/* As experts_look. */
void substitutes_look(const struct substitutes *s, int layer, bool *at_hand);

/* Counts a token's substitutes and queues those that they stand in for. */
void substitutes_note(struct substitutes *s, int layer, const struct experts_choice *c);

/* A new token begins: chooses what may be read in idle time until the next one. */
void substitutes_new_token(struct substitutes *s);
/* As experts_backfill. */
void substitutes_backfill(struct substitutes *s);

/* Shows the fetch that was just begun to the logical cache, if there is one. */
void substitutes_logical_fetch(struct substitutes *s, const int32_t *wanted, int64_t n_used);

/* Empties the logical caches and the queue. */
void substitutes_forget(struct substitutes *s);

#endif
