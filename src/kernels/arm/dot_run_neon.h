/* How dot_neon.h's dots meet unpacked weights, without matrix products. Include after one of dot_lane_*.h. */
#ifndef KERNELS_ARM_DOT_RUN_NEON_H
#define KERNELS_ARM_DOT_RUN_NEON_H

#include "kernels/arm/dot_run_lanes.h"

enum { DOT_PANELS = R16_PANELS_UNPACKED };
enum { DOT_DEPTH = 4 }; /* multiply-adds of dot_bytes in a lane */

/* acc + the products of the bytes w of each lane with the four bytes at q */
static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    int32x4_t x = vi_bcast(q).a;
    return (vi){neon_dot(acc.a, w.a, x), neon_dot(acc.b, w.b, x), neon_dot(acc.c, w.c, x), neon_dot(acc.d, w.d, x)};
}

/* Rearranges two neighbouring vectors of weights for dots of unpacked ones: not at all. */
static inline void dot_zip(vi w[2])
{
    (void)w;
}

/* s += w . q for vectors [first, first + n) of unpacked weights, both multiples of four */
KERNELS_ALWAYS_INLINE void dot_run(vi s[], const struct r16_src *src, int first, int n, const int8_t *const q[],
                                   int n_tok)
{
    dot_run_lanes(s, src, first, n, q, n_tok);
}

/* s += scale * (the same); dot_finish has nothing to put in order */
KERNELS_ALWAYS_INLINE void dot_run_scaled(vi s[], const struct r16_src *src, int first, int n, vi scale,
                                          const int8_t *const q[], int n_tok)
{
    vi part[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[t] = vi_set1(0);
    dot_run_lanes(part, src, first, n, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], scale));
}

KERNELS_ALWAYS_INLINE void dot_finish(vi s[], const struct r16_src *src, int n_tok)
{
    (void)s, (void)src, (void)n_tok;
}

#endif
