/* What expand_blocks.h needs besides lanes_avx2.h. */
#ifndef KERNELS_X86_EXPAND_OPS_AVX2_H
#define KERNELS_X86_EXPAND_OPS_AVX2_H

#include "kernels/kernels_internal.h"
#include "kernels/x86/lanes_avx2.h"

/* Entries of a table, for an index in each word of two vectors. Reads four bytes at each. */
KERNELS_ALWAYS_INLINE void ex_lookup_words(const uint16_t *table, int n, const vi index[2], vi out[2])
{
    const int *base = (const int *)(const void *)table;
    (void)n;
    for (int i = 0; i < 2; i++) {
        vi low = _mm256_i32gather_epi32(base, _mm256_and_si256(index[i], _mm256_set1_epi32(0xffff)), 2);
        vi high = _mm256_i32gather_epi32(base, _mm256_srli_epi32(index[i], 16), 2);
        out[i] = _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
    }
}

#include "kernels/body/expand_words.h"

/* Bytes a or, where the byte of `signs` has the bit of `bit`, twice - a. */
static inline vi ex_reflect(vi a, vi signs, vi bit, vi twice)
{
    vi minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bit), bit);
    vi plus_one = _mm256_sub_epi8(twice, _mm256_set1_epi8(-1));
    return _mm256_add_epi8(_mm256_xor_si256(a, minus), _mm256_and_si256(minus, plus_one));
}

/* quant_nvfp4_scale of each lane: shifted into place, the bits are a float 2^120 too small. */
static inline vf ex_nvfp4_scale(vi s)
{
    __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_and_si256(s, _mm256_set1_epi32(127)), 20));
    __m256i nan = _mm256_cmpeq_epi32(s, _mm256_set1_epi32(127));
    return _mm256_andnot_ps(_mm256_castsi256_ps(nan), _mm256_mul_ps(scale, _mm256_set1_ps(0x1p119f)));
}

#endif
