/* When a thread of a loop that shares its core with another program should rest. One that takes all it can get loses
 * the core when its time slice ends, in the middle of a task, and whoever needs that task waits for a whole slice of
 * the other program. One that sleeps of its own accord between its tasks, for longer than it ran, has a claim to the
 * core when it wakes, and keeps it for the next few tasks.
 *
 * This is the arithmetic; base/pool.c reads the clocks and sleeps. */
#ifndef BASE_THROTTLE_H
#define BASE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

struct throttle_clock {
    int64_t now_ns;
    int64_t run_ns;  /* processor time of the thread so far */
    int64_t loop_ns; /* loops took that long so far */
};

/* Of one thread; zeros at first, and to begin anew. */
struct throttle {
    struct throttle_clock begin; /* of the stretch in hand; zeros: none */
    int64_t slept_ns;            /* of the stretch, for want of work: its owner adds to it */
    int64_t rests_until_ns;      /* 0: it doesn't rest */
    int64_t term_ns;             /* how long it rests once it does; 0: the last look found no need, */
    bool has_lost;               /* or need for the first time, which may have been a moment's */
};

/* The stretch is long enough for throttle_rest_ns. Of the clock, run_ns doesn't matter. */
bool throttle_is_due(const struct throttle *c, const struct throttle_clock *now);

/* Ends the stretch and begins another. Returns how long to sleep first; 0: not at all. */
int64_t throttle_rest_ns(struct throttle *c, const struct throttle_clock *now);

#endif
