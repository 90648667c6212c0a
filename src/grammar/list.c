#include "grammar/list.h"

#include <pthread.h>
#include <string.h>

#include "base/siphash.h"

void *list_enlarge(void *at, uint32_t *capacity, size_t need, size_t size)
{
    size_t wanted = *capacity ? (size_t)*capacity * 2 : 16;
    if (wanted < need)
        wanted = need;
    if (wanted > INT32_MAX)
        return NULL;
    void *larger = mem_resize(at, wanted, size);
    if (larger)
        *capacity = (uint32_t)wanted;
    return larger;
}

static uint32_t hash_words(const uint32_t *words, uint32_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

/* One key for all tables of the process. */
static struct siphash_key text_key;
static pthread_once_t text_key_once = PTHREAD_ONCE_INIT;

static void make_text_key(void)
{
    if (siphash_key_make(&text_key, NULL) != ERR_OK)
        text_key = (struct siphash_key){0}; /* tables work all the same */
}

/* Texts come from clients, and must not be made to collide. */
static uint32_t hash_text(const char *s, size_t n)
{
    pthread_once(&text_key_once, make_text_key);
    return (uint32_t)siphash13(text_key, s, n);
}

static bool enlarge_table(struct intern *t)
{
    uint32_t n = t->n_table ? t->n_table * 2 : 64;
    uint32_t *table = mem_calloc(n, sizeof *table);
    if (!table)
        return false;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t at = t->items[i].hash & (n - 1);
        while (table[at])
            at = (at + 1) & (n - 1);
        table[at] = i + 1;
    }
    mem_free(t->table);
    t->table = table;
    t->n_table = n;
    return true;
}

static uint32_t add(struct intern *t, const uint32_t *words, uint32_t n, uint32_t hash)
{
    if ((t->n + 1) * 2 > t->n_table && !enlarge_table(t))
        return INTERN_NONE;
    uint32_t at = hash & (t->n_table - 1);
    for (; t->table[at]; at = (at + 1) & (t->n_table - 1)) {
        const struct intern_item *item = &t->items[t->table[at] - 1];
        if (item->hash == hash && item->n == n && !memcmp(t->words.at + item->at, words, n * sizeof *words))
            return t->table[at] - 1;
    }
    if (t->n == t->capacity) {
        void *items = list_enlarge(t->items, &t->capacity, t->n + 1, sizeof *t->items);
        if (!items)
            return INTERN_NONE;
        t->items = items;
    }
    if (!LIST_ROOM(&t->words, n))
        return INTERN_NONE;
    if (n)
        memcpy(t->words.at + t->words.n, words, n * sizeof *words);
    t->items[t->n] = (struct intern_item){.at = t->words.n, .n = n, .hash = hash};
    t->words.n += n;
    t->table[at] = ++t->n;
    return t->n - 1;
}

uint32_t intern_add(struct intern *t, const uint32_t *words, uint32_t n)
{
    return add(t, words, n, hash_words(words, n));
}

uint32_t intern_text(struct intern *t, const char *s, size_t n)
{
    uint32_t few[16] = {0};
    size_t n_word = 1 + (n + sizeof *few - 1) / sizeof *few;
    uint32_t *words = n_word <= sizeof few / sizeof *few ? few : mem_calloc(n_word, sizeof *words);
    if (!words)
        return INTERN_NONE;
    words[0] = (uint32_t)n;
    if (n)
        memcpy(words + 1, s, n);
    uint32_t number = add(t, words, (uint32_t)n_word, hash_text(s, n));
    if (words != few)
        mem_free(words);
    return number;
}

size_t intern_bytes(const struct intern *t)
{
    return t->words.capacity * sizeof *t->words.at + t->capacity * sizeof *t->items + t->n_table * sizeof *t->table;
}

void intern_close(struct intern *t)
{
    LIST_CLOSE(&t->words);
    mem_free(t->items);
    mem_free(t->table);
    *t = (struct intern){0};
}
