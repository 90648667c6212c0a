/* An index of texts by their prefixes. Each block of PREFIX_BLOCK tokens is hashed together with the hash of the block
 * before it, so that a text finds others with the same beginning by its own hashes. A hash only finds candidates:
 * whoever takes over tokens must compare them (prefix_is_same).
 *
 * Without memory, texts can be found by fewer of their blocks, or not at all. For one thread. */
#ifndef TEXTS_PREFIX_H
#define TEXTS_PREFIX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/siphash.h"

enum { PREFIX_BLOCK = 64 };

/* A text's entry, which is embedded in the text. Zeros: no tokens. */
struct prefix_entry {
    const int32_t *ids; /* [n], borrowed */
    size_t n;
    uint64_t *hashes; /* [n_blocks] of its whole blocks */
    int32_t *nodes;   /* [n_blocks] the index's nodes for them, if is_listed */
    size_t n_blocks, capacity;
    bool is_listed; /* in the index, so that others can find it */
    bool is_kept;   /* for the caller: whether the owner is a kept text */
    void *owner;
};

struct prefix_node {
    struct prefix_entry *entry;
    size_t block;       /* which of the entry's blocks */
    int32_t next, prev; /* in its bucket, or in the list of free nodes; -1: none */
};

struct prefix_index {
    struct siphash_key key;
    int32_t *buckets; /* [n_buckets], a power of two; the first node of each, or -1 */
    size_t n_buckets;
    struct prefix_node *nodes; /* [capacity] */
    int32_t n_used, capacity;  /* nodes in use, and in all */
    int32_t free;              /* the first free node; -1: none */
};

MUST_USE err_code prefix_open(struct prefix_index *x, struct err *e);
void prefix_close(struct prefix_index *x); /* its entries must have been closed */

/* Updates an entry's tokens. They must begin with those that it had, but may lie elsewhere in memory. */
void prefix_set(struct prefix_index *x, struct prefix_entry *t, const int32_t *ids, size_t n);
void prefix_list(struct prefix_index *x, struct prefix_entry *t);
void prefix_unlist(struct prefix_index *x, struct prefix_entry *t);
void prefix_entry_close(struct prefix_index *x, struct prefix_entry *t); /* leaves only its owner and is_kept */

/* Gets a listed entry that shares the first n tokens, at least a block, according to its hashes. Returns how many
 * tokens another entry must share to be of interest. */
typedef size_t prefix_fn(void *user, struct prefix_entry *other, size_t n);
/* Calls fn for the entries that begin as `t` does, those with the most blocks in common first. `t` need not be listed.
 */
void prefix_find(const struct prefix_index *x, const struct prefix_entry *t, prefix_fn *fn, void *user);

/* Whether the first n tokens of both are equal. */
bool prefix_is_same(const struct prefix_entry *a, const struct prefix_entry *b, size_t n);

#endif
