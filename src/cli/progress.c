#define _POSIX_C_SOURCE 200809L
#include "cli/progress.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/units_text.h"
#include "cli/interrupt.h"
#include "cli/say.h"

void cli_progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){.what = isatty(STDERR_FILENO) ? what : NULL, .start_ns = clock_ns()};
    atomic_init(&p->shown_ns, p->start_ns);
}

bool cli_progress(void *progress, uint64_t done, uint64_t total)
{
    enum { EVERY_NS = 100 * 1000 * 1000 };
    struct progress *p = progress;
    int64_t now = clock_ns(), last = atomic_load(&p->shown_ns);
    /* only one thread prints, and work that is done at once shows nothing */
    if (p->what && now - last >= EVERY_NS && atomic_compare_exchange_strong(&p->shown_ns, &last, now))
        say_progress(
            "%s %5.1f%% of %s, %.2f GB/s, %s left ", p->what, 100.0 * (double)done / (double)total, units_size(total).s,
            (double)done / (double)(now - p->start_ns),
            units_duration((double)(total - done) / (double)(done ? done : 1) * (double)(now - p->start_ns) / 1e9).s);
    return !cli_interrupted();
}
