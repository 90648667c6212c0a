/* The log sink. The library never prints: it hands lines to a sink that the caller set, and only `cli/` writes to
 * a terminal. Counters, not lines, belong on hot paths. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_WARN, LOG_INFO, LOG_DEBUG };

struct log {
    void (*sink)(void *user, enum log_level level, const char *line); /* NULL: silence; called from any thread */
    void *user;
};

/* One line, without its newline, made printable as err_set does it. `l` may be NULL. */
void log_line(const struct log *l, enum log_level level, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
