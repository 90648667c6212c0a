/* What a text leaves behind in each layer. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/model.h"

struct layer_state {
    struct tensor k, v;        /* attention: [head_dim][n_ctx][n_head_kv] */
    struct tensor past, delta; /* recurrent: the convolution's last inputs [n_mixed][n_tap-1]; [dk][dv][n_head_v] */
};

struct model_state {
    struct backend *device;
    struct arena arena;
    int64_t n_layer, n_ctx, pos;
    bool is_recurrent; /* some layer is */
    struct layer_state *layers;
};

/* After a call that failed half-way: a recurrent state has changed and can't be changed back, so it starts afresh. */
void model_state_spoil(struct model_state *s);

#endif
