/* From a request to the tokens of its prompt: the chat template, or text or tokens that go on. */
#ifndef SERVER_PROMPT_H
#define SERVER_PROMPT_H

#include "base/bytes.h"
#include "server/models.h"
#include "server/request.h"

struct prompt {
    int32_t *ids; /* [n]; owned */
    size_t n;
    moebius_prompt *rendered; /* what a template made; NULL: there was none. Owned */
    struct bytes text;        /* what is echoed; or the template's prompt with the message that goes on, */
    size_t begun;             /* which begins here, */
    size_t mark, n_mark;      /* and has the end of its reasoning here; n_mark 0: it has none */
    char *tools;              /* what can be called, in the form that templates take; NULL: nothing. Owned */
};

/* Prompt i of the request. defaults: variables of the template that a request need not say. ERR_USAGE: it is the
 * request's fault. Close after failures, too. */
MUST_USE err_code prompt_make(struct prompt *p, const struct served_model *m, const struct server_request *r, size_t i,
                              const moebius_template_var *defaults, size_t n_defaults, struct err *e);
/* Adds tokens, of which there may be none. */
MUST_USE err_code prompt_add_ids(struct prompt *p, const int32_t *ids, size_t n, struct err *e);
/* The tokens of a text; *ids [*n_ids] is owned by the caller (moebius_free). ERR_USAGE: it is the client's fault. */
MUST_USE err_code prompt_tokenize(const struct served_model *m, const char *text, size_t n, bool parse_special,
                                  int32_t **ids, size_t *n_ids, struct err *e);
/* The tokens of a list, which the request has in this field. */
MUST_USE err_code prompt_take_ids(struct prompt *p, const struct served_model *m, const char *field, const json_t *ids,
                                  struct err *e);
/* The text alone, without tokens. */
MUST_USE err_code prompt_render(struct prompt *p, const struct served_model *m, const struct server_request *r,
                                const moebius_template_var *defaults, size_t n_defaults, struct err *e);
void prompt_close(struct prompt *p);

#endif
