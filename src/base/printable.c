#include "base/printable.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The bytes of a character that begins with this one; 0: none does (RFC 3629). */
static size_t announced_length(unsigned char lead)
{
    return lead < 0x80                   ? 1
           : lead >= 0xc2 && lead < 0xe0 ? 2
           : lead >= 0xe0 && lead < 0xf0 ? 3
           : lead >= 0xf0 && lead < 0xf5 ? 4
                                         : 0;
}

size_t printable_utf8_length(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t length = announced_length(u[0]);
    if (length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    /* overlong forms, surrogates, and beyond U+10FFFF */
    if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f) || (u[0] == 0xf0 && u[1] < 0x90) ||
        (u[0] == 0xf4 && u[1] > 0x8f))
        return 0;
    return length;
}

/* The code point of a character of 2 or 3 bytes. */
static uint32_t code_point(const char *s, size_t length)
{
    uint32_t code = (unsigned char)s[0] & (length == 2 ? 0x1f : 0x0f);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | ((unsigned char)s[i] & 0x3f);
    return code;
}

/* C1 controls, and the characters that embed, override or isolate a direction of writing. */
static bool steers(uint32_t code)
{
    return (code >= 0x80 && code < 0xa0) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

struct printable printable_next(const char *s, size_t n)
{
    unsigned char byte = (unsigned char)s[0];
    size_t length = printable_utf8_length(s, n);
    struct printable p = {.n_bytes = length ? length : 1};
    if (byte == '\n' || byte == '\t')
        snprintf(p.shown, sizeof p.shown, byte == '\n' ? "\\n" : "\\t");
    else if (length == 0 || byte < 0x20 || byte == 0x7f)
        snprintf(p.shown, sizeof p.shown, "\\x%02x", byte);
    else if ((length == 2 || length == 3) && steers(code_point(s, length)))
        snprintf(p.shown, sizeof p.shown, "\\u%04x", (unsigned)code_point(s, length) & 0xffff);
    else
        memcpy(p.shown, s, length);
    return p;
}

bool printable_line(const char *s, size_t n, char *out, size_t n_out)
{
    size_t i = 0, used = 0;
    while (i < n) {
        struct printable p = printable_next(s + i, n - i);
        size_t length = strlen(p.shown);
        if (used + length >= n_out)
            break;
        memcpy(out + used, p.shown, length);
        used += length;
        i += p.n_bytes;
    }
    out[used] = '\0';
    return i == n;
}

bool printable_format(char *out, size_t n_out, const char *fmt, va_list args)
{
    char text[PRINTABLE_FORMAT_BYTES];
    assert(n_out <= sizeof text);
    int n = vsnprintf(text, n_out, fmt, args);
    if (n >= 0 && (size_t)n < n_out)
        return printable_line(text, (size_t)n, out, n_out);
    size_t kept = n < 0 ? 0 : n_out - 1;
    (void)printable_line(text, kept - printable_unfinished(text, kept), out, n_out);
    return false;
}

size_t printable_unfinished(const char *s, size_t n)
{
    for (size_t k = 1; k <= n && k < 4; k++) {
        unsigned char byte = (unsigned char)s[n - k];
        if ((byte & 0xc0) != 0x80)
            return announced_length(byte) > k ? k : 0;
    }
    return 0;
}
