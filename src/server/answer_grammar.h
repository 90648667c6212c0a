/* What the answer to a request must be, as a grammar: the form that the client asks for, or calls of its tools as the
 * model's family writes them. */
#ifndef SERVER_ANSWER_GRAMMAR_H
#define SERVER_ANSWER_GRAMMAR_H

#include "server/models.h"
#include "server/prompt.h"
#include "server/request.h"
#include "texts/texts.h"

struct answer_grammar {
    struct kept_grammar *kept;   /* NULL: the answer is free */
    struct grammar_cache *cache; /* whose it is; borrowed from the model */
    enum text_grammar_from from;
    const char *trigger; /* borrowed from the model */
};

/* What can't be enforced becomes a note of the request, unless the client wants it enforced: then it is ERR_USAGE. */
MUST_USE err_code answer_grammar_open(struct answer_grammar *g, const struct served_model *m,
                                      const struct prompt *prompt, struct server_request *r, struct err *e);
void answer_grammar_close(struct answer_grammar *g); /* once the texts have ended that follow it */

#endif
