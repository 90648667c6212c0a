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

/* The state of one thread. Zeros: no other program is known of. */
struct throttle {
    struct throttle_clock begin; /* when the interval in hand began; zeros: there is none */
    int64_t slept_ns;            /* sleep for want of work in the interval; the pool adds to it */
    int64_t throttled_until_ns;  /* until then the thread runs in bursts; 0: it is not throttled */
    int64_t term_ns;             /* how long it was throttled last; 0: the last check found no other program */
    bool has_lost;               /* the last check found that the thread had lost its core */
};

/* Whether the interval is long enough for throttle_sleep_ns. The clock's run_ns is not used. */
bool throttle_is_due(const struct throttle *c, const struct throttle_clock *now);

/* Ends the interval and begins another. Returns how long the thread should sleep before that; 0: not at all. */
int64_t throttle_sleep_ns(struct throttle *c, const struct throttle_clock *now);

#endif
