/* Prints lines on standard error. Lines of different threads do not mix. A command waits until a line is written. A
 * server must not, or whoever reads its log slowly would block it: there, lines that can't be written at once are
 * dropped, and the next line says how many were. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <stdbool.h>

#include "base/err.h"
#include "base/log.h"

/* Prints a line; warnings are marked as such. The text needs no newline at its end. */
void say(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Prints a line unchanged. If the log is JSON, the line must be, too. */
void say_line(const char *line);
/* Shows progress if standard error is a terminal: in a line that the next call replaces, and that other lines clear. */
void say_progress(const char *fmt, ...) PRINTF_LIKE(1, 2);
void say_progress_end(void); /* clears that line */
/* Makes standard error a server's log. is_json: its lines are objects with "level", "message" and "time". Must be
 * called before other threads print. */
void say_to_log(bool is_json);

#endif
