/* The step of NEON's integer dots without dot products. Include after lanes_neon.h. */
#ifndef KERNELS_ARM_DOT_LANE_NEON_H
#define KERNELS_ARM_DOT_LANE_NEON_H

/* acc + the four products of signed bytes in each lane. Pairs of products fit words: 2 * 128 * 127 = 32512. */
static inline int32x4_t neon_dot(int32x4_t acc, int32x4_t x, int32x4_t y)
{
    int16x8_t low = vmull_s8(vget_low_s8(NEON_S8(x)), vget_low_s8(NEON_S8(y)));
    return vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(NEON_S8(x), NEON_S8(y))));
}

/* The same of vectors, with the four bytes of one lane of x; lane: a constant. */
static inline vi neon_dot_lane(vi acc, vi w, int8x16_t x, int lane)
{
    int32x4_t y = vdupq_n_s32(vreinterpretq_s32_s8(x)[lane]);
    return (vi){neon_dot(acc.a, w.a, y), neon_dot(acc.b, w.b, y), neon_dot(acc.c, w.c, y), neon_dot(acc.d, w.d, y)};
}

#endif
