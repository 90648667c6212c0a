/* What expand_blocks.h needs besides lanes_avx512.h. */
#ifndef KERNELS_X86_EXPAND_OPS_AVX512_H
#define KERNELS_X86_EXPAND_OPS_AVX512_H

#include "kernels/kernels_internal.h"
#include "kernels/x86/lanes_avx512.h"
#include "kernels/x86/expand_common_avx512.h"
#include "kernels/body/expand_words.h"

/* Entries of a table of n (a power of two from 256 to 2048), for an index in each word of two vectors: permutations of
 * 64 entries, and a tree of choices by the higher bits of the index. About twice as fast as gathering; two at a time
 * because the table's loads would be the limit. */
KERNELS_ALWAYS_INLINE void ex_lookup_64(const uint16_t *table, const vi index[2], vi out[2])
{
    vi low = vi_load(table), high = vi_load(table + 32);
    out[0] = _mm512_permutex2var_epi16(low, index[0], high);
    out[1] = _mm512_permutex2var_epi16(low, index[1], high);
}

#define EX_LOOKUP(n, half)                                                                                             \
    KERNELS_ALWAYS_INLINE void ex_lookup_##n(const uint16_t *table, const vi index[2], vi out[2])                      \
    {                                                                                                                  \
        vi upper[2], bit = _mm512_set1_epi16(half);                                                                    \
        ex_lookup_##half(table, index, out);                                                                           \
        ex_lookup_##half(table + half, index, upper);                                                                  \
        for (int i = 0; i < 2; i++)                                                                                    \
            out[i] = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(index[i], bit), out[i], upper[i]);                 \
    }
EX_LOOKUP(128, 64)
EX_LOOKUP(256, 128)
EX_LOOKUP(512, 256)
EX_LOOKUP(1024, 512)
EX_LOOKUP(2048, 1024)
#undef EX_LOOKUP

KERNELS_ALWAYS_INLINE void ex_lookup_words(const uint16_t *table, int n, const vi index[2], vi out[2])
{
    switch (n) {
    case 256: ex_lookup_256(table, index, out); break;
    case 512: ex_lookup_512(table, index, out); break;
    case 1024: ex_lookup_1024(table, index, out); break;
    default: ex_lookup_2048(table, index, out); break;
    }
}
#include "kernels/body/expand_lookup.h"

#endif
