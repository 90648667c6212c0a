/* Integer dots of r16_template.h by VNNI. Include after vnni_*.h. The functions are dot_maddubs.h's. */
#ifndef KERNELS_X86_DOT_VNNI_H
#define KERNELS_X86_DOT_VNNI_H

#include "kernels/kernels_internal.h"
#include "kernels/body/r16_prefetch.h"
#include "kernels/body/r16_unpack.h"

static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    return vnni_bytes_at(acc, w, q);
}

/* *a + w_a . q and *b + w_b . q, for which q is broadcast once */
static inline void dot_both(vi *a, vi *b, vi w_a, vi w_b, const int8_t *q)
{
    vi x = vi_bcast(q);
    *a = vnni_bytes(*a, w_a, x);
    *b = vnni_bytes(*b, w_b, x);
}

static inline vi peak_dot(vi acc, vi w, const int8_t *q)
{
    return vnni_bytes(acc, w, vi_bcast(q));
}

static inline vi dot_words(vi acc, vi a, vi b)
{
    return vnni_words(acc, a, b);
}

static inline vi dot_words_at(vi acc, vi a, const int16_t *x)
{
    return vnni_words_at(acc, a, x);
}
#include "kernels/x86/dot_common.h"

enum { DOT_PANELS = TILE > 4 ? R16_PANELS_ALL : R16_PANELS_COSTLY };
enum { DOT_Q6K_UNPACK_FROM = TILE + 1 };         /* fewest tokens for which Q6_K is unpacked once */
enum { DOT_PAIRS_TOKENS = TILE > 4 ? TILE : 0 }; /* most for which dot_kinds takes two sub-blocks */

/* Puts two neighbouring vectors of weights into the form in which they lie unpacked: signed ones plus 128, for
 * dot_int8. */
static inline void dot_arrange(vi w[2], enum quant_type type)
{
    if (type == QUANT_Q8_0 || type == QUANT_IQ4_NL || type == QUANT_MXFP4 || type == QUANT_IQ4_XS)
        for (int i = 0; i < 2; i++)
            w[i] = vi_xor(w[i], vi_set1((int32_t)0x80808080));
}

/* Whether sums over four vectors of codes fit words and are scaled as words. Codes of four bits have sub-blocks of 32:
 * where registers hold both of its sums, one multiplication of 32 bits takes the place of two of words. */
static inline bool dot_in_words(enum quant_type type)
{
    int bits = r16_n_bit(type);
    return 16 * ((1 << bits) - 1) * 127 < 1 << 15 && (TILE <= 4 || bits < 4);
}

/* For sums that fit a word the scale stands in the low word over a zero, and one vpdpwssd multiplies and adds. Else it
 * fills the lane. */
static inline vi dot_scale(vi bytes, int i, enum quant_type type)
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
    if (dot_in_words(type))
        return vi_sar16(vi_shuffle8(bytes, vi_mask16(narrow[i])), 8);
    return vi_sar(vi_shuffle8(bytes, vi_mask16(wide[i])), 24);
}

/* Vectors i and i + 4 of src. What they share is loaded once: compilers load it for each, and half of the loads cross
 * cache lines, which counts twice. */
KERNELS_ALWAYS_INLINE void dot_vec_pair(vi w[2], const struct r16_src *src, int i, bool plus128)
{
    if (!r16_shares_bytes(src)) {
        w[0] = plus128 ? r16_vec_plus(src, i, 128) : r16_vec(src, i);
        w[1] = plus128 ? r16_vec_plus(src, i + 4, 128) : r16_vec(src, i + 4);
        return;
    }
    const vi both = vnni_load(r16_shared_at(src, i)), low4 = vi_set1(0x0f0f0f0f);
    const vi low = vi_and(both, low4), high = vi_and(vi_shr(both, 4), low4);
    w[0] = plus128 ? r16_decode_plus(src, low, 128) : r16_decode32(src, i, low);
    w[1] = plus128 ? r16_decode_plus(src, high, 128) : r16_decode32(src, i + 4, high);
}

/* Adds to sums over vectors 0 to 3 and 4 to 7 of src, side by side: a tile's sums alone are too few to keep the units
 * busy. plus128: weights are signed, and 128 is added. */
KERNELS_ALWAYS_INLINE void dot_halves(vi low[], vi high[], const struct r16_src *src, bool plus128,
                                      const int8_t *const q[], int n_tok)
{
    KERNELS_UNROLL
    for (int i = 0; i < 4; i++) {
        vi w[2];
        dot_vec_pair(w, src, i, plus128);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            low[t] = dot_bytes(low[t], w[0], q[t] + 4 * i);
            high[t] = dot_bytes(high[t], w[1], q[t] + 4 * (i + 4));
        }
    }
}

/* s += w . q */
KERNELS_ALWAYS_INLINE void dot_all(vi s[], const struct r16_src *src, bool plus128, const int8_t *const q[], int n_tok)
{
    vi high[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        high[t] = vi_set1(0);
    dot_halves(s, high, src, plus128, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], high[t]);
}

KERNELS_ALWAYS_INLINE void dot_plain(vi s[], const struct r16_src *src, int bits, const int8_t *const q[], int n_tok)
{
    (void)bits;
    dot_all(s, src, false, q, n_tok);
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
    __m256i sum16 = _mm256_loadu_si256((const __m256i *)sum), factor = _mm256_set1_epi16((int16_t)-dot_offset(type));
    if (dot_offset(type) == 0)
        return;
    __m256i low = _mm256_mullo_epi16(sum16, factor); /* at most 16 * 127 * 32 = 65024: 32 bits */
    __m256i high = _mm256_mulhi_epi16(sum16, factor);
    __m256i a = _mm256_unpacklo_epi16(low, high), b = _mm256_unpackhi_epi16(low, high);
    _mm256_storeu_si256((__m256i *)start, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256((__m256i *)(start + 8), _mm256_permute2x128_si256(a, b, 0x31));
    if (TILE > 4) /* so that they are broadcast from memory; compilers would shuffle lanes of registers instead */
        __asm__("" : "+m"(*(int32_t(*)[16])start));
}

/* s + part * scale */
static inline vi dot_add_scaled(vi s, vi part, vi scale, enum quant_type type)
{
    return dot_in_words(type) ? dot_words(s, part, scale) : vi_add(s, vi_mul(part, scale));
}

/* s += scale * (codes of vectors first to first + 3 of src, less dot_offset) */
KERNELS_ALWAYS_INLINE void dot_scaled_half(vi s[], const struct r16_src *src, int first, vi scale,
                                           const int8_t *const q[], const int32_t *const start[], int n_tok)
{
    vi part[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[t] = dot_offset(src->type) ? vi_bcast(start[t] + first / 4) : vi_set1(0);
    KERNELS_UNROLL
    for (int i = first; i < first + 4; i++) {
        vi w = r16_vec(src, i);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            part[t] = dot_bytes(part[t], w, q[t] + 4 * i);
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = dot_add_scaled(s[t], part[t], scale, src->type);
}

/* The same of all vectors: scale[0] is that of the first four, scale[1] of the others. */
KERNELS_ALWAYS_INLINE void dot_scaled(vi s[], const struct r16_src *src, const vi scale[2], const int8_t *const q[],
                                      const int32_t *const start[], int n_tok)
{
    bool are_added = r16_subs_of_32(src->type) && !dot_in_words(src->type); /* the halves' sums: they have one scale */
    if (TILE <= 4) { /* 16 registers have no room for both halves */
        dot_scaled_half(s, src, 0, scale[0], q, start, n_tok);
        dot_scaled_half(s, src, 4, scale[1], q, start, n_tok);
        return;
    }
    vi low[TILE], high[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        low[t] = dot_offset(src->type) ? vi_bcast(start[t]) : vi_set1(0);
        high[t] = dot_offset(src->type) ? vi_bcast(start[t] + 1) : vi_set1(0);
    }
    dot_halves(low, high, src, false, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        if (are_added)
            s[t] = dot_add_scaled(s[t], vi_add(low[t], high[t]), scale[0], src->type);
        else
            s[t] = dot_add_scaled(dot_add_scaled(s[t], low[t], scale[0], src->type), high[t], scale[1], src->type);
}

/* The same for sub-blocks that share bytes, four for one token or two for up to DOT_PAIRS_TOKENS. src's is kind 0;
 * their activations are 32 apart, their starts 2. */
KERNELS_ALWAYS_INLINE void dot_kinds(vi s[], const struct r16_src *src, struct r16_kinds k, const vi scale[4],
                                     const int8_t *const q[], const int32_t *const start[],
                                     struct r16_prefetch *prefetch, int n_tok)
{
    vi part[4][TILE];
    KERNELS_UNROLL
    for (int c = 0; c < k.n; c++)
        KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[c][t] = dot_offset(src->type) ? vi_bcast(start[t] + 2 * (k.first + c * k.step)) : vi_set1(0);
    KERNELS_UNROLL
    for (int i = k.vec; i < k.vec + k.n_vec; i++) {
        r16_prefetch_at(prefetch, (i - k.vec) * k.n);
        KERNELS_UNROLL
        for (int c = 0; c < k.n; c++) {
            int kind = k.first + c * k.step;
            vi w = r16_vec_kind(src, kind, i);
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++)
                part[c][t] = dot_bytes(part[c][t], w, q[t] + 32 * kind + 4 * i);
        }
    }
    KERNELS_UNROLL
    for (int c = 0; c < k.n; c++)
        KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = dot_add_scaled(s[t], part[c][t], scale[c], src->type);
}

/* Where the sums of dot_int8 and dot_plain begin. The former adds 128 to make weights unsigned, which this subtracts
 * again. */
static inline vi dot_start_32(enum quant_type type, const int16_t *sum, const int16_t *parts)
{
    (void)parts;
    return vi_set1(-(r16_is_int8(type) ? 128 : r16_offset32(type)) * *sum);
}

static inline vi dot_start_iq4xs(int sum)
{
    return vi_set1(-128 * sum);
}

KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const struct r16_src *src, const int8_t *const q[], int n_tok)
{
    dot_all(s, src, true, q, n_tok);
}

#endif
