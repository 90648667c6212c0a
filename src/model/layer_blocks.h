/* What the blocks of the forward pass share: the pass that they work on, and the smallest blocks. */
#ifndef MODEL_LAYER_BLOCKS_H
#define MODEL_LAYER_BLOCKS_H

#include "model/state.h"
#include "model/work_space.h"

/* The entries of compressed caches that the tokens complete, in layers of one ratio. */
struct entry_list {
    int64_t n;
    struct tensor at;    /* [n] the last position of each entry */
    struct tensor index; /* [n] its index in the cache */
    struct tensor table; /* [n] where its text's page tables begin */
    struct tensor first; /* [n] its first position */
    struct tensor rope;  /* [n_rot][n] the angles of the first positions */
};

/* What the blocks work on: a batch or one of its ubatches. Tensors are cut to its number of tokens. */
struct pass {
    const struct model *m;
    const struct state_pool *pool; /* that all its texts use */
    struct model_work *work;
    struct stage_work *w; /* of the current stage, as are the following two and the tensors below */
    const struct model_stage *stage;
    const struct model_forward_params *p;
    struct backend *b;
    const struct model_rows *rows; /* [n_rows], the texts */
    int64_t n_rows;
    bool keeps_inputs;             /* some of their tokens may be taken back */
    int64_t ahead;                 /* positions between the texts' ends and the batch; 0 unless it guesses */
    int64_t first;                 /* a ubatch's first token in the batch; 0 for a batch */
    int64_t n;                     /* tokens */
    int64_t n_out;                 /* tokens of the batch whose results are kept */
    struct tensor ids, pos;        /* [n] */
    struct tensor table, from, to; /* [n], as in backend.h */
    struct tensor before;          /* [n], as in struct stage_work */
    struct tensor x, h;     /* the residual stream, [n_stream * n_embd][n], and room for a branch of it, [n_embd][n] */
    struct tensor spare;    /* as large as x; h where there is one stream */
    struct tensor mix;      /* the tokens' weights of several streams */
    struct tensor bank;     /* [n_bank * n_embd][n] the values of x that layers have banked */
    int64_t n_banked;       /* how many values these are */
    struct tensor out_rows; /* the tokens whose results are kept, once x holds only these; absent before */
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

/* out = the RMS norm of each n elements of x, times w, which is [n] or as long as a row. */
void block_norm(const struct pass *p, const struct tensor *x, const struct tensor *w, int64_t n,
                const struct tensor *out);

/* out = the model's norm of whole rows of x, times w, plus a bias that may be absent. */
void block_norm_rows(const struct pass *p, const struct tensor *x, const struct tensor *w, const struct tensor *bias,
                     const struct tensor *out);

/* x *= number, and *= the number in `factor` unless that is NULL */
void block_scale(const struct pass *p, const struct tensor *x, float number, const struct tensor *factor);

/* out = x + y */
void block_add(const struct pass *p, const struct tensor *x, const struct tensor *y, const struct tensor *out);

/* out = the weighted sum of the banked residual streams (at least one) and x. out may be x. */
void block_residuals(const struct pass *p, const struct stream_weights *s, const struct tensor *x,
                     const struct tensor *out);

/* Whether layer i banks the residual stream. */
static inline bool block_banks(const struct model *m, int64_t i)
{
    return m->bank_period && i % m->bank_period == 0;
}

/* Banks x and clears it. */
void block_bank(const struct pass *p);

/* h = the input of a block: the norm of x (block_norm_rows); with several streams or banked ones the norm of their
 * weighted sum; or the mean of gated streams. With several streams, `mix` gets the weights that block_end uses. */
void block_begin(const struct pass *p, const struct stream_weights *s, const struct tensor *x, const struct tensor *mix,
                 const struct tensor *norm, const struct tensor *norm_bias, const struct tensor *h);

/* Where parts are added to what they see (model.normed_scale), makes p->x of h. */
void block_keep_normed(const struct pass *p, const struct tensor *h);

/* out = p->x + residual_scale * y or, of several streams, what p->mix makes of them and y. out may be p->x; y is
 * overwritten. */
void block_end(const struct pass *p, const struct tensor *y, const struct tensor *out);

/* ---- mixers (mix.c) ------------------------------------------------------------------------------------------ */

/* x += mixer(norm(x)) of layer i, if it has a mixer: attention or a recurrent layer. */
void block_mix(const struct pass *p, int64_t i);

/* Stores the keys and values of layer i, which has attention and a cache of its own, and computes nothing else of it.
 */
void block_store(const struct pass *p, int64_t i);

/* Whether every token of the batch has no more than n_chosen positions before it, and so sees all of them. */
bool block_sees_all(const struct pass *p, int64_t n_chosen);

/* How many of the layers [first, end) are recurrent. */
int64_t block_n_recurrent(const struct model *m, int64_t first, int64_t end);

/* Copies a ubatch's rows of x that belong to tokens that may be taken back to `kept`, whose rows are those of all
 * texts. Does nothing where `kept` is absent. */
void block_keep_rows(const struct pass *p, const struct tensor *x, const struct tensor *kept);

/* Runs recurrent layer i once more over p->n rows of the kept inputs, from `row` on. */
void block_recur_again(const struct pass *p, int64_t i, int64_t row);

/* ---- embeddings of n-grams (ngram.c) --------------------------------------------------------------------------- */

/* Finds the rows of the n-gram table that the batch's tokens need, and starts reading them from the drive. */
void block_find_ngrams(const struct pass *p);

/* Reads the n-gram embeddings of a ubatch and adds what they contribute to x in front of layer i, if it has any. */
MUST_USE err_code block_add_ngrams(const struct pass *p, int64_t i, struct err *e);

/* Runs the n-gram convolution of layer i, if it has one, once more over p->n rows of the kept inputs, from `row` on. */
void block_ngrams_again(const struct pass *p, int64_t i, int64_t row);

/* ---- compressed caches (entries.c) ----------------------------------------------------------------------------- */

/* Writes the lists of the entries that a batch completes, and computes their angles. */
void block_list_entries(struct pass *p);

/* Cuts the lists to those of a ubatch. */
void block_cut_entries(const struct pass *p, struct pass *ubatch);

#endif
