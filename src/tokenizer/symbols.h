/* A table of byte strings: text to number and back. The vocabulary's tokens come first, so a symbol below the
 * number of tokens is a token; strings that only merges mention follow. */
#ifndef TOKENIZER_SYMBOLS_H
#define TOKENIZER_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/siphash.h"

#define SYMBOL_NONE UINT32_MAX

struct text {
    const char *s;
    size_t n;
};

struct symbol_slot {
    uint32_t hash;
    uint32_t symbol; /* SYMBOL_NONE: empty */
};

struct symbols {
    struct text *texts; /* of each symbol; owned */
    uint32_t n, capacity;
    struct symbol_slot *slots; /* open addressing, at most half full */
    size_t n_slots;            /* a power of two, or 0 */
    struct siphash_key key;    /* random: no file can be made whose texts all collide */
    struct arena arena;        /* the texts' bytes */
    char *room;                /* unused end of the arena's newest block */
    size_t room_bytes;
};

void symbols_close(struct symbols *t);

/* Room for n more texts, so that adding them moves nothing. */
MUST_USE err_code symbols_reserve(struct symbols *t, size_t n, struct err *e);

/* Looks a text up and adds it when new. */
MUST_USE err_code symbols_intern(struct symbols *t, const char *s, size_t n, uint32_t *out, struct err *e);

uint32_t symbols_find(const struct symbols *t, const char *s, size_t n);

/* A table of 200,000 texts is in no near cache, and to find a text takes three places in memory: many texts at once (up
 * to SYMBOLS_MANY) are found in half of the time. Texts that are added become the next numbers, in order, found by
 * these texts from now on (a later one with the same text hides the earlier). symbols_find_many: after something was
 * added. */
enum { SYMBOLS_MANY = 96 };
void symbols_find_many(const struct symbols *t, const struct text *texts, unsigned n, uint32_t *out);
MUST_USE err_code symbols_add_many(struct symbols *t, const struct text *texts, unsigned n, struct err *e);

/* A copy of n bytes that lives as long as the table; NULL on failure. */
char *symbols_copy(struct symbols *t, const char *s, size_t n);

#endif
