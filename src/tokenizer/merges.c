#include "tokenizer/merges.h"

#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"

/* What a merge joins, and into what: its symbols' texts. */
enum part { LEFT, RIGHT, MERGED, N_PART };

enum { BLOCK = SYMBOLS_MANY / N_PART }; /* merges that are looked up at once */

static uint32_t pair_hash(const struct merges *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    return (uint32_t)siphash13(m->key, &pair, sizeof pair);
}

/* The slot of a pair whose hash is known: the one that holds it, or the empty one where it belongs. */
static size_t slot_find(const struct merges *m, uint32_t hash, uint32_t left, uint32_t right)
{
    size_t mask = m->n_slots - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const struct merge_rule *r = &m->slots[i];
        if (r->left == SYMBOL_NONE || (r->left == left && r->right == right))
            return i;
    }
}

const struct merge_rule *merges_find(const struct merges *m, uint32_t left, uint32_t right)
{
    if (m->n_slots == 0)
        return NULL;
    const struct merge_rule *r = &m->slots[slot_find(m, pair_hash(m, left, right), left, right)];
    return r->left == SYMBOL_NONE ? NULL : r;
}

/* False for an entry that joins nothing. The joined text goes to `space`. */
static bool entry_split(struct gguf_string entry, char *space, struct text *out)
{
    const char *gap = entry.n > 1 ? memchr(entry.s + 1, ' ', entry.n - 1) : NULL;
    if (!gap || gap + 1 == entry.s + entry.n)
        return false;
    size_t n_left = (size_t)(gap - entry.s), n_right = entry.n - n_left - 1;
    memcpy(space, entry.s, n_left);
    memcpy(space + n_left, gap + 1, n_right);
    out[LEFT] = (struct text){.s = entry.s, .n = n_left};
    out[RIGHT] = (struct text){.s = gap + 1, .n = n_right};
    out[MERGED] = (struct text){.s = space, .n = n_left + n_right};
    return true;
}

/* Adds n entries (up to BLOCK) of ranks `rank` and on; `space`: for all their texts. */
static err_code block_add(struct merges *m, struct symbols *t, const struct gguf_string *entries, unsigned n,
                          uint32_t rank, char *space, struct err *e)
{
    struct text texts[BLOCK * N_PART] = {0};
    uint32_t found[BLOCK * N_PART], ranks[BLOCK], hash[BLOCK];
    unsigned n_rule = 0;
    for (unsigned i = 0; i < n; space += entries[i++].n)
        if (entry_split(entries[i], space, &texts[n_rule * N_PART]))
            ranks[n_rule++] = rank + i;
    symbols_find_many(t, texts, n_rule * N_PART, found);
    for (unsigned i = 0; i < n_rule * N_PART; i++)
        if (found[i] == SYMBOL_NONE)
            TRY(symbols_intern(t, texts[i].s, texts[i].n, &found[i], e));
    for (unsigned i = 0; i < n_rule; i++) {
        const uint32_t *f = &found[i * N_PART];
        hash[i] = pair_hash(m, f[LEFT], f[RIGHT]);
        __builtin_prefetch(&m->slots[hash[i] & (m->n_slots - 1)], 1);
    }
    for (unsigned i = 0; i < n_rule; i++) {
        const uint32_t *f = &found[i * N_PART];
        struct merge_rule *slot = &m->slots[slot_find(m, hash[i], f[LEFT], f[RIGHT])];
        if (slot->left == SYMBOL_NONE)
            *slot = (struct merge_rule){.left = f[LEFT], .right = f[RIGHT], .rank = ranks[i], .merged = f[MERGED]};
    }
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
    if (n > VOCAB_MAX_MERGES)
        return err_set(e, ERR_LIMIT, "%s: tokenizer.ggml.merges has %llu entries, expected at most %d",
                       gguf_file_path(g, 0), (unsigned long long)n, VOCAB_MAX_MERGES);
    if (!data || n == 0)
        return ERR_OK;
    const struct gguf_string *entries = data;
    size_t n_space = 1, n_slots = 16; /* bytes of the longest block */
    while (n_slots < 2 * n)
        n_slots *= 2;
    for (uint64_t i = 0; i < n;) {
        size_t n_block = 0;
        for (uint64_t end = n - i < BLOCK ? n : i + BLOCK; i < end; i++)
            n_block += entries[i].n;
        n_space = n_block > n_space ? n_block : n_space;
    }
    m->slots = mem_resize(NULL, n_slots, sizeof *m->slots);
    char *space = mem_alloc(n_space);
    err_code code = m->slots && space ? ERR_OK : err_nomem(e, n_slots * sizeof *m->slots, "merges");
    if (code == ERR_OK) {
        memset(m->slots, 0xff, n_slots * sizeof *m->slots);
        m->n_slots = n_slots;
        m->key = v->symbols.key;
    }
    for (uint64_t i = 0; i < n && code == ERR_OK; i += BLOCK) {
        unsigned n_block = n - i < BLOCK ? (unsigned)(n - i) : BLOCK;
        code = block_add(m, &v->symbols, entries + i, n_block, (uint32_t)i, space, e);
    }
    mem_free(space);
    return code;
}

void merges_close(struct merges *m)
{
    mem_free(m->slots);
    *m = (struct merges){0};
}
