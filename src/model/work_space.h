/* The work space of the forward pass: activations in device memory. A table names each tensor once; the fields and the
 * code that creates and closes them are generated from it. */
#ifndef MODEL_WORK_SPACE_H
#define MODEL_WORK_SPACE_H

#include "model/model.h"

/* What the work space has room for: numbers of tokens, and the lengths of rows. */
struct work_sizes {
    int64_t n_batch, n_ubatch, n_logits;
    int64_t n_embd, n_vocab;
    int64_t n_residual;                 /* n_embd of all streams of the residual stream */
    int64_t n_spare, n_mix;             /* n_residual, and numbers a token that weigh streams; 0: there is one stream */
    int64_t n_bank;                     /* of banked residual streams */
    int64_t n_recurrent;                /* n_batch in a model with recurrent layers, else 0 */
    int64_t n_next;                     /* n_embd in a model with experts, else 0 */
    int64_t n_branch;                   /* n_embd where a layer has experts and a dense branch, else 0 */
    int64_t n_input;                    /* n_embd where something behind attention sees a layer's input, else 0 */
    int64_t n_mtp;                      /* n_residual where the stage has multi-token prediction, else 0 */
    int64_t n_before;                   /* n_batch there, else 0 */
    int64_t n_token_embd, n_token_all;  /* of a token's embedding for one layer, for all layers */
    int64_t n_rope;                     /* of all rope tables */
    int64_t n_q, n_k, n_v, n_out, n_ff; /* these and the following are the largest of any layer */
    int64_t n_q_latent, n_q_rot, n_rot; /* latent attention */
    int64_t n_chosen, n_index_q, n_index_k, n_index_head; /* of an index of positions */
    int64_t n_ratio, n_entry_rot, n_compress, n_entry;    /* compressed caches */
    int64_t n_stream_rank, n_stream_gate;                 /* gates of streams, or of n-grams that go into them */
    int64_t n_ngram;                                      /* embeddings of a token's n-grams; 0: the stage has none */
    int64_t n_mixed, n_beta, n_alpha, n_rank;             /* recurrent layers */
    bool is_recurrent;                                    /* some layer of the stage is */
    bool sees_earlier; /* some layer of the stage sees the positions that one before it chose */
};

enum { ENTRY_LISTS = 4 };

/* TENSOR(name, type, ne0, ne1) with sizes from `d` (struct work_sizes). A tensor without elements is absent. These are
 * the tensors of a batch. */
#define BATCH_TENSORS(TENSOR)                                                                                          \
    TENSOR(ids, ELEM_I32, 1, d->n_batch)                                                                               \
    TENSOR(pos, ELEM_I32, 1, d->n_batch)                                                                               \
    TENSOR(table, ELEM_I32, 1, d->n_batch) /* these three as in backend.h */                                           \
    TENSOR(from, ELEM_I32, 1, d->n_recurrent)                                                                          \
    TENSOR(to, ELEM_I32, 1, d->n_recurrent)                                                                            \
    TENSOR(out_rows, ELEM_I32, 1, d->n_batch)        /* the tokens whose results are kept */                           \
    TENSOR(rope, ELEM_F32, d->n_rope, d->n_batch)    /* the model's tables, one after the other */                     \
    TENSOR(x, ELEM_F32, d->n_residual, d->n_batch)   /* the residual stream */                                         \
    TENSOR(spare, ELEM_F32, d->n_spare, d->n_batch)  /* as x, where it is several streams */                           \
    TENSOR(bank, ELEM_F32, d->n_bank, d->n_batch)    /* what x was when layers banked it */                            \
    TENSOR(mix, ELEM_F32, d->n_mix, d->n_batch)      /* what weighs these */                                           \
    TENSOR(next_mix, ELEM_F32, d->n_mix, d->n_batch) /* the same for what the next layer's router is shown */          \
    TENSOR(next_streams, ELEM_F32, d->n_spare, 1)                                                                      \
    TENSOR(stream_low, ELEM_F32, d->n_stream_rank, d->n_batch)          /* what gates streams, */                      \
    TENSOR(stream_gate, ELEM_F32, d->n_stream_gate, d->n_batch)         /* or n-grams that go into them */             \
    TENSOR(entry_lists, ELEM_I32, ENTRY_LISTS * d->n_ratio, d->n_batch) /* those of struct entry_list */               \
    TENSOR(entry_rope, ELEM_F32, d->n_ratio * d->n_entry_rot, d->n_batch)                                              \
    TENSOR(h, ELEM_F32, d->n_embd, d->n_batch)                /* a branch of it */                                     \
    TENSOR(h2, ELEM_F32, d->n_branch, d->n_batch)             /* the experts' branch beside a dense one */             \
    TENSOR(router_x, ELEM_F32, d->n_branch, d->n_batch)       /* what the router of such a layer sees */               \
    TENSOR(input, ELEM_F32, d->n_input, d->n_batch)           /* a layer's input, for what sees it later */            \
    TENSOR(next_x, ELEM_F32, d->n_next, d->n_batch)           /* what the next layer's router is shown (moe.h) */      \
    TENSOR(token_embed, ELEM_F32, d->n_token_all, d->n_batch) /* the tokens' embeddings for all layers */              \
    TENSOR(token_proj, ELEM_F32, d->n_token_all, d->n_batch)                                                           \
    TENSOR(chosen, ELEM_I32, d->n_chosen, d->n_batch)  /* what attention sees, as an index chose */                    \
    TENSOR(hidden, ELEM_F32, d->n_mtp, 2 * d->n_batch) /* normed results, and those before each text's first token */  \
    TENSOR(before, ELEM_I32, 1, d->n_before)           /* which of these is that before a token */                     \
    TENSOR(token_gate, ELEM_F32, d->n_token_embd, d->n_batch)                                                          \
    TENSOR(token_slice, ELEM_F32, d->n_token_embd, d->n_batch)

/* The tensors of a ubatch, and the logits. */
#define UBATCH_TENSORS(TENSOR)                                                                                         \
    TENSOR(q, ELEM_F32, d->n_q, d->n_ubatch) /* heads */                                                               \
    TENSOR(k, ELEM_F32, d->n_k, d->n_ubatch)                                                                           \
    TENSOR(v, ELEM_F32, d->n_v, d->n_ubatch)                                                                           \
    TENSOR(attn, ELEM_F32, d->n_out, d->n_ubatch)          /* what attention or what is recurrent gives */             \
    TENSOR(z, ELEM_F32, d->n_out, d->n_ubatch)             /* what gates that */                                       \
    TENSOR(q_latent, ELEM_F32, d->n_q_latent, d->n_ubatch) /* latent attention */                                      \
    TENSOR(q_rot, ELEM_F32, d->n_q_rot, d->n_ubatch)                                                                   \
    TENSOR(k_rot, ELEM_F32, d->n_rot, d->n_ubatch)                                                                     \
    TENSOR(index_q, ELEM_F32, d->n_index_q, d->n_ubatch) /* the index of positions */                                  \
    TENSOR(index_k, ELEM_F32, d->n_index_k, d->n_ubatch)                                                               \
    TENSOR(index_weights, ELEM_F32, d->n_index_head, d->n_ubatch)                                                      \
    TENSOR(compress_x, ELEM_F32, d->n_compress, d->n_ubatch) /* compressed caches */                                   \
    TENSOR(compress_gate, ELEM_F32, d->n_compress, d->n_ubatch)                                                        \
    TENSOR(entry, ELEM_F32, d->n_entry, d->n_ubatch)                                                                   \
    TENSOR(ngram_x, ELEM_F32, d->n_ngram, d->n_ubatch) /* embeddings of n-grams */                                     \
    TENSOR(ngram_value, ELEM_F32, d->n_ngram ? d->n_embd : 0, d->n_ubatch)                                             \
    TENSOR(ngram_out, ELEM_F32, d->n_ngram ? d->n_residual : 0, d->n_ubatch)                                           \
    TENSOR(mixed, ELEM_F32, d->n_mixed, d->n_ubatch) /* recurrent layers */                                            \
    TENSOR(convolved, ELEM_F32, d->n_mixed, d->n_ubatch)                                                               \
    TENSOR(alpha, ELEM_F32, d->n_alpha, d->n_ubatch)                                                                   \
    TENSOR(alpha_low, ELEM_F32, d->n_rank, d->n_ubatch)                                                                \
    TENSOR(z_low, ELEM_F32, d->n_rank, d->n_ubatch)                                                                    \
    TENSOR(beta, ELEM_F32, d->n_beta, d->n_ubatch)                                                                     \
    TENSOR(mtp_x, ELEM_F32, d->n_mtp, d->n_ubatch)        /* what goes into multi-token prediction's layer, */         \
    TENSOR(mtp_pair, ELEM_F32, 2 * d->n_mtp, d->n_ubatch) /* and what it is made of */                                 \
    TENSOR(gate, ELEM_F32, d->n_ff, d->n_ubatch)          /* dense feed-forward */                                     \
    TENSOR(up, ELEM_F32, d->n_ff, d->n_ubatch)                                                                         \
    TENSOR(logits, ELEM_F32, d->n_vocab, d->n_logits)

/* The inputs of recurrent layers for the last batch with tokens that may be taken back. */
struct kept_inputs {
    struct tensor mixed, alpha, beta; /* [n_mixed], [n_alpha], [n_beta] for each layer and row, layer by layer */
    struct tensor ngram;              /* [n_residual] for each row: input of the n-gram convolution of one layer */
    int64_t most_rows;                /* rows that there is room for */
    const struct state_pool *pool;    /* the pool of that batch's texts; NULL: nothing is kept */
    uint64_t tick;                    /* tick of the pool when the batch was done */
};

/* The work space of a stage, in its device's memory. All stages have the same batch's lists and page tables. */
struct stage_work {
    struct backend *device;
    struct work_sizes sizes;
#define FIELD(name, ...) struct tensor name;
    BATCH_TENSORS(FIELD)
    UBATCH_TENSORS(FIELD)
#undef FIELD
    struct moe_work *moe;     /* NULL in a dense model */
    struct tensor kept;       /* the rows that the last batch was asked to keep */
    struct tensor normed;     /* room for as many normed rows */
    struct tensor kept_spare; /* with several streams: room for as many rows of all streams */
    struct tensor pages;      /* page tables, [most_pages] for each kind of caches */
    int64_t most_pages;
    struct kept_inputs inputs;
    /* The n-grams of the batch's tokens; NULL without n-grams. */
    struct store_range *ngram_ranges; /* [n_batch * heads of n-grams] where their rows lie in the file */
    char *ngram_bytes;                /* rows of a ubatch as they are in the file */
    float *ngram_rows;                /* [n_ngram] for each token of a ubatch: these rows as floats */
    int32_t *host_rows;               /* [n_batch] */
    int32_t *host_pages;              /* [most_pages] */
    const struct car **car;           /* [MOE_MAX_CAR] */
    float *host_x;                    /* [n_residual] */
    float *host_logits;               /* [n_vocab]; NULL where n_mtp is 0 */
};

struct model_work {
    int n_stage;
    struct stage_work stages[MODEL_MAX_STAGE]; /* [n_stage] as the model has them */
    char *crossing; /* host memory for what goes from one stage's device to the next; NULL: there is one stage */
};

/* Makes room for page tables of n blocks in all, for each of n_kind kinds. */
MUST_USE err_code work_fit_pages(struct stage_work *w, int64_t n, int n_kind, struct err *e);
/* Makes room for keeping the inputs of n rows in n_layer recurrent layers. */
MUST_USE err_code work_fit_inputs(struct stage_work *w, int64_t n, int64_t n_layer, struct err *e);

#endif
