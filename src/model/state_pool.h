/* Device memory for the state of texts, which share it in pages.
 *
 * Layers whose caches have the same window keep their keys and values in pages of one kind, each of ATTENTION_BLOCK
 * positions of all these layers; all recurrent layers keep their state in pages of another kind, each of one position
 * in one text. Where several devices compute layers, a page has a part on each of them, for the device's layers, under
 * the same number: texts don't know about devices. A page counts references, one for each text and checkpoint that
 * holds it, and is written only by a text that is its only holder. Free pages keep their memory until it is needed
 * elsewhere.
 *
 * Some layers can't simply drop their last tokens: they have recurrent state, or a window. Texts with such layers can
 * go back only to checkpoints, which hold recurrent state and the pages that a window sees. The pool holds checkpoints
 * within a budget; the least useful one is dropped first.
 *
 * Thread-safety: only the thread that drives the devices may use a pool. */
#ifndef MODEL_STATE_POOL_H
#define MODEL_STATE_POOL_H

#include "model/model.h"

/* Where a layer's state lies in the pages of its kinds. What the layer doesn't have is absent. */
struct layer_pages {
    int kind;       /* the kind of its pages; -1: it uses an earlier layer's */
    int entry_kind; /* the kind of its compressed cache's pages; -1: it has none */
    int part_kind;  /* the kind of pages for what its index's entries are made from: `kind`, or one for a run; -1: none
                     */
    struct backend *device;
    struct paged k, v;    /* [head_dim][ATTENTION_BLOCK][n_head_kv], [head_dim_v][ATTENTION_BLOCK][n_head_kv] */
    struct paged index;   /* keys of an index of positions or entries, [dim][ATTENTION_BLOCK][1]; may be absent */
    struct paged entries; /* a compressed cache, [head_dim][ATTENTION_BLOCK][1]; may be absent */
    struct paged compress_x, index_x;       /* what entries of these two are made from, [width][ATTENTION_BLOCK][1] */
    struct paged compress_gate, index_gate; /* the same shape; may be absent */
    struct paged past;       /* the last inputs of a recurrent layer's convolution, [n_mixed][n_tap-1]; may be absent */
    struct paged ngram_past; /* the same of the convolution of embeddings of n-grams; may be absent */
    struct paged rule;       /* the state of its heads, [dk][dv][n_head_v]; absent where it is a convolution alone */
};

/* The part of all pages of a kind that lies in one buffer: part i of page p begins at (i * capacity + p) * bytes. */
struct page_region {
    struct backend *device;
    struct buffer *buffer;
    int64_t n_part;
    size_t bytes; /* bytes of one part of a page: whole pages of the system */
};

enum { STAGE_MAX_REGION = 2, KIND_MAX_REGION = STAGE_MAX_REGION * MODEL_MAX_STAGE };

struct page_kind {
    bool is_recurrent;
    int64_t ratio;                              /* positions for each entry of a compressed cache; 1 in other caches */
    int64_t window;                             /* the most positions that a token sees in these layers; 0: all */
    bool is_shared;                             /* later layers use the cache of one of these layers, too */
    size_t bytes;                               /* bytes of a page in all regions */
    struct page_region region[KIND_MAX_REGION]; /* STAGE_MAX_REGION for each stage of the model */
    int32_t capacity;                           /* pages that address space is reserved for */
    int32_t n_begun;                            /* pages below this have been used before */
    int32_t *n_ref;                             /* [capacity] references to each page */
    int32_t *free;  /* [capacity] pages without references: those with memory from the start, others from the end */
    int32_t n_free; /* free pages with memory */
    int32_t n_bare; /* free pages without memory */
};

/* A point that texts can go back to. */
struct checkpoint {
    int n_ref;       /* texts that can go back to it; 0: the slot is free */
    uint64_t serial; /* its number, which changes when the pool takes it back */
    int64_t pos;     /* tokens of the text at this point */
    int64_t saved;   /* tokens since the previous checkpoint, which it saves from being computed again */
    uint64_t tick;   /* when it was made or last used */
    size_t bytes;    /* bytes of the pages that it holds */
    int32_t slot;    /* the page of recurrent state; -1: none */
    int32_t *page;   /* for each windowed kind in order, the pages that the token at pos sees; -1: none */
};

/* A text's reference to a checkpoint, which the pool may take back at any time. */
struct checkpoint_ref {
    struct checkpoint *at; /* NULL: there is none */
    uint64_t serial;
};

static inline bool checkpoint_is_there(const struct checkpoint_ref *r)
{
    return r->at && r->at->serial == r->serial;
}

enum { POOL_MAX_CHECKPOINTS = 1024 };

struct state_pool {
    struct arena arena;
    enum elem_type type; /* the type of keys and values */
    size_t max_bytes;    /* limit on the memory of pages */
    size_t used_bytes;   /* bytes of pages that have memory now */
    int64_t n_layer;
    struct layer_pages *layers;  /* [n_layer] */
    int n_kind, n_cache_kind;    /* kinds in all, and those of attention, which come first */
    struct page_kind *kinds;     /* [n_kind] */
    bool keeps_ids;              /* texts keep the ids of their tokens, as the model has embeddings of n-grams */
    int64_t interval;            /* tokens between checkpoints; 0: texts can go back without checkpoints */
    size_t max_checkpoint_bytes; /* limit on the bytes of all checkpoints' pages */
    size_t checkpoint_bytes;     /* their bytes now */
    uint64_t tick;
    uint64_t n_serial;     /* checkpoints made so far */
    int64_t n_window_page; /* elements of checkpoint.page */
    struct checkpoint checkpoints[POOL_MAX_CHECKPOINTS];
};

static inline bool state_pool_is_recurrent(const struct state_pool *p)
{
    return p->n_kind > p->n_cache_kind;
}

/* The number of blocks of ATTENTION_BLOCK positions that the first n positions take. */
static inline int64_t n_blocks(int64_t n)
{
    return (n + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

/* The number of pages of a kind that they take: fewer in a compressed cache. */
static inline int64_t kind_blocks(const struct page_kind *k, int64_t n)
{
    return n_blocks(n / k->ratio);
}

/* The first position that the token at pos sees through a window (0: all). */
static inline int64_t window_first(int64_t window, int64_t pos)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Windowed caches keep this many positions more than their window, so that going back a little needs no checkpoint. */
enum { WINDOW_SLACK = MODEL_UBATCH };

/* The number of blocks that a batch gets pages for. In a windowed cache further blocks reuse the pages of the first
 * ones, which no later token of the batch sees. That is impossible in a cache that several layers share: the later
 * layers run when all tokens have passed the first one, and need all blocks. */
static inline int64_t ring_blocks(const struct page_kind *k)
{
    return k->window && !k->is_shared ? (k->window + MODEL_UBATCH) / ATTENTION_BLOCK + 2 : INT64_MAX;
}

/* The number of elements that a kind has in checkpoint.page: the most pages that one token sees through a window. */
static inline int64_t window_pages(const struct page_kind *k)
{
    return k->window ? k->window / ATTENTION_BLOCK + 2 : 0;
}

/* Takes a page, whose contents are undefined, with one reference; -1 when the pool is full even without checkpoints. */
int32_t state_pool_take(struct state_pool *p, int kind);
void state_pool_keep(struct state_pool *p, int kind, int32_t page); /* adds a reference */
void state_pool_drop(struct state_pool *p, int kind, int32_t page); /* removes a reference */
bool state_pool_is_shared(const struct state_pool *p, int kind, int32_t page);
void state_pool_copy(struct state_pool *p, int kind, int32_t from, int32_t to);

/* A new checkpoint, with one reference, for pages of n_bytes; it has no pages yet. None where the budget has no room.
 */
struct checkpoint_ref checkpoint_take(struct state_pool *p, size_t n_bytes);
void checkpoint_keep(const struct checkpoint_ref *r);                       /* adds a reference to one that is there */
void checkpoint_drop(struct state_pool *p, const struct checkpoint_ref *r); /* removes a text's reference */
/* How much a checkpoint is worth, for comparing: the work that it saves for each byte, less the longer it has not been
 * used. */
double checkpoint_worth(const struct state_pool *p, const struct checkpoint *c);

#endif
