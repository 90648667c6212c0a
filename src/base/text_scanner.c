#include "base/text_scanner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdbool.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(struct text_scanner *w)
{
    for (; w->p < w->end && is_space(*w->p); w->p++)
        w->line += *w->p == '\n';
}

/* The length of the word at hand. */
static size_t word(struct text_scanner *w)
{
    const char *q = w->p;
    while (q < w->end && !is_space(*q))
        q++;
    return (size_t)(q - w->p);
}

static err_code unexpected(const struct text_scanner *w, size_t n, const char *expected, struct err *e)
{
    int shown = n < 40 ? (int)n : 40;
    if (n == 0)
        return err_set(e, ERR_FORMAT, "%s, line %d: the file ends, expected %s", w->name, w->line + 1, expected);
    return err_set(e, ERR_FORMAT, "%s, line %d: found \"%.*s\", expected %s", w->name, w->line + 1, shown, w->p,
                   expected);
}

err_code text_scanner_literal(struct text_scanner *w, const char *text, struct err *e)
{
    for (const char *t = text; *t;) {
        size_t want = strcspn(t, " ");
        skip_space(w);
        size_t n = word(w);
        if (n != want || memcmp(w->p, t, n) != 0)
            return unexpected(w, n, text, e);
        w->p += n;
        t += want + strspn(t + want, " ");
    }
    return ERR_OK;
}

static int digit(char c, int base)
{
    int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
    return d < base ? d : -1;
}

err_code text_scanner_number(struct text_scanner *w, const char *what, uint64_t min, uint64_t max, uint64_t *out,
                             struct err *e)
{
    skip_space(w);
    size_t n = word(w);
    uint64_t v = 0;
    bool ok = n > 0;
    for (size_t i = 0; i < n && ok; i++) {
        int d = digit(w->p[i], 10);
        ok = d >= 0 && v <= max / 10 && (uint64_t)d <= max - v * 10;
        v = v * 10 + (uint64_t)d;
    }
    if (!ok || v < min) {
        char expected[128];
        snprintf(expected, sizeof expected, "%s, a number from %" PRIu64 " to %" PRIu64, what, min, max);
        return unexpected(w, n, expected, e);
    }
    w->p += n;
    *out = v;
    return ERR_OK;
}

err_code text_scanner_hex(struct text_scanner *w, const char *what, uint64_t *out, struct err *e)
{
    skip_space(w);
    size_t n = word(w);
    *out = 0;
    for (size_t i = 0; i < n && n == 16; i++) {
        int d = digit(w->p[i], 16);
        if (d < 0)
            return unexpected(w, n, what, e);
        *out = *out << 4 | (uint64_t)d;
    }
    if (n != 16)
        return unexpected(w, n, what, e);
    w->p += n;
    return ERR_OK;
}

/* Takes the next n bytes. */
static err_code take(struct text_scanner *w, size_t n, const char *what, char *out, size_t n_bytes, struct err *e)
{
    if (n == 0 || n >= n_bytes)
        return unexpected(w, n, what, e);
    memcpy(out, w->p, n);
    out[n] = '\0';
    w->p += n;
    return ERR_OK;
}

err_code text_scanner_word(struct text_scanner *w, const char *what, char *out, size_t n_bytes, struct err *e)
{
    skip_space(w);
    return take(w, word(w), what, out, n_bytes, e);
}

err_code text_scanner_line(struct text_scanner *w, const char *what, char *out, size_t n_bytes, struct err *e)
{
    skip_space(w);
    const char *end = w->p;
    while (end < w->end && *end != '\n')
        end++;
    while (end > w->p && is_space(end[-1]))
        end--;
    return take(w, (size_t)(end - w->p), what, out, n_bytes, e);
}

err_code text_scanner_end(struct text_scanner *w, struct err *e)
{
    skip_space(w);
    return w->p == w->end ? ERR_OK : unexpected(w, word(w), "the end of the file", e);
}
