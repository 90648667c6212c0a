/* Suggestions for options and commands that do not exist: a similar name, or the one for what llama.cpp or ollama call
 * so.
 */
#ifndef CLI_OPTION_HINTS_H
#define CLI_OPTION_HINTS_H

#include "cli/options.h"

/* Returns ERR_USAGE with a message that there is no option `word` (n bytes), and what may have been meant. */
MUST_USE err_code hint_no_option(const struct command *c, const struct option *options, int n_option, const char *word,
                                 size_t n, struct err *e);

/* Our command for a command of another program; NULL: none is known. */
const char *hint_command(const char *name);

#endif
