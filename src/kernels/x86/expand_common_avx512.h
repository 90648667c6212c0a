/* What expand_ops_avx512*.h share. */
#ifndef KERNELS_X86_EXPAND_COMMON_AVX512_H
#define KERNELS_X86_EXPAND_COMMON_AVX512_H

#include "kernels/kernels_internal.h"
#include "kernels/x86/lanes_avx512.h"

/* Each byte of a, or twice - a where the byte of `signs` has the bit that is set in `bit`. */
static inline vi ex_reflect(vi a, vi signs, vi bit, vi twice)
{
    return _mm512_mask_sub_epi8(a, _mm512_test_epi8_mask(signs, bit), twice, a);
}

/* quant_nvfp4_scale of each lane: shifted into place, the bits are a float 2^120 too small; the scale is half of it. */
static inline vf ex_nvfp4_scale(vi s)
{
    __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_and_si512(s, _mm512_set1_epi32(127)), 20));
    __mmask16 finite = _mm512_cmpneq_epi32_mask(s, _mm512_set1_epi32(127));
    return _mm512_maskz_mul_ps(finite, scale, _mm512_set1_ps(0x1p119f));
}

#endif
