/* Integer dots of r16_template.h by 16-bit products (vpmaddubsw, vpmaddwd). Include after lanes_*.h.
 *
 * w: vectors of four weights a lane, in the order of the row; q[t]: the activations they meet. Each function
 * adds to s[t], for n_tok tokens. All is exact: no whole sum in words can reach 2^15, by the bounds given. */
#ifndef KERNELS_X86_DOT_MADDUBS_H
#define KERNELS_X86_DOT_MADDUBS_H

#include "kernels/kernels_internal.h"
#include "kernels/body/r16_prefetch.h"
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

/* acc + a.lo * x[0] + a.hi * x[1] over the words of each lane */
static inline vi dot_words_at(vi acc, vi a, const int16_t *x)
{
    return vi_add(acc, vi_madd16(a, vi_bcast(x)));
}
#include "kernels/x86/dot_common.h"

enum { DOT_PANELS = R16_PANELS_MOST };
enum { DOT_Q6K_UNPACK_FROM = TILE / 2 }; /* fewest tokens for which Q6_K is unpacked once */
enum { DOT_PAIRS_TOKENS = 1 };           /* most for which dot_kinds takes two sub-blocks */

/* Byte i of each lane as the scale of dot_scaled: in both words, sign-extended where type's scales have signs. */
static inline vi dot_scale(vi bytes, int i, enum quant_type type)
{
    static const uint8_t high[4][17] = {
        /* in the words' high bytes; from the second byte on, in the low ones */
        {128, 0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12, 128},
        {128, 1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13, 128},
        {128, 2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14, 128},
        {128, 3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15, 128},
    };
    if (!r16_signed_scales(type))
        return vi_shuffle8(bytes, vi_mask16(high[i] + 1));
    return vi_sar16(vi_shuffle8(bytes, vi_mask16(high[i])), 8);
}

/* What dot_scaled subtracts from the codes. Q6_K's sums begin at -dot_offset times the sum of activations, word by
 * word: without that, a sum over two vectors fills a word; with it, a sum over four fits, and one that wraps on the way
 * comes back. */
static inline int dot_offset(enum quant_type type)
{
    return type == QUANT_Q6_K ? 32 : 0;
}

/* start[i] = -dot_offset * sum[i], as the two words of its parts */
static inline void dot_start(enum quant_type type, const int16_t sum[16], const int16_t parts[32], int32_t start[16])
{
    (void)sum;
    for (int i = 0; i < 16 && dot_offset(type); i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(parts + 2 * i));
        v = _mm256_mullo_epi16(v, _mm256_set1_epi16((int16_t)-dot_offset(type)));
        _mm256_storeu_si256((__m256i *)(start + i), v);
    }
}

/* MXFP4's values are -12..12: plus this they are codes of five bits. */
enum { DOT_MXFP4_PLUS = 12 };

/* Puts two neighbouring vectors of weights into the form in which they lie unpacked. */
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

/* How many vectors of codes can be summed in words from 0 on: a sum over g vectors is at most 2 g (2^bits - 1) 127,
 * which is 30480 for 4 bits and 8 vectors, and 31496 for 5 bits and 4 vectors. */
static inline int dot_fit(int bits)
{
    return bits <= 4 ? 8 : 4;
}

/* s += scale * (codes in vectors [first, first + n) of src). Sums in words are of `fit` vectors; they begin at 0 or,
 * where all vectors fit, at start[t]: weights less the offset make them at most 32512, which is 2 * 8 * 16 * 127 for 5
 * bits and 2 * 4 * 32 * 127 for 6. */
KERNELS_ALWAYS_INLINE void dot_scaled_run(vi s[], const struct r16_src *src, int first, int n, vi scale, int fit,
                                          const int8_t *const q[], const vi *start, int n_tok)
{
    int group = fit < n ? fit : n;
    KERNELS_UNROLL
    for (int g = first; g < first + n; g += group) {
        vi sum16[TILE];
        KERNELS_UNROLL
        for (int i = g; i < g + group; i++) {
            vi w = vi_held(dot_codes(src, i));
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++)
                sum16[t] = i == g && !start ? vi_maddubs(w, vi_bcast(q[t] + 4 * i))
                                            : dot_bytes(i == g ? start[t] : sum16[t], w, q[t] + 4 * i);
        }
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_add(s[t], vi_madd16(sum16[t], scale));
    }
}

/* The same of a half of src's vectors, whose sums begin at start. */
KERNELS_ALWAYS_INLINE void dot_scaled_from(vi s[], const struct r16_src *src, int half, vi scale,
                                           const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    vi begin[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        begin[t] = vi_bcast(start[t] + half);
    dot_scaled_run(s, src, 4 * half, 4, scale, 4, q, begin, n_tok);
}

/* The same of all vectors of src, less dot_offset: scale[0] is that of the first four, scale[1] of the others. */
KERNELS_ALWAYS_INLINE void dot_scaled(vi s[], const struct r16_src *src, const vi scale[2], const int8_t *const q[],
                                      const int32_t *const start[], int n_tok)
{
    int fit = dot_fit(r16_n_bit(src->type));
    if (r16_subs_of_32(src->type)) { /* the scales are one */
        dot_scaled_run(s, src, 0, 8, scale[0], fit, q, NULL, n_tok);
    } else if (dot_offset(src->type) == 0) {
        dot_scaled_run(s, src, 0, 4, scale[0], fit, q, NULL, n_tok);
        dot_scaled_run(s, src, 4, 4, scale[1], fit, q, NULL, n_tok);
    } else {
        dot_scaled_from(s, src, 0, scale[0], q, start, n_tok);
        dot_scaled_from(s, src, 1, scale[1], q, start, n_tok);
    }
}

/* The same for one token and the sub-blocks, four or two from src's on, that share bytes: their activations are 32
 * apart, their starts 2. */
KERNELS_ALWAYS_INLINE void dot_kinds(vi s[], const struct r16_src *src, struct r16_kinds k, const vi scale[4],
                                     const int8_t *const q[], const int32_t *const start[],
                                     struct r16_prefetch *prefetch, int n_tok)
{
    int fit = dot_offset(src->type) ? k.n_vec : dot_fit(r16_n_bit(src->type)), group = fit < k.n_vec ? fit : k.n_vec;
    (void)n_tok;
    KERNELS_UNROLL
    for (int g = k.vec; g < k.vec + k.n_vec; g += group) {
        vi sum16[4];
        KERNELS_UNROLL
        for (int kind = 0; kind < k.n; kind++)
            sum16[kind] = dot_offset(src->type) ? vi_bcast(start[0] + 2 * kind) : vi_set1(0);
        KERNELS_UNROLL
        for (int i = g; i < g + group; i++) {
            r16_prefetch_at(prefetch, (i - k.vec) * k.n);
            KERNELS_UNROLL
            for (int kind = 0; kind < k.n; kind++)
                sum16[kind] = dot_bytes(sum16[kind], r16_vec_kind(src, kind, i), q[0] + 32 * kind + 4 * i);
        }
        KERNELS_UNROLL
        for (int kind = 0; kind < k.n; kind++)
            s[0] = vi_add(s[0], vi_madd16(sum16[kind], scale[kind]));
    }
}

/* How much larger dot_plain's codes are than the weights. */
static inline int dot_offset_32(enum quant_type type)
{
    return type == QUANT_MXFP4 ? DOT_MXFP4_PLUS : r16_offset32(type);
}

/* Where the sums of dot_plain begin, word by word as in dot_start. Those of dot_int8 begin at 0. */
static inline vi dot_start_32(enum quant_type type, const int16_t *sum, const int16_t *parts)
{
    (void)sum;
    if (dot_offset_32(type) == 0)
        return vi_set1(0);
    return vi_mul16(vi_bcast(parts), vi_set1((int32_t)(0x10001u * (uint16_t)-dot_offset_32(type))));
}

static inline vi dot_start_iq4xs(int sum)
{
    (void)sum;
    return vi_set1(0);
}

/* s += codes 0..2^bits - 1 of src, less dot_offset_32 */
KERNELS_ALWAYS_INLINE void dot_plain(vi s[], const struct r16_src *src, int bits, const int8_t *const q[], int n_tok)
{
    vi start[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        start[t] = s[t];
        s[t] = vi_set1(0);
    }
    bool starts = dot_offset_32(src->type) != 0;
    dot_scaled_run(s, src, 0, 8, vi_set1(0x10001), starts ? 8 : dot_fit(bits), q, starts ? start : NULL, n_tok);
}

/* s += values -128..127 of src. Their signs go to the activations; sums in words: at most 2 * 128 * 127 = 32512. */
KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const struct r16_src *src, const int8_t *const q[], int n_tok)
{
    if (src->type == QUANT_MXFP4) {
        dot_plain(s, src, 5, q, n_tok);
        return;
    }
    KERNELS_UNROLL
    for (int i = 0; i < 8; i++) {
        vi w = vi_held(r16_vec(src, i)), mag = vi_abs8(w);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_add_int8(s[t], w, mag, q[t] + 4 * i);
    }
}

#endif
