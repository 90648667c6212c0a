/* What every width of x86 vectors has in common beside its lanes. */
#ifndef KERNELS_X86_PAIR_SUMS_H
#define KERNELS_X86_PAIR_SUMS_H

#include <immintrin.h>
#include <stdint.h>

/* The sums of sixteen words in pairs, which fit words. */
static inline void pair_sums(const int16_t x[16], int16_t out[8])
{
    __m256i sum = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi16(1));
    __m128i low = _mm256_castsi256_si128(sum), high = _mm256_extracti128_si256(sum, 1);
    _mm_storeu_si128((__m128i *)out, _mm_packs_epi32(low, high));
}

#endif
