#include "base/utf8.h"

unsigned utf8_length(const char *s, size_t n)
{
    uint32_t code;
    return utf8_decode(s, n, &code);
}

size_t utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    for (unsigned length; i < n && (length = utf8_length(s + i, n - i)) > 0;)
        i += length;
    return i;
}

size_t utf8_unfinished(const char *s, size_t n)
{
    for (size_t k = 1; k <= n && k < UTF8_MAX_BYTES; k++)
        if (!utf8_is_tail(s[n - k]))
            return utf8_lead_length(s[n - k]) > k ? k : 0;
    return 0;
}

size_t utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !utf8_is_tail(s[i]);
    return count;
}

unsigned utf8_encode(uint32_t code, void *out)
{
    uint8_t *bytes = out;
    if (code < 0x80) {
        bytes[0] = (uint8_t)code;
        return 1;
    }
    unsigned n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i > 0; i--, code >>= 6)
        bytes[i] = (uint8_t)(0x80 | (code & 0x3f));
    bytes[0] = (uint8_t)(0xf00u >> n | code);
    return n;
}
