/* Prefetching: a prediction of what the next fetch will ask for is read behind what the current one lacks. Experts that
 * have arrived stay held until that fetch begins. */
#ifndef EXPERTS_PREFETCH_H
#define EXPERTS_PREFETCH_H

#include "experts/read_requests.h"

struct prefetch {
    struct expert_slots *slots; /* these two are borrowed */
    struct read_requests *reads;
    int layer;      /* that the prediction is for; -1: none */
    bool is_likely; /* the prediction is so good that it may fill the queue */
    int32_t *ids;   /* [most experts of a layer] predicted ones that had no slot, the most probable first */
    int64_t n, next;
    int32_t *held; /* [most experts of a layer] those that have arrived */
    int64_t n_held;
    int64_t n_most;       /* of ids, so many may be read */
    bool *was_prefetched; /* [n_layer][most experts of a layer] experts that were prefetched and not asked for since */
    bool *is_seen;        /* [most experts of a layer], work space */
    uint64_t n_prefetched, n_used;
};

MUST_USE err_code prefetch_create(struct prefetch *p, struct expert_slots *slots, struct read_requests *reads,
                                  struct arena *arena, struct err *e);

/* Replaces the prediction, as experts_prefetch says; prefetch_feed then reads it. */
void prefetch_predict(struct prefetch *p, int layer, const int32_t *ids, int64_t n, bool is_likely);
/* Ends the prediction: releases what has arrived and abandons the rest. */
void prefetch_end(struct prefetch *p);

/* Requests of the prediction what there is room for. */
void prefetch_feed(struct prefetch *p);

/* An expert that no fetch waits for has arrived, held. It stays so for the prediction's layer, which may have asked for
 * it or a fetch that ended early. */
void prefetch_take(struct prefetch *p, int layer, int32_t expert);

/* A fetch asks for an expert, which is in a slot or being read (has_slot) or not. */
void prefetch_note_use(struct prefetch *p, int layer, int32_t expert, bool has_slot);

/* Forgets what was prefetched. */
void prefetch_forget(struct prefetch *p);

#endif
