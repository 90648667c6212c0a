/* Chooses which of several drives to read from: pure arithmetic on when reads began and ended.
 *
 * A drive's speed is what it delivered per second while it had reads in flight. Each drive gets bytes in proportion to
 * its speed (smooth weighted round robin); even the slowest gets a few, so that its recovery is noticed. The speed of a
 * drive that has stopped answering falls as time passes, although no read ends. Times are nanoseconds of any one clock.
 */
#ifndef STORE_DRIVES_H
#define STORE_DRIVES_H

#include <stdbool.h>
#include <stdint.h>

struct drive {
    double bytes_per_s;       /* its recent speed; 0: not known yet */
    double usual_bytes_per_s; /* its speed over a longer time */
    int n_slow;               /* how often in a row bytes_per_s was less than a quarter of usual_bytes_per_s */
    double credit;            /* bytes that it should have got and did not; less than 0: that it got too many */
    int n_flying;             /* reads in flight */
    uint64_t flying_bytes;    /* bytes of the reads in flight */
    int64_t progress_ns;      /* while reads are in flight: when one last ended, or the first began */
    uint64_t window_bytes;    /* bytes delivered since bytes_per_s was last updated */
    int64_t window_ns;        /* time with reads in flight since then */
};

void drive_begin(struct drive *d, uint64_t n_bytes, int64_t now_ns);
void drive_end(struct drive *d, uint64_t n_bytes, bool arrived, int64_t now_ns);

/* Whether it has slowed down lastingly, not just for a moment. */
bool drive_is_slow(const struct drive *d);

double drive_speed(const struct drive *d, int64_t now_ns);

/* Chooses one of n drives, of those that are alive and have the bytes, to read n_bytes from, and takes them from its
 * credit; -1: there is none. */
int drives_pick(struct drive *const *drives, const bool *alive, const bool *has, int n, uint64_t n_bytes,
                int64_t now_ns);

#endif
