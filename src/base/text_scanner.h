/* Reads the words and numbers of small text files, with errors that name file and line. */
#ifndef BASE_TEXT_SCANNER_H
#define BASE_TEXT_SCANNER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct text_scanner {
    const char *p, *end; /* the text that is left; borrowed */
    const char *name;    /* the file's name, for messages; borrowed */
    int line;            /* counted from 0 */
};

/* All of these skip white space first. `what` names what is expected, for messages.
 *
 * Expects exactly this text, in which a space stands for any white space. */
MUST_USE err_code text_scanner_literal(struct text_scanner *w, const char *text, struct err *e);
MUST_USE err_code text_scanner_number(struct text_scanner *w, const char *what, uint64_t min, uint64_t max,
                                      uint64_t *out, struct err *e);
/* Reads a number of 16 hexadecimal digits. */
MUST_USE err_code text_scanner_hex(struct text_scanner *w, const char *what, uint64_t *out, struct err *e);
/* Copies the next word, or the rest of the line without white space at its ends, to `out`. Fails where it is n_bytes
 * long or longer. */
MUST_USE err_code text_scanner_word(struct text_scanner *w, const char *what, char *out, size_t n_bytes, struct err *e);
MUST_USE err_code text_scanner_line(struct text_scanner *w, const char *what, char *out, size_t n_bytes, struct err *e);
/* Expects the end of the file. */
MUST_USE err_code text_scanner_end(struct text_scanner *w, struct err *e);

#endif
