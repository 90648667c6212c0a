/* The step of NEON's integer dots with dot products (SDOT); the functions are dot_lane_neon.h's. */
#ifndef KERNELS_ARM_DOT_LANE_DOTPROD_H
#define KERNELS_ARM_DOT_LANE_DOTPROD_H

static inline int32x4_t neon_dot(int32x4_t acc, int32x4_t x, int32x4_t y)
{
    return vdotq_s32(acc, NEON_S8(x), NEON_S8(y));
}

#define DOT_LANE(r, lane) vdotq_laneq_s32(acc.r, NEON_S8(w.r), x, lane)
#define DOT_LANES(lane)                                                                                                \
    (vi)                                                                                                               \
    {                                                                                                                  \
        DOT_LANE(a, lane), DOT_LANE(b, lane), DOT_LANE(c, lane), DOT_LANE(d, lane)                                     \
    }
static inline vi neon_dot_lane(vi acc, vi w, int8x16_t x, int lane)
{
    switch (lane) {
    case 0: return DOT_LANES(0);
    case 1: return DOT_LANES(1);
    case 2: return DOT_LANES(2);
    default: return DOT_LANES(3);
    }
}
#undef DOT_LANE
#undef DOT_LANES

#endif
