#include "tokenizer/symbols.h"

#include <assert.h>
#include <string.h>

enum { ROOM_BYTES = 1 << 16, MIN_SLOTS = 64 };

void symbols_close(struct symbols *t)
{
    mem_free(t->texts);
    mem_free(t->slots);
    arena_close(&t->arena);
    *t = (struct symbols){0};
}

static uint32_t text_hash(const struct symbols *t, const char *s, size_t n)
{
    return (uint32_t)siphash13(t->key, s, n);
}

static bool text_equal(struct text a, const char *s, size_t n)
{
    return a.n == n && memcmp(a.s, s, n) == 0;
}

/* The slot of a text: the one that holds it, or the empty one where it belongs. */
static size_t slot_find(const struct symbols *t, uint32_t hash, const char *s, size_t n)
{
    size_t mask = t->n_slots - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const struct symbol_slot *slot = &t->slots[i];
        if (slot->symbol == SYMBOL_NONE || (slot->hash == hash && text_equal(t->texts[slot->symbol], s, n)))
            return i;
    }
}

uint32_t symbols_find(const struct symbols *t, const char *s, size_t n)
{
    if (t->n_slots == 0)
        return SYMBOL_NONE;
    return t->slots[slot_find(t, text_hash(t, s, n), s, n)].symbol;
}

/* Each pass asks for what the next one looks at. Most texts are in the first slot that is looked at, if anywhere. */
void symbols_find_many(const struct symbols *t, const struct text *texts, unsigned n, uint32_t *out)
{
    uint32_t hash[SYMBOLS_MANY];
    uint32_t likely[SYMBOLS_MANY];
    assert(n <= SYMBOLS_MANY && t->n_slots > 0);
    for (unsigned i = 0; i < n; i++) {
        hash[i] = text_hash(t, texts[i].s, texts[i].n);
        __builtin_prefetch(&t->slots[hash[i] & (t->n_slots - 1)]);
    }
    for (unsigned i = 0; i < n; i++) {
        likely[i] = t->slots[hash[i] & (t->n_slots - 1)].symbol;
        if (likely[i] != SYMBOL_NONE)
            __builtin_prefetch(&t->texts[likely[i]]);
    }
    for (unsigned i = 0; i < n; i++)
        if (likely[i] != SYMBOL_NONE)
            __builtin_prefetch(t->texts[likely[i]].s);
    for (unsigned i = 0; i < n; i++)
        out[i] = t->slots[slot_find(t, hash[i], texts[i].s, texts[i].n)].symbol;
}

static err_code slots_resize(struct symbols *t, size_t n_slots, struct err *e)
{
    struct symbol_slot *slots = mem_resize(NULL, n_slots, sizeof *slots);
    if (!slots)
        return err_nomem(e, n_slots * sizeof *slots, "the vocabulary's hash table");
    memset(slots, 0xff, n_slots * sizeof *slots);
    for (size_t i = 0; i < t->n_slots; i++) {
        if (t->slots[i].symbol == SYMBOL_NONE)
            continue;
        size_t j = t->slots[i].hash & (n_slots - 1);
        while (slots[j].symbol != SYMBOL_NONE)
            j = (j + 1) & (n_slots - 1);
        slots[j] = t->slots[i];
    }
    mem_free(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
    return ERR_OK;
}

err_code symbols_reserve(struct symbols *t, size_t n, struct err *e)
{
    if (n > (size_t)INT32_MAX - t->n)
        return err_set(e, ERR_LIMIT, "the vocabulary has more than %d distinct texts", INT32_MAX);
    size_t need = t->n + n, capacity = t->capacity ? t->capacity : MIN_SLOTS;
    while (capacity < need)
        capacity *= 2;
    if (capacity > t->capacity) {
        struct text *texts = mem_resize(t->texts, capacity, sizeof *texts);
        if (!texts)
            return err_nomem(e, capacity * sizeof *texts, "the vocabulary's texts");
        t->texts = texts;
        t->capacity = (uint32_t)capacity;
    }
    if (t->n_slots == 0)
        TRY(siphash_key_make(&t->key, e));
    size_t n_slots = 2 * capacity;
    return n_slots > t->n_slots ? slots_resize(t, n_slots, e) : ERR_OK;
}

char *symbols_copy(struct symbols *t, const char *s, size_t n)
{
    if (n > t->room_bytes) {
        size_t n_bytes = n > ROOM_BYTES ? n : ROOM_BYTES;
        char *room = arena_alloc(&t->arena, n_bytes);
        if (!room)
            return NULL;
        t->room = room;
        t->room_bytes = n_bytes;
    }
    char *copy = t->room;
    if (n > 0)
        memcpy(copy, s, n);
    t->room += n;
    t->room_bytes -= n;
    return copy;
}

static err_code add_hashed(struct symbols *t, uint32_t hash, struct text text, struct err *e)
{
    char *copy = symbols_copy(t, text.s, text.n);
    if (!copy)
        return err_nomem(e, text.n, "a token's text");
    t->slots[slot_find(t, hash, copy, text.n)] = (struct symbol_slot){.hash = hash, .symbol = t->n};
    t->texts[t->n++] = (struct text){.s = copy, .n = text.n};
    return ERR_OK;
}

err_code symbols_add_many(struct symbols *t, const struct text *texts, unsigned n, struct err *e)
{
    uint32_t hash[SYMBOLS_MANY];
    assert(n <= SYMBOLS_MANY);
    if (n > t->capacity - t->n)
        TRY(symbols_reserve(t, n, e));
    for (unsigned i = 0; i < n; i++) {
        hash[i] = text_hash(t, texts[i].s, texts[i].n);
        __builtin_prefetch(&t->slots[hash[i] & (t->n_slots - 1)], 1);
    }
    for (unsigned i = 0; i < n; i++)
        TRY(add_hashed(t, hash[i], texts[i], e));
    return ERR_OK;
}

err_code symbols_intern(struct symbols *t, const char *s, size_t n, uint32_t *out, struct err *e)
{
    *out = symbols_find(t, s, n);
    if (*out != SYMBOL_NONE)
        return ERR_OK;
    TRY(symbols_add_many(t, &(struct text){.s = s, .n = n}, 1, e));
    *out = t->n - 1;
    return ERR_OK;
}
