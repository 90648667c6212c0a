#include "base/bytes.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Makes room for n more bytes and a NUL. */
static err_code reserve(struct bytes *b, size_t n, struct err *e)
{
    if (n > SIZE_MAX / 4 - b->n)
        return err_nomem(e, n, "a text");
    return mem_grow(&b->s, &b->capacity, b->n + n + 1, 1, "a text", e);
}

err_code bytes_add(struct bytes *b, const void *s, size_t n, struct err *e)
{
    TRY(reserve(b, n, e));
    if (n)
        memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = '\0';
    return ERR_OK;
}

err_code bytes_add_text(struct bytes *b, const char *text, struct err *e)
{
    return bytes_add(b, text, strlen(text), e);
}

err_code bytes_print(struct bytes *b, struct err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    assert(n >= 0);
    TRY(reserve(b, (size_t)n, e));
    va_start(args, fmt);
    vsnprintf(b->s + b->n, (size_t)n + 1, fmt, args);
    va_end(args);
    b->n += (size_t)n;
    return ERR_OK;
}

void bytes_put(struct bytes *b, const void *s, size_t n)
{
    b->is_short |= bytes_add(b, s, n, NULL) != ERR_OK;
}

void bytes_put_text(struct bytes *b, const char *text)
{
    bytes_put(b, text, strlen(text));
}

void bytes_put_char(struct bytes *b, char c)
{
    bytes_put(b, &c, 1);
}

const char *bytes_text(const struct bytes *b)
{
    return b->s ? b->s : "";
}

void bytes_clear(struct bytes *b)
{
    bytes_drop(b, b->n);
}

void bytes_drop(struct bytes *b, size_t n)
{
    assert(n <= b->n);
    if (n == 0)
        return;
    b->n -= n;
    memmove(b->s, b->s + n, b->n);
    b->s[b->n] = '\0';
}

void bytes_close(struct bytes *b)
{
    mem_free(b->s);
    *b = (struct bytes){0};
}
