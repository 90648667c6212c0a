/* The grammar that the answer to a request must follow: the form that the client asks for (a JSON schema, a regular
 * expression, GBNF), or calls of its tools in the notation of the model's family. */
#ifndef SERVER_ANSWER_GRAMMAR_H
#define SERVER_ANSWER_GRAMMAR_H

#include "server/models.h"
#include "server/prompt.h"
#include "server/request.h"
#include "texts/texts.h"

struct answer_grammar {
    struct kept_grammar *kept;   /* NULL: the answer is free */
    struct grammar_cache *cache; /* that `kept` is given back to; borrowed from the model */
    enum text_grammar_from from; /* where in the answer the grammar applies */
    const char *trigger;         /* the text that begins a call; borrowed from the model */
};

/* Fills *g. A part of a schema that can't be enforced is left out, with a note on the request, or is ERR_USAGE if the
 * client insists on it (strict). */
MUST_USE err_code answer_grammar_open(struct answer_grammar *g, const struct served_model *m,
                                      const struct prompt *prompt, struct server_request *r, struct err *e);
void answer_grammar_close(struct answer_grammar *g); /* not before the texts that follow it have ended */

#endif
