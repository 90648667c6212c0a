/* Prefetching: experts that the next fetch will probably ask for are read after what the current one lacks. Those that
 * have arrived are held until that fetch begins. */
#ifndef EXPERTS_PREFETCH_H
#define EXPERTS_PREFETCH_H

#include "experts/read_requests.h"

struct prefetch {
    struct expert_slots *slots; /* these two are borrowed */
    struct read_requests *reads;
    int layer;       /* the layer that the prediction is for; -1: there is none */
    bool is_likely;  /* the prediction is so good that it may fill the queue */
    int32_t *ids;    /* [n] predicted experts that had no slot, the most probable first */
    int64_t n, next; /* those before `next` have been requested */
    int32_t *held;   /* [n_held] those that have arrived */
    int64_t n_held;
    int64_t n_most;                /* so many of ids may be read at most */
    bool *was_prefetched;          /* [n_layer][most experts of a layer] prefetched, and not asked for since */
    bool *is_seen;                 /* [most experts of a layer], work space */
    uint64_t n_prefetched, n_used; /* as n_prefetched and n_prefetch_used in struct experts_counters */
};

MUST_USE err_code prefetch_create(struct prefetch *p, struct expert_slots *slots, struct read_requests *reads,
                                  struct arena *arena, struct err *e);

/* Replaces the prediction, as experts_prefetch says; prefetch_feed then reads it. */
void prefetch_predict(struct prefetch *p, int layer, const int32_t *ids, int64_t n, bool is_likely);
/* Ends the prediction: releases what has arrived and abandons the rest. */
void prefetch_end(struct prefetch *p);

/* Requests as many of the predicted experts as there is room for. */
void prefetch_feed(struct prefetch *p);

/* To be called when an expert has arrived, held, that no fetch waits for: it was predicted, or a fetch that asked for
 * it ended early. It stays held if it is of the prediction's layer, else it is released. */
void prefetch_take(struct prefetch *p, int layer, int32_t expert);

/* To be called when a fetch asks for an expert. has_slot: it is in a slot or being read into one. */
void prefetch_note_use(struct prefetch *p, int layer, int32_t expert, bool has_slot);

/* Forgets what was prefetched. */
void prefetch_forget(struct prefetch *p);

#endif
