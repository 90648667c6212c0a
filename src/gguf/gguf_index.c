#include "gguf/gguf_index.h"

#include <string.h>

#include "base/mem.h"

struct gguf_index_slot {
    const char *name; /* NULL: free */
    size_t n;
    uint64_t hash;
    int64_t number; /* what the caller gave with the name */
};

/* The slot that holds the name, or the free one where it belongs. At least one slot is free. */
static struct gguf_index_slot *find_slot(const struct gguf_index *ix, const char *name, size_t n, uint64_t hash)
{
    for (size_t i = (size_t)hash;; i++) {
        struct gguf_index_slot *s = &ix->slots[i & (ix->n_slots - 1)];
        if (!s->name || (s->hash == hash && s->n == n && memcmp(s->name, name, n) == 0))
            return s;
    }
}

int64_t gguf_index_find(const struct gguf_index *ix, const char *name, size_t n)
{
    if (ix->n_slots == 0)
        return GGUF_INDEX_NONE;
    const struct gguf_index_slot *s = find_slot(ix, name, n, siphash13(ix->key, name, n));
    return s->name ? s->number : GGUF_INDEX_NONE;
}

static err_code grow(struct gguf_index *ix, struct err *e)
{
    struct gguf_index bigger = *ix;
    if (ix->n_slots == 0)
        TRY(siphash_key_make(&bigger.key, e));
    bigger.n_slots = ix->n_slots ? ix->n_slots * 2 : 64;
    bigger.slots = mem_calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots)
        return err_nomem(e, bigger.n_slots * sizeof *bigger.slots, "an index of names");
    for (size_t i = 0; i < ix->n_slots; i++)
        if (ix->slots[i].name)
            *find_slot(&bigger, ix->slots[i].name, ix->slots[i].n, ix->slots[i].hash) = ix->slots[i];
    mem_free(ix->slots);
    *ix = bigger;
    return ERR_OK;
}

err_code gguf_index_add(struct gguf_index *ix, const char *name, size_t n, int64_t number, int64_t *old, struct err *e)
{
    if (ix->n_used >= ix->n_slots / 2)
        TRY(grow(ix, e));
    uint64_t hash = siphash13(ix->key, name, n);
    struct gguf_index_slot *s = find_slot(ix, name, n, hash);
    *old = s->name ? s->number : GGUF_INDEX_NONE;
    if (!s->name) {
        *s = (struct gguf_index_slot){.name = name, .n = n, .hash = hash, .number = number};
        ix->n_used++;
    }
    return ERR_OK;
}

void gguf_index_close(struct gguf_index *ix)
{
    mem_free(ix->slots);
    *ix = (struct gguf_index){0};
}
