#include "kernels/arm/kernels_arm.h"
#include "kernels/arm/lanes_neon.h"

enum { TILE = 4 }; /* most tokens of a register tile */

/* Pairs of products fit words: 2 * 128 * 127 = 32512. */
static inline int32x4_t neon_dot(int32x4_t acc, int32x4_t x, int32x4_t y)
{
    int16x8_t low = vmull_s8(vget_low_s8(NEON_S8(x)), vget_low_s8(NEON_S8(y)));
    return vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(NEON_S8(x), NEON_S8(y))));
}

static inline vi neon_dot_lane(vi acc, vi w, int8x16_t x, int lane)
{
    int32x4_t y = vdupq_n_s32(vreinterpretq_s32_s8(x)[lane]);
    return (vi){neon_dot(acc.a, w.a, y), neon_dot(acc.b, w.b, y), neon_dot(acc.c, w.c, y), neon_dot(acc.d, w.d, y)};
}

#include "kernels/arm/dot_neon.h"

#define R16_NAME(type) matmul_##type##_neon
#include "kernels/body/r16_template.h"

#define PEAK_NAME(what) peak_##what##_neon
#include "kernels/body/peak_template.h"
