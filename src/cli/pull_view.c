#define _GNU_SOURCE
#include "cli/pull_view.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/interrupt.h"
#include "cli/say.h"

/* "2 h 5 min", "3 min 20 s" */
static void show_time(char *out, size_t n, double seconds)
{
    long s = seconds < 1e7 ? (long)seconds : 0;
    if (seconds >= 1e7)
        snprintf(out, n, "months");
    else if (s >= 3600)
        snprintf(out, n, "%ld h %ld min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(out, n, "%ld min %ld s", s / 60, s % 60);
    else
        snprintf(out, n, "%ld s", s);
}

static void on_progress(void *user, uint64_t n_there, uint64_t n_bytes)
{
    enum { EVERY_NS = 200 * 1000 * 1000 };
    const double weight = 0.1; /* of the newest measurement, a fifth of a second, in the moving average */
    struct pull_view *v = user;
    char left[40];
    int64_t now = clock_ns();
    if (!v->is_terminal || now - v->shown_ns < EVERY_NS)
        return;
    double n_new = n_there > v->n_shown ? (double)(n_there - v->n_shown) : 0;
    double rate = n_new * 1e9 / (double)(now - v->shown_ns);
    v->rate = v->rate > 0 ? (1 - weight) * v->rate + weight * rate : rate;
    show_time(left, sizeof left, v->rate > 0 ? (double)(n_bytes - n_there) / v->rate : 1e9);
    say_progress("%5.1f%% of %.2f GB, %.1f MB/s, %s left", 100.0 * (double)n_there / (double)n_bytes,
                 (double)n_bytes / 1e9, v->rate / 1e6, left);
    v->shown_ns = now;
    v->n_shown = n_there;
}

static void on_line(void *user, const char *line)
{
    say_line(line);
}

static bool goes_on(void *user)
{
    return !cli_interrupted();
}

struct pull_options pull_view_begin(struct pull_view *v, const struct hub_places *p, int n_retry)
{
    *v = (struct pull_view){.is_terminal = isatty(STDERR_FILENO), .shown_ns = clock_ns()};
    cli_catch_interrupt();
    signal(SIGPIPE, SIG_IGN);
    return (struct pull_options){
        .places = p, .n_retry = n_retry, .goes_on = goes_on, .progress = on_progress, .say = on_line, .user = v};
}

void pull_view_end(void)
{
    say_progress_end();
    signal(SIGPIPE, SIG_DFL);
    cli_release_interrupt();
}
