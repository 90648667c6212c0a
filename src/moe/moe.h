/* One MoE layer: route, experts, combine, and the wave loop between them when not every expert has a slot.
 *
 * With all experts resident the layer is three enqueued operations and the host never learns who was chosen. Otherwise
 * the choice is read back, the missing experts are fetched (experts.h), and they compute in waves as they become ready:
 * each wave's slot table names its own experts alone. The shared expert computes while reads are on their way. The
 * results are combined once, in rank order, so the result is the same to the bit either way.
 *
 * With several places the choice is read back, too: each gets the rows that have an expert there, all compute at once,
 * and what comes back takes its place among the results before they are combined.
 *
 * Where this device's slots are a cache of what the others have (division.has_cache), it computes what it finds in its
 * slots when the layer is called, and the others the rest: nothing is fetched here.
 *
 * Thread-safety: one thread, the one that drives the device. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "backend/backend.h"
#include "base/cancel.h"
#include "base/pool.h"
#include "experts/experts.h"
#include "moe/car.h"
#include "places/division.h"
#include "places/place.h"
#include "places/place_speeds.h"

/* A layer's weights and rules. Everything is borrowed. */
struct moe_layer {
    int experts_layer;                   /* the layer's index in the experts: MoE layers alone are counted */
    int64_t n_embd;                      /* the width of the residual stream */
    int64_t n_latent;                    /* the width that routed experts work in; n_embd where there is no latent */
    struct weight *latent_down;          /* [n_latent][n_embd], in front of the routed experts; or NULL */
    struct weight *latent_up;            /* [n_embd][n_latent], behind their sum; or NULL */
    struct tensor latent_norm;           /* [n_latent], of an RMS norm of the sum in front of that; may be absent */
    float norm_eps;                      /* of it */
    int64_t n_expert, n_used;            /* how many routed experts there are, and how many each token gets */
    struct weight *router;               /* [n_expert][n_embd] */
    struct tensor router_bias;           /* [n_expert], added to the router's logits; may be absent */
    struct tensor choice_bias;           /* [n_expert], added to the scores for the choice alone; may be absent */
    struct tensor token_experts;         /* I32 [n_used][n_vocab], the experts of each token; absent: they are chosen */
    struct tensor expert_scale;          /* [n_expert], multiplies each expert's final weight; may be absent */
    enum route_score score;              /* how logits become scores */
    bool norm_weights;                   /* the chosen weights are divided by their sum */
    float scale;                         /* the weights are then multiplied by this */
    bool weighs_input;                   /* the weights multiply what goes into the experts and not what comes out */
    int64_t n_group, n_group_used;       /* experts are chosen from the best groups alone; 1, 1: no groups */
    enum act_fn act;                     /* the activation of routed and shared experts */
    float act_limit, shared_act_limit;   /* its limits in routed experts and in the shared one (OP_ACT_MUL) */
    float act_up_limit;                  /* of up, in both */
    struct tensor bias[EXPERT_N_MATRIX]; /* as OP_EXPERTS takes them; may be absent */
    const char *tensors[EXPERT_N_MATRIX]; /* the names of the file's tensors, as OP_EXPERTS takes them */

    /* Small experts of which each stands beside a few routed ones ("adjugates"): what these get it gets, too, and its
     * result is weighed as theirs, times a factor. There is no shared expert then. */
    struct slot_pool *adjugates;       /* all of them; NULL: there are none */
    struct tensor adjugate_slots;      /* I32 [n_expert], the slot of each routed expert's */
    int64_t n_adjugate, n_ff_adjugate; /* how many there are, their width */
    float adjugate_scale;
    const char *adjugate_tensors[EXPERT_N_MATRIX]; /* as `tensors` */

    int64_t n_ff_shared;            /* the shared expert's width */
    struct weight *shared_gate;     /* [n_ff_shared][n_embd] */
    struct weight *shared_up;       /* [n_ff_shared][n_embd]; NULL: the gate's products are both */
    struct weight *shared_down;     /* [n_embd][n_ff_shared]; NULL: there is no shared expert */
    struct weight *shared_gate_inp; /* [1][n_embd], whose sigmoid scales the shared expert; may be NULL */
};

/* Where experts are computed beside the device that runs the layers, which is place 0. Everything is borrowed. */
struct moe_places {
    const struct division *division;
    struct place_speeds *speeds;   /* by which calls are divided, and what the places' times are added to */
    struct place *const *places;   /* [n_place]; the first is NULL */
    int n_place;                   /* 2 or more */
    bool is_cache_used;            /* the first one, if it is a cache, computes what it holds */
    struct place_layer_stats *own; /* [n_layer] calls, rows and time of place 0, which its layers add to */
    struct pool *pool;             /* of place 0; NULL: it has no threads but its own */
    int n_own_thread;              /* that the pool uses while other places compute */
};

/* Activations of a MoE layer, shared by all MoE layers of a model. */
struct moe_work;

/* Room for n_batch tokens in the largest of n_layer layers. The device, its experts and the other places (NULL: there
 * are none) are borrowed until moe_work_close, which accepts NULL. */
MUST_USE err_code moe_work_create(struct moe_work **out, struct backend *device, struct experts *experts,
                                  const struct moe_places *places, const struct moe_layer *layers, int n_layer,
                                  int64_t n_batch, struct err *e);
void moe_work_close(struct moe_work **w);
size_t moe_work_bytes(const struct moe_work *w); /* of its tensors in device memory; 0 for NULL */

/* Called during a layer with expert ids[t * n_used + rank], best first. Costs read-backs. */
struct moe_trace {
    /* the router's choice, before substitutes take the place of some */
    void (*routed)(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* the next layer's choice, as predicted in this one; may be NULL */
    void (*predicted)(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    void *user;
};

/* The layer whose choice is predicted: its router is shown the state before the layer that is running has added to it
 * and then, while a single token's experts are on their way, with what those that are there add. */
struct moe_next {
    const struct moe_layer *layer;
    struct tensor router_x; /* [n_embd][M], work space for what the router is shown */
    struct tensor tokens;   /* I32 [M], of the vocabulary; for layers with token_experts */
    bool prefetch;          /* the predicted experts are read ahead of the layer */
    /* Fills router_x with what the router would see if the experts of the layer that is running added up to `sum`
     * [n_embd][M], which may be router_x; absent: if that layer added nothing. */
    void (*fill_router_x)(void *user, const struct tensor *sum);
    void *user;
};

/* Predicts the choice of next->layer before it runs, and prefetches it if asked to. `trace` may be NULL. */
MUST_USE err_code moe_predict(struct moe_work *w, const struct moe_next *next, const struct moe_trace *trace,
                              struct err *e);

enum { MOE_MAX_CAR = 64 };

/* How to run a layer. Pointers may be NULL. */
struct moe_run {
    int64_t sort_cutoff; /* as in OP_EXPERTS */
    const struct moe_trace *trace;
    const struct moe_next *next; /* its choice is predicted while this layer's reads are on their way */
    /* Lets experts that are in slots stand in for those that are not, for each of the first n_car tokens (at most
     * MOE_MAX_CAR) whose entry is not NULL. */
    const struct car *const *car;
    int64_t n_car;               /* 0 with several places */
    struct tensor tokens;        /* I32 [M], of the vocabulary; for layers with token_experts */
    bool is_decode;              /* all tokens were sampled: counted as such */
    const struct cancel *cancel; /* asked before each wave */
};

/* out[t] = MoE(x[t]) for the M tokens of x [n_embd][M], 1 to n_batch of them, chosen by what the router sees in
 * router_x [n_embd][M], mostly x itself. `out` may be x. An error is the experts' or the device's; after it nothing is
 * held. */
MUST_USE err_code moe_forward(struct moe_work *w, const struct moe_layer *l, const struct tensor *x,
                              const struct tensor *router_x, const struct tensor *out, const struct moe_run *run,
                              struct err *e);

#endif
