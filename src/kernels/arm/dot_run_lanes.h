/* Runs of integer dots, one token after the other. Include after one of dot_lane_*.h. */
#ifndef KERNELS_ARM_DOT_RUN_LANES_H
#define KERNELS_ARM_DOT_RUN_LANES_H

#include "kernels/body/r16_unpack.h"
#include "kernels/kernels_internal.h"

/* s += w . q for vectors [first, first + n) of src, both multiples of four */
KERNELS_ALWAYS_INLINE void dot_run_lanes(vi s[], const struct r16_src *src, int first, int n, const int8_t *const q[],
                                         int n_tok)
{
    KERNELS_UNROLL
    for (int i = first; i < first + n; i += 4) {
        int8x16_t x[TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            x[t] = vld1q_s8(q[t] + 4 * i);
        KERNELS_UNROLL
        for (int lane = 0; lane < 4; lane++) {
            vi w = r16_vec(src, i + lane);
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++)
                s[t] = neon_dot_lane(s[t], w, x[t], lane);
        }
    }
}

#endif
