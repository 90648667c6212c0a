/* What the integer dots of r16_template.h share on every width of x86 vectors. dot_*.h include it after their
 * dot_words_at. */
#ifndef KERNELS_X86_DOT_COMMON_H
#define KERNELS_X86_DOT_COMMON_H

#include "kernels/body/r16_unpack.h"
#include "kernels/kernels_internal.h"

enum { DOT_DEPTH = 4 }; /* multiply-adds of dot_bytes in a lane */

/* Bytes i and i + 1 of each lane in its two words (i: 0 or 2), sign-extended or not. */
static inline vi dot_factor_words(vi bytes, int i, bool are_signed)
{
    static const uint8_t high[2][17] = {
        /* in the words' high bytes; from the second byte on, in the low ones */
        {128, 0, 128, 1, 128, 4, 128, 5, 128, 8, 128, 9, 128, 12, 128, 13, 128},
        {128, 2, 128, 3, 128, 6, 128, 7, 128, 10, 128, 11, 128, 14, 128, 15, 128},
    };
    if (!are_signed)
        return vi_shuffle8(bytes, vi_mask16(high[i / 2] + 1));
    return vi_sar16(vi_shuffle8(bytes, vi_mask16(high[i / 2])), 8);
}

/* m[t] = the sum of factor j (byte j % 4 of factor[j / 4]) times sum[t][j], j < n_sub */
KERNELS_ALWAYS_INLINE void dot_sums(vi m[], const vi *factor, const int16_t *const sum[], int n_sub, bool are_signed,
                                    int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        m[t] = vi_set1(0);
    KERNELS_UNROLL
    for (int j = 0; j < n_sub; j += 2) {
        vi f = dot_factor_words(factor[j / 4], j % 4, are_signed);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            m[t] = dot_words_at(m[t], f, sum[t] + j);
    }
}

/* Puts the sums of dot_scaled over unpacked weights in order: they are in order. */
static inline void dot_finish(vi s[], const struct r16_src *src, int n_tok)
{
    (void)s, (void)src, (void)n_tok;
}

#endif
