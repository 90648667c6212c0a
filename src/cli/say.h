/* Lines on standard error, whole whatever the thread. A command waits until they are written; a server must not, as
 * one that waits for who reads its log answers nobody: there lines that can't be written at once are left out, and the
 * next one that can be says how many those were. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <stdbool.h>

#include "base/err.h"
#include "base/log.h"

/* Writes a line, of which warnings say that they are some; it needs no newline of its own. */
void say(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The same of a line as it is, which is JSON already where the log is. */
void say_line(const char *line);
/* Shows how far the work is, where standard error is a terminal: in a line that the next one takes the place of, and
 * that others clear. */
void say_progress(const char *fmt, ...) PRINTF_LIKE(1, 2);
void say_progress_end(void); /* clears it */
/* From now on standard error is a server's log. is_json: lines are objects, with "level", "message" and "time". To be
 * called before other threads write. */
void say_to_log(bool is_json);

#endif
