/* Reading the words and numbers of small text files, with errors that name file and line. */
#ifndef BASE_TEXT_SCANNER_H
#define BASE_TEXT_SCANNER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct text_scanner {
    const char *p, *end;
    const char *name; /* of the file, for messages */
    int line;         /* counted from 0 */
};

/* Each skips white space first. text_scanner_literal: exactly this text, whose spaces stand for any white space. */
MUST_USE err_code text_scanner_literal(struct text_scanner *w, const char *text, struct err *e);
MUST_USE err_code text_scanner_number(struct text_scanner *w, const char *what, uint64_t min, uint64_t max,
                                      uint64_t *out, struct err *e);
MUST_USE err_code text_scanner_hex(struct text_scanner *w, const char *what, uint64_t *out,
                                   struct err *e); /* 16 digits */
/* The next word, or the rest of the line without white space at its ends, of less than n_bytes: copied to out. */
MUST_USE err_code text_scanner_word(struct text_scanner *w, const char *what, char *out, size_t n_bytes, struct err *e);
MUST_USE err_code text_scanner_line(struct text_scanner *w, const char *what, char *out, size_t n_bytes, struct err *e);
MUST_USE err_code text_scanner_end(struct text_scanner *w, struct err *e);

#endif
