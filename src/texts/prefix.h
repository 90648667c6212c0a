/* Which texts begin alike. Blocks of PREFIX_BLOCK tokens are hashed, each with the hash of all before it, so that a
 * text finds those with the same beginning by its own hashes. A hash only leads to candidates: whoever takes tokens
 * over compares them (prefix_is_same).
 *
 * Where memory is short, texts are found by fewer of their blocks, or not at all. One thread. */
#ifndef TEXTS_PREFIX_H
#define TEXTS_PREFIX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/siphash.h"

enum { PREFIX_BLOCK = 64 };

/* The tokens of a text, part of the text. Zero: it has none. */
struct prefix_entry {
    const int32_t *ids; /* [n], borrowed */
    size_t n;
    uint64_t *hashes; /* [n_blocks], of its whole blocks */
    int32_t *nodes;   /* [n_blocks], where the index has them, if is_listed */
    size_t n_blocks, capacity;
    bool is_listed; /* others can find it */
    bool is_kept;   /* for the caller: what the owner is */
    void *owner;
};

struct prefix_node {
    struct prefix_entry *entry;
    size_t block;       /* of its blocks */
    int32_t next, prev; /* in its bucket, or of those that are free; -1: none */
};

struct prefix_index {
    struct siphash_key key;
    int32_t *buckets; /* [n_buckets], a power of two: the first node; -1: none */
    size_t n_buckets;
    struct prefix_node *nodes; /* [capacity] */
    int32_t n_used, capacity;  /* nodes that hold something */
    int32_t free;              /* the first that holds nothing; -1: none */
};

MUST_USE err_code prefix_open(struct prefix_index *x, struct err *e);
void prefix_close(struct prefix_index *x); /* after its entries */

/* The entry's tokens are these, of which the first are those that it had; ids may have moved. */
void prefix_set(struct prefix_index *x, struct prefix_entry *t, const int32_t *ids, size_t n);
void prefix_list(struct prefix_index *x, struct prefix_entry *t);
void prefix_unlist(struct prefix_index *x, struct prefix_entry *t);
void prefix_entry_close(struct prefix_index *x, struct prefix_entry *t); /* leaves it zero but for its owner */

/* Gets a listed entry that begins with the first n tokens, a block or more, as its hashes say. Returns how many tokens
 * another one must share to be of interest. */
typedef size_t prefix_fn(void *user, struct prefix_entry *other, size_t n);
/* Tells of the entries that begin as `t`, those with most blocks in common first. `t` need not be listed. */
void prefix_find(const struct prefix_index *x, const struct prefix_entry *t, prefix_fn *fn, void *user);

/* Whether the first n tokens are the same. */
bool prefix_is_same(const struct prefix_entry *a, const struct prefix_entry *b, size_t n);

#endif
