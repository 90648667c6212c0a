/* Opens the model that the options name, with a progress line, and a session of it. */
#ifndef CLI_OPEN_MODEL_H
#define CLI_OPEN_MODEL_H

#include "cli/model_options.h"

/* An open engine and session. Must be closed even after a failure. */
struct opened {
    moebius_engine *engine;
    moebius_session *session;
    int64_t load_ns;
};

/* ERR_USAGE: no model was named. Prints a warning if --ctx is longer than the context that the model was trained for.
 */
MUST_USE err_code cli_open_engine(const struct model_options *o, struct opened *out, struct err *e);
MUST_USE err_code cli_open_session(const struct model_options *o, int64_t n_ctx, struct opened *out, struct err *e);
void cli_close(struct opened *o);
/* Whether several devices divide the layers. */
bool cli_has_stages(const moebius_engine *engine);

/* Finds the context size for a text of n_prompt tokens and n_more further ones (-1: as many as fit): what they need, at
 * most --ctx or the context that the model was trained for. ERR_LIMIT: the prompt alone is longer. what: the prompt's
 * name in messages. */
MUST_USE err_code cli_context_size(const struct model_options *o, const moebius_engine *engine, const char *what,
                                   int64_t n_prompt, int64_t n_more, int64_t *n_ctx, struct err *e);

#endif
