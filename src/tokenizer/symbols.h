/* A table of byte strings: text to number and back. The vocabulary's tokens come first, so a symbol below the
 * number of tokens is a token; strings that only merges mention follow. */
#ifndef TOKENIZER_SYMBOLS_H
#define TOKENIZER_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

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
    bool hides;                /* a text was added twice: its first number is not found by it */
    uint64_t seed;
    struct arena arena; /* the texts' bytes */
    char *room;         /* unused end of the arena's newest block */
    size_t room_bytes;
};

void symbols_close(struct symbols *t);

/* Room for n more texts, so that adding them moves nothing. */
MUST_USE err_code symbols_reserve(struct symbols *t, size_t n, struct err *e);

/* Appends a text as the next number, found by that text from now on (a later one with the same text hides
 * it). */
MUST_USE err_code symbols_add(struct symbols *t, const char *s, size_t n, struct err *e);

/* Looks a text up and adds it when new. `guess`: the number that it probably has, looked at first; or SYMBOL_NONE. */
MUST_USE err_code symbols_intern(struct symbols *t, const char *s, size_t n, uint32_t guess, uint32_t *out,
                                 struct err *e);

uint32_t symbols_find(const struct symbols *t, const char *s, size_t n);

/* Asks the processor for the place where a text belongs. A table of 200,000 texts is in no near cache: to ask
 * some texts before each is needed takes a third off reading a vocabulary. */
void symbols_prefetch(const struct symbols *t, const char *s, size_t n);

/* A copy of n bytes that lives as long as the table; NULL on failure. */
char *symbols_copy(struct symbols *t, const char *s, size_t n);

#endif
