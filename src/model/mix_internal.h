/* What mixers share. */
#ifndef MODEL_MIX_INTERNAL_H
#define MODEL_MIX_INTERNAL_H

#include "model/layer_blocks.h"

/* Elements [off, off + n) of each head's row of x. */
struct head_part {
    const struct tensor *x;
    int64_t off, n;
};

/* to = w . from for each head, with a matrix for each; w NULL: to = from. */
void mix_heads(const struct pass *p, struct weight *w, int64_t n_head, struct head_part from, struct head_part to);

/* Rotates the heads of x by table p->rope[table]; a negative table: it does nothing. */
void mix_rope(const struct pass *p, const struct attention *a, int table, const struct tensor *x);

/* The page tables of a kind of pages (struct page_kind). */
struct tensor mix_pages(const struct pass *p, int kind);

/* Stores the tokens' rows x in a cache whose pages are of this kind. */
void mix_store(const struct pass *p, int kind, const struct tensor *x, const struct paged *cache);

/* out = attention of q over what the layer's cache has, for the caller to add to. */
struct op mix_attention(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                        const struct tensor *q, const struct tensor *out);

/* Norms the keys k [dim][n] of a position index, in place, if it norms keys. */
void mix_norm_index(const struct pass *p, const struct position_index *x, const struct tensor *k);

/* The caches that entries of a compressed cache are made from, and that cache itself. */
struct entry_caches {
    const struct paged *x, *gate; /* what the entries are made from; gate is used if the compressor has one */
    int part_kind;                /* the kind of their pages */
    const struct paged *out;      /* the compressed cache */
    int kind;                     /* the kind of its pages */
};

/* Stores what the tokens contribute to entries, and makes the entries that they complete. rot_first: the first element
 * of an entry that is rotated. */
void mix_make_entries(const struct pass *p, const struct attention *a, const struct compressor *c,
                      const struct entry_caches *to, int64_t rot_first, const struct tensor *h);

/* Stores the tokens' keys, which are also their values, in the windowed cache beside a compressed one. */
void mix_store_window(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                      const struct tensor *k);

/* h = o . attention over a window and a compressed cache */
void mix_compressed(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                    const struct tensor *h);

#endif
