/* Sixteen rows at a time as two vectors of AVX2: what r16_template.h is written in. A line of the R16 layout is whole
 * then, so that weights are read once and in order, and both halves meet the activations that one load brings. */
#ifndef KERNELS_X86_LANES_AVX2X2_H
#define KERNELS_X86_LANES_AVX2X2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels_internal.h"
#include "kernels/x86/pair_sums.h"
#include "kernels/x86/parts_avx2.h"

typedef struct {
    __m256i half[2];
} vi;
typedef struct {
    __m256 half[2];
} vf;

enum { LANES = 16 };    /* rows of a pair of vectors */
enum { PEAK_TILE = 6 }; /* pairs of sums that keep the units busy and fit the registers */

/* Defines name(a, b), an operation on both halves. */
#define LANES_OF_TWO(type, name, operation)                                                                            \
    static inline type name(type a, type b)                                                                            \
    {                                                                                                                  \
        return (type){{operation(a.half[0], b.half[0]), operation(a.half[1], b.half[1])}};                             \
    }

static inline vi vi_both(__m256i a)
{
    return (vi){{a, a}};
}
static inline vf vf_both(__m256 a)
{
    return (vf){{a, a}};
}

static inline vi vi_load(const void *p)
{
    const __m256i *v = p;
    return (vi){{_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)}};
}
static inline vi vi_set1(int32_t x)
{
    return vi_both(_mm256_set1_epi32(x));
}
static inline vi vi_bcast(const void *p) /* four bytes, to all lanes */
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return vi_set1(x);
}
static inline vi vi_mask16(const uint8_t mask[16]) /* a byte shuffle's mask, the same for every 128 bits */
{
    return vi_both(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)mask)));
}
LANES_OF_TWO(vi, vi_and, _mm256_and_si256)
LANES_OF_TWO(vi, vi_or, _mm256_or_si256)
LANES_OF_TWO(vi, vi_xor, _mm256_xor_si256)
LANES_OF_TWO(vi, vi_add, _mm256_add_epi32)
LANES_OF_TWO(vi, vi_sub, _mm256_sub_epi32)
LANES_OF_TWO(vi, vi_sub8, _mm256_sub_epi8)
LANES_OF_TWO(vi, vi_mul, _mm256_mullo_epi32)
LANES_OF_TWO(vi, vi_mul16, _mm256_mullo_epi16) /* of words, as words */
LANES_OF_TWO(vi, vi_madd16, _mm256_madd_epi16)
LANES_OF_TWO(vi, vi_maddubs, _mm256_maddubs_epi16) /* of unsigned and signed bytes */
/* A lane's four activations, as an operand of assembly. */
struct four_bytes {
    int8_t byte[4];
};

/* acc + maddubs(u, the four signed bytes at q) in words. Assembly, as compilers take a chain of sums apart into a tree,
 * for whose leaves there are not enough registers. */
KERNELS_ALWAYS_INLINE vi vi_add_maddubs(vi acc, vi u, const int8_t *q)
{
    const struct four_bytes *four = (const void *)q;
    __m256i x, products;
    __asm__("vpbroadcastd %6, %2\n\t"
            "vpmaddubsw %2, %4, %3\n\t"
            "vpmaddubsw %2, %5, %2\n\t"
            "vpaddw %3, %0, %0\n\t"
            "vpaddw %2, %1, %1"
            : "+x"(acc.half[0]), "+x"(acc.half[1]), "=&x"(x), "=&x"(products)
            : "x"(u.half[0]), "x"(u.half[1]), "m"(*four));
    return acc;
}
/* acc + the products of signed bytes w, whose magnitudes are mag, and the four at q. Each is at most 127 * 127 or,
 * where w is -128, 128 * 127, so that two fit a word. */
KERNELS_ALWAYS_INLINE vi vi_add_int8(vi acc, vi w, vi mag, const int8_t *q)
{
    static const _Alignas(32) int16_t ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct four_bytes *four = (const void *)q;
    __m256i x, products;
    __asm__("vpbroadcastd %8, %2\n\t"
            "vpsignb %4, %2, %3\n\t"
            "vpsignb %5, %2, %2\n\t"
            "vpmaddubsw %3, %6, %3\n\t"
            "vpmaddubsw %2, %7, %2\n\t"
            "vpmaddwd %9, %3, %3\n\t"
            "vpmaddwd %9, %2, %2\n\t"
            "vpaddd %3, %0, %0\n\t"
            "vpaddd %2, %1, %1"
            : "+x"(acc.half[0]), "+x"(acc.half[1]), "=&x"(x), "=&x"(products)
            : "x"(w.half[0]), "x"(w.half[1]), "x"(mag.half[0]), "x"(mag.half[1]), "m"(*four),
              "xm"(*(const __m256i *)(const void *)ones));
    return acc;
}
static inline vi vi_abs8(vi a)
{
    return (vi){{_mm256_abs_epi8(a.half[0]), _mm256_abs_epi8(a.half[1])}};
}
LANES_OF_TWO(vi, vi_sign8, _mm256_sign_epi8) /* a, 0 or -a by the sign of b */
LANES_OF_TWO(vi, vi_shuffle8, _mm256_shuffle_epi8)

/* Shifts as operators: n may be a constant or not. */
typedef uint32_t vi_u32 __attribute__((vector_size(32)));
typedef int16_t vi_i16 __attribute__((vector_size(32)));
static inline vi vi_shl(vi a, int n)
{
    return (vi){{(__m256i)((vi_u32)a.half[0] << n), (__m256i)((vi_u32)a.half[1] << n)}};
}
static inline vi vi_shr(vi a, int n)
{
    return (vi){{(__m256i)((vi_u32)a.half[0] >> n), (__m256i)((vi_u32)a.half[1] >> n)}};
}
static inline vi vi_sar16(vi a, int n)
{
    return (vi){{(__m256i)((vi_i16)a.half[0] >> n), (__m256i)((vi_i16)a.half[1] >> n)}};
}
static inline vi vi_held(vi a) /* a in registers: what is used often is not loaded anew each time */
{
    __asm__("" : "+x"(a.half[0]), "+x"(a.half[1]));
    return a;
}
static inline void vi_keep(vi a) /* makes the compiler compute it */
{
    __asm__ volatile("" : : "x"(a.half[0]), "x"(a.half[1]));
}

static inline vf vf_zero(void)
{
    return vf_both(_mm256_setzero_ps());
}
static inline vf vf_set1(float x)
{
    return vf_both(_mm256_set1_ps(x));
}
static inline vf vf_bcast(const float *p)
{
    return vf_set1(*p);
}
static inline vf vf_of(vi a)
{
    return (vf){{_mm256_cvtepi32_ps(a.half[0]), _mm256_cvtepi32_ps(a.half[1])}};
}
LANES_OF_TWO(vf, vf_mul, _mm256_mul_ps)
static inline vf vf_fma(vf a, vf b, vf c)
{
    return (vf){{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}
static inline vf vf_fnma(vf a, vf b, vf c)
{
    return (vf){{_mm256_fnmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fnmadd_ps(a.half[1], b.half[1], c.half[1])}};
}
static inline vf peak_fma(vf acc, vf a, vf b)
{
    for (int i = 0; i < 2; i++)
        __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc.half[i]) : "x"(a.half[i]), "x"(b.half[i]));
    return acc;
}
static inline vf vf_load_half(const void *p)
{
    const __m128i *v = p;
    return (vf){{_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))}};
}
static inline vf vf_low_half(vi a) /* of the halves in the low words of each lane */
{
    return (vf){{avx2_low_half(a.half[0]), avx2_low_half(a.half[1])}};
}
static inline vf vf_load_mxfp4(const uint8_t *p)
{
    return (vf){{avx2_load_mxfp4(p), avx2_load_mxfp4(p + 8)}};
}
static inline void vf_store(float *p, vf a, int64_t n) /* the first n lanes */
{
    avx2_store(p, a.half[0], n);
    if (n > 8)
        avx2_store(p + 8, a.half[1], n - 8);
}
static inline void vf_keep(vf a)
{
    __asm__ volatile("" : : "x"(a.half[0]), "x"(a.half[1]));
}

#endif
