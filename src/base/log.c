#include "base/log.h"

#include <stdarg.h>

#include "base/printable.h"

void log_line(const struct log *l, enum log_level level, const char *fmt, ...)
{
    if (!l || !l->sink)
        return;
    char line[PRINTABLE_FORMAT_BYTES];
    va_list args;
    va_start(args, fmt);
    (void)printable_format(line, sizeof line, fmt, args);
    va_end(args);
    l->sink(l->user, level, line);
}
