/* A line of progress on a terminal's standard error, a few times a second, from any thread. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading" or the like; NULL: nothing is shown */
    int64_t start_ns;
    _Atomic int64_t shown_ns; /* when it was shown last */
};
void cli_progress_begin(struct progress *p, const char *what);
/* The callback, with a struct progress: goes on (returns true) until an interrupt. say_progress_end ends the line. */
bool cli_progress(void *progress, uint64_t done, uint64_t total);

#endif
