/* The prompt that a model's template makes of messages. */
#ifndef CLI_CHAT_PROMPT_H
#define CLI_CHAT_PROMPT_H

#include <jansson.h>

#include "base/err.h"
#include "moebius/moebius.h"

struct chat_prompt {
    moebius_prompt *rendered; /* the text */
    int32_t *ids;             /* [n], its tokens; owned (moebius_free) */
    size_t n;
};

/* Replaces the contents of *p by the prompt of these messages. After a failure *p is empty. */
MUST_USE err_code chat_prompt_render(struct chat_prompt *p, const moebius_template *tmpl, const moebius_vocab *vocab,
                                     const json_t *messages, const moebius_template_var *vars, size_t n_vars,
                                     struct err *e);
void chat_prompt_close(struct chat_prompt *p); /* leaves it empty */

/* Whether these are messages: an array of objects, each with a role. */
bool chat_prompt_is_messages(const json_t *messages);

#endif
