/* Records the routing of a text, for `profile` and `trace`. */
#ifndef CLI_RECORD_TEXT_H
#define CLI_RECORD_TEXT_H

#include "cli/open_model.h"
#include "jobs/profile.h"

/* Opens the model and a session, and evaluates the text's first n_most tokens (0: all) in windows of --ctx. *n: how
 * many these are. An interrupt is no failure; it leaves fewer in the trace. `opened` and the trace must be closed even
 * after a failure. */
MUST_USE err_code record_text(const struct model_options *model, const char *file, int64_t n_most,
                              struct opened *opened, struct profile *profile, size_t *n, struct err *e);

#endif
