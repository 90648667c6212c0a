/* Slots as a cache (experts.h): which of the chosen experts they hold, and which expert is to move into one next. A
 * move is a read request, or a copy that takes the form of one. */
#ifndef EXPERTS_MOVES_H
#define EXPERTS_MOVES_H

#include "experts/fetch.h"

struct moves {
    struct expert_slots *slots; /* these two are borrowed */
    struct fetch *fetch;        /* its requests and counters are used; no fetch ever begins */
    int layer;                  /* of the present call, or of the last one */
    int32_t *held;              /* [n_held] the call's experts that are in slots; room for [most experts of a layer] */
    int64_t n_held;
    int group; /* the group that moves_find looks at first, so that groups have turns */
};

MUST_USE err_code moves_create(struct moves *m, struct expert_slots *slots, struct fetch *fetch, struct arena *arena,
                               struct err *e);

/* As experts_cache_begin, _wants, _move and _settle. The caller has told the policy what was chosen. */
int64_t moves_begin(struct moves *m, int layer, const int32_t *ids, int64_t n, bool is_used, int32_t *table);
void moves_end(struct moves *m); /* releases what the call holds */
bool moves_find(struct moves *m, int *layer, int32_t *expert);
bool moves_start(struct moves *m, int layer, int32_t expert, const struct expert_bytes *from);
int moves_settle(struct moves *m, bool wait);

#endif
