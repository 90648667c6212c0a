/* What every width of x86 vectors has in common beside its lanes. */
#ifndef KERNELS_X86_PAIR_SUMS_H
#define KERNELS_X86_PAIR_SUMS_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/kernels_internal.h"

/* The sums of sixteen words in pairs, which fit words. */
static inline void pair_sums(const int16_t x[16], int16_t out[8])
{
    __m256i sum = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi16(1));
    __m128i low = _mm256_castsi256_si128(sum), high = _mm256_extracti128_si256(sum, 1);
    _mm_storeu_si128((__m128i *)out, _mm_packs_epi32(low, high));
}

/* The sums, from those over the elements 0, 1, 2 and 3 of every four. */
static inline struct v16_sums sums_of_four(__m128i s)
{
    __m128i pairs = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    int lower = _mm_cvtsi128_si32(pairs), upper = _mm_extract_epi32(pairs, 2);
    return (struct v16_sums){lower + upper, upper};
}

#endif
