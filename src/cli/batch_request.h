/* One request of `moebius batch`: a line of JSON, in which everything but the prompt has a default. */
#ifndef CLI_BATCH_REQUEST_H
#define CLI_BATCH_REQUEST_H

#include <jansson.h>

#include "cli/sampling_options.h"

struct batch_request {
    json_t *json;     /* the line's object, to which the strings below belong; NULL where there is none */
    json_t *id;       /* the request's own, or its line number */
    int64_t line;     /* its number, from 1 */
    const char *text; /* [n_text], the prompt; or NULL */
    size_t n_text;
    const json_t *messages;   /* or these */
    const json_t *tokens;     /* or these: an array of integers */
    int64_t max_tokens;       /* of the answer; -1: until it or the context ends */
    bool ignore_eos;          /* goes on after a token that ends the answer */
    struct option_list stops; /* strings before which the answer ends */
    struct sampling_options sampling;
    const char *form;     /* the field that says what form the answer has; NULL: none does */
    const char *gbnf;     /* a grammar, */
    const json_t *schema; /* or a JSON schema; with neither of the two and a form: any JSON object */
    bool is_lenient;      /* what of the schema can't be enforced is left out */
};

/* Parses n bytes; line is their number. What the request doesn't say is as in `defaults`. Names that mean nothing and
 * are not yet in the object `unknown` are added to it, with the value true. After a failure, too, `id` and `line` are
 * set, but where memory is short, and `r` is to be closed. */
MUST_USE err_code batch_request_parse(struct batch_request *r, const struct batch_request *defaults, const char *text,
                                      size_t n, int64_t line, json_t *unknown, struct err *e);
/* Sets r->id to the line number, for a line that can't be parsed. */
MUST_USE err_code batch_request_number(struct batch_request *r, int64_t line, struct err *e);
void batch_request_close(struct batch_request *r); /* leaves it empty */

/* An id as a text that no other id has; owned by the caller (mem_free). NULL: there is no memory. */
char *batch_request_key(const json_t *id);

#endif
