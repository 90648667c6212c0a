/* The state of a text: which pages of the pool it holds, and which ones a batch adds. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/state_pool.h"

/* The pages of one kind of caches. Block i of the text's positions is [i * ATTENTION_BLOCK, (i + 1) * ATTENTION_BLOCK).
 * The text holds references to the pages of blocks [first, end); those of [end, next_end) belong to the batch. */
struct text_pages {
    int32_t *page; /* [blocks of n_ctx] */
    int64_t first, end, next_end;
    int64_t oldest; /* the first position that the pages still hold */
};

/* A segment of a batch in recurrent layers: its tokens, up to position `end`, leave their state in page `slot`. */
struct text_segment {
    int64_t end;
    int32_t slot;                     /* -1: the model has no recurrent layers */
    struct checkpoint_ref checkpoint; /* the checkpoint that the state at `end` becomes; none for the last segment */
};

/* The text as it was before its last batch, while a part of the batch may be taken back. Until then the inputs that its
 * tokens gave to the recurrent layers are kept in work space. */
struct text_draft {
    bool is_open;
    int64_t pos;   /* position of the batch's first token */
    int32_t slot;  /* page of the recurrent state before it */
    int64_t row;   /* the first token's row in the kept inputs */
    uint64_t tick; /* tick of the pool when the batch was done */
};

/* Results of a text's last batch, from which multi-token prediction continues: normed, unless it takes them as they
 * are. They may be missing, as only guesses depend on them. */
struct text_hidden {
    float *rows;   /* [most][width], owned */
    int64_t first; /* position of the first one */
    int64_t n;     /* how many there are; some may lie behind the text's end */
    int64_t most, width;
};

struct model_state {
    struct state_pool *pool;
    struct arena arena;                 /* owns the arrays */
    int32_t *ids;                       /* [n_ctx] the tokens so far, if n-grams have embeddings; else NULL */
    int64_t n_ctx;                      /* the most positions */
    int64_t pos;                        /* tokens so far */
    struct text_pages *kinds;           /* [pool->n_cache_kind] */
    int32_t slot;                       /* the page of recurrent state; -1: zeros, or the model has none */
    struct checkpoint_ref *checkpoints; /* [n_checkpoint] by ascending position; the pool may have taken some back */
    int n_checkpoint, max_checkpoint;

    struct text_segment *segments; /* [n_segment] of the batch that is being computed */
    int n_segment;
    struct text_draft draft;
    struct text_hidden hidden;
};

/* Makes the text empty. */
void model_state_reset(struct model_state *s);

/* Notes the ids of the n tokens behind the text's end, if it keeps ids. */
void state_write_ids(struct model_state *s, const int32_t *ids, int64_t n);

/* What happens to a text's recurrent state in a batch. */
enum batch_kind {
    BATCH_KEPT,     /* it goes to other pages, with checkpoints on the way: if the batch fails the old state is there */
    BATCH_DRAFT,    /* the same without checkpoints, and the old state stays: the batch may be taken back in part */
    BATCH_IN_PLACE, /* it is overwritten, unless others hold it, too: if the batch fails the state is lost */
    BATCH_LOADED,   /* as BATCH_KEPT, but it is loaded and not computed, without checkpoints on the way */
};

/* Takes the pages that a batch of n tokens writes, which nothing else holds. ERR_LIMIT when the pool is full; the text
 * is then unchanged. */
MUST_USE err_code state_begin(struct model_state *s, int64_t n, enum batch_kind kind, struct err *e);
/* Ends a batch that has been computed: the text is n tokens longer. */
void state_commit(struct model_state *s, int64_t n, enum batch_kind kind);
/* Ends a batch that was not computed: the text is unchanged. */
void state_abort(struct model_state *s);
/* Ends a batch that has failed: the text is unchanged, or what it was at its last checkpoint if the recurrent state was
 * overwritten. */
void state_fail(struct model_state *s);

/* Goes back to a position within the last batch, which must be a draft, and gives the text a page for the recurrent
 * state there. The page holds the state if the position is where the batch began; else its contents are undefined.
 * False: the pool has no page, or a window reaches too far back. */
MUST_USE bool state_take_back(struct model_state *s, int64_t pos);

/* The result at the text's last position, [width]; NULL: it is missing. */
const float *state_hidden(const struct model_state *s);
/* Makes room for n results, and forgets those that are there. */
MUST_USE err_code state_hidden_fit(struct model_state *s, int64_t n, int64_t width, struct err *e);

/* Whether the caches still hold all that the token at pos sees. */
bool state_has_window(const struct model_state *s, int64_t pos);
/* The text's checkpoint at pos; NULL: there is none. */
const struct checkpoint *state_find_checkpoint(const struct model_state *s, int64_t pos);

/* Ends the draft: from now on the text needs a checkpoint to go back into its last batch. */
void state_end_draft(struct model_state *s);

#endif
