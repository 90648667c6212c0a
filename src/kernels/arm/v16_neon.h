/* Sixteen floats in four NEON registers: what body/ops_template.h and body/float_template.h are written in. */
#ifndef KERNELS_ARM_V16_NEON_H
#define KERNELS_ARM_V16_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "kernels/exp_consts.h"
#include "kernels/kernels_internal.h"

typedef struct v16 {
    float32x4_t a, b, c, d;
} v16;

enum { FLOAT_ROWS = 2, FLOAT_TOKENS = 2 }; /* register tile of the float products */
enum { ATTN_TILE = 2, ATTN_ROWS = 4 };     /* of attention: queries, positions whose chains run side by side */
enum { ATTN_VECS = 2, ATTN_MIXES = 2 };    /* and of their results: vectors, queries */
enum { DELTA_DIMS = 2, DELTA_GROUPS = 1 }; /* value dimensions that the delta rule takes side by side */

/* A function of registers on each of the four. */
#define V16_MAP1(f, x)    f((x).a), f((x).b), f((x).c), f((x).d)
#define V16_MAP2(f, x, y) f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)
#define V16_MAP3(f, x, y, z)                                                                                           \
    f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)

static inline v16 v16_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (v16){v, v, v, v};
}
static inline v16 v16_load(const float *p)
{
    return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
static inline v16 v16_load_n(const float *p, int64_t n) /* n < 16, may be negative; the rest are zeros */
{
    float all[16] = {0};
    if (n > 0)
        memcpy(all, p, (size_t)n * sizeof *p);
    return v16_load(all);
}
static inline void v16_store(float *p, v16 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
static inline void v16_store_n(float *p, v16 x, int64_t n)
{
    float all[16];
    v16_store(all, x);
    memcpy(p, all, (size_t)n * sizeof *p);
}
static inline float32x4_t v16_widen_f16(uint16x4_t x)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(x));
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (v16){v16_widen_f16(vget_low_u16(lo)), v16_widen_f16(vget_high_u16(lo)), v16_widen_f16(vget_low_u16(hi)),
                 v16_widen_f16(vget_high_u16(hi))};
}
static inline v16 v16_load_f16_n(const uint16_t *p, int64_t n)
{
    uint16_t all[16] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return v16_load_f16(all);
}
static inline v16 v16_set1_f16(const void *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    float32x4_t v = v16_widen_f16(vdup_n_u16(x));
    return (v16){v, v, v, v};
}
static inline float32x4_t v16_widen_s16(int16x4_t x)
{
    return vcvtq_f32_s32(vmovl_s16(x));
}
static inline v16 v16_load_int8(const int8_t *p)
{
    int8x16_t x = vld1q_s8(p);
    int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
    return (v16){v16_widen_s16(vget_low_s16(lo)), v16_widen_s16(vget_high_s16(lo)), v16_widen_s16(vget_low_s16(hi)),
                 v16_widen_s16(vget_high_s16(hi))};
}
static inline float32x4_t v16_widen_bf16(uint16x4_t x)
{
    return vreinterpretq_f32_u32(vshll_n_u16(x, 16));
}
static inline v16 v16_load_bf16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (v16){v16_widen_bf16(vget_low_u16(lo)), v16_widen_bf16(vget_high_u16(lo)), v16_widen_bf16(vget_low_u16(hi)),
                 v16_widen_bf16(vget_high_u16(hi))};
}
static inline v16 v16_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t all[16] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return v16_load_bf16(all);
}
static inline uint16x8_t v16_narrow_f16(float32x4_t lo, float32x4_t hi)
{
    return vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(lo)), vreinterpret_u16_f16(vcvt_f16_f32(hi)));
}
static inline void v16_store_f16(uint16_t *p, v16 x)
{
    vst1q_u16(p, v16_narrow_f16(x.a, x.b));
    vst1q_u16(p + 8, v16_narrow_f16(x.c, x.d));
}
static inline void v16_store_f16_n(uint16_t *p, v16 x, int64_t n)
{
    uint16_t all[16];
    v16_store_f16(all, x);
    memcpy(p, all, (size_t)n * sizeof *p);
}
static inline v16 v16_add(v16 x, v16 y)
{
    return (v16){V16_MAP2(vaddq_f32, x, y)};
}
static inline v16 v16_sub(v16 x, v16 y)
{
    return (v16){V16_MAP2(vsubq_f32, x, y)};
}
static inline v16 v16_mul(v16 x, v16 y)
{
    return (v16){V16_MAP2(vmulq_f32, x, y)};
}
static inline v16 v16_div(v16 x, v16 y)
{
    return (v16){V16_MAP2(vdivq_f32, x, y)};
}
static inline v16 v16_fma(v16 x, v16 y, v16 z) /* x * y + z */
{
    return (v16){V16_MAP3(vfmaq_f32, z, x, y)};
}
static inline v16 v16_fms(v16 x, v16 y, v16 z) /* x * y - z */
{
    return v16_fma(x, y, (v16){V16_MAP1(vnegq_f32, z)});
}
/* Not vmaxq and vminq, which give NaN for a NaN on either side. */
static inline float32x4_t neon_max(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
static inline float32x4_t neon_min(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}
static inline v16 v16_max(v16 x, v16 y) /* x > y ? x : y */
{
    return (v16){V16_MAP2(neon_max, x, y)};
}
static inline v16 v16_min(v16 x, v16 y) /* x < y ? x : y */
{
    return (v16){V16_MAP2(neon_min, x, y)};
}
static inline v16 v16_abs(v16 x)
{
    return (v16){V16_MAP1(vabsq_f32, x)};
}
static inline float32x4_t neon_copysign(float32x4_t mag, float32x4_t x)
{
    return vbslq_f32(vdupq_n_u32(0x80000000), x, mag);
}
static inline v16 v16_copysign(v16 mag, v16 x)
{
    return (v16){V16_MAP2(neon_copysign, mag, x)};
}
static inline v16 v16_if_less(v16 x, v16 y, v16 yes, v16 no)
{
    return (v16){vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b),
                 vbslq_f32(vcltq_f32(x.c, y.c), yes.c, no.c), vbslq_f32(vcltq_f32(x.d, y.d), yes.d, no.d)};
}
static inline uint32x4_t v16_below(int64_t n, uint32_t first) /* all ones in lanes below n, of which this is `first` */
{
    const int32x4_t index = {0, 1, 2, 3};
    return vcltq_s32(vaddq_s32(index, vdupq_n_s32((int32_t)first)), vdupq_n_s32((int32_t)n));
}
static inline v16 v16_first(v16 x, v16 rest, int64_t n) /* lanes below n from x, the others from rest */
{
    return (v16){vbslq_f32(v16_below(n, 0), x.a, rest.a), vbslq_f32(v16_below(n, 4), x.b, rest.b),
                 vbslq_f32(v16_below(n, 8), x.c, rest.c), vbslq_f32(v16_below(n, 12), x.d, rest.d)};
}
static inline float v16_top(v16 x) /* the largest lane; no NaN among them */
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d)));
}
static inline float v16_sum(v16 x) /* the tree of docs/numerics.md */
{
    float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vpadds_f32(two);
}
/* s[r * stride + i] = v16_sum(lanes[i * n_r + r]) for i < n_i and r < n_r, constants */
static inline void v16_sums(float *s, int stride, const v16 lanes[], int n_r, int n_i)
{
    for (int c = 0; c < n_r * n_i; c++)
        s[c % n_r * stride + c / n_r] = v16_sum(lanes[c]);
}
static inline float32x4_t neon_scale2(float32x4_t x, float32x4_t shifted)
{
    int32x4_t e = vsubq_s32(vreinterpretq_s32_f32(shifted), vreinterpretq_s32_f32(vdupq_n_f32(EXP_ROUND)));
    int32x4_t half = vshrq_n_s32(e, 1), rest = vsubq_s32(e, half), bias = vdupq_n_s32(127);
    x = vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
}
/* x * 2^n, rounded once, where shifted = n + EXP_ROUND */
static inline v16 v16_scale2(v16 x, v16 shifted)
{
    return (v16){V16_MAP2(neon_scale2, x, shifted)};
}
/* Rounds to nearest even into 16 bytes and adds them up; x in -127..127. */
static inline struct v16_sums v16_store_int8(int8_t *p, v16 x)
{
    int32x4_t a = vcvtnq_s32_f32(x.a), b = vcvtnq_s32_f32(x.b), c = vcvtnq_s32_f32(x.c), d = vcvtnq_s32_f32(x.d);
    int16x8_t lo = vcombine_s16(vmovn_s32(a), vmovn_s32(b)), hi = vcombine_s16(vmovn_s32(c), vmovn_s32(d));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
    int16x8_t sum = vaddq_s16(lo, hi);
    int16x4_t four = vadd_s16(vget_low_s16(sum), vget_high_s16(sum));
    return (struct v16_sums){vaddv_s16(four), vget_lane_s16(four, 2) + vget_lane_s16(four, 3)};
}
static inline float32x4_t neon_rotate(float32x4_t x, float32x4_t cs)
{
    const uint32x4_t even = {0x80000000, 0, 0x80000000, 0};
    uint32x4_t t = vreinterpretq_u32_f32(vmulq_f32(vtrn2q_f32(x, x), vrev64q_f32(cs)));
    return vfmaq_f32(vreinterpretq_f32_u32(veorq_u32(t, even)), vtrn1q_f32(x, x), cs);
}
/* Pairs (a, b) rotated by pairs (cos, sin). */
static inline v16 v16_rotate_pairs(v16 x, v16 cs)
{
    return (v16){V16_MAP2(neon_rotate, x, cs)};
}
/* Sixteen pairs (cos, sin) into sixteen of each. */
static inline void v16_split_pairs(v16 p, v16 q, v16 *c, v16 *s)
{
    *c = (v16){vuzp1q_f32(p.a, p.b), vuzp1q_f32(p.c, p.d), vuzp1q_f32(q.a, q.b), vuzp1q_f32(q.c, q.d)};
    *s = (v16){vuzp2q_f32(p.a, p.b), vuzp2q_f32(p.c, p.d), vuzp2q_f32(q.a, q.b), vuzp2q_f32(q.c, q.d)};
}

#endif
