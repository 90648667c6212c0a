/* The merge loop that all tokenizers share: a chain of symbols in which the best adjacent pair is joined
 * until none can be. What a pair becomes, and how good that is, is the caller's business. O(n log n) for n
 * symbols. */
#ifndef TOKENIZER_MERGE_H
#define TOKENIZER_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A min-heap by (key, at). */
struct heap_item {
    uint64_t key, at;
    uint32_t right, left_symbol, right_symbol, merged;
};

struct heap {
    struct heap_item *items;
    size_t n, capacity;
};

void heap_close(struct heap *h);
MUST_USE err_code heap_push(struct heap *h, struct heap_item item, struct err *e);
struct heap_item heap_pop(struct heap *h); /* h->n > 0 */

/* A node of the chain: n_bytes of the word from `off` on, and their symbol, or SYMBOL_NONE. Nodes that were joined to
 * another have n_bytes 0. */
struct merge_node {
    size_t off, n_bytes;
    uint32_t symbol, prev, next;
};

#define MERGE_END UINT32_MAX

struct merge_work {
    struct merge_node *nodes;
    size_t n, capacity;
    struct heap heap;
};
void merge_work_close(struct merge_work *w);

/* merge_start empties the chain, merge_append adds a node to it. */
void merge_start(struct merge_work *w);
MUST_USE err_code merge_append(struct merge_work *w, size_t off, size_t n_bytes, uint32_t symbol, struct err *e);

/* Whether two neighbours can be joined. If so, *rank says when (lowest first, of equals the leftmost), and *merged is
 * the symbol that they become. */
typedef bool merge_pair_fn(const void *user, const char *text, const struct merge_node *left,
                           const struct merge_node *right, uint32_t *rank, uint32_t *merged);

/* Joins until nothing can be; what is left are the nodes with n_bytes > 0, in order. */
MUST_USE err_code merge_run(struct merge_work *w, merge_pair_fn *pair, const void *user, const char *text,
                            struct err *e);

#endif
