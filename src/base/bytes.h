/* Bytes that grow: text that is put together piece by piece. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct bytes {
    char *s; /* [n], NUL-terminated once something was added; NULL: nothing was. Owned */
    size_t n, capacity;
    bool is_short; /* bytes_put and its like found no memory for something */
};

/* Adds n bytes. After a failure nothing was added. */
MUST_USE err_code bytes_add(struct bytes *b, const void *s, size_t n, struct err *e);
MUST_USE err_code bytes_add_text(struct bytes *b, const char *text, struct err *e);
/* Adds what printf would print. */
MUST_USE err_code bytes_print(struct bytes *b, struct err *e, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same without an error: what finds no memory is left out and remembered, so that one look at the end suffices. */
void bytes_put(struct bytes *b, const void *s, size_t n);
void bytes_put_text(struct bytes *b, const char *text);
void bytes_put_char(struct bytes *b, char c);
const char *bytes_text(const struct bytes *b); /* NUL-terminated; never NULL */
void bytes_drop(struct bytes *b, size_t n);    /* takes the first n bytes away */
void bytes_clear(struct bytes *b);             /* keeps the memory */
void bytes_close(struct bytes *b);             /* accepts one that is zero, and leaves it so */

#endif
