/* Computing a prompt, which may take minutes: it shows how far it is, and an interrupt ends it. */
#ifndef CLI_EVAL_PROMPT_H
#define CLI_EVAL_PROMPT_H

#include "cli/model_options.h"

/* moebius_session_eval, which an interrupt ends with ERR_CANCELLED; a prompt that takes more than a second shows on a
 * terminal how far it is. */
MUST_USE err_code cli_eval_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                                  struct err *e);
/* Makes the session's tokens these, as moebius_session_sync, in the same way. */
MUST_USE err_code cli_sync_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                                  size_t *n_kept, struct err *e);

#endif
