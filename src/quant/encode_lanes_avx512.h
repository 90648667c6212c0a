/* encode_lanes_generic.h with sixteen lanes. */
#ifndef QUANT_ENCODE_LANES_AVX512_H
#define QUANT_ENCODE_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define QUANT_LANES

enum { LANES = 16 };
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
typedef __mmask16 vm;

static inline vm v_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline vf v_choose(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

static inline vi v_choose_int(vm m, vi a, vi b)
{
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline int v_any(vm m)
{
    return m != 0;
}

/* out[k]: number i + k of each row */
static inline void v_columns(const float *const row[LANES], int i, vf out[4])
{
    vf r[4];
    for (int k = 0; k < 4; k++) { /* in each quarter four rows, transposed */
        r[k] = _mm512_broadcast_f32x4(_mm_loadu_ps(row[k] + i));
        r[k] = _mm512_mask_broadcast_f32x4(r[k], 0x00f0, _mm_loadu_ps(row[4 + k] + i));
        r[k] = _mm512_mask_broadcast_f32x4(r[k], 0x0f00, _mm_loadu_ps(row[8 + k] + i));
        r[k] = _mm512_mask_broadcast_f32x4(r[k], 0xf000, _mm_loadu_ps(row[12 + k] + i));
    }
    vf a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    vf c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    out[0] = _mm512_shuffle_ps(a, c, 0x44);
    out[1] = _mm512_shuffle_ps(a, c, 0xee);
    out[2] = _mm512_shuffle_ps(b, d, 0x44);
    out[3] = _mm512_shuffle_ps(b, d, 0xee);
}

#endif
