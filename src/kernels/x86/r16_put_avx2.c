/* Packs into R16 (quant/layout.h). Vectors of 512 bits gain another 2 to 9% (docs/experiments.md), which is not worth a
 * second version. */
#include <immintrin.h>

#include "kernels/x86/kernels_x86.h"

/* 16 bytes of a row, and of the fourth row after it */
static inline __m256i load(const uint8_t *p, size_t row)
{
    return _mm256_loadu2_m128i((const __m128i *)(const void *)(p + 4 * row), (const __m128i *)(const void *)p);
}

static inline void store(uint8_t *p, __m256i a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a);
}

/* Packs a quad of eight rows. The lower halves of vectors have the first four rows, the upper halves the others. */
static inline void put_quad(uint8_t *const dst[4], size_t half, const uint8_t *src, size_t row)
{
    __m256i a = load(src, row), b = load(src + row, row), c = load(src + 2 * row, row), d = load(src + 3 * row, row);
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    store(dst[0] + half, _mm256_unpacklo_epi64(ab_low, cd_low));
    store(dst[1] + half, _mm256_unpackhi_epi64(ab_low, cd_low));
    store(dst[2] + half, _mm256_unpacklo_epi64(ab_high, cd_high));
    store(dst[3] + half, _mm256_unpackhi_epi64(ab_high, cd_high));
}

void r16_put_avx2(const struct layout_quads *p, uint8_t *dst, const uint8_t *src, size_t row, size_t block_bytes,
                  size_t n_block)
{
    for (size_t b = 0; b < n_block; b++, src += block_bytes, dst += LAYOUT_R16_ROWS * block_bytes)
        for (int i = 0; i < p->n; i++) {
            const uint8_t *rows = src + p->quad[i].off;
            const uint16_t *at = p->quad[i].at;
            uint8_t *const to[4] = {dst + at[0], dst + at[1], dst + at[2], dst + at[3]};
            put_quad(to, 0, rows, row);
            put_quad(to, 32, rows + 8 * row, row);
        }
}
