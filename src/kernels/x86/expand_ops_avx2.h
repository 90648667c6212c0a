/* What expand_blocks.h needs besides lanes_avx2.h. */
#ifndef KERNELS_X86_EXPAND_OPS_AVX2_H
#define KERNELS_X86_EXPAND_OPS_AVX2_H

#include "kernels/kernels_internal.h"
#include "kernels/x86/lanes_avx2.h"
#include "kernels/body/expand_words.h"

/* A grid with its entries expanded to bytes. They are loaded one by one, in half of the time that gathering words
 * takes. */
struct ex_grid {
    union {
        uint64_t of_8[2048];
        uint32_t of_4[512];
        vi v[512];
    };
};

KERNELS_ALWAYS_INLINE void ex_grid_open(struct ex_grid *grid, const uint16_t *entries, int n, const uint8_t levels[16],
                                        int n_weight)
{
    for (int i = 0; i < n; i += 8) {
        vi e = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(entries + i)));
        vi *out = grid->v + i * n_weight / (int)sizeof(vi);
        if (n_weight == 4) {
            _mm256_store_si256(out, ex_levels4(e, 0, levels));
            continue;
        }
        vi first = ex_levels2(e, 0, levels), second = ex_levels2(e, 1, levels);
        vi even = _mm256_unpacklo_epi32(first, second), odd = _mm256_unpackhi_epi32(first, second);
        _mm256_store_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_store_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

/* Indices of entries, as ex_indices has them. */
struct ex_entries {
    _Alignas(32) uint16_t index[2][2 * LANES];
};

KERNELS_ALWAYS_INLINE void ex_put_indices(struct ex_entries *out, vi first, vi second)
{
    _mm256_store_si256((__m256i *)out->index[0], first);
    _mm256_store_si256((__m256i *)out->index[1], second);
    __asm__("" : "+m"(*out)); /* so that they are loaded one by one; compilers would extract them from vectors */
}

KERNELS_ALWAYS_INLINE void ex_lookup9(struct ex_entries *out, const struct ex_grid *grid, const vi words[2])
{
    (void)grid;
    ex_put_indices(out, _mm256_and_si256(words[0], _mm256_set1_epi16(511)),
                   _mm256_and_si256(words[1], _mm256_set1_epi16(511)));
}

KERNELS_ALWAYS_INLINE void ex_lookup(struct ex_entries *out, const struct ex_grid *grid, int n, vi low, vi high,
                                     int step)
{
    vi index[2];
    (void)grid;
    ex_indices(index, n, low, high, step);
    ex_put_indices(out, index[0], index[1]);
}

/* The index of byte i of a lane. */
KERNELS_ALWAYS_INLINE size_t ex_index(const struct ex_entries *e, int i, int lane)
{
    return e->index[i % 2][2 * lane + i / 2];
}

KERNELS_ALWAYS_INLINE void ex_entry8(vi w[2], const struct ex_grid *grid, const struct ex_entries *e, int i,
                                     const uint8_t levels[16])
{
    __m128 two[4]; /* lanes 2k and 2k + 1 */
    (void)levels;
    KERNELS_UNROLL
    for (int k = 0; k < 4; k++) {
        __m128i first = _mm_loadl_epi64((const __m128i *)(grid->of_8 + ex_index(e, i, 2 * k)));
        two[k] = _mm_loadh_pi(_mm_castsi128_ps(first), (const __m64 *)(grid->of_8 + ex_index(e, i, 2 * k + 1)));
    }
    __m256 a = _mm256_insertf128_ps(_mm256_castps128_ps256(two[0]), two[2], 1);
    __m256 b = _mm256_insertf128_ps(_mm256_castps128_ps256(two[1]), two[3], 1);
    w[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    w[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}

KERNELS_ALWAYS_INLINE vi ex_entry4(const struct ex_grid *grid, const struct ex_entries *e, int i,
                                   const uint8_t levels[16])
{
    __m128i two[4]; /* lanes 2k and 2k + 1 */
    (void)levels;
    KERNELS_UNROLL
    for (int k = 0; k < 4; k++) {
        __m128i first = _mm_cvtsi32_si128((int32_t)grid->of_4[ex_index(e, i, 2 * k)]);
        two[k] = _mm_unpacklo_epi32(first, _mm_cvtsi32_si128((int32_t)grid->of_4[ex_index(e, i, 2 * k + 1)]));
    }
    return _mm256_setr_m128i(_mm_unpacklo_epi64(two[0], two[1]), _mm_unpacklo_epi64(two[2], two[3]));
}

/* Each byte of a, or twice - a where the byte of `signs` has the bit that is set in `bit`. */
static inline vi ex_reflect(vi a, vi signs, vi bit, vi twice)
{
    vi minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bit), bit);
    vi plus_one = _mm256_sub_epi8(twice, _mm256_set1_epi8(-1));
    return _mm256_add_epi8(_mm256_xor_si256(a, minus), _mm256_and_si256(minus, plus_one));
}

/* quant_nvfp4_scale of each lane: shifted into place, the bits are a float 2^120 too small; the scale is half of it. */
static inline vf ex_nvfp4_scale(vi s)
{
    __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_and_si256(s, _mm256_set1_epi32(127)), 20));
    __m256i nan = _mm256_cmpeq_epi32(s, _mm256_set1_epi32(127));
    return _mm256_andnot_ps(_mm256_castsi256_ps(nan), _mm256_mul_ps(scale, _mm256_set1_ps(0x1p119f)));
}

#endif
