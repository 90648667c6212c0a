/* A layer's fetch: of the experts that were chosen, which are ready in their slots, which are being read, and which are
 * still to be requested. One fetch at a time (experts.h has the rules). */
#ifndef EXPERTS_FETCH_H
#define EXPERTS_FETCH_H

#include "experts/prefetch.h"

struct fetch {
    struct expert_slots *slots; /* these four are borrowed */
    struct read_requests *reads;
    struct prefetch *prefetch;
    struct pool *pool;
    bool is_open;
    int layer;               /* of this fetch, or of the last one */
    int64_t n_tok;           /* tokens that it is for */
    bool is_decode;          /* the tokens were sampled */
    bool *is_chosen;         /* [most experts of a layer] */
    int32_t *missing;        /* [n_missing] chosen experts without a slot, in the order of the file */
    int64_t n_missing, next; /* those before `next` have been requested */
    int32_t *ready;          /* [n_ready] experts in their slots that have not been given yet; held */
    int64_t n_ready;
    int32_t *given; /* [n_given] experts that the caller works with; held */
    int64_t n_given;
    int64_t n_left; /* chosen experts that have not been given yet */
    err_code code;  /* of the first read that failed */
    struct err err;
    bool is_advancing; /* what has arrived is being processed, so that the pool's hook does nothing */
    uint64_t n_hit, n_miss, n_decode_hit, n_decode_miss;
    struct experts_layer_counters *counters; /* [n_layer] */
};

MUST_USE err_code fetch_create(struct fetch *f, struct expert_slots *slots, struct read_requests *reads,
                               struct prefetch *prefetch, struct pool *pool, struct arena *arena, struct err *e);
/* Undoes fetch_open. */
void fetch_close(struct fetch *f);

/* Opens the read requests. From then on finished reads are also dealt with between the device's operations and between
 * the pool's tasks. */
MUST_USE err_code fetch_open(struct fetch *f, struct err *e);

void fetch_begin(struct fetch *f, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used, bool is_decode);
MUST_USE err_code fetch_next(struct fetch *f, int32_t *table, int64_t *n, struct err *e);
void fetch_end(struct fetch *f);

/* As experts_count_resident. */
void fetch_count_resident(struct fetch *f, int layer, const int32_t *ids, int64_t n);

/* Requests as many experts as there is room for: first what the fetch lacks, then the prediction for the next one. */
void fetch_feed(struct fetch *f);

/* Deals with reads that have ended; wait: until some expert is in its slot, unless none is being read. Experts that the
 * fetch waits for become ready, and a failure to read one fails the fetch; a failed prefetch is not reported. */
void fetch_advance(struct fetch *f, bool wait);

#endif
