/* What a text leaves behind in each layer. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/model.h"

/* What a layer does not have is absent. */
struct layer_state {
    /* The caches of attention. Position p lies in row p % n_row. A layer that uses another's has none. */
    struct tensor k, v;  /* [head_dim][n_row][n_head_kv], [head_dim_v][n_row][n_head_kv] */
    int64_t window;      /* the most positions that a token sees there; 0: all */
    int64_t oldest;      /* the first position that the caches still hold */
    struct tensor past;  /* the last inputs of a recurrent layer's convolution, [n_mixed][n_tap-1] */
    struct tensor delta; /* the state of its delta rule, [dk][dv][n_head_v] */
};

struct model_state {
    struct backend *device;
    struct arena arena; /* of `layers` */
    int64_t n_layer;
    int64_t n_ctx;              /* positions that there is room for */
    int64_t pos;                /* tokens so far */
    bool is_recurrent;          /* some layer is */
    struct layer_state *layers; /* [n_layer] */
};

/* The first position that the token at pos sees in a layer. */
int64_t layer_state_first(const struct layer_state *y, int64_t pos);

/* Makes the text empty. */
void model_state_reset(struct model_state *s);

/* Notes that a batch of n tokens is about to be stored: they overwrite the oldest positions of windowed layers. */
void model_state_make_room(struct model_state *s, int64_t n);

/* To be called after a batch that failed half-way. The text becomes empty where the batch may have overwritten what the
 * next token needs: in recurrent layers, and in windowed ones if the batch was too large for the ring. */
void model_state_spoil(struct model_state *s);

#endif
