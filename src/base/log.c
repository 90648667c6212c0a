#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void log_line(const struct log *l, enum log_level level, const char *fmt, ...)
{
    if (!l || !l->sink)
        return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    l->sink(l->user, level, line);
}
