/* UTF-8 (RFC 3629) that may be malformed: the caller decides what to do with bytes that belong to no character. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_MAX_BYTES = 4, UTF8_MAX_CODE = 0x10ffff };

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, which stands for what is not UTF-8 */

/* Whether the byte is a continuation byte: any byte of a character but its first. */
static inline bool utf8_is_tail(char byte)
{
    return (byte & 0xc0) == 0x80;
}

static inline bool utf8_is_surrogate(uint32_t code)
{
    return code >= 0xd800 && code < 0xe000;
}

/* Whether the code point is a character: no surrogate, and not beyond U+10FFFF. */
static inline bool utf8_is_character(uint32_t code)
{
    return code <= UTF8_MAX_CODE && !utf8_is_surrogate(code);
}

/* The length in bytes, 1 to 4, of the characters that begin with this byte; 0: none does. */
static inline unsigned utf8_lead_length(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
}

/* Decodes the character at the beginning of n > 0 bytes: returns its length, 1 to 4, and sets *code to its code point.
 * Returns 0 and leaves *code as it is where there is no character: the bytes are cut off, malformed, an overlong form,
 * or beyond U+10FFFF. Surrogates count as characters. */
static inline unsigned utf8_decode_surrogates(const char *s, size_t n, uint32_t *code)
{
    static const uint32_t least[UTF8_MAX_BYTES + 1] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned length = utf8_lead_length(s[0]);
    if (length > n || length == 0)
        return 0;
    uint32_t c = (unsigned char)s[0] & (length == 1 ? 0x7fu : 0xffu >> (length + 1));
    for (unsigned i = 1; i < length; i++) {
        if (!utf8_is_tail(s[i]))
            return 0;
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    if (c < least[length] || c > UTF8_MAX_CODE)
        return 0;
    *code = c;
    return length;
}

/* The same, but a surrogate is no character. */
static inline unsigned utf8_decode(const char *s, size_t n, uint32_t *code)
{
    uint32_t c = 0;
    unsigned length = utf8_decode_surrogates(s, n, &c);
    if (length == 0 || utf8_is_surrogate(c))
        return 0;
    *code = c;
    return length;
}

/* The length, 1 to 4, of the character at the beginning of n > 0 bytes; 0: there is none. */
unsigned utf8_length(const char *s, size_t n);

/* The length of the longest beginning of s that is valid UTF-8; n: all of it is. */
size_t utf8_valid(const char *s, size_t n);

/* How many bytes at the text's end, 0 to 3, may be the beginning of a character that is cut off. */
size_t utf8_unfinished(const char *s, size_t n);

/* The number of characters of a text that is valid UTF-8. */
size_t utf8_count(const char *s, size_t n);

/* Writes a code point, which may be a surrogate; returns its length. out: UTF8_MAX_BYTES of any type. */
unsigned utf8_encode(uint32_t code, void *out);

#endif
