/* Lines of input: from a terminal with libedit's editing and history, where this build has it, or else from a pipe or a
 * file as they are. */
#ifndef CLI_LINE_EDITOR_H
#define CLI_LINE_EDITOR_H

#include <stdbool.h>

#include "base/err.h"

struct line_editor;

enum line_event { LINE_TEXT, LINE_INTERRUPTED, LINE_END, LINE_FAILED /* standard input can't be read */ };

/* interactive: standard input and output are terminals; else no prompt is shown. */
MUST_USE err_code line_editor_open(struct line_editor **out, bool interactive, struct err *e);
void line_editor_close(struct line_editor **editor);

/* The next line, without its newline, to *line: borrowed until the next call. What was pasted into a terminal at once
 * stays in one line, with newlines in it. On a terminal an interrupt that was or is noted (cli_catch_interrupt) ends
 * the wait; one that comes when the line has been taken is left to the caller. */
enum line_event line_editor_read(struct line_editor *editor, const char *prompt, const char **line);

/* Puts a message where the arrow up finds it. */
void line_editor_remember(struct line_editor *editor, const char *text);
/* The next line begins with this text, as if it had been typed. False: this editor can't. */
bool line_editor_prefill(struct line_editor *editor, const char *text);

/* "libedit" or "none". */
const char *line_editor_name(void);

#endif
