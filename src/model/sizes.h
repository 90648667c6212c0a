/* How much memory and work a model takes on a device. The code that will load and run the model finds this out before
 * the model is loaded, by running against a null device. */
#ifndef MODEL_SIZES_H
#define MODEL_SIZES_H

#include "gguf/gguf.h"
#include "model/model.h"

struct model_cost {
    uint64_t n_bytes;                 /* bytes to be read */
    uint64_t n_float;                 /* multiply-adds with recurrent state */
    uint64_t n_product[QUANT_MAX_ID]; /* multiply-adds with weights, by their type */
};

/* The cost of attention in all layers whose caches have the same window, for each position that a token sees. */
struct model_cache_cost {
    int64_t window;   /* the most positions that a token sees; 0: all */
    uint64_t n_bytes; /* bytes of the position's keys and values */
    uint64_t n_float; /* multiply-adds of the token's attention to it */
};

enum { SIZES_MAX_CACHE = 8 };

struct model_sizes {
    uint64_t weight_bytes;       /* memory of all weights but routed experts */
    uint64_t work_bytes;         /* memory of activations of n_batch tokens */
    uint64_t work_few_bytes;     /* memory of activations of n_few tokens */
    uint64_t scratch_bytes;      /* scratch memory of operations, about */
    struct model_cost token;     /* a token's products with weights, without routed experts and the output */
    struct model_cost output;    /* a token's logits */
    struct model_cost recurrent; /* reading and writing the recurrent state for a token */
    struct model_cache_cost caches[SIZES_MAX_CACHE]; /* [n_cache] */
    int n_cache;
    uint64_t checkpoint_bytes; /* the most memory that a text's checkpoints take; 0: it needs none */
};

struct model_sizes_params {
    enum elem_type type;  /* the type of caches */
    bool mtp;             /* as for model_load */
    int64_t n_batch;      /* tokens of a prompt that are computed together */
    int64_t n_few;        /* tokens that are computed together where they are few */
    int64_t n_logits;     /* rows of logits at once */
    const int64_t *n_ctx; /* [n_n_ctx] lengths of texts */
    uint64_t *text_bytes; /* out: [n_n_ctx] the most state of a text of each length, in batches of n_batch */
    int n_n_ctx;
};

/* Asks `device`, which is borrowed. Reads no tensors. ERR_UNSUPPORTED where the device can't run the model with these
 * parameters. */
MUST_USE err_code model_sizes_ask(struct model_sizes *out, const struct gguf *g, struct backend *device,
                                  const struct model_sizes_params *p, struct err *e);

/* Estimates the scratch memory of the largest operations with n_batch tokens: the hidden rows of experts, and
 * activations in the form that products take, in the order of tokens and in that of experts. */
uint64_t model_scratch_bytes(const struct model *m, int64_t n_batch);

/* The cost of one expert of a layer for one token: its multiply-adds, and the expert's bytes in the file. */
struct model_cost model_expert_cost(const struct slot_pool_desc *shape);

#endif
