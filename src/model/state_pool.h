/* Device memory for the state of texts, which share it page by page.
 *
 * Layers whose caches have the same window keep their keys and values in pages of one kind, each of ATTENTION_BLOCK
 * positions of all these layers; all recurrent layers keep their state in pages of another kind, each of one position
 * in one text. Where several devices compute layers, a page has on each what that one's layers have in it, under the
 * same number: texts know nothing of devices. A page has as many references as texts and checkpoints hold it, and is
 * only written by a text that holds it alone. Free pages keep their memory until it is wanted elsewhere.
 *
 * Checkpoints are what going back starts from where a layer can't forget its last tokens: recurrent state, and the
 * pages that a window sees. The pool holds them within a budget; the least useful goes first.
 *
 * Thread-safety: one thread, the one that drives the devices. */
#ifndef MODEL_STATE_POOL_H
#define MODEL_STATE_POOL_H

#include "model/model.h"

/* What a layer has in the pages of its kind; what it does not have is absent. */
struct layer_pages {
    int kind;       /* of its pages; -1: it uses an earlier layer's */
    int entry_kind; /* of a compressed cache's pages; -1: it has none */
    int part_kind;  /* of the pages of what its index's entries are made of: `kind`, or one that holds a run; -1 */
    struct backend *device;
    struct paged k, v;    /* [head_dim][ATTENTION_BLOCK][n_head_kv], [head_dim_v][ATTENTION_BLOCK][n_head_kv] */
    struct paged index;   /* keys of an index of positions or entries, [dim][ATTENTION_BLOCK][1]; may be absent */
    struct paged entries; /* a compressed cache, [head_dim][ATTENTION_BLOCK][1]; may be absent */
    struct paged compress_x, index_x;       /* what its entries and those of its index are made of, */
    struct paged compress_gate, index_gate; /* [width][ATTENTION_BLOCK][1]; gates may be absent */
    struct paged past;       /* the last inputs of a recurrent layer's convolution, [n_mixed][n_tap-1]; may
                                be absent */
    struct paged ngram_past; /* the same of the convolution of embeddings of n-grams; may be absent */
    struct paged rule;       /* the state of its heads, [dk][dv][n_head_v]; absent where it is a convolution alone */
};

/* A run of a buffer's bytes for each page and part: part i of page p begins at (i * capacity + p) * bytes. */
struct page_region {
    struct backend *device;
    struct buffer *buffer;
    int64_t n_part;
    size_t bytes; /* of one part of a page: whole pages of the system */
};

enum { STAGE_MAX_REGION = 2, KIND_MAX_REGION = STAGE_MAX_REGION * MODEL_MAX_STAGE };

struct page_kind {
    bool is_recurrent;
    int64_t ratio;                              /* of compressed caches, which have an entry for so many positions; 1 */
    int64_t window;                             /* the most positions that a token sees in these layers; 0: all */
    bool is_shared;                             /* some layer's cache serves later layers, too */
    size_t bytes;                               /* of a page, all regions */
    struct page_region region[KIND_MAX_REGION]; /* for each stage of the model STAGE_MAX_REGION */
    int32_t capacity;                           /* pages that there are addresses for */
    int32_t n_begun;                            /* pages below this have been taken once */
    int32_t *n_ref;                             /* [capacity] */
    int32_t *free;  /* [capacity] pages without references: first those that have memory, and the others from the end */
    int32_t n_free; /* that have memory */
    int32_t n_bare; /* that have none */
};

/* Where a text can go back to. */
struct checkpoint {
    int n_ref;       /* texts that can go back to it; 0: it is none */
    uint64_t serial; /* its number; another one once the pool has taken it back */
    int64_t pos;     /* tokens of the text */
    int64_t saved;   /* tokens since the checkpoint before, which would have to be computed again */
    uint64_t tick;   /* when it was made or last used */
    size_t bytes;    /* of the pages that it holds */
    int32_t slot;    /* the page of recurrent state; -1: none */
    int32_t *page;   /* for each windowed kind in order, the pages that the token at pos sees; -1: none */
};

/* What a text knows a checkpoint by, which the pool may take back at any time. at NULL: there is none. */
struct checkpoint_ref {
    struct checkpoint *at;
    uint64_t serial;
};

static inline bool checkpoint_is_there(const struct checkpoint_ref *r)
{
    return r->at && r->at->serial == r->serial;
}

enum { POOL_MAX_CHECKPOINTS = 1024 };

struct state_pool {
    struct arena arena;
    enum elem_type type; /* of keys and values */
    size_t max_bytes;    /* of pages that have memory */
    size_t used_bytes;
    int64_t n_layer;
    struct layer_pages *layers; /* [n_layer] */
    int n_kind, n_cache_kind;   /* kinds, and those of attention, which come first */
    struct page_kind *kinds;
    bool keeps_ids;              /* texts know their tokens, as the model has embeddings of n-grams */
    int64_t interval;            /* tokens between checkpoints; 0: texts can go back without */
    size_t max_checkpoint_bytes; /* of their pages together */
    size_t checkpoint_bytes;
    uint64_t tick;
    uint64_t n_serial;     /* checkpoints so far */
    int64_t n_window_page; /* elements of checkpoint.page */
    struct checkpoint checkpoints[POOL_MAX_CHECKPOINTS];
};

static inline bool state_pool_is_recurrent(const struct state_pool *p)
{
    return p->n_kind > p->n_cache_kind;
}

/* The blocks of ATTENTION_BLOCK positions that n positions from 0 on take. */
static inline int64_t n_blocks(int64_t n)
{
    return (n + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

/* The same of the pages of a kind, of which a compressed cache has fewer. */
static inline int64_t kind_blocks(const struct page_kind *k, int64_t n)
{
    return n_blocks(n / k->ratio);
}

/* The first position that the token at pos sees through a window (0: all). */
static inline int64_t window_first(int64_t window, int64_t pos)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Windowed caches keep so many positions more than their window, so that going back a little needs no checkpoint. */
enum { WINDOW_SLACK = MODEL_UBATCH };

/* The blocks that a batch gets pages for; later ones take the pages of the first ones again, which no token of the
 * batch sees any more when its layer gets there. Layers that share a cache come when all tokens have passed the first
 * one, and see all. */
static inline int64_t ring_blocks(const struct page_kind *k)
{
    return k->window && !k->is_shared ? (k->window + MODEL_UBATCH) / ATTENTION_BLOCK + 2 : INT64_MAX;
}

/* The elements of checkpoint.page that a kind has: the most pages that one token sees through a window. */
static inline int64_t window_pages(const struct page_kind *k)
{
    return k->window ? k->window / ATTENTION_BLOCK + 2 : 0;
}

/* Takes a page, whose contents are undefined, with one reference; -1 when the pool is full even without checkpoints. */
int32_t state_pool_take(struct state_pool *p, int kind);
void state_pool_keep(struct state_pool *p, int kind, int32_t page); /* one reference more */
void state_pool_drop(struct state_pool *p, int kind, int32_t page); /* one less */
bool state_pool_is_shared(const struct state_pool *p, int kind, int32_t page);
void state_pool_copy(struct state_pool *p, int kind, int32_t from, int32_t to);

/* A checkpoint without pages, for pages of n_bytes, with one reference; none where the budget has no room. */
struct checkpoint_ref checkpoint_take(struct state_pool *p, size_t n_bytes);
void checkpoint_keep(const struct checkpoint_ref *r); /* one reference more, of one that is there */
void checkpoint_drop(struct state_pool *p, const struct checkpoint_ref *r); /* a text forgets it */
/* What is lost with a checkpoint, to compare: the work that it saves for each byte, less the longer it was of no use.
 */
double checkpoint_worth(const struct state_pool *p, const struct checkpoint *c);

#endif
