/* A text of `moebius batch`: a request, and the answer while it is generated. */
#ifndef CLI_BATCH_TEXT_H
#define CLI_BATCH_TEXT_H

#include "base/bytes.h"
#include "cli/batch_request.h"
#include "cli/model_options.h"
#include "cli/template_options.h"
#include "server/grammar_cache.h"
#include "texts/texts.h"

/* What all texts of a run share; borrowed. */
struct batch_setup {
    const struct model_options *model;
    moebius_engine *engine;
    const moebius_template *tmpl; /* NULL: there is none, and template_error says why */
    const struct err *template_error;
    const struct cli_vars *vars;    /* of the template */
    struct grammar_cache *grammars; /* compiled grammars of requests */
};

struct batch_text {
    struct batch_text *next, *prev;      /* in the list of open texts */
    struct batch *batch;                 /* borrowed */
    struct batch_request request;        /* owned */
    struct bytes parts[MOEBIUS_REPLY_N]; /* the answer so far, by its parts */
    struct err error;                    /* why a part could not grow */
    struct kept_grammar *grammar;        /* that the answer follows; NULL: the answer is free */
    struct grammar_cache *grammars;      /* that `grammar` is given back to; borrowed */
};

/* Makes the request's prompt and submits the text, whose parts are gathered. `end` is the end of its sink. */
MUST_USE err_code batch_text_submit(struct batch_text *t, struct texts *texts, const struct batch_setup *setup,
                                    void (*end)(void *user, const struct text_result *result), struct err *e);
void batch_text_close(struct batch_text *t);

/* The output line for an answer that has ended. NULL: no memory. */
json_t *batch_text_answer(const struct batch_text *t, const struct text_result *result);

#endif
