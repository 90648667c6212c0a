#include "texts/prefix.h"

#include <string.h>

#include "base/mem.h"

err_code prefix_open(struct prefix_index *x, struct err *e)
{
    *x = (struct prefix_index){.free = -1};
    return siphash_key_make(&x->key, e);
}

void prefix_close(struct prefix_index *x)
{
    mem_free(x->buckets);
    mem_free(x->nodes);
    *x = (struct prefix_index){.free = -1};
}

/* ---- nodes --------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct prefix_index *x, uint64_t hash)
{
    return &x->buckets[hash & (x->n_buckets - 1)];
}

static uint64_t hash_of(const struct prefix_node *n)
{
    return n->entry->hashes[n->block];
}

static void link_node(struct prefix_index *x, int32_t i)
{
    struct prefix_node *n = &x->nodes[i];
    int32_t *first = bucket_of(x, hash_of(n));
    n->next = *first;
    n->prev = -1;
    if (*first >= 0)
        x->nodes[*first].prev = i;
    *first = i;
}

static void unlink_node(struct prefix_index *x, int32_t i)
{
    const struct prefix_node *n = &x->nodes[i];
    if (n->next >= 0)
        x->nodes[n->next].prev = n->prev;
    *(n->prev >= 0 ? &x->nodes[n->prev].next : bucket_of(x, hash_of(n))) = n->next;
}

/* Doubles the nodes and the buckets; false: there is no memory. All nodes hold something. */
static bool grow(struct prefix_index *x)
{
    enum { FIRST_NODES = 1024 };
    if (x->capacity > INT32_MAX / 2)
        return false;
    int32_t capacity = x->capacity ? 2 * x->capacity : FIRST_NODES;
    int32_t *buckets = mem_calloc((size_t)capacity, sizeof *buckets);
    struct prefix_node *nodes = buckets ? mem_resize(x->nodes, (size_t)capacity, sizeof *nodes) : NULL;
    if (!nodes) {
        mem_free(buckets);
        return false;
    }
    mem_free(x->buckets);
    memset(buckets, 0xff, (size_t)capacity * sizeof *buckets); /* -1 */
    x->buckets = buckets;
    x->n_buckets = (size_t)capacity;
    x->nodes = nodes;
    for (int32_t i = 0; i < x->capacity; i++)
        link_node(x, i);
    for (int32_t i = x->capacity; i < capacity; i++)
        nodes[i] = (struct prefix_node){.next = i + 1 < capacity ? i + 1 : -1};
    x->free = x->capacity;
    x->capacity = capacity;
    return true;
}

static int32_t take_node(struct prefix_index *x)
{
    if (x->free < 0 && !grow(x))
        return -1;
    int32_t i = x->free;
    x->free = x->nodes[i].next;
    x->n_used++;
    return i;
}

static void give_node(struct prefix_index *x, int32_t i)
{
    unlink_node(x, i);
    x->nodes[i] = (struct prefix_node){.next = x->free};
    x->free = i;
    x->n_used--;
}

/* ---- entries ------------------------------------------------------------------------------------------------- */

static bool make_room(struct prefix_entry *t, size_t n_blocks)
{
    if (n_blocks <= t->capacity)
        return true;
    size_t capacity = 2 * n_blocks;
    uint64_t *hashes = mem_resize(t->hashes, capacity, sizeof *hashes);
    t->hashes = hashes ? hashes : t->hashes;
    int32_t *nodes = hashes ? mem_resize(t->nodes, capacity, sizeof *nodes) : NULL;
    t->nodes = nodes ? nodes : t->nodes;
    t->capacity = nodes ? capacity : t->capacity;
    return nodes != NULL;
}

static uint64_t hash_block(const struct prefix_index *x, const struct prefix_entry *t, size_t i)
{
    uint64_t before = i ? t->hashes[i - 1] : 0;
    const struct siphash_key key = {x->key.k0 ^ before, x->key.k1};
    return siphash13(key, t->ids + i * PREFIX_BLOCK, PREFIX_BLOCK * sizeof *t->ids);
}

/* Adds block i to the index; false: there is no memory. */
static bool list_block(struct prefix_index *x, struct prefix_entry *t, size_t i)
{
    int32_t node = take_node(x);
    if (node < 0)
        return false;
    t->nodes[i] = node;
    x->nodes[node] = (struct prefix_node){.entry = t, .block = i};
    link_node(x, node);
    return true;
}

void prefix_set(struct prefix_index *x, struct prefix_entry *t, const int32_t *ids, size_t n)
{
    t->ids = ids;
    t->n = n;
    if (!make_room(t, n / PREFIX_BLOCK))
        return;
    for (size_t i = t->n_blocks; i < n / PREFIX_BLOCK; i++) {
        t->hashes[i] = hash_block(x, t, i);
        if (t->is_listed && !list_block(x, t, i))
            return;
        t->n_blocks = i + 1;
    }
}

void prefix_list(struct prefix_index *x, struct prefix_entry *t)
{
    if (t->is_listed)
        return;
    t->is_listed = true;
    for (size_t i = 0; i < t->n_blocks; i++)
        if (!list_block(x, t, i)) {
            t->n_blocks = i;
            return;
        }
}

void prefix_unlist(struct prefix_index *x, struct prefix_entry *t)
{
    for (size_t i = 0; i < t->n_blocks && t->is_listed; i++)
        give_node(x, t->nodes[i]);
    t->is_listed = false;
}

void prefix_entry_close(struct prefix_index *x, struct prefix_entry *t)
{
    prefix_unlist(x, t);
    mem_free(t->hashes);
    mem_free(t->nodes);
    *t = (struct prefix_entry){.owner = t->owner, .is_kept = t->is_kept};
}

/* ---- looking up ---------------------------------------------------------------------------------------------- */

/* Tokens that are the same, of which the first n are known to be. */
static size_t count_same(const struct prefix_entry *a, const struct prefix_entry *b, size_t n)
{
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* Whether block i and all before are the same, as far as hashes say. */
static bool has_block(const struct prefix_entry *t, size_t i, uint64_t hash)
{
    return i < t->n_blocks && t->hashes[i] == hash;
}

void prefix_find(const struct prefix_index *x, const struct prefix_entry *t, prefix_fn *fn, void *user)
{
    size_t least = 0;
    for (size_t i = t->n_blocks; i-- > 0 && x->n_buckets && (i + 2) * PREFIX_BLOCK > least;)
        for (int32_t at = *bucket_of(x, t->hashes[i]); at >= 0; at = x->nodes[at].next) {
            struct prefix_entry *other = x->nodes[at].entry;
            bool is_told = i + 1 < t->n_blocks && has_block(other, i + 1, t->hashes[i + 1]);
            if (other != t && x->nodes[at].block == i && !is_told && has_block(other, i, t->hashes[i]))
                least = fn(user, other, count_same(t, other, (i + 1) * PREFIX_BLOCK));
        }
}

bool prefix_is_same(const struct prefix_entry *a, const struct prefix_entry *b, size_t n)
{
    return n <= a->n && n <= b->n && !memcmp(a->ids, b->ids, n * sizeof *a->ids);
}
