/* Which of several drives to read from. Pure arithmetic on the reads that began and ended, and when.
 *
 * A drive's speed is what it delivered while it had something to do. Each drive is given bytes in proportion to its
 * speed (smooth weighted round robin); the slowest is given a few, too, so that its recovery is seen. The speed of a
 * drive that has stopped answering falls with the time that passes, as no read ends to tell. Times are nanoseconds of
 * any one clock. */
#ifndef STORE_DRIVES_H
#define STORE_DRIVES_H

#include <stdbool.h>
#include <stdint.h>

struct drive {
    double bytes_per_s;       /* its speed lately; 0: not known yet */
    double usual_bytes_per_s; /* its speed over a longer time */
    int n_slow;               /* how often in a row bytes_per_s was less than a quarter of usual_bytes_per_s */
    double credit;            /* bytes that it was due and not given */
    int n_flying;             /* reads in flight */
    uint64_t flying_bytes;    /* their bytes */
    int64_t progress_ns;      /* while n_flying: when it last delivered, or began */
    uint64_t window_bytes;    /* bytes delivered since bytes_per_s was last updated */
    int64_t window_ns;        /* busy time since then */
};

void drive_begin(struct drive *d, uint64_t n_bytes, int64_t now_ns);
void drive_end(struct drive *d, uint64_t n_bytes, bool arrived, int64_t now_ns);

/* Whether it has slowed down for good, not for a moment. */
bool drive_is_slow(const struct drive *d);

double drive_speed(const struct drive *d, int64_t now_ns);

/* Chooses one of n drives that are alive and have the bytes to read n_bytes from, and charges it; -1: there is none. */
int drives_pick(struct drive *const *drives, const bool *alive, const bool *has, int n, uint64_t n_bytes,
                int64_t now_ns);

#endif
