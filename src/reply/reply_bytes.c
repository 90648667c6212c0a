#include "reply/reply_bytes.h"

#include <string.h>

#include "base/mem.h"

void reply_bytes_add(struct reply_bytes *b, const char *s, size_t n)
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

void reply_bytes_add_char(struct reply_bytes *b, char c)
{
    reply_bytes_add(b, &c, 1);
}

void reply_bytes_add_string(struct reply_bytes *b, const char *s)
{
    reply_bytes_add(b, s, strlen(s));
}

void reply_bytes_drop(struct reply_bytes *b, size_t n)
{
    if (n == 0)
        return;
    b->n -= n;
    memmove(b->s, b->s + n, b->n + 1);
}

void reply_bytes_clear(struct reply_bytes *b)
{
    reply_bytes_drop(b, b->n);
}

void reply_bytes_close(struct reply_bytes *b)
{
    mem_free(b->s);
    *b = (struct reply_bytes){0};
}

const char *reply_bytes_text(const struct reply_bytes *b)
{
    return b->s ? b->s : "";
}
