/* Integer dots of body/r16_template.h on NEON: every format's weights fit signed bytes, so that one step does for all.
 * Include after lanes_neon.h and one of dot_lane_*.h. The functions are those of x86/dot_maddubs.h; all is exact. */
#ifndef KERNELS_ARM_DOT_NEON_H
#define KERNELS_ARM_DOT_NEON_H

#include "kernels/body/r16_unpack.h"
#include "kernels/kernels_internal.h"

/* acc + the products of the bytes w of each lane with the four bytes at q */
static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    int32x4_t x = vi_bcast(q).a;
    return (vi){neon_dot(acc.a, w.a, x), neon_dot(acc.b, w.b, x), neon_dot(acc.c, w.c, x), neon_dot(acc.d, w.d, x)};
}

static inline int32x4_t neon_dot_words(int32x4_t acc, int32x4_t x, int32x4_t y)
{
    int32x4_t low = vmull_s16(vget_low_s16(NEON_S16(x)), vget_low_s16(NEON_S16(y)));
    return vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(NEON_S16(x), NEON_S16(y))));
}

/* acc + x.lo * y.lo + x.hi * y.hi over the words of each lane */
static inline vi dot_words(vi acc, vi x, vi y)
{
    return (vi){NEON_MAP3(neon_dot_words, acc, x, y)};
}

/* Byte i of each lane as the scale of dot_scaled: sign-extended to the lane. */
static inline vi dot_scale(vi bytes, int i, int bits)
{
    (void)bits;
    return vi_sar(vi_shl(bytes, 24 - 8 * i), 24);
}

/* Codes meet activations less this, by where dot_start makes their sums begin. Formats with scales for each 16. */
static inline int dot_offset(enum quant_type type)
{
    return type == QUANT_Q6_K ? 32 : type == QUANT_Q3_K ? 4 : 0;
}

/* start[i] = -dot_offset * sum[i] */
static inline void dot_start(enum quant_type type, const int16_t sum[16], int32_t start[16])
{
    if (dot_offset(type) == 0)
        return;
    for (int i = 0; i < 16; i += 4)
        vst1q_s32(start + i, vmull_n_s16(vld1_s16(sum + i), (int16_t)-dot_offset(type)));
}

/* s += w . q for vectors [first, first + n) of src, both multiples of four */
KERNELS_ALWAYS_INLINE void dot_run(vi s[], const struct r16_src *src, int first, int n, const int8_t *const q[],
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

/* s += scale * (codes 0..2^bits - 1, less dot_offset, in vectors [first, first + n) of src) */
KERNELS_ALWAYS_INLINE void dot_scaled(vi s[], const struct r16_src *src, int first, int n, vi scale, int bits,
                                      const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    vi part[TILE];
    (void)bits;
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[t] = dot_offset(src->type) ? vi_bcast(start[t]) : vi_set1(0);
    dot_run(part, src, first, n, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], scale));
}

/* The same for one token and the four sub-blocks from src's on: vectors [first, first + 4) of each, activations 32 and
 * starts 2 apart. One after the other: there are no registers for more. */
KERNELS_ALWAYS_INLINE void dot_kinds(vi s[], const struct r16_src *src, int first, const vi scale[4], int bits,
                                     const int8_t *q, const int32_t *start)
{
    (void)bits;
    KERNELS_UNROLL
    for (int kind = 0; kind < 4; kind++) {
        vi part = dot_offset(src->type) ? vi_bcast(start + 2 * kind) : vi_set1(0);
        int8x16_t x = vld1q_s8(q + 32 * kind + 4 * first);
        KERNELS_UNROLL
        for (int lane = 0; lane < 4; lane++)
            part = neon_dot_lane(part, r16_vec_kind(src, kind, first + lane), x, lane);
        s[0] = vi_add(s[0], vi_mul(part, scale[kind]));
    }
}

/* s += codes 0..2^bits - 1 of src */
KERNELS_ALWAYS_INLINE void dot_plain(vi s[], const struct r16_src *src, int bits, const int8_t *const q[], int n_tok)
{
    (void)bits;
    dot_run(s, src, 0, 8, q, n_tok);
}

/* What a sum of dot_int8 must start at. */
static inline vi dot_int8_start(int sum)
{
    (void)sum;
    return vi_set1(0);
}

/* s += values -128..127 of src */
KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const struct r16_src *src, const int8_t *const q[], int n_tok)
{
    dot_run(s, src, 0, 8, q, n_tok);
}

#endif
