/* What a text leaves behind: which pages of the pool it holds, and what a batch adds to them. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/state_pool.h"

/* The pages of one kind of caches. Block i of the text's positions is [i * ATTENTION_BLOCK, (i + 1) * ATTENTION_BLOCK).
 * Blocks [first, end) have pages that the text holds a reference to; those in [end, next_end) are the batch's. */
struct text_pages {
    int32_t *page; /* [blocks of n_ctx] */
    int64_t first, end, next_end;
    int64_t oldest; /* the first position that is still there */
};

/* A part of a batch's recurrent state: tokens up to position `end` leave theirs in page `slot`. */
struct text_segment {
    int64_t end;
    int32_t slot;                     /* -1: the model has no recurrent layers */
    struct checkpoint_ref checkpoint; /* what the state at `end` becomes; none for the last segment */
};

/* The text before its last batch, while that may be taken back in part: the recurrent layers' inputs of its tokens are
 * kept in work space. */
struct text_draft {
    bool is_open;
    int64_t pos;   /* of the batch's first token */
    int32_t slot;  /* the recurrent state before it */
    int64_t row;   /* of the kept inputs: those of the first token */
    uint64_t tick; /* of the pool when the batch was done */
};

/* Results of a text's last batch as multi-token prediction goes on from them: normed, or not where it wants them so. A
 * text may be without, as nothing but guesses depends on them. */
struct text_hidden {
    float *rows;   /* [most][width], owned */
    int64_t first; /* the position of the first one, */
    int64_t n;     /* and how many there are, maybe beyond the text's end */
    int64_t most, width;
};

struct model_state {
    struct state_pool *pool;
    struct arena arena;                 /* of the arrays */
    int32_t *ids;                       /* [n_ctx] the tokens so far, where n-grams have embeddings; else NULL */
    int64_t n_ctx;                      /* positions at most */
    int64_t pos;                        /* tokens so far */
    struct text_pages *kinds;           /* [pool->n_cache_kind] */
    int32_t slot;                       /* the page of recurrent state; -1: zeros, or the model has none */
    struct checkpoint_ref *checkpoints; /* [n_checkpoint], positions ascending; some may be gone */
    int n_checkpoint, max_checkpoint;

    struct text_segment *segments; /* [n_segment] of the batch in hand */
    int n_segment;
    struct text_draft draft;
    struct text_hidden hidden;
};

/* Makes the text empty. */
void model_state_reset(struct model_state *s);

/* Notes the n tokens that come behind the text's, if it has them. */
void state_write_ids(struct model_state *s, const int32_t *ids, int64_t n);

/* What becomes of a text's recurrent state in a batch. */
enum batch_kind {
    BATCH_KEPT,     /* it goes to other pages, with checkpoints on the way: a batch that fails leaves what was before */
    BATCH_DRAFT,    /* the same without checkpoints, and what was before stays: the batch may be taken back in part */
    BATCH_IN_PLACE, /* it is overwritten, unless others hold it, too: a batch that fails loses it */
    BATCH_LOADED,   /* as BATCH_KEPT, but it is not computed, and there are no checkpoints on the way */
};

/* Gets the pages that a batch of n tokens writes, which nothing else holds. ERR_LIMIT when the pool is full; then all
 * is as before. */
MUST_USE err_code state_begin(struct model_state *s, int64_t n, enum batch_kind kind, struct err *e);
/* The batch is done: the text is n tokens longer. */
void state_commit(struct model_state *s, int64_t n, enum batch_kind kind);
/* The batch has not begun: the text is what it was; or it has failed: the same, or what the last checkpoint has where
 * recurrent state was overwritten. */
void state_abort(struct model_state *s);
void state_fail(struct model_state *s);

/* Goes back to a position within the last batch, whose tokens may be taken back, and gives the text a page for the
 * recurrent state there: its own contents when that is where the batch began, else undefined ones. False: the pool has
 * no page, or a window reaches too far. */
MUST_USE bool state_take_back(struct model_state *s, int64_t pos);

/* The result at the text's last position, [width]; NULL: it is not there. */
const float *state_hidden(const struct model_state *s);
/* Makes room for n of them, and forgets those that are there. */
MUST_USE err_code state_hidden_fit(struct model_state *s, int64_t n, int64_t width, struct err *e);

/* Whether the caches still hold all that the token at pos sees. */
bool state_has_window(const struct model_state *s, int64_t pos);
/* The text's checkpoint at pos; NULL: there is none. */
const struct checkpoint *state_find_checkpoint(const struct model_state *s, int64_t pos);

/* The text will not go back into its last batch without a checkpoint any more. */
void state_end_draft(struct model_state *s);

#endif
