/* Sends the rows of a MoE layer that other places compute there, and brings their results back.
 *
 * Thread-safety: one thread, the one that drives the device. */
#ifndef MOE_ELSEWHERE_H
#define MOE_ELSEWHERE_H

#include "moe/moe.h"

/* Allocates host memory for n_batch tokens with n_used experts each and rows of n_embd elements. The device and the
 * places are borrowed until elsewhere_close, which accepts NULL. */
struct elsewhere;
MUST_USE err_code elsewhere_create(struct elsewhere **out, struct backend *device, const struct moe_places *places,
                                   int64_t n_batch, int64_t n_used, int64_t n_embd, struct err *e);
void elsewhere_close(struct elsewhere **w);
size_t elsewhere_bytes(const struct elsewhere *w); /* 0 for NULL */

/* A layer's tokens and their choice. */
struct elsewhere_call {
    int layer;
    struct tensor x;       /* [n_embd][n_tok] */
    struct tensor weights; /* [n_used][n_tok] factors of the experts' inputs; may be absent */
    int32_t *ids; /* [n_tok][n_used] the chosen experts; elsewhere_begin puts -1 where another place computes */
    int64_t n_used;
    const int32_t *cached; /* [n_expert] experts whose entry is not -1 are computed here in any case; NULL: none */
    const struct moe_run *run;
};

/* The device's own part of a call. */
struct elsewhere_own {
    int64_t n_row;         /* rows: entries of ids that are left to the device */
    int64_t n_replica_row; /* of these, rows of experts that other places have, too */
    int64_t compute_ns;    /* for elsewhere_finish: the time that computing them took; 0: not known */
};

/* Chooses which place computes what, and starts the other places' calls. Unless it fails, elsewhere_finish must follow.
 */
MUST_USE err_code elsewhere_begin(struct elsewhere *w, const struct elsewhere_call *c, struct elsewhere_own *own,
                                  struct err *e);

/* Waits for the results and enqueues operations that put them into y [n_embd][n_used][n_tok]. code: the result of the
 * device's own part; if it is an error, the other places are cancelled and it is returned. */
MUST_USE err_code elsewhere_finish(struct elsewhere *w, const struct elsewhere_own *own, const struct tensor *y,
                                   err_code code, struct err *e);

/* Tells the other places what a layer will probably choose. */
void elsewhere_predict(struct elsewhere *w, int layer, const int32_t *ids, int64_t n, bool is_likely);

#endif
