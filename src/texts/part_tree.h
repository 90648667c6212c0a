/* The parts of texts on disk as a tree: each part continues the tokens of its parent. Lookups compare tokens, not
 * hashes. For one thread. */
#ifndef TEXTS_PART_TREE_H
#define TEXTS_PART_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PART_NAME_BYTES = 48 };

struct part_node {
    struct part_node *parent; /* NULL: the part begins a text */
    struct part_node *child;  /* the first part that continues this one */
    struct part_node *next;   /* the next part with the same parent */
    int64_t from, n_tok;      /* the text's number of tokens before the part, and with it */
    int32_t *ids;             /* [n_tok - from], owned */
    uint64_t hash_before;     /* of the tokens before the part; in a text's first part, the model's key */
    uint64_t hash;            /* of all tokens */
    uint64_t n_bytes;         /* of the file */
    int64_t used_ns;          /* when the part was last used, since 1970 */
    char name[PART_NAME_BYTES];
};

struct part_tree {
    struct part_node *roots;
    uint64_t n_bytes; /* of all parts' files */
    size_t n;         /* number of parts */
};

/* Adds a node, which the tree then owns. parent NULL: it begins a text. */
void part_tree_add(struct part_tree *t, struct part_node *parent, struct part_node *x);
/* Removes and frees a node, which must have no children. */
void part_tree_remove(struct part_tree *t, struct part_node *x);
void part_tree_close(struct part_tree *t);
void part_node_free(struct part_node *x); /* frees a node that is in no tree; accepts NULL */

/* Adds nodes[n], n > 0, to an empty tree. They may be in any order: each is linked to the node whose hash is its
 * hash_before. Nodes without a parent stay in `nodes`; returns how many these are. */
size_t part_tree_link(struct part_tree *t, struct part_node **nodes, size_t n);

/* Finds the part that shares the longest prefix with the tokens ids[n] of a text whose model has this key. *n_same: the
 * length of that prefix. NULL: no part shares any. is_whole: all of the part's tokens must be the same. */
struct part_node *part_tree_find(const struct part_tree *t, uint64_t key, const int32_t *ids, size_t n, bool is_whole,
                                 size_t *n_same);
/* Notes that a part, and so all before it, was used. */
void part_tree_use(struct part_node *x, int64_t now_ns);
/* The least recently used part without children, other than `but`; NULL: there is none. */
struct part_node *part_tree_oldest(const struct part_tree *t, const struct part_node *but);
/* Some part without children at or below `x`. */
struct part_node *part_tree_leaf(struct part_node *x);

#endif
