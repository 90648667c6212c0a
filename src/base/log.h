/* The log sink. The library never prints: it hands lines to a sink that the caller set, and only `cli/` writes to a
 * terminal. Hot paths have counters instead of log lines. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_WARN, LOG_INFO, LOG_DEBUG };

struct log {
    void (*sink)(void *user, enum log_level level, const char *line); /* NULL: silence; called from any thread */
    void *user;
};

/* Logs one line, given without its newline; it is made printable as by err_set. `l` may be NULL. */
void log_line(const struct log *l, enum log_level level, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
