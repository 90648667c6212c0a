/* Shows progress in a line on standard error if that is a terminal, a few times a second. Thread-safe. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading" or the like; NULL: nothing is shown */
    int64_t start_ns;
    _Atomic int64_t shown_ns; /* when the line was last shown */
};
void cli_progress_begin(struct progress *p, const char *what);
/* A progress callback; its first argument is a struct progress. Returns false after an interrupt. say_progress_end
 * clears the line. */
bool cli_progress(void *progress, uint64_t done, uint64_t total);

#endif
