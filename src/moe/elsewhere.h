/* Rows of a MoE layer that other places compute: their way there, and the results' way back.
 *
 * Thread-safety: one thread, the one that drives the device. */
#ifndef MOE_ELSEWHERE_H
#define MOE_ELSEWHERE_H

#include "moe/moe.h"

/* Host memory for n_batch tokens with n_used experts each and rows of n_embd. The device and the places are borrowed
 * until elsewhere_close, which accepts NULL. */
struct elsewhere;
MUST_USE err_code elsewhere_create(struct elsewhere **out, struct backend *device, const struct moe_places *places,
                                   int64_t n_batch, int64_t n_used, int64_t n_embd, struct err *e);
void elsewhere_close(struct elsewhere **w);
size_t elsewhere_bytes(const struct elsewhere *w); /* 0 for NULL */

/* A layer's tokens: x [n_embd][n_tok], the experts that they chose, and weights [n_used][n_tok] that multiply what goes
 * into these, or absent. */
struct elsewhere_call {
    int layer;
    struct tensor x, weights;
    int32_t *ids; /* [n_tok][n_used]; after elsewhere_begin -1 where another place computes */
    int64_t n_used;
    const int32_t *cached; /* [n_expert] those that are not -1 are computed here, whoever has them; NULL: none */
    const struct moe_run *run;
};

/* What is left for the device itself. */
struct elsewhere_own {
    int64_t n_row;         /* entries of ids */
    int64_t n_replica_row; /* of these, of experts that other places have, too */
    int64_t compute_ns;    /* that computing them took, for elsewhere_finish; 0: not known */
};

/* Chooses who computes what, and begins the others' calls. elsewhere_finish must follow unless it fails. */
MUST_USE err_code elsewhere_begin(struct elsewhere *w, const struct elsewhere_call *c, struct elsewhere_own *own,
                                  struct err *e);

/* Waits for the results and enqueues their way into y [n_embd][n_used][n_tok]. code: what the device's own part came
 * to; after an error the others are cancelled, and it is returned. */
MUST_USE err_code elsewhere_finish(struct elsewhere *w, const struct elsewhere_own *own, const struct tensor *y,
                                   err_code code, struct err *e);

/* Tells the others what a layer is likely to choose. */
void elsewhere_predict(struct elsewhere *w, int layer, const int32_t *ids, int64_t n, bool is_likely);

#endif
