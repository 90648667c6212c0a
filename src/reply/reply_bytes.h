/* Text that grows. What finds no memory is remembered, so that one look at the end of a piece suffices. */
#ifndef REPLY_REPLY_BYTES_H
#define REPLY_REPLY_BYTES_H

#include <stdbool.h>
#include <stddef.h>

struct bytes {
    char *s;  /* [n] and a NUL; NULL before the first byte; owned */
    size_t n; /* bytes of text */
    size_t capacity;
    bool is_short; /* there was no memory for some of it */
};

void bytes_add(struct bytes *b, const char *s, size_t n);
void bytes_add_char(struct bytes *b, char c);
void bytes_add_string(struct bytes *b, const char *s);
void bytes_drop(struct bytes *b, size_t n); /* takes the first n bytes away */
void bytes_clear(struct bytes *b);          /* keeps the memory */
void bytes_close(struct bytes *b);
const char *bytes_text(const struct bytes *b); /* NUL-terminated; never NULL */

#endif
