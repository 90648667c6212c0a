/* Which parts of texts there are, as a tree: each goes on from the tokens of its parent. Tokens are compared, not
 * hashes. One thread. */
#ifndef TEXTS_PART_TREE_H
#define TEXTS_PART_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PART_NAME_BYTES = 48 };

struct part_node {
    struct part_node *parent; /* NULL: the part begins a text */
    struct part_node *child;  /* the first that goes on from here */
    struct part_node *next;   /* another that goes on from the same tokens */
    int64_t from, n_tok;      /* tokens of the text before the part, and with it */
    int32_t *ids;             /* [n_tok - from], owned */
    uint64_t hash_before;     /* of the tokens before the part; of a text's first part, the key of its model */
    uint64_t hash;            /* of all tokens */
    uint64_t n_bytes;         /* of the file */
    int64_t used_ns;          /* when the part was used last, since 1970 */
    char name[PART_NAME_BYTES];
};

struct part_tree {
    struct part_node *roots;
    uint64_t n_bytes; /* of all parts' files */
    size_t n;         /* parts */
};

/* The tree takes the node over. parent NULL: it begins a text. */
void part_tree_add(struct part_tree *t, struct part_node *parent, struct part_node *x);
/* Takes a node without children out and frees it. */
void part_tree_remove(struct part_tree *t, struct part_node *x);
void part_tree_close(struct part_tree *t);
void part_node_free(struct part_node *x); /* of a node that is in no tree; NULL is fine */

/* Puts nodes[n], of which each knows the hash of what it goes on from, into an empty tree, in any order. Those that
 * find no parent stay in nodes; returns how many. */
size_t part_tree_link(struct part_tree *t, struct part_node **nodes, size_t n);

/* The part that leads to most of the tokens ids[n] of a text whose model has this key, and in *n_same how many these
 * are; NULL: none does. is_whole: all tokens of the part must be among them; else the last ones may be others. */
struct part_node *part_tree_find(const struct part_tree *t, uint64_t key, const int32_t *ids, size_t n, bool is_whole,
                                 size_t *n_same);
/* Notes that a part, and so those before it, is of use. */
void part_tree_use(struct part_node *x, int64_t now_ns);
/* The part without children, and other than `but`, that was of no use for longest; NULL: there is none. */
struct part_node *part_tree_oldest(const struct part_tree *t, const struct part_node *but);
/* A part without children that is `x` or goes on from it. */
struct part_node *part_tree_leaf(struct part_node *x);

#endif
