/* Sixteen rows at a time in AVX-512: what r16_template.h is written in. */
#ifndef KERNELS_X86_LANES_AVX512_H
#define KERNELS_X86_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/x86/pair_sums.h"

typedef __m512i vi;
typedef __m512 vf;

enum { LANES = 16 };     /* rows of a vector */
enum { PEAK_TILE = 16 }; /* sums that keep two units with six cycles each busy */

static inline vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
static inline vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
static inline vi vi_bcast(const void *p) /* four bytes, to all lanes */
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}
static inline vi vi_mask16(const uint8_t mask[16]) /* a byte shuffle's mask, the same for every 128 bits */
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)mask));
}
static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vi vi_sub8(vi a, vi b)
{
    return _mm512_sub_epi8(a, b);
}
static inline vi vi_sub16(vi a, vi b)
{
    return _mm512_sub_epi16(a, b);
}
static inline vi vi_mul(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
static inline vi vi_madd16(vi a, vi b)
{
    return _mm512_madd_epi16(a, b);
}
static inline vi vi_maddubs(vi u, vi s)
{
    return _mm512_maddubs_epi16(u, s);
}
/* acc + maddubs(u, the four signed bytes at q) in words: assembly, as in lanes_avx2x2.h */
static inline vi vi_add_maddubs(vi acc, vi u, const int8_t *q)
{
    vi products;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(acc), "=&v"(products) : "v"(u), "v"(vi_bcast(q)));
    return acc;
}
static inline vi vi_abs8(vi a)
{
    return _mm512_abs_epi8(a);
}
static inline vi vi_sign8(vi a, vi sign) /* a where sign >= 0, -a where it is negative */
{
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(sign), _mm512_setzero_si512(), a);
}
/* acc + the products of signed bytes w, whose magnitudes are mag, and the four at q */
static inline vi vi_add_int8(vi acc, vi w, vi mag, const int8_t *q)
{
    return vi_add(acc, vi_madd16(vi_maddubs(mag, vi_sign8(vi_bcast(q), w)), vi_set1(0x10001)));
}
static inline vi vi_shuffle8(vi a, vi mask)
{
    return _mm512_shuffle_epi8(a, mask);
}
/* Shifts as operators: n may be a constant or not. */
typedef uint32_t vi_u32 __attribute__((vector_size(64)));
typedef int32_t vi_i32 __attribute__((vector_size(64)));
typedef int16_t vi_i16 __attribute__((vector_size(64)));
static inline vi vi_shl(vi a, int n)
{
    return (vi)((vi_u32)a << n);
}
static inline vi vi_shr(vi a, int n)
{
    return (vi)((vi_u32)a >> n);
}
static inline vi vi_sar(vi a, int n)
{
    return (vi)((vi_i32)a >> n);
}
static inline vi vi_sar16(vi a, int n)
{
    return (vi)((vi_i16)a >> n);
}
static inline vi vi_mul16(vi a, vi b) /* low halves of the words' products */
{
    return _mm512_mullo_epi16(a, b);
}
static inline vi vi_select(vi mask, vi a, vi b) /* bits of a where mask has ones, else of b */
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}
static inline vi vi_load16(const int16_t p[16]) /* words to lanes */
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
static inline vi vi_load_twice(const void *p) /* 32 bytes, in both halves */
{
    return _mm512_broadcast_i32x8(_mm256_loadu_si256(p));
}
static inline void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
static inline vi vi_held(vi a) /* a in a register: what is used often is not loaded anew each time */
{
    __asm__("" : "+v"(a));
    return a;
}
static inline void vi_keep(vi a) /* makes the compiler compute it */
{
    __asm__ volatile("" : : "v"(a));
}

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf vf_load(const void *p)
{
    return _mm512_loadu_ps(p);
}
static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_bcast(const float *p)
{
    return _mm512_set1_ps(*p);
}
static inline vf vf_of(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
static inline vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf peak_fma(vf acc, vf a, vf b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}
static inline vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
static inline vf vf_load_half(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
static inline vf vf_low_half(vi a) /* of the halves in the low words of each lane */
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}
static inline vf vf_load_mxfp4(const uint8_t *p) /* quant/blocks.h: quant_mxfp4_scale */
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_cvtepi32_ps(_mm512_sub_epi32(e, _mm512_set1_epi32(128))));
}
static inline void vf_store(float *p, vf a, int64_t n) /* the first n lanes */
{
    if (n >= LANES)
        _mm512_storeu_ps(p, a);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
static inline void vf_keep(vf a)
{
    __asm__ volatile("" : : "v"(a));
}

#endif
