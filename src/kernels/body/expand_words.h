/* Pieces of expand_blocks.h in words of 16 bits. Include after lanes_*.h. */
#ifndef KERNELS_BODY_EXPAND_WORDS_H
#define KERNELS_BODY_EXPAND_WORDS_H

#include "kernels/kernels_internal.h"

/* Byte i of each lane, in all four. */
KERNELS_ALWAYS_INLINE vi ex_spread(vi x, int i)
{
    static const uint8_t mask[4][16] = {
        {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12},
        {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13},
        {2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14},
        {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15},
    };
    return vi_shuffle8(x, vi_mask16(mask[i]));
}

/* A lane's four indices into a grid of n entries, as words: index[0] has those of bytes 0 and 2, index[1] those of
 * bytes 1 and 3. low, high and step are as in ex_lookup. */
KERNELS_ALWAYS_INLINE void ex_indices(vi index[2], int n, vi low, vi high, int step)
{
    vi bytes = vi_set1(0xff00ff), bits = vi_set1(n - 256), upper = vi_set1((n - 256) << 16);
    index[0] = vi_and(low, bytes);
    index[1] = vi_and(vi_shr(low, 8), bytes);
    if (n == 256)
        return;
    index[0] = vi_or(index[0], vi_or(vi_and(vi_shl(high, 8), bits), vi_and(vi_shl(high, 24 - 2 * step), upper)));
    index[1] = vi_or(index[1], vi_or(vi_and(vi_shl(high, 8 - step), bits), vi_and(vi_shl(high, 24 - 3 * step), upper)));
}

/* Four weights from byte i of a grid entry, two bits each. `levels` has level k's weight at k and at 4 * k, because
 * every other level is looked up two bits too high. */
KERNELS_ALWAYS_INLINE vi ex_levels2(vi entry, int i, const uint8_t levels[16])
{
    vi x = vi_and(ex_spread(entry, i), vi_set1((int32_t)0xc0300c03));
    x = vi_and(vi_or(x, vi_shr(x, 4)), vi_set1(0x0c030c03));
    return vi_shuffle8(vi_mask16(levels), x);
}

/* Four weights from word i of a grid entry, four bits each. */
KERNELS_ALWAYS_INLINE vi ex_levels4(vi entry, int i, const uint8_t levels[16])
{
    static const uint8_t mask[2][16] = {
        {0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13},
        {2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15},
    };
    vi x = vi_shuffle8(entry, vi_mask16(mask[i]));
    x = vi_or(vi_and(x, vi_set1(0x000f000f)), vi_and(vi_shr(x, 4), vi_set1(0x0f000f00)));
    return vi_shuffle8(vi_mask16(levels), x);
}

/* The low 28 bits of each lane, seven in each byte. */
KERNELS_ALWAYS_INLINE vi ex_fields7(vi x)
{
    vi low = vi_or(vi_and(x, vi_set1(0x7f)), vi_and(vi_shl(x, 1), vi_set1(0x7f00)));
    return vi_or(low, vi_or(vi_and(vi_shl(x, 2), vi_set1(0x7f0000)), vi_and(vi_shl(x, 3), vi_set1(0x7f000000))));
}

/* quant_even_signs in each byte; the eighth bits are 0. */
KERNELS_ALWAYS_INLINE vi ex_even_signs(vi seven)
{
    vi odd = vi_xor(seven, vi_shr(seven, 4));
    odd = vi_xor(odd, vi_shr(odd, 2));
    odd = vi_xor(odd, vi_shr(odd, 1));
    return vi_or(seven, vi_shl(vi_and(odd, vi_set1(0x01010101)), 7));
}

#endif
