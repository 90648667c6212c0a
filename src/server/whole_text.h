/* Turns text that arrives in arbitrary pieces into pieces of whole UTF-8 characters. */
#ifndef SERVER_WHOLE_TEXT_H
#define SERVER_WHOLE_TEXT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/bytes.h"

struct whole_text {
    struct bytes held; /* text that was added; its first n_given bytes were taken and can be dropped */
    size_t n_given;
    json_t *repaired; /* the last piece, if bytes in it had to be replaced; owned */
};

MUST_USE err_code whole_text_add(struct whole_text *t, const char *text, size_t n, struct err *e);
/* Takes what is there up to the last whole character, or with `all` everything. Bytes that are not UTF-8 become U+FFFD.
 * *text [*n] is valid until the next call. */
MUST_USE err_code whole_text_take(struct whole_text *t, bool all, const char **text, size_t *n, struct err *e);
void whole_text_close(struct whole_text *t); /* accepts one that is zero */

#endif
