/* What expand_dot_*.h share. They include it after ex_sum_bytes. */
#ifndef KERNELS_X86_EXPAND_DOT_COMMON_H
#define KERNELS_X86_EXPAND_DOT_COMMON_H

#include "kernels/kernels_internal.h"

/* Byte i of each lane: the sum of the bytes of that lane of x[i], none above 63. */
static inline vi ex_sums_of_bytes(const vi x[4])
{
    vi bytes = ex_sum_bytes(x[0]);
    KERNELS_UNROLL
    for (int i = 1; i < 4; i++)
        bytes = vi_or(bytes, vi_shl(ex_sum_bytes(x[i]), 8 * i));
    return bytes;
}

/* Weights are used as they are expanded, however many tokens there are. */
enum { EX_ARRANGES = 0 };

static inline void ex_arrange(vi w[2])
{
    (void)w;
}

#endif
