#include "tokenizer/merges.h"

#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"

static size_t slot_find(const struct merges *m, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) ^ m->seed;
    h *= 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * (m->seed | 1);
    size_t mask = m->n_slots - 1;
    for (size_t i = (size_t)(h >> 32) & mask;; i = (i + 1) & mask) {
        const struct merge_rule *r = &m->slots[i];
        if (r->left == SYMBOL_NONE || (r->left == left && r->right == right))
            return i;
    }
}

const struct merge_rule *merges_find(const struct merges *m, uint32_t left, uint32_t right)
{
    if (m->n_slots == 0)
        return NULL;
    const struct merge_rule *r = &m->slots[slot_find(m, left, right)];
    return r->left == SYMBOL_NONE ? NULL : r;
}

static err_code merge_add(struct merges *m, struct vocab *v, struct gguf_string entry, uint32_t rank, char *space,
                          struct err *e)
{
    const char *gap = entry.n > 1 ? memchr(entry.s + 1, ' ', entry.n - 1) : NULL;
    size_t n_left = gap ? (size_t)(gap - entry.s) : 0, n_right = gap ? entry.n - n_left - 1 : 0;
    if (n_right == 0)
        return ERR_OK;
    uint32_t left, right, merged;
    TRY(symbols_intern(&v->symbols, entry.s, n_left, &left, e));
    TRY(symbols_intern(&v->symbols, gap + 1, n_right, &right, e));
    memcpy(space, entry.s, n_left);
    memcpy(space + n_left, gap + 1, n_right);
    TRY(symbols_intern(&v->symbols, space, n_left + n_right, &merged, e));
    struct merge_rule *r = &m->slots[slot_find(m, left, right)];
    if (r->left == SYMBOL_NONE)
        *r = (struct merge_rule){.left = left, .right = right, .rank = rank, .merged = merged};
    return ERR_OK;
}

err_code merges_open(struct merges *m, struct vocab *v, const struct gguf *g, bool need, struct err *e)
{
    const void *data;
    uint64_t n;
    *m = (struct merges){0};
    TRY(gguf_opt_array(g, "tokenizer.ggml.merges", GGUF_STRING, &data, &n, e));
    if (!data && need)
        return err_set(e, ERR_FORMAT, "%s has no tokenizer.ggml.merges, which its tokenizer model needs",
                       gguf_file_path(g, 0));
    if (n >= INT32_MAX)
        return err_set(e, ERR_LIMIT, "%s: tokenizer.ggml.merges has %llu entries, expected fewer than %d",
                       gguf_file_path(g, 0), (unsigned long long)n, INT32_MAX);
    if (!data || n == 0)
        return ERR_OK;
    const struct gguf_string *entries = data;
    size_t longest = 1, n_slots = 16;
    while (n_slots < 2 * n)
        n_slots *= 2;
    for (uint64_t i = 0; i < n; i++)
        longest = entries[i].n > longest ? entries[i].n : longest;
    m->slots = mem_resize(NULL, n_slots, sizeof *m->slots);
    char *space = mem_alloc(longest);
    err_code code = m->slots && space ? ERR_OK : err_nomem(e, n_slots * sizeof *m->slots, "merges");
    if (code == ERR_OK) {
        memset(m->slots, 0xff, n_slots * sizeof *m->slots);
        m->n_slots = n_slots;
        m->seed = v->symbols.seed;
    }
    for (uint64_t i = 0; i < n && code == ERR_OK; i++)
        code = merge_add(m, v, entries[i], (uint32_t)i, space, e);
    mem_free(space);
    return code;
}

void merges_close(struct merges *m)
{
    mem_free(m->slots);
    *m = (struct merges){0};
}
