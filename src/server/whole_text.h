/* Text whose pieces end anywhere, as pieces of whole characters. */
#ifndef SERVER_WHOLE_TEXT_H
#define SERVER_WHOLE_TEXT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/bytes.h"

struct whole_text {
    struct bytes held; /* the first n_given bytes were taken */
    size_t n_given;
    json_t *repaired; /* what was taken, where bytes had to be replaced; owned */
};

MUST_USE err_code whole_text_add(struct whole_text *t, const char *text, size_t n, struct err *e);
/* What there is, up to the beginning of a character that lacks its end, or all of it. Bytes that belong to no character
 * become U+FFFD. *text [*n] is borrowed until the next call. */
MUST_USE err_code whole_text_take(struct whole_text *t, bool all, const char **text, size_t *n, struct err *e);
void whole_text_close(struct whole_text *t); /* accepts one that is zero */

#endif
