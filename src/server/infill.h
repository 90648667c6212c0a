/* Prompts for what belongs between two texts, in the form that models of code are trained on: marks of their
 * vocabularies stand before the text, before what follows the gap, and before the answer. */
#ifndef SERVER_INFILL_H
#define SERVER_INFILL_H

#include "server/prompt.h"

/* Adds the tokens of such a prompt: other files as far as there is room (r->extra, the last ones first), the end of
 * `before`, a string, and the beginning of r->suffix. ERR_UNSUPPORTED: the model has no marks. */
MUST_USE err_code infill_make(struct prompt *p, const struct served_model *m, const struct server_request *r,
                              const json_t *before, struct err *e);

#endif
