/* Fetches in which substitutes replace some chosen experts (moe/car.h): which experts are at hand, what is counted, and
 * which of the replaced experts are read later, in idle time (backfilled).
 *
 * The logical cache of the deterministic mode is a second policy for each group. It has as many slots as the group may
 * have, sees every fetch, and gives missing experts their slots at once, however long the drive takes; so its contents
 * follow from the choices alone. The real slots may hold something else, which costs a read at most. */
#ifndef EXPERTS_SUBSTITUTES_H
#define EXPERTS_SUBSTITUTES_H

#include "experts/backfill_queue.h"
#include "experts/fetch.h"

struct substitutes {
    struct expert_slots *slots; /* these two are borrowed */
    struct fetch *fetch;
    struct backfill_queue queue;                         /* replaced experts */
    struct backfill_entry pending[EXPERTS_MAX_BACKFILL]; /* [n_pending] of them, to be read until the next token */
    int n_pending;
    int64_t n_backfill;                   /* how many the present token permits */
    uint64_t n_substituted, n_backfilled; /* this and the next two: as in struct experts_counters */
    double ratio_sum;
    int64_t n_spared;
};

/* As experts_look. */
void substitutes_look(const struct substitutes *s, int layer, bool *at_hand);

/* Counts a token's substitutes and queues the experts that they replace. */
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
