/* Prints --help: as text that fits the terminal, or as a table for programs. */
#ifndef CLI_COMMAND_HELP_H
#define CLI_COMMAND_HELP_H

#include <stdio.h>

#include "cli/options.h"

/* The width of the terminal on standard output, limited to 40 to 100 columns; 80 if standard output is no terminal. */
int help_width(void);

/* Writes text that begins in column `column`, wraps it at `width` columns, and indents further lines by `indent`. A
 * single newline in the text counts as a space; two begin a new paragraph. Ends with a newline. */
void help_wrap(FILE *out, const char *text, int column, int indent, int width);

void help_print(const struct command *c, const struct option *options, int n_option);

/* Prints a line for each option with fields separated by tabs: first name, second form, placeholder of the value, kind
 * of the value (flag, detail, choice, file, folder or value), choices, heading, help. */
void help_print_table(const struct option *options, int n_option);

/* The kind of an option's value in that table: "flag" and so on. */
const char *help_kind(const struct option *o);

#endif
