/* Integer dots of r16_template.h by 16-bit products (vpmaddubsw, vpmaddwd). Include after lanes_*.h.
 *
 * w: vectors of four weights a lane, in the order of the row; q[t]: the activations they meet. Each function
 * adds to s[t], for n_tok tokens. All is exact: no 16-bit sum can reach 2^15, by the bounds given. */
#ifndef KERNELS_X86_DOT_MADDUBS_H
#define KERNELS_X86_DOT_MADDUBS_H

#include "kernels/kernels_internal.h"
#include "kernels/body/r16_unpack.h"

/* acc + w . q in 16-bit halves, for unsigned bytes w and the four signed bytes at q */
static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    return vi_add_maddubs(acc, w, q);
}

static inline vi peak_dot(vi acc, vi w, const int8_t *q)
{
    return dot_bytes(acc, w, q);
}

/* acc + a.lo * b.lo + a.hi * b.hi over the words of each lane */
static inline vi dot_words(vi acc, vi a, vi b)
{
    return vi_add(acc, vi_madd16(a, b));
}
#include "kernels/x86/dot_common.h"

enum { DOT_PANELS = R16_PANELS_MOST };
enum { DOT_KINDS_TOKENS = 1 }; /* most that dot_kinds takes */

/* Byte i of each lane as the scale of dot_scaled: sign-extended, in both words. bits: of the weights it
 * scales. */
static inline vi dot_scale(vi bytes, int i, int bits)
{
    static const uint8_t mask[4][16] = {
        {128, 0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12},
        {128, 1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13},
        {128, 2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14},
        {128, 3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15},
    };
    (void)bits;
    return vi_sar16(vi_shuffle8(bytes, vi_mask16(mask[i])), 8);
}

/* What dot_scaled takes away from the codes: nothing, so that all sums begin at 0. */
static inline int dot_offset(enum quant_type type)
{
    (void)type;
    return 0;
}

static inline void dot_start(enum quant_type type, const int16_t sum[16], int32_t start[16])
{
    (void)type, (void)sum, (void)start;
}

/* MXFP4's values are -12..12: plus this they are codes of five bits. */
enum { DOT_MXFP4_PLUS = 12 };

/* Rearranges two neighbouring vectors of weights as they lie unpacked. */
static inline void dot_arrange(vi w[2], enum quant_type type)
{
    for (int i = 0; i < 2 && type == QUANT_MXFP4; i++)
        w[i] = vi_sub8(w[i], vi_set1((int32_t)((256u - DOT_MXFP4_PLUS) * 0x01010101u)));
}

/* Weights 4i..4i + 3 of src as unsigned codes. */
KERNELS_ALWAYS_INLINE vi dot_codes(const struct r16_src *src, int i)
{
    return src->type == QUANT_MXFP4 ? r16_vec_plus(src, i, DOT_MXFP4_PLUS) : r16_vec(src, i);
}

/* s += scale * (codes 0..2^bits - 1 in vectors [first, first + n) of src). A 16-bit sum over g
 * vectors is at most 2 g (2^bits - 1) 127: 30480 for 4 bits and g = 8, 31496 for 5 and 4, 32004 for 6 and 2. */
KERNELS_ALWAYS_INLINE void dot_scaled_run(vi s[], const struct r16_src *src, int first, int n, vi scale, int bits,
                                          const int8_t *const q[], int n_tok)
{
    int fit = bits <= 4 ? 8 : bits == 5 ? 4 : 2, group = fit < n ? fit : n;
    KERNELS_UNROLL
    for (int g = first; g < first + n; g += group) {
        vi sum16[TILE];
        KERNELS_UNROLL
        for (int i = g; i < g + group; i++) {
            vi w = vi_held(dot_codes(src, i));
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++)
                sum16[t] = i == g ? vi_maddubs(w, vi_bcast(q[t] + 4 * i)) : dot_bytes(sum16[t], w, q[t] + 4 * i);
        }
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_add(s[t], vi_madd16(sum16[t], scale));
    }
}

/* The same of all vectors of src: scale[0] is that of the first four, scale[1] of the others. */
KERNELS_ALWAYS_INLINE void dot_scaled(vi s[], const struct r16_src *src, const vi scale[2], int bits,
                                      const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    (void)start;
    if (r16_subs_of_32(src->type)) { /* the scales are one */
        dot_scaled_run(s, src, 0, 8, scale[0], bits, q, n_tok);
    } else {
        dot_scaled_run(s, src, 0, 4, scale[0], bits, q, n_tok);
        dot_scaled_run(s, src, 4, 4, scale[1], bits, q, n_tok);
    }
}

/* The same for one token and the four sub-blocks from src's on: vectors [first, first + 4) of each, activations 32
 * apart. */
KERNELS_ALWAYS_INLINE void dot_kinds(vi s[], const struct r16_src *src, int first, const vi scale[4], int bits,
                                     const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    int group = bits <= 5 ? 4 : 2;
    (void)start, (void)n_tok;
    KERNELS_UNROLL
    for (int g = first; g < first + 4; g += group) {
        vi sum16[4];
        KERNELS_UNROLL
        for (int kind = 0; kind < 4; kind++)
            sum16[kind] = vi_set1(0);
        KERNELS_UNROLL
        for (int i = g; i < g + group; i++)
            KERNELS_UNROLL
        for (int kind = 0; kind < 4; kind++)
            sum16[kind] = dot_bytes(sum16[kind], r16_vec_kind(src, kind, i), q[0] + 32 * kind + 4 * i);
        KERNELS_UNROLL
        for (int kind = 0; kind < 4; kind++)
            s[0] = vi_add(s[0], vi_madd16(sum16[kind], scale[kind]));
    }
}

/* s += codes 0..2^bits - 1 of src */
KERNELS_ALWAYS_INLINE void dot_plain(vi s[], const struct r16_src *src, int bits, const int8_t *const q[], int n_tok)
{
    dot_scaled_run(s, src, 0, 8, vi_set1(0x10001), bits, q, n_tok);
}

/* What a sum of dot_int8 must start at, where `sum` is that of all its activations. */
static inline vi dot_int8_start(enum quant_type type, int sum)
{
    return vi_set1(type == QUANT_MXFP4 ? -DOT_MXFP4_PLUS * sum : 0);
}

/* s += values -128..127 of src. Their signs go to the activations; 16-bit sums: at most 2 * 128 * 127 =
 * 32512. */
KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const struct r16_src *src, const int8_t *const q[], int n_tok)
{
    if (src->type == QUANT_MXFP4) {
        dot_plain(s, src, 5, q, n_tok);
        return;
    }
    KERNELS_UNROLL
    for (int i = 0; i < 8; i++) {
        vi w = r16_vec(src, i), mag = vi_abs8(w);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            vi sum16 = vi_maddubs(mag, vi_sign8(vi_bcast(q[t] + 4 * i), w));
            s[t] = vi_add(s[t], vi_madd16(sum16, vi_set1(0x10001)));
        }
    }
}

#endif
