/* Completions for shells, made of the commands' tables of options. */
#ifndef CLI_COMPLETIONS_H
#define CLI_COMPLETIONS_H

#include <stdbool.h>

#include "cli/options.h"

/* Whether `shell` is one of bash, zsh and fish. */
bool completions_know(const char *shell);

/* What completes a command's options, as the part of the script that is about this command. */
void completions_print_options(const char *shell, const struct command *c, const struct option *options, int n_option);

/* The whole script, for a shell that is known; asks each command for its part. */
void completions_print(const char *shell, const struct command *const *commands, int n_command);

#endif
