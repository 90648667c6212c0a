/* UTF-8 and what Python's str methods know of characters. Texts are valid UTF-8: whoever brings them in checks. */
#ifndef TEMPLATE_TMPL_UNICODE_H
#define TEMPLATE_TMPL_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "template/tmpl_syntax.h"

/* The offset of the first byte that is not UTF-8; n when all is well. */
size_t utf8_check(const char *s, size_t n);

/* The code point at s (n > 0 bytes are there); returns its length. Broken bytes count as one character each. */
unsigned utf8_next(const char *s, size_t n, uint32_t *code);

/* Writes a code point; returns its length, up to 4. */
unsigned utf8_put(uint32_t code, char *out);

/* Characters in the text, and the offset of the character with this index (the length when there are fewer). */
size_t utf8_count(struct span s);
size_t utf8_offset(struct span s, size_t index);

enum code_property {
    CODE_ALPHA = 1,
    CODE_DECIMAL = 2,
    CODE_DIGIT = 4,
    CODE_NUMERIC = 8,
    CODE_PRINTABLE = 16,
    CODE_UPPER = 32,
    CODE_LOWER = 64,
    CODE_SPACE = 128,
};
unsigned code_properties(uint32_t code);
bool code_is_space(uint32_t code);

enum { CODE_CASE_BYTES = 8 };                  /* the longest result of the two below */
unsigned code_upper(uint32_t code, char *out); /* the text of the upper-case form; returns its bytes */
unsigned code_lower(uint32_t code, char *out);

struct span span_rstrip_space(struct span s); /* without the white space at its end */

#endif
