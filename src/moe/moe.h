/* One MoE layer: route, experts, combine, and the wave loop between them when not every expert is at hand.
 *
 * With all experts resident the layer is three enqueued operations and the host never learns who was chosen. With
 * holes, the choice is read back and the experts compute in waves as they become ready (experts.h), each wave's slot
 * table naming just its own experts, while the others and the shared expert's turn are on their way; the results are
 * combined once. The result is the same to the bit either way. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "backend/backend.h"
#include "base/cancel.h"
#include "experts/experts.h"
#include "moe/car.h"

/* A layer's weights and rules; everything borrowed. */
struct moe_layer {
    int experts_layer; /* index into the experts */
    int64_t n_embd, n_expert, n_used;
    struct weight *router; /* [n_expert][n_embd] */
    struct tensor router_bias;
    struct tensor choice_bias;  /* counts for the choice only */
    struct tensor expert_scale; /* what each expert's weight is multiplied by in the end */
    enum route_score score;
    bool norm_weights;
    float scale;
    bool weighs_input;             /* the weights multiply what goes into the experts and not what comes out */
    int64_t n_group, n_group_used; /* 1, 1: no groups */
    enum act_fn act;
    struct tensor bias[EXPERT_N_MATRIX];  /* [n_ff][n_expert] of gate and up, [n_embd][n_expert] of down; or absent */
    const char *tensors[EXPERT_N_MATRIX]; /* as in OP_EXPERTS */

    /* the shared expert: absent when shared_down is NULL */
    int64_t n_ff_shared;
    struct weight *shared_gate, *shared_up, *shared_down;
    struct weight *shared_gate_inp; /* [1][n_embd], its sigmoid scales the shared expert; may be NULL */
};

/* Activations of a MoE layer for up to n_batch tokens, shared by all layers of a model. */
struct moe_work {
    struct tensor ids, weights;             /* [n_used][n_batch] */
    struct tensor y;                        /* [n_embd][n_used][n_batch] */
    struct tensor slots;                    /* [n_expert] of a wave */
    struct tensor shared_gate, shared_up;   /* [n_ff_shared][n_batch] */
    struct tensor shared_y, shared_weight;  /* [n_embd][n_batch], [1][n_batch] */
    struct tensor guess_ids, guess_weights; /* [n_used][n_batch] */
    int32_t *host_ids, *host_guess;         /* [n_used * n_batch] */
    int32_t *host_table;                    /* [n_expert] */

    /* one token's stand-ins (car.h) */
    struct tensor scores;              /* [n_expert] */
    float *host_scores, *host_factors; /* [n_expert] */
    bool *at_hand;                     /* [n_expert] */
    int32_t *host_wanted;              /* [n_used] */
    float *host_weights, *host_ratio;  /* [n_used] */
};

/* Room for the largest of n_layer layers; all borrowed from the arena and the device buffers it opens. */
MUST_USE err_code moe_work_create(struct moe_work *w, struct backend *b, const struct moe_layer *layers, int n_layer,
                                  int64_t n_batch, struct arena *arena, struct err *e);
void moe_work_close(struct moe_work *w, struct backend *b);
size_t moe_work_bytes(struct moe_work *w); /* of its tensors */

/* Called with the experts that the router chose, ids[t * n_used + rank], after each layer's routing, and, if `guessed`
 * is not NULL, with the guess at the next layer's. Costs read-backs. */
struct moe_trace {
    void (*routed)(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    void (*guessed)(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    void *user;
};

/* The next layer, to guess what it will choose: its router is shown the state before this layer has added to it, and,
 * while one token's experts are on their way, with what those that are there add. It is right most of the time. */
struct moe_next {
    const struct moe_layer *layer;
    struct tensor router_x; /* [n_embd][M] */
    bool prefetch;          /* the guess is read ahead */
    /* Puts into router_x what the router would see if this layer's experts added up to `sum` [n_embd][M], which may be
     * router_x; absent: if the layer added nothing. */
    void (*foresee)(void *user, const struct tensor *sum);
    void *user;
};

/* Guesses at the layer's choice, as above, and has it read ahead if asked to. */
MUST_USE err_code moe_guess(struct backend *b, struct experts *experts, const struct moe_next *next, struct moe_work *w,
                            const struct moe_trace *trace, struct err *e);

/* How to run a layer; pointers may be NULL. */
struct moe_run {
    int64_t sort_cutoff; /* as in OP_EXPERTS */
    const struct moe_trace *trace;
    const struct moe_next *next; /* its choice is guessed while this layer's reads are on their way */
    const struct car *car;       /* experts that are not at hand may be stood in for: for one token only */
    const struct cancel *cancel; /* asked before each wave */
};

/* out[t] = MoE(x[t]) for the tokens of x [n_embd][M], chosen by what the router sees in router_x (mostly x itself). */
MUST_USE err_code moe_forward(struct backend *b, struct experts *experts, const struct moe_layer *l, struct moe_work *w,
                              const struct tensor *x, const struct tensor *router_x, const struct tensor *out,
                              const struct moe_run *run, struct err *e);

#endif
