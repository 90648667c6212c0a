/* Reads lines of input: from a terminal, with libedit's editing and history if this build has it, or from a pipe or
 * file. */
#ifndef CLI_LINE_EDITOR_H
#define CLI_LINE_EDITOR_H

#include <stdbool.h>

#include "base/err.h"

struct line_editor;

enum line_event { LINE_TEXT, LINE_INTERRUPTED, LINE_END, LINE_FAILED /* standard input can't be read */ };

/* interactive: standard input and output are terminals. Otherwise no prompt is shown. */
MUST_USE err_code line_editor_open(struct line_editor **out, bool interactive, struct err *e);
void line_editor_close(struct line_editor **editor);

/* Reads the next line, without its newline. *line is borrowed until the next call. Text that was pasted into a terminal
 * in one go is one line with newlines in it. On a terminal an interrupt, before or during the wait, ends it if the flag
 * is on (cli_catch_interrupt). */
enum line_event line_editor_read(struct line_editor *editor, const char *prompt, const char **line);

/* Adds a message to the history that the arrow keys show. */
void line_editor_remember(struct line_editor *editor, const char *text);
/* Makes the next line begin with this text, as if it had been typed. False: this editor can't do that. */
bool line_editor_prefill(struct line_editor *editor, const char *text);

/* "libedit" or "none". */
const char *line_editor_name(void);

#endif
