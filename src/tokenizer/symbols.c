#include "tokenizer/symbols.h"

#include <stdbool.h>
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

/* Seeded, so that a file cannot be made whose texts all collide. */
static uint32_t text_hash(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed ^ n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        h = mix(h ^ word);
    }
    uint64_t tail = 0;
    memcpy(&tail, s, n);
    h = mix(mix(h ^ tail) + seed);
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

static err_code slots_grow(struct symbols *t, struct err *e)
{
    size_t n_slots = t->n_slots ? t->n_slots * 2 : MIN_SLOTS;
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
    if (t->n == INT32_MAX)
        return err_set(e, ERR_LIMIT, "the vocabulary has more than %d distinct texts", INT32_MAX);
    if (t->n == t->capacity) {
        size_t capacity = t->capacity ? (size_t)t->capacity * 2 : MIN_SLOTS;
        capacity = capacity < INT32_MAX ? capacity : INT32_MAX;
        struct text *texts = mem_resize(t->texts, capacity, sizeof *texts);
        if (!texts)
            return err_nomem(e, capacity * sizeof *texts, "the vocabulary's texts");
        t->texts = texts;
        t->capacity = (uint32_t)capacity;
    }
    if ((size_t)t->n * 2 >= t->n_slots) {
        t->seed = t->seed ? t->seed : mix((uintptr_t)t->texts) | 1;
        TRY(slots_grow(t, e));
    }
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
