/* The routed experts of a layer on one device: all at once where each has a slot, else in waves as they become ready.
 *
 * Thread-safety: one thread, the one that drives the device. */
#ifndef PLACES_WAVES_H
#define PLACES_WAVES_H

#include "backend/backend.h"
#include "experts/experts.h"

/* A layer's experts and the tokens that chose them. Everything is borrowed. */
struct waves {
    struct backend *device;
    struct experts *experts;
    int layer;       /* counts MoE layers only */
    enum act_fn act; /* this and the next four: as OP_EXPERTS takes them */
    float act_limit, act_up_limit;
    const struct tensor *bias;  /* [EXPERT_N_MATRIX] */
    const char *const *tensors; /* [EXPERT_N_MATRIX] */
    struct tensor x;            /* [n_embd][n_tok] */
    struct tensor ids;          /* I32 [n_used][n_tok]; -1: computed elsewhere */
    struct tensor weights;      /* [n_used][n_tok] factors of gate's and up's products; absent: none */
    struct tensor y;            /* [n_embd][n_used][n_tok] results; rows that are computed elsewhere stay as they are */
    struct tensor slots;        /* I32 [n_expert], work space: the slot table of a wave */
    int32_t *host_slots;        /* the same in host memory */
    int64_t sort_cutoff;        /* as in OP_EXPERTS */
};

/* Enqueues the experts that a slot table names. */
void waves_enqueue(const struct waves *w, const struct tensor *slots);

/* Computes those experts of the present fetch (experts_fetch_begin) that are ready: *n is how many, 0 if all have been
 * computed. */
MUST_USE err_code waves_next(const struct waves *w, int64_t *n, struct err *e);

#endif
