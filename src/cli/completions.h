/* Completion scripts for shells, made from the commands' option tables. */
#ifndef CLI_COMPLETIONS_H
#define CLI_COMPLETIONS_H

#include <stdbool.h>

#include "cli/options.h"

/* Whether `shell` is one of bash, zsh and fish. */
bool completions_know(const char *shell);

/* Prints the part of the script that completes one command's options. */
void completions_print_options(const char *shell, const struct command *c, const struct option *options, int n_option);

/* Prints the whole script for a known shell. Each command prints its own part. */
void completions_print(const char *shell, const struct command *const *commands, int n_command);

#endif
