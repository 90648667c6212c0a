#include "texts/part_tree.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- changes ------------------------------------------------------------------------------------------------- */

/* The list of a part's children, or of the roots (parent NULL). */
static struct part_node **siblings(struct part_tree *t, struct part_node *parent)
{
    return parent ? &parent->child : &t->roots;
}

void part_tree_add(struct part_tree *t, struct part_node *parent, struct part_node *x)
{
    struct part_node **first = siblings(t, parent);
    assert(x->n_tok > x->from && x->from == (parent ? parent->n_tok : 0));
    x->parent = parent;
    x->next = *first;
    *first = x;
    t->n_bytes += x->n_bytes;
    t->n++;
}

void part_tree_remove(struct part_tree *t, struct part_node *x)
{
    struct part_node **at = siblings(t, x->parent);
    assert(!x->child);
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    t->n_bytes -= x->n_bytes;
    t->n--;
    part_node_free(x);
}

void part_tree_close(struct part_tree *t)
{
    while (t->roots)
        part_tree_remove(t, part_tree_leaf(t->roots));
}

void part_node_free(struct part_node *x)
{
    if (x)
        mem_free(x->ids);
    mem_free(x);
}

struct part_node *part_tree_leaf(struct part_node *x)
{
    while (x->child)
        x = x->child;
    return x;
}

/* ---- linking ------------------------------------------------------------------------------------------------- */

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_hash(const void *a, const void *b)
{
    const struct part_node *x = *(struct part_node *const *)a, *y = *(struct part_node *const *)b;
    return x->hash != y->hash ? compare(x->hash, y->hash) : compare((uint64_t)x->from, (uint64_t)y->from);
}

/* The first of the nodes in order of hashes whose hash is not less. */
static size_t lower_bound(struct part_node *const *nodes, size_t n, uint64_t hash)
{
    size_t low = 0;
    while (n > 0) {
        size_t half = n / 2;
        bool is_less = nodes[low + half]->hash < hash;
        low += is_less ? half + 1 : 0;
        n = is_less ? n - half - 1 : half;
    }
    return low;
}

/* nodes: in order of hashes. */
static struct part_node *find_parent(struct part_node *const *nodes, size_t n, const struct part_node *x)
{
    for (size_t i = lower_bound(nodes, n, x->hash_before); i < n && nodes[i]->hash == x->hash_before; i++)
        if (nodes[i]->n_tok == x->from)
            return nodes[i];
    return NULL;
}

/* Whether a node is in the tree, once the parents of all were found: parents begin earlier, so there are no circles. */
static bool is_rooted(const struct part_node *x)
{
    while (x->parent)
        x = x->parent;
    return x->from == 0;
}

size_t part_tree_link(struct part_tree *t, struct part_node **nodes, size_t n)
{
    size_t n_left = 0;
    qsort(nodes, n, sizeof *nodes, by_hash);
    for (size_t i = 0; i < n; i++)
        nodes[i]->parent = nodes[i]->from > 0 ? find_parent(nodes, n, nodes[i]) : NULL;
    for (size_t i = 0; i < n; i++)
        if (is_rooted(nodes[i]))
            part_tree_add(t, nodes[i]->parent, nodes[i]);
        else
            nodes[n_left++] = nodes[i];
    return n_left;
}

/* ---- walks --------------------------------------------------------------------------------------------------- */

/* The next part in preorder; is_in: x's children come first, else they are skipped. */
static struct part_node *following(const struct part_node *x, bool is_in)
{
    if (is_in && x->child)
        return x->child;
    while (x && !x->next)
        x = x->parent;
    return x ? x->next : NULL;
}

/* The number of a text's tokens that equal those of a part. */
static size_t count_same(const struct part_node *x, const int32_t *ids, size_t n)
{
    size_t i = 0, n_own = (size_t)(x->n_tok - x->from), n_left = n - (size_t)x->from;
    while (i < n_own && i < n_left && x->ids[i] == ids[(size_t)x->from + i])
        i++;
    return i;
}

struct part_node *part_tree_find(const struct part_tree *t, uint64_t key, const int32_t *ids, size_t n, bool is_whole,
                                 size_t *n_same)
{
    struct part_node *best = NULL;
    bool is_all;
    *n_same = 0;
    for (struct part_node *x = t->roots; x; x = following(x, is_all)) {
        is_all = false;
        if (!x->parent && x->hash_before != key)
            continue;
        size_t same = (size_t)x->from + count_same(x, ids, n);
        is_all = same == (size_t)x->n_tok;
        if (same > *n_same && same > (size_t)x->from && (is_all || !is_whole)) {
            best = x;
            *n_same = same;
        }
    }
    return best;
}

void part_tree_use(struct part_node *x, int64_t now_ns)
{
    for (; x; x = x->parent)
        x->used_ns = now_ns;
}

struct part_node *part_tree_oldest(const struct part_tree *t, const struct part_node *but)
{
    struct part_node *oldest = NULL;
    for (struct part_node *x = t->roots; x; x = following(x, true))
        if (!x->child && x != but && (!oldest || x->used_ns < oldest->used_ns))
            oldest = x;
    return oldest;
}
