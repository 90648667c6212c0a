/* Which of several drives to read from: pure arithmetic on what was asked of them and when it came.
 *
 * A drive's speed is what it delivered while it had something to do. Each is given bytes in proportion to its speed
 * (smooth weighted round robin), the slowest a little all the same, so that its recovery is seen. A drive that has
 * stopped answering slows down as we watch, without a completion to tell. Times are nanoseconds of any one clock. */
#ifndef STORE_DRIVES_H
#define STORE_DRIVES_H

#include <stdbool.h>
#include <stdint.h>

struct drive {
    double bytes_per_s;       /* 0: nothing known yet */
    double usual_bytes_per_s; /* over a longer time */
    int n_slow;               /* how often in a row bytes_per_s was found to be less than a quarter of that */
    double credit;            /* bytes that it was due and not given */
    int n_flying;
    uint64_t flying_bytes;
    int64_t progress_ns; /* while n_flying: when it last delivered, or began */
    uint64_t window_bytes;
    int64_t window_ns; /* what has been delivered in how much busy time since bytes_per_s was brought up to date */
};

void drive_begin(struct drive *d, uint64_t n_bytes, int64_t now_ns);
void drive_end(struct drive *d, uint64_t n_bytes, bool arrived, int64_t now_ns);

/* Whether it has slowed down for good, not for a moment. */
bool drive_is_slow(const struct drive *d);

double drive_speed(const struct drive *d, int64_t now_ns);

/* The drive to read n_bytes from, of those (below n) that are alive and have them, and charges it; -1: none has. */
int drives_pick(struct drive *const *drives, const bool *alive, const bool *has, int n, uint64_t n_bytes,
                int64_t now_ns);

#endif
