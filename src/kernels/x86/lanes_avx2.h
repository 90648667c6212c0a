/* Eight rows at a time in AVX2: what r16_template.h is written in. */
#ifndef KERNELS_X86_LANES_AVX2_H
#define KERNELS_X86_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/x86/pair_sums.h"
#include "kernels/x86/parts_avx2.h"

typedef __m256i vi;
typedef __m256 vf;

enum { LANES = 8 };      /* rows of a vector */
enum { PEAK_TILE = 12 }; /* sums that keep the units busy and fit the registers */

static inline vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
static inline vi vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
static inline vi vi_bcast(const void *p) /* four bytes, to all lanes */
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}
static inline vi vi_mask16(const uint8_t mask[16]) /* a byte shuffle's mask, the same for every 128 bits */
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)mask));
}
static inline vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
static inline vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
static inline vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
static inline vi vi_sub8(vi a, vi b)
{
    return _mm256_sub_epi8(a, b);
}
static inline vi vi_mul(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}
static inline vi vi_madd16(vi a, vi b)
{
    return _mm256_madd_epi16(a, b);
}
static inline vi vi_maddubs(vi u, vi s)
{
    return _mm256_maddubs_epi16(u, s);
}
static inline vi vi_abs8(vi a)
{
    return _mm256_abs_epi8(a);
}
static inline vi vi_sign8(vi a, vi sign) /* a, 0 or -a by the sign of `sign` */
{
    return _mm256_sign_epi8(a, sign);
}
static inline vi vi_shuffle8(vi a, vi mask)
{
    return _mm256_shuffle_epi8(a, mask);
}
/* Shifts as operators: n may be a constant or not. */
typedef uint32_t vi_u32 __attribute__((vector_size(32)));
typedef int32_t vi_i32 __attribute__((vector_size(32)));
typedef int16_t vi_i16 __attribute__((vector_size(32)));
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
static inline void vi_keep(vi a) /* makes the compiler compute it */
{
    __asm__ volatile("" : : "v"(a));
}

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vf vf_load(const void *p)
{
    return _mm256_loadu_ps(p);
}
static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf vf_bcast(const float *p)
{
    return _mm256_set1_ps(*p);
}
static inline vf vf_of(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf peak_fma(vf acc, vf a, vf b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}
static inline vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
static inline vf vf_load_half(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
static inline vf vf_low_half(vi a) /* of the halves in the low words of each lane */
{
    return avx2_low_half(a);
}
static inline vf vf_load_mxfp4(const uint8_t *p)
{
    return avx2_load_mxfp4(p);
}
static inline void vf_store(float *p, vf a, int64_t n) /* the first n lanes */
{
    avx2_store(p, a, n);
}
static inline void vf_keep(vf a)
{
    __asm__ volatile("" : : "v"(a));
}

#endif
