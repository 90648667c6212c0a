/* Sixteen rows at a time in four NEON registers: what body/r16_template.h is written in. With four registers, each
 * dword of activations that a tile loads is used four times. */
#ifndef KERNELS_ARM_LANES_NEON_H
#define KERNELS_ARM_LANES_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef struct vi {
    int32x4_t a, b, c, d;
} vi;
typedef struct vf {
    float32x4_t a, b, c, d;
} vf;

enum { LANES = 16 };    /* rows of a vector */
enum { PEAK_TILE = 4 }; /* vectors that keep the units busy */

#define NEON_U8(x)  vreinterpretq_u8_s32(x)
#define NEON_S8(x)  vreinterpretq_s8_s32(x)
#define NEON_S16(x) vreinterpretq_s16_s32(x)
#define NEON_U32(x) vreinterpretq_u32_s32(x)

/* A function of registers on each of the four. */
#define NEON_MAP1(f, x)    f((x).a), f((x).b), f((x).c), f((x).d)
#define NEON_MAP2(f, x, y) f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)
#define NEON_MAP3(f, x, y, z)                                                                                          \
    f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)

static inline vi vi_of_one(int32x4_t x)
{
    return (vi){x, x, x, x};
}
static inline vi vi_load(const void *p)
{
    const int32_t *q = p;
    return (vi){vld1q_s32(q), vld1q_s32(q + 4), vld1q_s32(q + 8), vld1q_s32(q + 12)};
}
static inline vi vi_set1(int32_t x)
{
    return vi_of_one(vdupq_n_s32(x));
}
static inline vi vi_bcast(const void *p) /* four bytes, to all lanes */
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return vi_set1(x);
}
static inline vi vi_mask16(const uint8_t mask[16]) /* a byte shuffle's mask, the same for every 128 bits */
{
    return vi_of_one(vreinterpretq_s32_u8(vld1q_u8(mask)));
}
static inline vi vi_and(vi x, vi y)
{
    return (vi){NEON_MAP2(vandq_s32, x, y)};
}
static inline vi vi_or(vi x, vi y)
{
    return (vi){NEON_MAP2(vorrq_s32, x, y)};
}
static inline vi vi_xor(vi x, vi y)
{
    return (vi){NEON_MAP2(veorq_s32, x, y)};
}
static inline vi vi_add(vi x, vi y)
{
    return (vi){NEON_MAP2(vaddq_s32, x, y)};
}
static inline vi vi_sub(vi x, vi y)
{
    return (vi){NEON_MAP2(vsubq_s32, x, y)};
}
static inline int32x4_t neon_sub8(int32x4_t x, int32x4_t y)
{
    return vreinterpretq_s32_s8(vsubq_s8(NEON_S8(x), NEON_S8(y)));
}
static inline vi vi_sub8(vi x, vi y)
{
    return (vi){NEON_MAP2(neon_sub8, x, y)};
}
static inline int32x4_t neon_abs8(int32x4_t x)
{
    return vreinterpretq_s32_s8(vabsq_s8(NEON_S8(x)));
}
static inline vi vi_abs8(vi x)
{
    return (vi){NEON_MAP1(neon_abs8, x)};
}
static inline vi vi_mul(vi x, vi y)
{
    return (vi){NEON_MAP2(vmulq_s32, x, y)};
}
/* Bytes of x; 0 where the mask is 128. */
static inline int32x4_t neon_shuffle8(int32x4_t x, int32x4_t mask)
{
    return vreinterpretq_s32_u8(vqtbl1q_u8(NEON_U8(x), NEON_U8(mask)));
}
static inline vi vi_shuffle8(vi x, vi mask)
{
    return (vi){NEON_MAP2(neon_shuffle8, x, mask)};
}
/* Shifts as operators: n may be a constant or not. */
static inline vi vi_shl(vi x, int n)
{
    return (vi){x.a << n, x.b << n, x.c << n, x.d << n};
}
static inline int32x4_t neon_shr(int32x4_t x, int n)
{
    return vreinterpretq_s32_u32(NEON_U32(x) >> n);
}
static inline vi vi_shr(vi x, int n)
{
    return (vi){neon_shr(x.a, n), neon_shr(x.b, n), neon_shr(x.c, n), neon_shr(x.d, n)};
}
static inline vi vi_sar(vi x, int n)
{
    return (vi){x.a >> n, x.b >> n, x.c >> n, x.d >> n};
}
static inline int32x4_t neon_sar16(int32x4_t x, int n)
{
    return vreinterpretq_s32_s16(NEON_S16(x) >> n);
}
static inline vi vi_sar16(vi x, int n)
{
    return (vi){neon_sar16(x.a, n), neon_sar16(x.b, n), neon_sar16(x.c, n), neon_sar16(x.d, n)};
}
static inline vi vi_forget(vi x) /* the same, of which the compiler knows nothing */
{
    __asm__ volatile("" : "+w"(x.a), "+w"(x.b), "+w"(x.c), "+w"(x.d));
    return x;
}
static inline void vi_keep(vi x) /* makes the compiler compute it */
{
    __asm__ volatile("" : : "w"(x.a), "w"(x.b), "w"(x.c), "w"(x.d));
}
/* The sums of sixteen words in pairs, which fit words. */
static inline void pair_sums(const int16_t x[16], int16_t out[8])
{
    vst1q_s16(out, vpaddq_s16(vld1q_s16(x), vld1q_s16(x + 8)));
}

static inline vf vf_of_one(float32x4_t x)
{
    return (vf){x, x, x, x};
}
static inline vf vf_zero(void)
{
    return vf_of_one(vdupq_n_f32(0));
}
static inline vf vf_load(const void *p)
{
    const float *q = p;
    return (vf){vld1q_f32(q), vld1q_f32(q + 4), vld1q_f32(q + 8), vld1q_f32(q + 12)};
}
static inline vf vf_set1(float x)
{
    return vf_of_one(vdupq_n_f32(x));
}
static inline vf vf_bcast(const float *p)
{
    return vf_set1(*p);
}
static inline vf vf_of(vi x)
{
    return (vf){NEON_MAP1(vcvtq_f32_s32, x)};
}
static inline vf vf_mul(vf x, vf y)
{
    return (vf){NEON_MAP2(vmulq_f32, x, y)};
}
static inline vf vf_fma(vf x, vf y, vf z) /* x * y + z */
{
    return (vf){NEON_MAP3(vfmaq_f32, z, x, y)};
}
static inline vf peak_fma(vf acc, vf a, vf b)
{
    return vf_fma(a, b, acc);
}
static inline vf vf_fnma(vf x, vf y, vf z) /* z - x * y */
{
    return (vf){NEON_MAP3(vfmsq_f32, z, x, y)};
}
static inline float32x4_t neon_half(uint16x4_t x)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(x));
}
static inline vf vf_load_half(const void *p)
{
    uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(p)), high = vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p + 16));
    return (vf){neon_half(vget_low_u16(low)), neon_half(vget_high_u16(low)), neon_half(vget_low_u16(high)),
                neon_half(vget_high_u16(high))};
}
static inline float32x4_t neon_low_half(int32x4_t x)
{
    return neon_half(vmovn_u32(NEON_U32(x)));
}
static inline vf vf_low_half(vi x) /* of the halves in the low words of each lane */
{
    return (vf){NEON_MAP1(neon_low_half, x)};
}
static inline float32x4_t neon_mxfp4(uint16x4_t exponents) /* quant/blocks.h: quant_mxfp4_scale */
{
    int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(exponents));
    int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
    int32x4_t subnormal = vshlq_s32(vdupq_n_s32(0x200000), e);
    return vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e, vdupq_n_s32(2)), subnormal, normal));
}
static inline vf vf_load_mxfp4(const uint8_t *p)
{
    uint8x16_t e = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(e)), high = vmovl_u8(vget_high_u8(e));
    return (vf){neon_mxfp4(vget_low_u16(low)), neon_mxfp4(vget_high_u16(low)), neon_mxfp4(vget_low_u16(high)),
                neon_mxfp4(vget_high_u16(high))};
}
static inline void vf_store(float *p, vf x, int64_t n) /* the first n lanes */
{
    float all[LANES], *q = n >= LANES ? p : all;
    vst1q_f32(q, x.a);
    vst1q_f32(q + 4, x.b);
    vst1q_f32(q + 8, x.c);
    vst1q_f32(q + 12, x.d);
    if (n < LANES)
        memcpy(p, all, (size_t)n * sizeof *p);
}
static inline void vf_keep(vf x)
{
    __asm__ volatile("" : : "w"(x.a), "w"(x.b), "w"(x.c), "w"(x.d));
}

#endif
