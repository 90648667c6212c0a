#include "reply/reply_bytes.h"

#include <string.h>

#include "base/mem.h"

void bytes_add(struct bytes *b, const char *s, size_t n)
{
    if (b->capacity - b->n < n + 1) {
        size_t capacity = 2 * (b->n + n) + 64;
        char *more = mem_resize(b->s, capacity, 1);
        b->is_short |= !more;
        if (!more)
            return;
        b->s = more;
        b->capacity = capacity;
    }
    if (n)
        memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = '\0';
}

void bytes_add_char(struct bytes *b, char c)
{
    bytes_add(b, &c, 1);
}

void bytes_add_string(struct bytes *b, const char *s)
{
    bytes_add(b, s, strlen(s));
}

void bytes_drop(struct bytes *b, size_t n)
{
    if (n == 0)
        return;
    b->n -= n;
    memmove(b->s, b->s + n, b->n + 1);
}

void bytes_clear(struct bytes *b)
{
    bytes_drop(b, b->n);
}

void bytes_close(struct bytes *b)
{
    mem_free(b->s);
    *b = (struct bytes){0};
}

const char *bytes_text(const struct bytes *b)
{
    return b->s ? b->s : "";
}
