/* Computes the routed experts of one device, for rows that lie in host memory; a worker (worker.h) and another process
 * (ranks/) run it. It fetches experts that are not in slots and computes in waves, as moe/ does for the device that
 * runs the layers.
 *
 * Thread-safety: one thread, the one that drives the device. */
#ifndef PLACES_COMPUTE_H
#define PLACES_COMPUTE_H

#include "backend/backend.h"
#include "experts/experts.h"
#include "places/place.h"

/* How the experts of a layer compute on a device. Names are borrowed, biases lie on that device. */
struct expert_rules {
    int64_t n_embd, n_expert, n_used;
    enum act_fn act;
    float act_limit, act_up_limit;
    struct tensor bias[EXPERT_N_MATRIX];  /* as OP_EXPERTS takes them; may be absent */
    const char *tensors[EXPERT_N_MATRIX]; /* as OP_EXPERTS takes them */
};

/* For the experts of `device`. Everything is borrowed until compute_close. Work space grows with the largest call. */
struct compute;
MUST_USE err_code compute_create(struct compute **out, struct backend *device, struct experts *experts,
                                 const struct expert_rules *rules, int n_layer, struct err *e);
void compute_close(struct compute **c); /* accepts NULL */

/* Computes a call's rows into call->y, and asks call->cancel between waves. On failure nothing is held. */
MUST_USE err_code compute_run(struct compute *c, const struct place_call *call, struct err *e);

void compute_predict(struct compute *c, int layer, const int32_t *ids, int64_t n, bool is_likely);
/* Without what place 0 counts, finish_wait_ns and the bytes: these are 0. */
struct place_layer_stats compute_layer_stats(const struct compute *c, int layer);

/* The most memory that inputs and results of a call of n_tok tokens take. */
size_t compute_room_bytes(const struct compute *c, int64_t n_tok);

/* Gives work space back, also that of the device. */
void compute_trim(struct compute *c);

#endif
