/* Opening the model that the options name, with a progress line, and a session of it. */
#ifndef CLI_OPEN_MODEL_H
#define CLI_OPEN_MODEL_H

#include "cli/model_options.h"

/* What a command works with. Close it after a failure, too. */
struct opened {
    moebius_engine *engine;
    moebius_session *session;
    int64_t load_ns;
};

/* Fails with ERR_USAGE when no model was named. Warns where --ctx is longer than what the model was trained with. */
MUST_USE err_code cli_open_engine(const struct model_options *o, struct opened *out, struct err *e);
MUST_USE err_code cli_open_session(const struct model_options *o, int64_t n_ctx, struct opened *out, struct err *e);
void cli_close(struct opened *o);
/* Whether several devices divide the layers. */
bool cli_has_stages(const moebius_engine *engine);

/* The context of a text of n_prompt tokens, which `what` names in messages, and n_more others (-1: as many as there is
 * room for): what these need, within --ctx or what the model was trained for. ERR_LIMIT when the prompt is longer. */
MUST_USE err_code cli_context_size(const struct model_options *o, const moebius_engine *engine, const char *what,
                                   int64_t n_prompt, int64_t n_more, int64_t *n_ctx, struct err *e);

#endif
