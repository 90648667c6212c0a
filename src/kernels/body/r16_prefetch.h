/* Prefetches weights of the R16 layout, in small parts between the work: a core that prefetches more lines at once than
 * it can keep track of has to wait. */
#ifndef KERNELS_BODY_R16_PREFETCH_H
#define KERNELS_BODY_R16_PREFETCH_H

#include "kernels/kernels_internal.h"

struct r16_prefetch {
    const uint8_t *w; /* the weights in hand; what lies how.ahead_bytes behind them is prefetched */
    int n_line;       /* cache lines that r16_prefetch_lines takes at a time */
    struct kernel_prefetch how;
};

/* Begins to prefetch for the work on the weights at w, n_line lines at a time. */
KERNELS_ALWAYS_INLINE struct r16_prefetch r16_prefetch(const struct kernel_matmul *a, const uint8_t *w, int n_line)
{
    return (struct r16_prefetch){w, n_line, a->how.prefetch};
}

/* The next n_line lines. */
KERNELS_ALWAYS_INLINE void r16_prefetch_next(struct r16_prefetch *a, int n_line)
{
    if (a->how.ahead_bytes)
        for (int i = 0; i < n_line; i++, a->w += 64)
            kernels_prefetch(a->w, a->how);
}

KERNELS_ALWAYS_INLINE void r16_prefetch_lines(struct r16_prefetch *a)
{
    r16_prefetch_next(a, a->n_line);
}

/* The same in two parts while eight vectors are multiplied: before the first and before the fifth. n_met: vectors that
 * have been multiplied. */
KERNELS_ALWAYS_INLINE void r16_prefetch_at(struct r16_prefetch *a, int n_met)
{
    if (n_met % 4 == 0)
        r16_prefetch_next(a, (a->n_line + 1 - n_met / 4 % 2) / 2);
}

#endif
