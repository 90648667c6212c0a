#include "tokenizer/merges.h"

#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"

enum { BLOCK = 32 }; /* merges looked up side by side: the tables are in no near cache */

static uint32_t pair_hash(const struct merges *m, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) ^ m->seed;
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)((h ^ h >> 32) * (m->seed | 1) >> 32);
}

static size_t slot_find(const struct merges *m, uint32_t left, uint32_t right)
{
    size_t mask = m->n_slots - 1;
    for (size_t i = pair_hash(m, left, right) & mask;; i = (i + 1) & mask) {
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

/* The two strings of an entry; both empty for one that joins nothing. */
static void entry_split(struct gguf_string entry, struct text *left, struct text *right)
{
    const char *gap = entry.n > 1 ? memchr(entry.s + 1, ' ', entry.n - 1) : NULL;
    size_t n_left = gap ? (size_t)(gap - entry.s) : 0, n_right = gap ? entry.n - n_left - 1 : 0;
    *left = (struct text){.s = entry.s, .n = n_right ? n_left : 0};
    *right = (struct text){.s = gap ? gap + 1 : NULL, .n = n_right};
}

struct adding {
    struct merges *m;
    struct symbols *symbols;
    char *space;   /* for the longest entry */
    uint32_t next; /* a guess: most files list the tokens in the order of the merges that make them */
};

static err_code rule_make(struct adding *a, struct text left, struct text right, struct merge_rule *r, struct err *e)
{
    memcpy(a->space, left.s, left.n);
    memcpy(a->space + left.n, right.s, right.n);
    TRY(symbols_intern(a->symbols, left.s, left.n, SYMBOL_NONE, &r->left, e));
    TRY(symbols_intern(a->symbols, right.s, right.n, SYMBOL_NONE, &r->right, e));
    TRY(symbols_intern(a->symbols, a->space, left.n + right.n, a->next, &r->merged, e));
    a->next = r->merged + 1;
    __builtin_prefetch(&a->m->slots[pair_hash(a->m, r->left, r->right) & (a->m->n_slots - 1)], 1);
    return ERR_OK;
}

static err_code block_add(struct adding *a, const struct gguf_string *entries, unsigned n, uint32_t rank, struct err *e)
{
    struct text left[BLOCK], right[BLOCK];
    struct merge_rule rules[BLOCK];
    for (unsigned i = 0; i < n; i++) {
        entry_split(entries[i], &left[i], &right[i]);
        symbols_prefetch(a->symbols, left[i].s, left[i].n);
        symbols_prefetch(a->symbols, right[i].s, right[i].n);
    }
    unsigned n_rules = 0;
    for (unsigned i = 0; i < n; i++) {
        if (right[i].n == 0)
            continue;
        rules[n_rules].rank = rank + i;
        TRY(rule_make(a, left[i], right[i], &rules[n_rules++], e));
    }
    for (unsigned i = 0; i < n_rules; i++) {
        struct merge_rule *slot = &a->m->slots[slot_find(a->m, rules[i].left, rules[i].right)];
        if (slot->left == SYMBOL_NONE)
            *slot = rules[i];
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
    struct adding adding = {.m = m, .symbols = &v->symbols, .space = space};
    for (uint64_t i = 0; i < n && code == ERR_OK; i += BLOCK)
        code = block_add(&adding, entries + i, n - i < BLOCK ? (unsigned)(n - i) : BLOCK, (uint32_t)i, e);
    mem_free(space);
    return code;
}

void merges_close(struct merges *m)
{
    mem_free(m->slots);
    *m = (struct merges){0};
}
