/* Decides when a pool thread that shares its core with another program should sleep. A thread that takes all the time
 * that it can get loses the core when its time slice ends, in the middle of a task, and all that wait for the task wait
 * for a whole time slice of the other program. A thread that sleeps by itself between its tasks, for longer than it
 * ran, is scheduled at once when it wakes, and keeps the core for the next few tasks.
 *
 * This is only the arithmetic: base/pool.c reads the clocks and sleeps. */
#ifndef BASE_THROTTLE_H
#define BASE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

struct throttle_clock {
    int64_t now_ns;
    int64_t run_ns;  /* processor time that the thread has used so far */
    int64_t loop_ns; /* how long all loops so far took */
};

/* The state of one thread. Zeros: no other program is known to use its core. */
struct throttle {
    struct throttle_clock begin; /* when the current interval began; zeros: there is none */
    int64_t slept_ns;            /* how long the thread slept in the interval as it had no work; the pool adds to it */
    int64_t throttled_until_ns;  /* until then the thread runs in bursts; 0: it is not throttled */
    int64_t term_ns;             /* how long it was throttled last; 0: the last check found no other program */
    bool has_lost;               /* the last check found that the thread had lost its core */
};

/* Whether the interval is long enough for throttle_sleep_ns. The clock's run_ns is not used. */
bool throttle_is_due(const struct throttle *c, const struct throttle_clock *now);

/* Ends the interval and begins the next one. Returns how long the thread should sleep before that; 0: not at all. */
int64_t throttle_sleep_ns(struct throttle *c, const struct throttle_clock *now);

#endif
