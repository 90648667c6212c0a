/* A growing buffer of bytes, for text that is put together piece by piece. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct bytes {
    char *s;  /* [n] owned, NUL-terminated once something was added; NULL before */
    size_t n; /* bytes of the text */
    size_t capacity;
    bool is_short; /* a bytes_put function ran out of memory and left something out */
};

/* Appends n bytes. On failure the buffer is unchanged. */
MUST_USE err_code bytes_add(struct bytes *b, const void *s, size_t n, struct err *e);
MUST_USE err_code bytes_add_text(struct bytes *b, const char *text, struct err *e);
/* Appends what printf would print. */
MUST_USE err_code bytes_print(struct bytes *b, struct err *e, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same without an error: where memory runs out they append nothing and set is_short, so that the caller needs to
 * check only once, at the end. */
void bytes_put(struct bytes *b, const void *s, size_t n);
void bytes_put_text(struct bytes *b, const char *text);
void bytes_put_char(struct bytes *b, char c);
const char *bytes_text(const struct bytes *b); /* NUL-terminated; never NULL */
void bytes_drop(struct bytes *b, size_t n);    /* removes the first n bytes */
void bytes_clear(struct bytes *b);             /* empties the buffer but keeps its memory */
void bytes_close(struct bytes *b);             /* frees the memory; accepts a zeroed struct and leaves a zeroed one */

#endif
