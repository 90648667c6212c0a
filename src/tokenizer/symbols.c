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

static uint64_t mix(uint64_t h)
{
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* The last n < 8 bytes as one word, different for different bytes of the same n. */
static uint64_t tail_word(const char *s, size_t n)
{
    if (n >= 4) {
        uint32_t first, last;
        memcpy(&first, s, 4);
        memcpy(&last, s + n - 4, 4);
        return (uint64_t)last << 32 | first;
    }
    const unsigned char *u = (const unsigned char *)s;
    return n == 0 ? 0 : (uint64_t)u[0] << 16 | (uint64_t)u[n / 2] << 8 | u[n - 1];
}

/* Seeded, so that a file cannot be made whose texts all collide. */
static uint32_t text_hash(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed ^ n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        h = mix(h ^ word);
    }
    h = mix(mix(h ^ tail_word(s, n)) + seed);
    return (uint32_t)(h >> 32);
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
    return t->slots[slot_find(t, text_hash(t->seed, s, n), s, n)].symbol;
}

void symbols_announce(const struct symbols *t, const char *s, size_t n)
{
    assert(t->n_slots > 0);
    __builtin_prefetch(&t->slots[text_hash(t->seed, s, n) & (t->n_slots - 1)], 1);
}

/* Each pass asks for what the next one looks at. Most texts are in the first slot that is looked at, if anywhere. */
void symbols_find_many(const struct symbols *t, const struct text *texts, unsigned n, uint32_t *out)
{
    uint32_t hash[SYMBOLS_MANY];
    const struct text *likely[SYMBOLS_MANY];
    assert(n <= SYMBOLS_MANY && t->n_slots > 0);
    for (unsigned i = 0; i < n; i++) {
        hash[i] = text_hash(t->seed, texts[i].s, texts[i].n);
        __builtin_prefetch(&t->slots[hash[i] & (t->n_slots - 1)]);
    }
    for (unsigned i = 0; i < n; i++) {
        const struct symbol_slot *slot = &t->slots[hash[i] & (t->n_slots - 1)];
        likely[i] = slot->symbol == SYMBOL_NONE ? NULL : &t->texts[slot->symbol];
        __builtin_prefetch(likely[i]);
    }
    for (unsigned i = 0; i < n; i++)
        if (likely[i])
            __builtin_prefetch(likely[i]->s);
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
    t->seed = t->seed ? t->seed : mix((uintptr_t)t->texts) | 1;
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

err_code symbols_add(struct symbols *t, const char *s, size_t n, struct err *e)
{
    if (t->n == t->capacity)
        TRY(symbols_reserve(t, 1, e));
    char *copy = symbols_copy(t, s, n);
    if (!copy)
        return err_nomem(e, n, "a token's text");
    uint32_t hash = text_hash(t->seed, copy, n);
    t->slots[slot_find(t, hash, copy, n)] = (struct symbol_slot){.hash = hash, .symbol = t->n};
    t->texts[t->n++] = (struct text){.s = copy, .n = n};
    return ERR_OK;
}

err_code symbols_intern(struct symbols *t, const char *s, size_t n, uint32_t *out, struct err *e)
{
    *out = symbols_find(t, s, n);
    if (*out != SYMBOL_NONE)
        return ERR_OK;
    TRY(symbols_add(t, s, n, e));
    *out = t->n - 1;
    return ERR_OK;
}
