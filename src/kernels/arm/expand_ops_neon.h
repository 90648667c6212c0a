/* What body/expand_blocks.h needs besides lanes_neon.h. */
#ifndef KERNELS_ARM_EXPAND_OPS_NEON_H
#define KERNELS_ARM_EXPAND_OPS_NEON_H

#include "kernels/arm/lanes_neon.h"
#include "kernels/kernels_internal.h"

#define LOOKUP_LANE(i) entries = vld1q_lane_u16(table + vgetq_lane_u16(x, i), entries, i)
static inline int32x4_t neon_lookup(const uint16_t *table, int32x4_t index)
{
    uint16x8_t x = vreinterpretq_u16_s32(index), entries = x;
    LOOKUP_LANE(0);
    LOOKUP_LANE(1);
    LOOKUP_LANE(2);
    LOOKUP_LANE(3);
    LOOKUP_LANE(4);
    LOOKUP_LANE(5);
    LOOKUP_LANE(6);
    LOOKUP_LANE(7);
    return vreinterpretq_s32_u16(entries);
}
#undef LOOKUP_LANE

/* Entries of a table, for an index in each word of two vectors. */
KERNELS_ALWAYS_INLINE void ex_lookup_words(const uint16_t *table, int n, const vi index[2], vi out[2])
{
    (void)n;
    for (int i = 0; i < 2; i++)
        out[i] = (vi){neon_lookup(table, index[i].a), neon_lookup(table, index[i].b), neon_lookup(table, index[i].c),
                      neon_lookup(table, index[i].d)};
}

#include "kernels/body/expand_words.h"
#include "kernels/body/expand_lookup.h"

static inline int32x4_t neon_reflect(int32x4_t x, int32x4_t signs, int32x4_t bit, int32x4_t twice)
{
    uint8x16_t minus = vtstq_u8(NEON_U8(signs), NEON_U8(bit));
    return vreinterpretq_s32_u8(vbslq_u8(minus, vsubq_u8(NEON_U8(twice), NEON_U8(x)), NEON_U8(x)));
}
/* Each byte of x, or twice - x where the byte of `signs` has the bit that is set in `bit`. */
static inline vi ex_reflect(vi x, vi signs, vi bit, vi twice)
{
    return (vi){neon_reflect(x.a, signs.a, bit.a, twice.a), neon_reflect(x.b, signs.b, bit.b, twice.b),
                neon_reflect(x.c, signs.c, bit.c, twice.c), neon_reflect(x.d, signs.d, bit.d, twice.d)};
}

static inline int32x4_t neon_sums_of_bytes(int32x4_t x0, int32x4_t x1, int32x4_t x2, int32x4_t x3)
{
    const uint8x16_t in_order = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    uint8x16_t low = vpaddq_u8(NEON_U8(x0), NEON_U8(x1)), high = vpaddq_u8(NEON_U8(x2), NEON_U8(x3));
    return vreinterpretq_s32_u8(vqtbl1q_u8(vpaddq_u8(low, high), in_order));
}
/* Byte i of each lane: the sum of the bytes of that lane of x[i], none above 63. */
static inline vi ex_sums_of_bytes(const vi x[4])
{
    return (vi){neon_sums_of_bytes(x[0].a, x[1].a, x[2].a, x[3].a), neon_sums_of_bytes(x[0].b, x[1].b, x[2].b, x[3].b),
                neon_sums_of_bytes(x[0].c, x[1].c, x[2].c, x[3].c), neon_sums_of_bytes(x[0].d, x[1].d, x[2].d, x[3].d)};
}

static inline float32x4_t neon_nvfp4_scale(int32x4_t s)
{
    float32x4_t small = vreinterpretq_f32_s32(vshlq_n_s32(vandq_s32(s, vdupq_n_s32(127)), 20));
    uint32x4_t scale = vreinterpretq_u32_f32(vmulq_f32(small, vdupq_n_f32(0x1p119f)));
    return vreinterpretq_f32_u32(vbicq_u32(scale, vceqq_s32(s, vdupq_n_s32(127))));
}
/* quant_nvfp4_scale of each lane: shifted into place, the bits are a float 2^120 too small; the scale is half of it. */
static inline vf ex_nvfp4_scale(vi s)
{
    return (vf){NEON_MAP1(neon_nvfp4_scale, s)};
}

#endif
