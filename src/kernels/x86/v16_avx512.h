/* Sixteen floats in one AVX-512 register: what ops_template.h and float_template.h are written in. */
#ifndef KERNELS_X86_V16_AVX512_H
#define KERNELS_X86_V16_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/exp_consts.h"
#include "kernels/x86/pair_sums.h"

typedef __m512 v16;

enum { FLOAT_ROWS = 4, FLOAT_TOKENS = 4 }; /* register tile of the float products */
enum { ATTN_TILE = 4, ATTN_ROWS = 4 };     /* of attention: queries, positions whose chains run side by side */
enum { ATTN_VECS = 4, ATTN_MIXES = 4 };    /* and of their results: vectors, queries */
enum { DELTA_DIMS = 8, DELTA_GROUPS = 1 }; /* value dimensions that the delta rule takes side by side */

static inline __mmask16 v16_mask(int64_t n)
{
    return (__mmask16)((1u << n) - 1);
}
static inline v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline v16 v16_load_n(const float *p, int64_t n) /* n < 16; the rest are zeros */
{
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}
static inline void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
static inline void v16_store_n(float *p, v16 a, int64_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline v16 v16_load_f16_n(const uint16_t *p, int64_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_mask(n), p));
}
static inline v16 v16_set1_f16(const void *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)x));
}
static inline v16 v16_load_int8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
static inline v16 v16_load_bf16(const uint16_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
static inline v16 v16_load_bf16_n(const uint16_t *p, int64_t n)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v16_mask(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
static inline void v16_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline void v16_store_f16_n(uint16_t *p, v16 a, int64_t n)
{
    _mm256_mask_storeu_epi16(p, v16_mask(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
static inline v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
static inline v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
static inline v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline v16 v16_fms(v16 a, v16 b, v16 c) /* a * b - c */
{
    return _mm512_fmsub_ps(a, b, c);
}
static inline v16 v16_max(v16 a, v16 b) /* a > b ? a : b */
{
    return _mm512_max_ps(a, b);
}
static inline v16 v16_min(v16 a, v16 b) /* a < b ? a : b */
{
    return _mm512_min_ps(a, b);
}
static inline v16 v16_abs(v16 a)
{
    return _mm512_abs_ps(a);
}
static inline v16 v16_copysign(v16 mag, v16 sign)
{
    __m512i bit = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign), _mm512_castps_si512(mag), 0xca));
}
static inline v16 v16_if_less(v16 a, v16 b, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
static inline v16 v16_first(v16 a, v16 rest, int64_t n) /* lanes below n from a, the others from rest */
{
    return _mm512_mask_blend_ps(v16_mask(n), rest, a);
}
static inline float v16_top(v16 a) /* the largest lane; no NaN among them */
{
    return _mm512_reduce_max_ps(a);
}
static inline float v16_sum(v16 a) /* the tree of docs/numerics.md */
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/* The tree of v16_sum on sixteen vectors at once, of which two become one at each level. */
static inline void v16_sums_4x4(float *s, int stride, const v16 lanes[16])
{
    v16 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) { /* lane i + lane i + 8 */
        v16 low = _mm512_shuffle_f32x4(lanes[2 * i], lanes[2 * i + 1], 0x44);
        a[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4(lanes[2 * i], lanes[2 * i + 1], 0xee));
    }
    for (int i = 0; i < 4; i++) { /* i + 4 */
        v16 low = _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88);
        b[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
    }
    for (int i = 0; i < 2; i++) { /* i + 2 */
        v16 low = _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44);
        c[i] = _mm512_add_ps(low, _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
    }
    v16 low = _mm512_shuffle_ps(c[0], c[1], 0x88), sums = _mm512_add_ps(low, _mm512_shuffle_ps(c[0], c[1], 0xdd));
    _mm_storeu_ps(s, _mm512_castps512_ps128(sums));
    _mm_storeu_ps(s + stride, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(s + 2 * stride, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(s + 3 * stride, _mm512_extractf32x4_ps(sums, 3));
}
/* s[r * stride + i] = v16_sum(lanes[i * n_r + r]) for i < n_i and r < n_r, constants */
static inline void v16_sums(float *s, int stride, const v16 lanes[], int n_r, int n_i)
{
    if (n_r == 4 && n_i == 4) {
        v16_sums_4x4(s, stride, lanes);
        return;
    }
    for (int c = 0; c < n_r * n_i; c++)
        s[c % n_r * stride + c / n_r] = v16_sum(lanes[c]);
}
/* a * 2^n, rounded once, where shifted = n + EXP_ROUND */
static inline v16 v16_scale2(v16 a, v16 shifted)
{
    return _mm512_scalef_ps(a, _mm512_sub_ps(shifted, _mm512_set1_ps(EXP_ROUND)));
}
/* Rounds to nearest even into 16 bytes and adds them up; a in -127..127. */
static inline struct v16_sums v16_store_int8(int8_t *p, v16 a)
{
    __m512i x = _mm512_cvtps_epi32(a);
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return sums_of_four(_mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}
/* Pairs (a, b) rotated by pairs (cos, sin). */
static inline v16 v16_rotate_pairs(v16 x, v16 cs)
{
    v16 t = _mm512_mul_ps(_mm512_movehdup_ps(x), _mm512_permute_ps(cs, 0xb1));
    return _mm512_fmaddsub_ps(_mm512_moveldup_ps(x), cs, t);
}
/* Sixteen pairs (cos, sin) into sixteen of each. */
static inline void v16_split_pairs(v16 p, v16 q, v16 *c, v16 *s)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *c = _mm512_permutex2var_ps(p, even, q);
    *s = _mm512_permutex2var_ps(p, _mm512_add_epi32(even, _mm512_set1_epi32(1)), q);
}

#endif
