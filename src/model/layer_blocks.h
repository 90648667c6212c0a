/* What the blocks of the forward pass share: the tokens that they work on, and the smallest of them. */
#ifndef MODEL_LAYER_BLOCKS_H
#define MODEL_LAYER_BLOCKS_H

#include "model/state.h"
#include "model/work_space.h"

/* The entries of compressed caches that tokens complete, in layers of one ratio. */
struct entry_list {
    int64_t n;
    struct tensor at;    /* [n] the last position of each, */
    struct tensor index; /* its number, */
    struct tensor table; /* where its text's page tables begin, */
    struct tensor first; /* and its first position */
    struct tensor rope;  /* [n_rot][n] angles of these */
};

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
    bool keeps_inputs;             /* some of their tokens may be taken back */
    int64_t ahead;                 /* positions from the texts' ends to the batch; 0 unless it guesses */
    int64_t first;                 /* a ubatch's first token in the batch; of the batch 0 */
    int64_t n;                     /* tokens */
    int64_t n_out;                 /* tokens of the batch whose results are kept */
    struct tensor ids, pos;        /* [n] */
    struct tensor table, from, to; /* [n], as in backend.h */
    struct tensor before;          /* [n], as in struct stage_work */
    struct tensor x, h;     /* the residual stream, [n_stream * n_embd][n], and room for a branch of it, [n_embd][n] */
    struct tensor spare;    /* as large as x; h where there is one stream */
    struct tensor mix;      /* the tokens' weights of several streams */
    struct tensor bank;     /* [n_bank * n_embd][n], what x was when layers banked it; */
    int64_t n_banked;       /* so many have */
    struct tensor out_rows; /* the tokens whose results are kept; once x holds these alone, else absent */
    struct tensor rope[MODEL_MAX_ROPE];         /* [n_rot][n] */
    struct entry_list entries[MODEL_MAX_RATIO]; /* of each of the model's ratios */
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

/* The norm of whole rows of the residual stream: times w, plus a bias that may be absent. */
void block_norm_rows(const struct pass *p, const struct tensor *x, const struct tensor *w, const struct tensor *bias,
                     const struct tensor *out);

/* x *= number, and *= the number in `factor` unless that is NULL */
void block_scale(const struct pass *p, const struct tensor *x, float number, const struct tensor *factor);

/* out = x + y */
void block_add(const struct pass *p, const struct tensor *x, const struct tensor *y, const struct tensor *out);

/* out = the weighted sum of the banked residual streams, of which there are some, and x; out may be x. */
void block_residuals(const struct pass *p, const struct stream_weights *s, const struct tensor *x,
                     const struct tensor *out);

/* Whether layer i banks the residual stream. */
static inline bool block_banks(const struct model *m, int64_t i)
{
    return m->bank_period && i % m->bank_period == 0;
}

/* Banks x, which begins anew. */
void block_bank(const struct pass *p);

/* h = what a block begins with: the norm of x (block_norm_rows) or, of several streams or banked ones, of their
 * weighted sum, or the mean of gated streams; of several `mix` then gets what weighs them behind the block. */
void block_begin(const struct pass *p, const struct stream_weights *s, const struct tensor *x, const struct tensor *mix,
                 const struct tensor *norm, const struct tensor *norm_bias, const struct tensor *h);

/* Where parts are added to what they see (model.normed_scale), makes p->x of h. */
void block_keep_normed(const struct pass *p, const struct tensor *h);

/* out = p->x + residual_scale * y or, of several streams, what p->mix makes of them and y. out may be p->x; y is
 * overwritten. */
void block_end(const struct pass *p, const struct tensor *y, const struct tensor *out);

/* ---- mixers (mix.c) ------------------------------------------------------------------------------------------ */

/* x += mixer(norm(x)) of layer i, if it has one: attention or the recurrent layer that stands for it. */
void block_mix(const struct pass *p, int64_t i);

/* Puts the keys and values of layer i, an attention with its own, into the cache, and computes no more of it. */
void block_store(const struct pass *p, int64_t i);

/* Whether all tokens of the batch see all positions before them, as no more than n_chosen are there. */
bool block_sees_all(const struct pass *p, int64_t n_chosen);

/* How many of the layers [first, end) are recurrent. */
int64_t block_n_recurrent(const struct model *m, int64_t first, int64_t end);

/* Keeps a ubatch's rows of x, those of tokens that may be taken back, in `kept`, which counts those of all texts from
 * the first; absent: nowhere. */
void block_keep_rows(const struct pass *p, const struct tensor *x, const struct tensor *kept);

/* Takes recurrent layer i through the p->n rows from `row` on of the inputs that are kept, again. */
void block_recur_again(const struct pass *p, int64_t i, int64_t row);

/* ---- embeddings of n-grams (ngram.c) --------------------------------------------------------------------------- */

/* Finds the rows of the table that the batch's tokens have, and has the drive begin with them. */
void block_find_ngrams(const struct pass *p);

/* x += what comes of the embeddings of a ubatch, in front of layer i, if it has that. Reads them. */
MUST_USE err_code block_add_ngrams(const struct pass *p, int64_t i, struct err *e);

/* The convolution of layer i, if it has that, sees the p->n rows from `row` on of the inputs that are kept, again. */
void block_ngrams_again(const struct pass *p, int64_t i, int64_t row);

/* ---- compressed caches (entries.c) ----------------------------------------------------------------------------- */

/* Writes the lists of the entries that a batch completes, and their angles. */
void block_list_entries(struct pass *p);

/* Cuts the lists to those of a ubatch. */
void block_cut_entries(const struct pass *p, struct pass *ubatch);

#endif
