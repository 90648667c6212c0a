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

/* Rotates the heads of x by one of p->rope; negative: not. */
void mix_rope(const struct pass *p, const struct attention *a, int table, const struct tensor *x);

/* The page tables of a kind of caches. */
struct tensor mix_pages(const struct pass *p, int kind);

/* Puts the tokens' rows into a cache, whose pages are of a kind. */
void mix_store(const struct pass *p, int kind, const struct tensor *x, const struct paged *cache);

/* Norms keys of an index that they are, k [dim][n]. */
void mix_norm_index(const struct pass *p, const struct position_index *x, const struct tensor *k);

/* What the entries of a compressed cache are made of, and where they go, with the kinds of these caches' pages. */
struct entry_caches {
    const struct paged *x, *gate; /* gate: where the compressor has one */
    int part_kind;
    const struct paged *out;
    int kind;
};

/* Keeps what the tokens add to entries, and makes those that they complete. rot_first: of an entry's elements the first
 * one that is rotated. */
void mix_make_entries(const struct pass *p, const struct attention *a, const struct compressor *c,
                      const struct entry_caches *to, int64_t rot_first, const struct tensor *h);

/* Puts the tokens' keys, which are values, too, into the cache that has a window beside a compressed one. */
void mix_store_window(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                      const struct tensor *k);

/* h = o . attention over a window and a compressed cache */
void mix_compressed(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                    const struct tensor *h);

#endif
