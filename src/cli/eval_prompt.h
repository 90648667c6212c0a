/* Evaluates a prompt, which may take minutes: shows progress, and can be interrupted. */
#ifndef CLI_EVAL_PROMPT_H
#define CLI_EVAL_PROMPT_H

#include "cli/model_options.h"

/* Calls moebius_session_eval. An interrupt ends it with ERR_CANCELLED. If it takes longer than a second, progress is
 * shown on a terminal. */
MUST_USE err_code cli_eval_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                                  struct err *e);
/* Calls moebius_session_sync in the same way. */
MUST_USE err_code cli_sync_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                                  size_t *n_kept, struct err *e);

#endif
