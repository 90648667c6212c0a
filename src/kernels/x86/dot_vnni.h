/* Integer dots of r16_template.h by VNNI. Include after vnni_*.h. The functions are dot_maddubs.h's. */
#ifndef KERNELS_X86_DOT_VNNI_H
#define KERNELS_X86_DOT_VNNI_H

#include "kernels/kernels_internal.h"
#include "kernels/body/r16_unpack.h"

static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    return vnni_bytes_at(acc, w, q);
}

static inline vi peak_dot(vi acc, vi w, const int8_t *q)
{
    return vnni_bytes(acc, w, vi_bcast(q));
}

static inline vi dot_words(vi acc, vi a, vi b)
{
    return vnni_words(acc, a, b);
}
#include "kernels/x86/dot_common.h"

/* Whether the sums that are multiplied with a scale, over VNNI_CHAIN vectors of codes of so many bits, fit words. */
static inline bool dot_in_words(int bits)
{
    return VNNI_CHAIN * 4 * ((1 << bits) - 1) * 127 < 1 << 15;
}

/* For sums that fit a word the scale stands in the low word over a zero, and one vpdpwssd multiplies and adds. Else it
 * fills the lane. (Four bits and 32 codes would fit, too, if centred; but what takes the centre back costs more than
 * the product saves: docs/experiments.md.) */
static inline vi dot_scale(vi bytes, int i, int bits)
{
    static const uint8_t narrow[4][16] = {
        {128, 0, 128, 128, 128, 4, 128, 128, 128, 8, 128, 128, 128, 12, 128, 128},
        {128, 1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13, 128, 128},
        {128, 2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14, 128, 128},
        {128, 3, 128, 128, 128, 7, 128, 128, 128, 11, 128, 128, 128, 15, 128, 128},
    };
    static const uint8_t wide[4][16] = {
        {128, 128, 128, 0, 128, 128, 128, 4, 128, 128, 128, 8, 128, 128, 128, 12},
        {128, 128, 128, 1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13},
        {128, 128, 128, 2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14},
        {128, 128, 128, 3, 128, 128, 128, 7, 128, 128, 128, 11, 128, 128, 128, 15},
    };
    if (dot_in_words(bits))
        return vi_sar16(vi_shuffle8(bytes, vi_mask16(narrow[i])), 8);
    return vi_sar(vi_shuffle8(bytes, vi_mask16(wide[i])), 24);
}

KERNELS_ALWAYS_INLINE void dot_plain(vi s[], const struct r16_src *src, int bits, const int8_t *const q[], int n_tok)
{
    (void)bits;
    KERNELS_UNROLL
    for (int i = 0; i < 8; i++) {
        vi w = r16_vec(src, i);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = dot_bytes(s[t], w, q[t] + 4 * i);
    }
}

/* What dot_scaled takes away from the codes of formats with a scale for each 16: dot_start begins their sums there. */
static inline int dot_offset(enum quant_type type)
{
    return type == QUANT_Q6_K ? 32 : type == QUANT_Q3_K ? 4 : 0;
}

/* start[i] = -dot_offset * sum[i] */
static inline void dot_start(enum quant_type type, const int16_t sum[16], int32_t start[16])
{
    __m256i sum16 = _mm256_loadu_si256((const __m256i *)sum), factor = _mm256_set1_epi16((int16_t)-dot_offset(type));
    if (dot_offset(type) == 0)
        return;
    __m256i low = _mm256_mullo_epi16(sum16, factor); /* at most 16 * 127 * 32 = 65024: 32 bits */
    __m256i high = _mm256_mulhi_epi16(sum16, factor);
    __m256i a = _mm256_unpacklo_epi16(low, high), b = _mm256_unpackhi_epi16(low, high);
    _mm256_storeu_si256((__m256i *)start, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256((__m256i *)(start + 8), _mm256_permute2x128_si256(a, b, 0x31));
}

KERNELS_ALWAYS_INLINE void dot_scaled(vi s[], const struct r16_src *src, int first, int n, vi scale, int bits,
                                      const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    int group = VNNI_CHAIN < n ? VNNI_CHAIN : n;
    KERNELS_UNROLL
    for (int g = first; g < first + n; g += group) {
        vi part[TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            part[t] = dot_offset(src->type) ? vi_bcast(start[t]) : vi_set1(0);
        KERNELS_UNROLL
        for (int i = g; i < g + group; i++) {
            vi w = r16_vec(src, i);
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++)
                part[t] = dot_bytes(part[t], w, q[t] + 4 * i);
        }
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = dot_in_words(bits) ? dot_words(s[t], part[t], scale) : vi_add(s[t], vi_mul(part[t], scale));
    }
}

/* The same for one token and the four sub-blocks from src's on: vectors [first, first + 4) of each, activations 32 and
 * starts 2 apart. */
KERNELS_ALWAYS_INLINE void dot_kinds(vi s[], const struct r16_src *src, int first, const vi scale[4], int bits,
                                     const int8_t *q, const int32_t *start)
{
    vi part[4];
    KERNELS_UNROLL
    for (int kind = 0; kind < 4; kind++)
        part[kind] = dot_offset(src->type) ? vi_bcast(start + 2 * kind) : vi_set1(0);
    KERNELS_UNROLL
    for (int i = first; i < first + 4; i++)
        KERNELS_UNROLL
    for (int kind = 0; kind < 4; kind++)
        part[kind] = dot_bytes(part[kind], r16_vec_kind(src, kind, i), q + 32 * kind + 4 * i);
    KERNELS_UNROLL
    for (int kind = 0; kind < 4; kind++)
        s[0] = dot_in_words(bits) ? dot_words(s[0], part[kind], scale[kind])
                                  : vi_add(s[0], vi_mul(part[kind], scale[kind]));
}

/* dot_int8 makes the weights unsigned by adding 128, which this takes back. */
static inline vi dot_int8_start(int sum)
{
    return vi_set1(-128 * sum);
}

KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const struct r16_src *src, const int8_t *const q[], int n_tok)
{
    KERNELS_UNROLL
    for (int i = 0; i < 8; i++) {
        vi w = r16_vec_plus128(src, i);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = dot_bytes(s[t], w, q[t] + 4 * i);
    }
}

#endif
