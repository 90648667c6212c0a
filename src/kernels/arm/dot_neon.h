/* Integer dots of body/r16_template.h on NEON: every format's weights fit signed bytes, so that one step serves all.
 * Include after lanes_neon.h, one of dot_lane_*.h and one of dot_run_*.h. The functions are those of x86/dot_maddubs.h;
 * all is exact. */
#ifndef KERNELS_ARM_DOT_NEON_H
#define KERNELS_ARM_DOT_NEON_H

#include "kernels/body/r16_prefetch.h"
#include "kernels/body/r16_unpack.h"
#include "kernels/kernels_internal.h"

enum { DOT_Q6K_UNPACK_FROM = TILE + 1 }; /* fewest tokens for which Q6_K is unpacked once */
enum { DOT_PAIRS_TOKENS = 0 };           /* most for which dot_kinds takes two sub-blocks */

static inline vi peak_dot(vi acc, vi w, const int8_t *q)
{
    return dot_bytes(acc, vi_forget(w), q);
}

/* m[t] = the sum of factor j (byte j % 4 of factor[j / 4]) times sum[t][j], j < n_sub. The sums' high and low bytes are
 * multiplied separately. Both are signed, so the high ones are rounded. */
KERNELS_ALWAYS_INLINE void dot_sums(vi m[], const vi *factor, const int16_t *const sum[], int n_sub, bool are_signed,
                                    int n_tok)
{
    (void)are_signed; /* factors without signs have at most seven bits */
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        int16x8_t first = vld1q_s16(sum[t]), second = n_sub > 8 ? vld1q_s16(sum[t] + 8) : first;
        int8x16_t high = vcombine_s8(vrshrn_n_s16(first, 8), vrshrn_n_s16(second, 8));
        int8x16_t low = vcombine_s8(vmovn_s16(first), vmovn_s16(second));
        vi of_high = vi_set1(0), of_low = vi_set1(0);
        KERNELS_UNROLL
        for (int i = 0; i < n_sub / 4; i++) {
            of_high = neon_dot_lane(of_high, factor[i], high, i);
            of_low = neon_dot_lane(of_low, factor[i], low, i);
        }
        m[t] = vi_add(of_low, vi_shl(of_high, 8));
    }
}

/* Byte i of each lane as the scale of dot_scaled: sign-extended to the lane. */
static inline vi dot_scale(vi bytes, int i, enum quant_type type)
{
    (void)type;
    return vi_sar(vi_shl(bytes, 24 - 8 * i), 24);
}

/* What dot_scaled takes away from the codes of formats with a scale for each 16: dot_start begins their sums there. */
static inline int dot_offset(enum quant_type type)
{
    return type == QUANT_Q6_K ? 32 : type == QUANT_Q3_K ? 4 : 0;
}

/* start[i] = -dot_offset * sum[i] */
static inline void dot_start(enum quant_type type, const int16_t sum[16], const int16_t parts[32], int32_t start[16])
{
    (void)parts;
    if (dot_offset(type) == 0)
        return;
    for (int i = 0; i < 16; i += 4)
        vst1q_s32(start + i, vmull_n_s16(vld1_s16(sum + i), (int16_t)-dot_offset(type)));
}

/* Puts two neighbouring vectors of weights into the form in which they lie unpacked: without the offset, and zipped. */
static inline void dot_arrange(vi w[2], enum quant_type type)
{
    vi offset = vi_set1(dot_offset(type) * 0x01010101);
    for (int i = 0; i < 2 && dot_offset(type); i++)
        w[i] = vi_sub8(w[i], offset);
    dot_zip(w);
}

/* s += scale * (codes 0..2^bits - 1, less dot_offset, in vectors [first, first + n) of src) */
KERNELS_ALWAYS_INLINE void dot_scaled_part(vi s[], const struct r16_src *src, int first, int n, vi scale,
                                           const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    vi part[TILE];
    if (src->unpacked) {
        dot_run_scaled(s, src, first, n, scale, q, n_tok);
        return;
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[t] = dot_offset(src->type) ? vi_bcast(start[t] + first / 4) : vi_set1(0);
    dot_run_lanes(part, src, first, n, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], scale));
}

/* The same of all vectors of src: scale[0] is that of the first four, scale[1] of the others. */
KERNELS_ALWAYS_INLINE void dot_scaled(vi s[], const struct r16_src *src, const vi scale[2], const int8_t *const q[],
                                      const int32_t *const start[], int n_tok)
{
    if (r16_subs_of_32(src->type)) { /* the scales are one */
        dot_scaled_part(s, src, 0, 8, scale[0], q, start, n_tok);
    } else {
        dot_scaled_part(s, src, 0, 4, scale[0], q, start, n_tok);
        dot_scaled_part(s, src, 4, 4, scale[1], q, start, n_tok);
    }
}

/* The same for one token and the four sub-blocks from src's on, one after the other because there are no registers for
 * more: activations are 32 and starts 2 apart. */
KERNELS_ALWAYS_INLINE void dot_kinds(vi s[], const struct r16_src *src, struct r16_kinds k, const vi scale[4],
                                     const int8_t *const q[], const int32_t *const start[],
                                     struct r16_prefetch *prefetch, int n_tok)
{
    (void)n_tok;
    KERNELS_UNROLL
    for (int kind = 0; kind < 4; kind++) {
        r16_prefetch_at(prefetch, 4 * kind);
        vi part = dot_offset(src->type) ? vi_bcast(start[0] + 2 * kind) : vi_set1(0);
        int8x16_t x = vld1q_s8(q[0] + 32 * kind + 4 * k.vec);
        KERNELS_UNROLL
        for (int lane = 0; lane < 4; lane++)
            part = neon_dot_lane(part, r16_vec_kind(src, kind, k.vec + lane), x, lane);
        s[0] = vi_add(s[0], vi_mul(part, scale[kind]));
    }
}

/* s += codes or values -128..127 of src */
KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const struct r16_src *src, const int8_t *const q[], int n_tok)
{
    if (src->unpacked)
        dot_run(s, src, 0, 8, q, n_tok);
    else
        dot_run_lanes(s, src, 0, 8, q, n_tok);
}

/* Where the sums of dot_int8 and dot_plain begin. */
static inline vi dot_start_32(enum quant_type type, const int16_t *sum, const int16_t *parts)
{
    (void)parts;
    return vi_set1(-r16_offset32(type) * *sum);
}

static inline vi dot_start_iq4xs(int sum)
{
    (void)sum;
    return vi_set1(0);
}

KERNELS_ALWAYS_INLINE void dot_plain(vi s[], const struct r16_src *src, int bits, const int8_t *const q[], int n_tok)
{
    (void)bits;
    dot_int8(s, src, q, n_tok);
}

#endif
