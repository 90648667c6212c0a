/* What lanes_avx2.h and lanes_avx2x2.h do with one vector and what is more than an instruction. */
#ifndef KERNELS_X86_PARTS_AVX2_H
#define KERNELS_X86_PARTS_AVX2_H

#include <immintrin.h>
#include <stdint.h>

static inline __m256 avx2_low_half(__m256i a) /* of the halves in the low words of each lane */
{
    a = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
static inline __m256 avx2_load_mxfp4(const uint8_t *p) /* quant/blocks.h: quant_mxfp4_scale */
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
}
static inline void avx2_store(float *p, __m256 a, int64_t n) /* the first n lanes */
{
    if (n >= 8)
        _mm256_storeu_ps(p, a);
    else
        _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                            a);
}

#endif
