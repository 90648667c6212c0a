#include "kernels/arm/kernels_arm.h"
#include "kernels/arm/lanes_neon.h"

enum { TILE = 4 }; /* most tokens of a register tile */

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

#include "kernels/arm/dot_neon.h"

#define R16_NAME(type) matmul_##type##_dotprod
#include "kernels/body/r16_template.h"

#define PEAK_NAME(what) peak_##what##_dotprod
#include "kernels/body/peak_template.h"
