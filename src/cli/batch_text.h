/* One text of `moebius batch`: the request and, as it comes, what the answer says. */
#ifndef CLI_BATCH_TEXT_H
#define CLI_BATCH_TEXT_H

#include "base/bytes.h"
#include "cli/batch_request.h"
#include "cli/model_options.h"
#include "cli/template_options.h"
#include "server/grammar_cache.h"
#include "texts/texts.h"

/* What all texts share; borrowed. */
struct batch_setup {
    const struct model_options *model;
    moebius_engine *engine;
    const moebius_template *tmpl; /* NULL: there is none, and template_error says why */
    const struct err *template_error;
    const struct cli_vars *vars;    /* of the template */
    struct grammar_cache *grammars; /* that requests asked for */
};

struct batch_text {
    struct batch_text *next, *prev;      /* of those that are there */
    struct batch *batch;                 /* borrowed */
    struct batch_request request;        /* owned */
    struct bytes parts[MOEBIUS_REPLY_N]; /* what the answer says */
    struct err error;                    /* a part could not grow */
    struct kept_grammar *grammar;        /* NULL: the answer is free */
    struct grammar_cache *grammars;      /* whose it is; borrowed */
};

/* Submits a text, whose sink is told by `end`: reads the request's prompt, and gathers what the answer says. */
MUST_USE err_code batch_text_submit(struct batch_text *t, struct texts *texts, const struct batch_setup *setup,
                                    void (*end)(void *user, const struct text_result *result), struct err *e);
void batch_text_close(struct batch_text *t);

/* The line for an answer that has ended. NULL: there is no memory. */
json_t *batch_text_answer(const struct batch_text *t, const struct text_result *result);

#endif
