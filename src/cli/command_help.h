/* What --help prints: for people, as wide as the terminal, and as a table for programs. */
#ifndef CLI_COMMAND_HELP_H
#define CLI_COMMAND_HELP_H

#include <stdio.h>

#include "cli/options.h"

/* Columns of the terminal that standard output leads to, from 40 to 100; 80 where it leads elsewhere. */
int help_width(void);

/* Writes words that begin in column `column`; lines that would be wider than `width` go on in column `indent`. Newlines
 * of the text count as spaces, but two of them begin a paragraph. Ends the last line. */
void help_wrap(FILE *out, const char *text, int column, int indent, int width);

void help_print(const struct command *c, const struct option *options, int n_option);

/* A line for each option, with tabs between: its first name, its other form, what its value is called, the kind of that
 * (flag, detail, choice, file, folder or value), its choices, its heading, its help. */
void help_print_table(const struct option *options, int n_option);

/* "flag" and so on. */
const char *help_kind(const struct option *o);

#endif
