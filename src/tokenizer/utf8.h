/* Reading UTF-8 that may be broken. */
#ifndef TOKENIZER_UTF8_H
#define TOKENIZER_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { UTF8_REPLACEMENT = 0xfffd, UTF8_MAX_BYTES = 4 };

/* The length of the sequence at s (n > 0 bytes are there) and its code point; a byte that starts no sequence
 * counts as U+FFFD, alone. Surrogates pass (they have a category, and their bytes are kept); overlong forms
 * and code points over U+10FFFF do not. */
static inline unsigned utf8_decode(const char *s, size_t n, uint32_t *code)
{
    static const uint32_t least[UTF8_MAX_BYTES + 1] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char lead = (unsigned char)s[0];
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    unsigned len = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    *code = UTF8_REPLACEMENT;
    if (lead < 0xc0 || lead > 0xf4 || len > n)
        return 1;
    uint32_t c = lead & (0xffu >> (len + 1));
    for (unsigned i = 1; i < len; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 1;
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff)
        return 1;
    *code = c;
    return len;
}

/* Writes a code point up to U+10FFFF; returns its length. */
static inline unsigned utf8_encode(uint32_t code, char out[UTF8_MAX_BYTES])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    unsigned len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (unsigned i = len - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(0xf00u >> len | code);
    return len;
}

#endif
