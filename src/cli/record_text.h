/* The routing of a text, recorded for `profile` and `trace`. */
#ifndef CLI_RECORD_TEXT_H
#define CLI_RECORD_TEXT_H

#include "cli/open_model.h"
#include "jobs/profile.h"

/* Opens the model and a session, and runs the text's first n_most tokens (0: all) through them, in windows of --ctx.
 * *n: how many these are; an interrupt leaves fewer in the trace, and is no failure. `opened` and the trace are to be
 * closed in any case. */
MUST_USE err_code record_text(const struct model_options *model, const char *file, int64_t n_most,
                              struct opened *opened, struct profile *profile, size_t *n, struct err *e);

#endif
