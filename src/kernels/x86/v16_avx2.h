/* Sixteen floats in two AVX2 registers: what ops_template.h and float_template.h are written in. */
#ifndef KERNELS_X86_V16_AVX2_H
#define KERNELS_X86_V16_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/exp_consts.h"
#include "kernels/x86/pair_sums.h"

typedef struct v16 {
    __m256 lo, hi;
} v16;

enum { FLOAT_ROWS = 2, FLOAT_TOKENS = 2 }; /* register tile of the float products */
enum { ATTN_TILE = 2, ATTN_ROWS = 2 };     /* of attention: queries, positions whose chains run side by side */
enum { ATTN_VECS = 2, ATTN_MIXES = 3 };    /* and of their results: vectors, queries */
enum { DELTA_DIMS = 2, DELTA_GROUPS = 2 }; /* value dimensions that the delta rule takes side by side, and by turns */

static inline __m256i v16_half_mask(int64_t n) /* all ones in lanes below n */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline v16 v16_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline v16 v16_load_n(const float *p, int64_t n) /* n < 16; the rest are zeros */
{
    return (v16){_mm256_maskload_ps(p, v16_half_mask(n)), _mm256_maskload_ps(p + 8, v16_half_mask(n - 8))};
}
static inline void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline void v16_store_n(float *p, v16 a, int64_t n)
{
    _mm256_maskstore_ps(p, v16_half_mask(n), a.lo);
    _mm256_maskstore_ps(p + 8, v16_half_mask(n - 8), a.hi);
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
static inline v16 v16_load_f16_n(const uint16_t *p, int64_t n)
{
    uint16_t buf[16] = {0};
    memcpy(buf, p, (size_t)n * sizeof *p);
    return v16_load_f16(buf);
}
static inline v16 v16_set1_f16(const void *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    __m256 a = _mm256_cvtph_ps(_mm_set1_epi16((short)x));
    return (v16){a, a};
}
static inline __m256 v16_widen_int8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
static inline v16 v16_load_int8(const int8_t *p)
{
    return (v16){v16_widen_int8(p), v16_widen_int8(p + 8)};
}
static inline __m256 v16_widen_bf16(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
static inline v16 v16_load_bf16(const uint16_t *p)
{
    return (v16){v16_widen_bf16(p), v16_widen_bf16(p + 8)};
}
static inline v16 v16_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t buf[16] = {0};
    memcpy(buf, p, (size_t)n * sizeof *p);
    return v16_load_bf16(buf);
}
static inline void v16_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
static inline void v16_store_f16_n(uint16_t *p, v16 a, int64_t n)
{
    uint16_t buf[16];
    v16_store_f16(buf, a);
    memcpy(p, buf, (size_t)n * sizeof *p);
}
static inline v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline v16 v16_fms(v16 a, v16 b, v16 c) /* a * b - c */
{
    return (v16){_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
static inline v16 v16_max(v16 a, v16 b) /* a > b ? a : b */
{
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
static inline v16 v16_min(v16 a, v16 b) /* a < b ? a : b */
{
    return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
static inline v16 v16_abs(v16 a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
static inline v16 v16_copysign(v16 mag, v16 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_blendv_ps(_mm256_andnot_ps(sign, mag.lo), _mm256_or_ps(sign, mag.lo), x.lo),
                 _mm256_blendv_ps(_mm256_andnot_ps(sign, mag.hi), _mm256_or_ps(sign, mag.hi), x.hi)};
}
static inline v16 v16_if_less(v16 a, v16 b, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                 _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
static inline v16 v16_first(v16 a, v16 rest, int64_t n) /* lanes below n from a, the others from rest */
{
    return (v16){_mm256_blendv_ps(rest.lo, a.lo, _mm256_castsi256_ps(v16_half_mask(n))),
                 _mm256_blendv_ps(rest.hi, a.hi, _mm256_castsi256_ps(v16_half_mask(n - 8)))};
}
static inline float v16_top(v16 a) /* the largest lane; no NaN among them */
{
    __m256 m = _mm256_max_ps(a.lo, a.hi);
    __m128 n = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    n = _mm_max_ps(n, _mm_movehl_ps(n, n));
    return _mm_cvtss_f32(_mm_max_ss(n, _mm_movehdup_ps(n)));
}
static inline float v16_sum(v16 a) /* the tree of docs/numerics.md */
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/* v16_sums of two and two: the four trees side by side, a step for each width. */
static inline void v16_sums_2x2(float *s, int stride, const v16 lanes[4])
{
    __m256 a[4], pair[2];
    for (int c = 0; c < 4; c++)
        a[c] = _mm256_add_ps(lanes[c].lo, lanes[c].hi);
    for (int i = 0; i < 2; i++)
        pair[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x20),
                                _mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x31));
    __m256 two = _mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[1], 0x44), _mm256_shuffle_ps(pair[0], pair[1], 0xee));
    __m256 one = _mm256_add_ps(_mm256_permute_ps(two, 0x88), _mm256_permute_ps(two, 0xdd));
    _mm_storel_pi((__m64 *)s, _mm256_castps256_ps128(one));
    _mm_storel_pi((__m64 *)(s + stride), _mm256_extractf128_ps(one, 1));
}
/* s[r * stride + i] = v16_sum(lanes[i * n_r + r]) for i < n_i and r < n_r, constants */
static inline void v16_sums(float *s, int stride, const v16 lanes[], int n_r, int n_i)
{
    if (n_r == 2 && n_i == 2) {
        v16_sums_2x2(s, stride, lanes);
        return;
    }
    for (int c = 0; c < n_r * n_i; c++)
        s[c % n_r * stride + c / n_r] = v16_sum(lanes[c]);
}
static inline __m256 v16_scale2_half(__m256 a, __m256 shifted)
{
    __m256i e = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(EXP_ROUND)));
    __m256i half = _mm256_srai_epi32(e, 1), rest = _mm256_sub_epi32(e, half), bias = _mm256_set1_epi32(127);
    a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
/* a * 2^n, rounded once, where shifted = n + EXP_ROUND */
static inline v16 v16_scale2(v16 a, v16 shifted)
{
    return (v16){v16_scale2_half(a.lo, shifted.lo), v16_scale2_half(a.hi, shifted.hi)};
}
/* Rounds to nearest even into 16 bytes and adds them up; a in -127..127. */
static inline struct v16_sums v16_store_int8(int8_t *p, v16 a)
{
    __m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    __m256i sum = _mm256_add_epi32(lo, hi);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return sums_of_four(s);
}
static inline __m256 v16_rotate_half(__m256 x, __m256 cs)
{
    __m256 t = _mm256_mul_ps(_mm256_movehdup_ps(x), _mm256_permute_ps(cs, 0xb1));
    return _mm256_fmaddsub_ps(_mm256_moveldup_ps(x), cs, t);
}
/* Pairs (a, b) rotated by pairs (cos, sin). */
static inline v16 v16_rotate_pairs(v16 x, v16 cs)
{
    return (v16){v16_rotate_half(x.lo, cs.lo), v16_rotate_half(x.hi, cs.hi)};
}
static inline __m256 v16_in_order(__m256 a) /* undoes the order that a 128-bit shuffle of two registers leaves */
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}
/* Sixteen pairs (cos, sin) into sixteen of each. */
static inline void v16_split_pairs(v16 p, v16 q, v16 *c, v16 *s)
{
    c->lo = v16_in_order(_mm256_shuffle_ps(p.lo, p.hi, 0x88));
    c->hi = v16_in_order(_mm256_shuffle_ps(q.lo, q.hi, 0x88));
    s->lo = v16_in_order(_mm256_shuffle_ps(p.lo, p.hi, 0xdd));
    s->hi = v16_in_order(_mm256_shuffle_ps(q.lo, q.hi, 0xdd));
}

#endif
