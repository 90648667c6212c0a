/* What a text leaves behind in each layer. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/model.h"

struct layer_state {
    struct tensor k, v; /* [head_dim][n_ctx][n_head_kv] */
};

struct model_state {
    struct backend *device;
    struct arena arena;
    int64_t n_layer, n_ctx, pos;
    struct layer_state *layers;
};

#endif
