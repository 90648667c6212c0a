/* One text of `moebius batch`: the request, its tokens so far, and what is needed to go on with it. Its session may be
 * taken away and given back: the tokens that are not in it are computed again, and nothing else changes. */
#ifndef CLI_BATCH_TEXT_H
#define CLI_BATCH_TEXT_H

#include "cli/answer.h"
#include "cli/batch_request.h"
#include "cli/chat_prompt.h"

/* What all texts share; borrowed. */
struct batch_setup {
    const struct model_options *model;
    moebius_engine *engine;
    const moebius_template *tmpl; /* NULL: there is none, and template_error says why */
    const struct err *template_error;
    const struct cli_vars *vars; /* of the template */
    size_t max_piece;            /* answer_longest_piece */
};

/* Text that grows. */
struct batch_bytes {
    char *s; /* [n], owned */
    size_t n, capacity;
};

struct batch_text {
    const struct batch_setup *setup;
    struct batch_request request; /* owned */
    int32_t *ids;                 /* [n_ids], the prompt and behind it the answer; owned */
    size_t n_ids, n_prompt, capacity;
    int64_t n_ctx;            /* tokens that may be computed */
    size_t n_cached;          /* tokens of the prompt that another text had computed */
    moebius_session *session; /* with a beginning of ids; NULL: the text waits for memory. Owned */
    moebius_sampler *sampler; /* which knows all of ids */
    struct answer answer;
    struct batch_bytes parts[MOEBIUS_REPLY_N]; /* what the answer says */
    bool is_short_of_memory;                   /* a part could not grow */
    const char *finish_reason;                 /* NULL: there are more tokens to come */
};

/* Takes over a request, which it leaves empty. The text stays where it is in memory. After a failure, too, it is to be
 * closed. */
MUST_USE err_code batch_text_open(struct batch_text *t, const struct batch_setup *setup, struct batch_request *request,
                                  struct err *e);
void batch_text_close(struct batch_text *t); /* accepts one that is zero */

/* Tokens that the session lacks. */
size_t batch_text_n_missing(const struct batch_text *t);
/* The session has all tokens: chooses the next one, or finds that the answer has ended. Where the session has lost the
 * logits there are tokens missing afterwards. */
MUST_USE err_code batch_text_next(struct batch_text *t, struct err *e);

/* The line for an answer that has ended. NULL: there is no memory. */
json_t *batch_text_answer(const struct batch_text *t);

#endif
