/* One MoE layer: route, experts, combine, and the wave loop between them when not every expert has a slot.
 *
 * If all experts are resident, the layer is three enqueued operations, and the host never learns which experts were
 * chosen. Otherwise the choice is read back, the missing experts are fetched (experts.h), and they compute in waves as
 * they become ready: each wave's slot table names only that wave's experts. The shared expert computes while reads are
 * on their way. The results are combined once, in rank order, so the result is the same to the bit either way.
 *
 * With several places the choice is read back, too: each place gets the rows that have an expert there, all compute at
 * once, and their results are put among this device's before they are combined.
 *
 * If this device's slots are a cache of what the other places have (division.has_cache), it computes what is in its
 * slots when the layer runs, and the other places compute the rest: nothing is fetched here.
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
    int experts_layer;             /* the layer's index in the experts, which counts MoE layers only */
    int64_t n_embd;                /* the width of the residual stream */
    int64_t n_latent;              /* the width that routed experts work in; n_embd where there is no latent */
    struct weight *latent_down;    /* [n_latent][n_embd], in front of the routed experts; or NULL */
    struct weight *latent_up;      /* [n_embd][n_latent], behind their sum; or NULL */
    struct tensor latent_norm;     /* [n_latent], the weights of an RMS norm in front of latent_up; may be absent */
    float norm_eps;                /* of that norm */
    int64_t n_expert, n_used;      /* how many routed experts there are, and how many each token gets */
    struct weight *router;         /* [n_expert][n_embd] */
    struct tensor router_bias;     /* [n_expert], added to the router's logits; may be absent */
    struct tensor choice_bias;     /* [n_expert], added to the scores for choosing only; may be absent */
    struct tensor token_experts;   /* I32 [n_used][n_vocab], fixed experts of each token; absent: a router chooses */
    struct tensor expert_scale;    /* [n_expert], multiplies each expert's final weight; may be absent */
    enum route_score score;        /* how logits become scores */
    bool norm_weights;             /* the chosen weights are divided by their sum */
    float scale;                   /* the weights are then multiplied by this */
    bool weighs_input;             /* the weights multiply the experts' inputs instead of their results */
    int64_t n_group, n_group_used; /* experts are chosen from the n_group_used best groups only; 1, 1: no groups */
    enum act_fn act;               /* the activation of routed and shared experts */
    float act_limit, shared_act_limit;    /* its limits in routed experts and in the shared one (OP_ACT_MUL) */
    float act_up_limit;                   /* the limit of up's products in both (OP_ACT_MUL) */
    struct tensor bias[EXPERT_N_MATRIX];  /* as OP_EXPERTS takes them; may be absent */
    const char *tensors[EXPERT_N_MATRIX]; /* the names of the file's tensors, as OP_EXPERTS takes them */

    /* "Adjugate" experts (GroveMoE): small experts that a few routed experts share. For each chosen expert its adjugate
     * gets the same input, and its result the same weight, times adjugate_scale. Such layers have no shared expert. */
    struct slot_pool *adjugates;       /* all of them; NULL: there are none */
    struct tensor adjugate_slots;      /* I32 [n_expert], the slot of each routed expert's adjugate */
    int64_t n_adjugate, n_ff_adjugate; /* how many there are, and their width */
    float adjugate_scale;
    const char *adjugate_tensors[EXPERT_N_MATRIX]; /* as `tensors` */

    int64_t n_ff_shared;            /* the shared expert's width */
    struct weight *shared_gate;     /* [n_ff_shared][n_embd] */
    struct weight *shared_up;       /* [n_ff_shared][n_embd]; NULL: the gate's products are both */
    struct weight *shared_down;     /* [n_embd][n_ff_shared]; NULL: there is no shared expert */
    struct weight *shared_gate_inp; /* [1][n_embd], whose sigmoid scales the shared expert; may be NULL */
};

/* The places that experts are divided among (places/place.h). Everything is borrowed. */
struct moe_places {
    const struct division *division;
    struct place_speeds *speeds;   /* the places' speeds, by which calls are divided; the layers note times there */
    struct place *const *places;   /* [n_place]; the first is NULL */
    int n_place;                   /* 2 or more */
    bool is_cache_used;            /* if place 0 is a cache: it computes what it holds */
    struct place_layer_stats *own; /* [n_layer] place 0's calls, rows and time, to which its layers add */
    struct pool *pool;             /* place 0's pool if it uses other places' cores while they are idle, else NULL */
    int n_own_thread;              /* threads that this pool uses while other places compute */
};

/* Activations of a MoE layer, shared by all MoE layers of a model. */
struct moe_work;

/* Creates work space for n_batch tokens in any of n_layer layers. The device, its experts and the places (NULL: there
 * is only this device) are borrowed until moe_work_close, which accepts NULL. */
MUST_USE err_code moe_work_create(struct moe_work **out, struct backend *device, struct experts *experts,
                                  const struct moe_places *places, const struct moe_layer *layers, int n_layer,
                                  int64_t n_batch, struct err *e);
void moe_work_close(struct moe_work **w);
size_t moe_work_bytes(const struct moe_work *w); /* of its tensors in device memory; 0 for NULL */

/* Functions that each layer calls with ids[t * n_used + rank], best first. They cost read-backs. */
struct moe_trace {
    /* with the router's choice, before substitutes replace some experts */
    void (*routed)(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* with the next layer's choice as this layer predicts it; may be NULL */
    void (*predicted)(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    void *user;
};

/* How to predict the next layer's choice: its router is applied to the residual stream without the present layer's
 * result and then, while a single token's experts are being read, again with what the experts that are there add. */
struct moe_next {
    const struct moe_layer *layer; /* the next MoE layer */
    struct tensor router_x;        /* [n_embd][M], work space for the router's input */
    struct tensor tokens;          /* I32 [M], tokens of the vocabulary; for layers with token_experts */
    bool prefetch;                 /* the predicted experts are to be prefetched */
    /* Fills router_x with what the next router would see if the present layer's experts added up to `sum` [n_embd][M]
     * (which may be router_x itself) or, if it is absent, if they added nothing. */
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
    const struct moe_next *next; /* the layer whose choice is predicted while this layer's experts are being read */
    /* [n_car] how experts that are in slots may substitute for others (car.h), for the first n_car tokens, at most
     * MOE_MAX_CAR; an entry NULL: not for this token. */
    const struct car *const *car;
    int64_t n_car;               /* 0 with several places */
    struct tensor tokens;        /* I32 [M], tokens of the vocabulary; for layers with token_experts */
    bool is_decode;              /* all tokens were sampled; they are counted apart */
    const struct cancel *cancel; /* asked before each wave */
};

/* out[t] = MoE(x[t]) for the M tokens (1 to n_batch) of x [n_embd][M]. The router's input is router_x [n_embd][M],
 * mostly x itself. `out` may be x. After an error no expert is held. */
MUST_USE err_code moe_forward(struct moe_work *w, const struct moe_layer *l, const struct tensor *x,
                              const struct tensor *router_x, const struct tensor *out, const struct moe_run *run,
                              struct err *e);

#endif
