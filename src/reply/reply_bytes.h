/* Text that grows. What finds no memory is remembered, so that one look at the end of a piece suffices. */
#ifndef REPLY_REPLY_BYTES_H
#define REPLY_REPLY_BYTES_H

#include <stdbool.h>
#include <stddef.h>

struct reply_bytes {
    char *s;  /* [n] and a NUL; NULL before the first byte; owned */
    size_t n; /* bytes of text */
    size_t capacity;
    bool is_short; /* there was no memory for some of it */
};

void reply_bytes_add(struct reply_bytes *b, const char *s, size_t n);
void reply_bytes_add_char(struct reply_bytes *b, char c);
void reply_bytes_add_string(struct reply_bytes *b, const char *s);
void reply_bytes_drop(struct reply_bytes *b, size_t n); /* takes the first n bytes away */
void reply_bytes_clear(struct reply_bytes *b);          /* keeps the memory */
void reply_bytes_close(struct reply_bytes *b);
const char *reply_bytes_text(const struct reply_bytes *b); /* NUL-terminated; never NULL */

#endif
