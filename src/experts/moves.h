/* Slots as a cache (experts.h): which of a call's experts they hold, and which expert is to move into one next. Moves
 * are read requests, of which some read nothing. */
#ifndef EXPERTS_MOVES_H
#define EXPERTS_MOVES_H

#include "experts/fetch.h"

struct moves {
    struct expert_slots *slots; /* these two are borrowed */
    struct fetch *fetch;        /* whose requests and counters are used; it never begins */
    int layer;                  /* of the call in hand, or of the one before */
    int32_t *held;              /* [most experts of a layer] experts of the call */
    int64_t n_held;
    int group; /* that is asked first what it wants */
};

MUST_USE err_code moves_create(struct moves *m, struct expert_slots *slots, struct fetch *fetch, struct arena *arena,
                               struct err *e);

/* As experts_cache_begin, _end, _wants, _move and _settle; the policy has learnt the choice before. */
int64_t moves_begin(struct moves *m, int layer, const int32_t *ids, int64_t n, bool is_used, int32_t *table);
void moves_end(struct moves *m);
bool moves_find(struct moves *m, int *layer, int32_t *expert);
bool moves_start(struct moves *m, int layer, int32_t expert, const struct expert_bytes *from);
int moves_settle(struct moves *m, bool wait);

#endif
