/* What was probably meant by an option or a command that there isn't: a name that is nearly the same, or what llama.cpp
 * and ollama call it. */
#ifndef CLI_OPTION_HINTS_H
#define CLI_OPTION_HINTS_H

#include "cli/options.h"

/* ERR_USAGE: there is no option `word` (n bytes), with what might have been meant. */
MUST_USE err_code hint_no_option(const struct command *c, const struct option *options, int n_option, const char *word,
                                 size_t n, struct err *e);

/* The command of ours that does what another program's does; NULL: none known. */
const char *hint_command(const char *name);

#endif
