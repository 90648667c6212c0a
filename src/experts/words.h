/* Reading the words and numbers of small text files, with errors that name file and line. */
#ifndef EXPERTS_WORDS_H
#define EXPERTS_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct words {
    const char *p, *end;
    const char *name; /* of the file, for messages */
    int line;         /* counted from 0 */
};

/* Each skips white space first. words_literal: exactly this text, whose spaces stand for any white space. */
MUST_USE err_code words_literal(struct words *w, const char *text, struct err *e);
MUST_USE err_code words_number(struct words *w, const char *what, uint64_t min, uint64_t max, uint64_t *out,
                               struct err *e);
MUST_USE err_code words_hex(struct words *w, const char *what, uint64_t *out, struct err *e); /* 16 digits */
MUST_USE err_code words_end(struct words *w, struct err *e);

#endif
