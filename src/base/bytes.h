/* Bytes that grow: text that is put together piece by piece. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include "base/err.h"

struct bytes {
    char *s; /* [n], NUL-terminated once something was added; NULL: nothing was. Owned */
    size_t n, capacity;
};

/* Adds n bytes. After a failure nothing was added. */
MUST_USE err_code bytes_add(struct bytes *b, const void *s, size_t n, struct err *e);
MUST_USE err_code bytes_add_text(struct bytes *b, const char *text, struct err *e);
/* Adds what printf would print. */
MUST_USE err_code bytes_print(struct bytes *b, struct err *e, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Takes the first n bytes away. */
void bytes_drop(struct bytes *b, size_t n);
void bytes_close(struct bytes *b); /* accepts one that is zero, and leaves it so */

#endif
