/* What expand_blocks.h needs besides lanes_avx512.h, with AVX-512 VBMI and GFNI: entries of grids are looked up byte by
 * byte, 128 a permutation, and fields of bits are taken out of 64 at once. The functions are those of expand_words.h
 * and expand_lookup.h. */
#ifndef KERNELS_X86_EXPAND_OPS_AVX512VBMI_H
#define KERNELS_X86_EXPAND_OPS_AVX512VBMI_H

#include "kernels/kernels_internal.h"
#include "kernels/x86/expand_common_avx512.h"

/* Byte k of each lane: eight bits of the lane, from the bit on that byte k of `from` names; beyond the lane's end come
 * another lane's. */
KERNELS_ALWAYS_INLINE vi ex_bits_from(vi x, uint32_t from)
{
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((int64_t)((from + 0x20202020ull) << 32 | from)), x);
}

KERNELS_ALWAYS_INLINE vi ex_spread(vi x, int i)
{
    return ex_bits_from(x, 0x08080808u * (unsigned)i);
}

/* A permutation of 64 bytes uses the lowest six bits of an index, some of which belong to the next weights; so the
 * table is repeated for all of their values. */
KERNELS_ALWAYS_INLINE vi ex_levels2(vi entry, int i, const uint8_t levels[16])
{
    return _mm512_permutexvar_epi8(ex_bits_from(entry, 0x06040200u + 0x08080808u * (unsigned)i), vi_bcast(levels));
}

KERNELS_ALWAYS_INLINE vi ex_levels4(vi entry, int i, const uint8_t levels[16])
{
    return _mm512_permutexvar_epi8(ex_bits_from(entry, 0x0c080400u + 0x10101010u * (unsigned)i), vi_mask16(levels));
}
#include "kernels/body/expand_entries.h"

/* A grid's entries, their low and high bytes apart. */
struct ex_grid {
    _Alignas(64) uint8_t low[2048], high[2048];
};

KERNELS_ALWAYS_INLINE void ex_grid_open(struct ex_grid *grid, const uint16_t *entries, int n, const uint8_t levels[16],
                                        int n_weight)
{
    (void)levels, (void)n_weight;
    for (int i = 0; i < n; i += 32) {
        vi e = vi_load(entries + i);
        _mm256_store_si256((__m256i *)(grid->low + i), _mm512_cvtepi16_epi8(e));
        _mm256_store_si256((__m256i *)(grid->high + i), _mm512_cvtepi16_epi8(_mm512_srli_epi16(e, 8)));
    }
}

/* Bytes of a table of n (a power of two from 128 to 2048): a tree of choices by bits of the index. The eighth is the
 * highest of `low`, the ninth the lowest of `high`. */
KERNELS_ALWAYS_INLINE vi ex_bytes_128(const uint8_t *table, vi low, vi high)
{
    (void)high;
    return _mm512_permutex2var_epi8(vi_load(table), low, vi_load(table + 64));
}

#define EX_BYTES_OF(n, half, upper)                                                                                    \
    KERNELS_ALWAYS_INLINE vi ex_bytes_##n(const uint8_t *table, vi low, vi high)                                       \
    {                                                                                                                  \
        vi a = ex_bytes_##half(table, low, high), b = ex_bytes_##half(table + half, low, high);                        \
        return _mm512_mask_blend_epi8(upper, a, b);                                                                    \
    }
EX_BYTES_OF(256, 128, _mm512_movepi8_mask(low))
EX_BYTES_OF(512, 256, _mm512_test_epi8_mask(high, _mm512_set1_epi8(1)))
EX_BYTES_OF(1024, 512, _mm512_test_epi8_mask(high, _mm512_set1_epi8(2)))
EX_BYTES_OF(2048, 1024, _mm512_test_epi8_mask(high, _mm512_set1_epi8(4)))
#undef EX_BYTES_OF

KERNELS_ALWAYS_INLINE vi ex_bytes(const uint8_t *table, int n, vi low, vi high)
{
    switch (n) {
    case 256: return ex_bytes_256(table, low, high);
    case 512: return ex_bytes_512(table, low, high);
    case 1024: return ex_bytes_1024(table, low, high);
    default: return ex_bytes_2048(table, low, high);
    }
}

KERNELS_ALWAYS_INLINE void ex_lookup(struct ex_entries *out, const struct ex_grid *grid, int n, vi low, vi high,
                                     int step)
{
    vi upper = ex_bits_from(high, 0x03020100u * (unsigned)step), even = vi_set1(0xff00ff);
    vi first = ex_bytes(grid->low, n, low, upper), second = ex_bytes(grid->high, n, low, upper);
    enum { CHOOSE = 0xca }; /* by the first operand's bit */
    out->words[0] = _mm512_ternarylogic_epi32(even, first, vi_shl(second, 8), CHOOSE);
    out->words[1] = _mm512_ternarylogic_epi32(even, vi_shr(first, 8), second, CHOOSE);
}

KERNELS_ALWAYS_INLINE void ex_lookup9(struct ex_entries *out, const struct ex_grid *grid, const vi words[2])
{
    vi even = vi_set1(0xff00ff);
    vi low = vi_or(vi_and(words[0], even), vi_shl(vi_and(words[1], even), 8));
    vi high = vi_or(vi_and(vi_shr(words[0], 8), even), _mm512_andnot_si512(even, words[1]));
    ex_lookup(out, grid, 512, low, high, 8);
}

/* Of each byte, the eighth bit is another field's. */
KERNELS_ALWAYS_INLINE vi ex_fields7(vi x)
{
    return ex_bits_from(x, 0x150e0700u);
}

/* Each bit is the parity of some: of itself, and the eighth of the seven. */
KERNELS_ALWAYS_INLINE vi ex_even_signs(vi seven)
{
    return _mm512_gf2p8affine_epi64_epi8(seven, _mm512_set1_epi64(0x010204081020407f), 0);
}

#endif
