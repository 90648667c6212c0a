#include "base/printable.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* C1 controls, and the characters that embed, override or isolate a direction of writing. */
static bool steers(uint32_t code)
{
    return (code >= 0x80 && code < 0xa0) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

struct printable printable_next(const char *s, size_t n)
{
    unsigned char byte = (unsigned char)s[0];
    uint32_t code = 0;
    size_t length = utf8_decode(s, n, &code);
    struct printable p = {.n_bytes = length ? length : 1};
    if (byte == '\n' || byte == '\t')
        snprintf(p.shown, sizeof p.shown, byte == '\n' ? "\\n" : "\\t");
    else if (length == 0 || byte < 0x20 || byte == 0x7f)
        snprintf(p.shown, sizeof p.shown, "\\x%02x", byte);
    else if (steers(code))
        snprintf(p.shown, sizeof p.shown, "\\u%04x", (unsigned)code & 0xffff);
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
    (void)printable_line(text, kept - utf8_unfinished(text, kept), out, n_out);
    return false;
}
