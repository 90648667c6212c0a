/* What the blocks of the forward pass share: the tokens that they work on, and the smallest of them. */
#ifndef MODEL_LAYER_BLOCKS_H
#define MODEL_LAYER_BLOCKS_H

#include "model/state.h"
#include "model/work_space.h"

/* What the blocks work on: a batch or one of its ubatches. Tensors are cut to its number of tokens. */
struct pass {
    const struct model *m;
    const struct state_pool *pool; /* of all its texts */
    struct model_work *work;
    struct stage_work *w; /* of the stage in hand, as are the tensors below and these two */
    const struct model_stage *stage;
    const struct model_forward_params *p;
    struct backend *b;
    const struct model_rows *rows; /* [n_rows], the texts */
    int64_t n_rows;
    bool keeps_inputs;                  /* some of their tokens may be taken back */
    int64_t first;                      /* a ubatch's first token in the batch; of the batch 0 */
    int64_t n;                          /* tokens */
    int64_t n_out;                      /* tokens of the batch whose results are kept */
    struct tensor ids, pos;             /* [n] */
    struct tensor table, from, to;      /* [n], as in backend.h */
    struct tensor x, h;                 /* the residual stream, [n_embd][n], and room for a branch of it */
    struct tensor out_rows;             /* the tokens whose results are kept; once x holds these alone, else absent */
    struct tensor rope[MODEL_MAX_ROPE]; /* [n_rot][n] */
};

/* Elements [first, first + n) of a list. */
static inline struct tensor list_part(struct tensor t, int64_t first, int64_t n)
{
    t.off_bytes += (size_t)first * sizeof(int32_t);
    t.ne[0] = n;
    t.ne[1] = 1;
    return t;
}

/* A work tensor seen as ne1 rows of ne0. */
static inline struct tensor tensor_shaped(struct tensor t, int64_t ne0, int64_t ne1)
{
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    return t;
}

/* Each group of n elements of x over its root mean square, times w [n] or for a whole row. */
void block_norm(const struct pass *p, const struct tensor *x, const struct tensor *w, int64_t n,
                const struct tensor *out);

/* x *= number, and *= the number in `factor` unless that is NULL */
void block_scale(const struct pass *p, const struct tensor *x, float number, const struct tensor *factor);

/* out = x + y */
void block_add(const struct pass *p, const struct tensor *x, const struct tensor *y, const struct tensor *out);

/* out = x + residual_scale * y: the residual stream and a branch. y is overwritten. */
void block_add_branch(const struct pass *p, const struct tensor *y, const struct tensor *out);

/* ---- mixers (mix.c) ------------------------------------------------------------------------------------------ */

/* x += mixer(norm(x)) of layer i, if it has one: attention or the recurrent layer that stands for it. */
void block_mix(const struct pass *p, int64_t i);

/* Whether all tokens of the batch see all positions before them, as no more than n_chosen are there. */
bool block_sees_all(const struct pass *p, int64_t n_chosen);

/* How many of the layers [first, end) are recurrent. */
int64_t block_n_recurrent(const struct model *m, int64_t first, int64_t end);

/* Takes recurrent layer i through the p->n rows from `row` on of the inputs that are kept, again. */
void block_recur_again(const struct pass *p, int64_t i, int64_t row);

#endif
