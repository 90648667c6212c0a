/* What a model takes on a device, found out before it is loaded by the code that will load and run it. */
#ifndef MODEL_SIZES_H
#define MODEL_SIZES_H

#include "gguf/gguf.h"
#include "model/model.h"

/* Bytes to be read, and multiply-adds. */
struct model_cost {
    uint64_t n_bytes;
    uint64_t n_float;                 /* of recurrent state */
    uint64_t n_product[QUANT_MAX_ID]; /* with weights, by their type */
};

/* Layers whose caches have one window. Of each position that a token sees: */
struct model_cache_cost {
    int64_t window;   /* positions that a token sees at most; 0: all */
    uint64_t n_bytes; /* that its keys and values take */
    uint64_t n_float; /* multiply-adds of the token's attention to it */
};

enum { SIZES_MAX_CACHE = 8 };

struct model_sizes {
    uint64_t weight_bytes;       /* memory of everything but routed experts */
    uint64_t work_bytes;         /* of activations of n_batch tokens */
    uint64_t work_few_bytes;     /* of n_few */
    uint64_t scratch_bytes;      /* about what operations keep for themselves, besides */
    struct model_cost token;     /* a token's products with weights, but for routed experts and the output */
    struct model_cost output;    /* its logits' */
    struct model_cost recurrent; /* its recurrent state, read and written */
    struct model_cache_cost caches[SIZES_MAX_CACHE]; /* [n_cache] */
    int n_cache;
    uint64_t checkpoint_bytes; /* of a text, at most; 0: it goes back without */
};

struct model_sizes_params {
    enum elem_type type;    /* of caches */
    bool mtp;               /* as model_load takes it */
    int64_t n_batch, n_few; /* tokens that are computed together, of prompts and where they are few */
    int64_t n_logits;       /* rows of logits at once */
    const int64_t *n_ctx;   /* [n_n_ctx] lengths of texts, */
    uint64_t *text_bytes;   /* and the state of each at most, taken in batches of n_batch */
    int n_n_ctx;
};

/* Asks `device`, which is borrowed, and reads nothing of the tensors. ERR_UNSUPPORTED where the device can't run the
 * model so. */
MUST_USE err_code model_sizes_ask(struct model_sizes *out, const struct gguf *g, struct backend *device,
                                  const struct model_sizes_params *p, struct err *e);

/* About what the largest operations keep besides their results with so many tokens together: of the experts the hidden
 * rows, and activations as products take them, in tokens' and in experts' order. */
uint64_t model_scratch_bytes(const struct model *m, int64_t n_batch);

/* The multiply-adds of one token with one expert of a layer, and the expert's bytes in the file. */
struct model_cost model_expert_cost(const struct slot_pool_desc *shape);

#endif
