/* encode_lanes_generic.h with eight lanes. */
#ifndef QUANT_ENCODE_LANES_AVX2_H
#define QUANT_ENCODE_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define QUANT_LANES

enum { LANES = 8 };
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
typedef vi vm;

static inline vm v_less(vf a, vf b)
{
    return (vm)_mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline vf v_choose(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, (vf)m);
}

static inline vi v_choose_int(vm m, vi a, vi b)
{
    return (vi)_mm256_blendv_ps((vf)b, (vf)a, (vf)m);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline int v_any(vm m)
{
    return _mm256_movemask_ps((vf)m) != 0;
}

/* out[k]: number i + k of each row */
static inline void v_columns(const float *const row[LANES], int i, vf out[4])
{
    vf r[4];
    for (int k = 0; k < 4; k++) /* in each half four rows, transposed */
        r[k] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[k] + i)), _mm_loadu_ps(row[4 + k] + i), 1);
    vf a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    vf c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    out[0] = _mm256_shuffle_ps(a, c, 0x44);
    out[1] = _mm256_shuffle_ps(a, c, 0xee);
    out[2] = _mm256_shuffle_ps(b, d, 0x44);
    out[3] = _mm256_shuffle_ps(b, d, 0xee);
}

#endif
