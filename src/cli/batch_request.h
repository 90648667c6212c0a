/* A request of `moebius batch`: a line of JSON. Everything in it but the prompt has a default. */
#ifndef CLI_BATCH_REQUEST_H
#define CLI_BATCH_REQUEST_H

#include <jansson.h>

#include "cli/sampling_options.h"

struct batch_request {
    json_t *json;     /* the line's object, which owns the strings below; NULL: the line is no object */
    json_t *id;       /* the request's own id, or its line number */
    int64_t line;     /* the line's number, from 1 */
    const char *text; /* [n_text] the prompt as text; this, `messages` or `tokens` is not NULL */
    size_t n_text;
    const json_t *messages;   /* the prompt as messages */
    const json_t *tokens;     /* the prompt as an array of integers */
    int64_t max_tokens;       /* of the answer; -1: until it or the context ends */
    bool ignore_eos;          /* goes on after a token that ends the answer */
    struct option_list stops; /* strings before which the answer ends */
    struct sampling_options sampling;
    const char *form;     /* the name of the field that gives the answer's form; NULL: the answer is free */
    const char *gbnf;     /* the form as a grammar; if this and `schema` are NULL, the form is any JSON object */
    const json_t *schema; /* the form as a JSON schema */
    bool is_lenient;      /* parts of the schema that can't be enforced are left out */
};

/* Parses the n bytes of a line. What the request leaves out is taken from `defaults`. Names of unknown fields that are
 * not in the object `unknown` are added to it, with the value true. Even after a failure, unless it is one of memory,
 * `id` and `line` are set, and `r` must be closed. */
MUST_USE err_code batch_request_parse(struct batch_request *r, const struct batch_request *defaults, const char *text,
                                      size_t n, int64_t line, json_t *unknown, struct err *e);
/* Sets r->id to the line number, for a line that can't be parsed. */
MUST_USE err_code batch_request_number(struct batch_request *r, int64_t line, struct err *e);
void batch_request_close(struct batch_request *r); /* leaves it empty */

/* Converts an id to a text that no other id has. Owned by the caller (mem_free). NULL: no memory. */
char *batch_request_key(const json_t *id);

#endif
