/* What a text leaves behind in each layer. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/model.h"

struct layer_state {
    struct tensor k, v;        /* attention: [head_dim][n_row][n_head_kv]; position p lies in row p % n_row */
    int64_t window;            /* positions that a token sees there; 0: all */
    int64_t oldest;            /* the first position that the caches still hold */
    struct tensor past, delta; /* recurrent: the convolution's last inputs [n_mixed][n_tap-1]; [dk][dv][n_head_v] */
};

struct model_state {
    struct backend *device;
    struct arena arena;
    int64_t n_layer, n_ctx, pos;
    bool is_recurrent; /* some layer is */
    struct layer_state *layers;
};

/* The first position that the token at pos sees in a layer. */
int64_t layer_state_first(const struct layer_state *y, int64_t pos);

/* Back to an empty text. */
void model_state_reset(struct model_state *s);

/* Before n more tokens are stored: the oldest positions of windowed layers make room for them. */
void model_state_make_room(struct model_state *s, int64_t n);

/* After a call that failed half-way: a recurrent state has changed and can't be changed back, nor can a window that
 * more than a part of tokens has been written over, so it starts afresh. */
void model_state_spoil(struct model_state *s);

#endif
