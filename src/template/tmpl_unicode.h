/* Characters of UTF-8 texts, and their properties as Python's str methods define them. Texts are valid UTF-8: it is
 * checked when they are parsed. */
#ifndef TEMPLATE_TMPL_UNICODE_H
#define TEMPLATE_TMPL_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"
#include "template/tmpl_syntax.h"

/* Reads the code point at s, where n > 0 bytes are; returns its length. An invalid byte counts as a character. */
unsigned code_next(const char *s, size_t n, uint32_t *code);

/* The byte offset of the character with this index; the text's length if there are fewer characters. */
size_t code_offset(struct span s, size_t index);

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
