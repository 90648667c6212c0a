/* Integer dots of r16_template.h by 16-bit products (vpmaddubsw, vpmaddwd), exact because no 16-bit sum can
 * reach 2^15: the bound stands at each sum. Include after lanes_*.h.
 *
 * Each function adds, for n_tok activation rows q[t], to s[t] (one row of weights a lane). */
#ifndef KERNELS_X86_DOT_MADDUBS_H
#define KERNELS_X86_DOT_MADDUBS_H

#include "kernels/kernels_internal.h"

/* Byte i of each lane, zero-extended, in both of its words. */
static inline vi dot_scale_u8(vi bytes, int i)
{
    static const uint8_t mask[4][16] = {
        {0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12, 128},
        {1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13, 128},
        {2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14, 128},
        {3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15, 128},
    };
    return vi_shuffle8(bytes, vi_mask16(mask[i]));
}

/* The same, sign-extended. */
static inline vi dot_scale_i8(vi bytes, int i)
{
    static const uint8_t mask[4][16] = {
        {128, 0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12},
        {128, 1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13},
        {128, 2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14},
        {128, 3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15},
    };
    return vi_sar16(vi_shuffle8(bytes, vi_mask16(mask[i])), 8);
}

/* acc + a.lo * b.lo + a.hi * b.hi over the words of each lane */
static inline vi dot_words(vi acc, vi a, vi b)
{
    return vi_add(acc, vi_madd16(a, b));
}

/* 16 weights 0..15 in four vectors; `first` starts the 16-bit sums of 32 weights: at most 8 * 2 * 15 * 127 =
 * 30480 */
KERNELS_ALWAYS_INLINE void dot_nibbles32(vi sum16[], const vi w[8], const int8_t *const q[], int n_tok)
{
    for (int t = 0; t < n_tok; t++)
        sum16[t] = vi_maddubs(w[0], vi_bcast(q[t]));
    for (int i = 1; i < 8; i++)
        for (int t = 0; t < n_tok; t++)
            sum16[t] = vi_add16(sum16[t], vi_maddubs(w[i], vi_bcast(q[t] + 4 * i)));
}

/* s += scale * sum of 32 weights 0..15; scale from dot_scale_u8 */
KERNELS_ALWAYS_INLINE void dot_scaled_nibbles(vi s[], const vi w[8], vi scale, const int8_t *const q[],
                                              int n_tok)
{
    vi sum16[TILE];
    dot_nibbles32(sum16, w, q, n_tok);
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_madd16(sum16[t], scale));
}

/* s += sum of 32 weights 0..15 */
KERNELS_ALWAYS_INLINE void dot_plain_nibbles(vi s[], const vi w[8], const int8_t *const q[], int n_tok)
{
    vi sum16[TILE];
    dot_nibbles32(sum16, w, q, n_tok);
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_madd16(sum16[t], vi_set1(0x10001)));
}

/* s += scale * sum of 16 weights 0..63; scale from dot_scale_i8. 16-bit sums: at most 2 * 2 * 63 * 127 =
 * 32004 */
KERNELS_ALWAYS_INLINE void dot_scaled_six(vi s[], const vi w[4], vi scale, const int8_t *const q[], int n_tok)
{
    for (int i = 0; i < 4; i += 2)
        for (int t = 0; t < n_tok; t++) {
            vi sum16 = vi_add16(vi_maddubs(w[i], vi_bcast(q[t] + 4 * i)),
                                vi_maddubs(w[i + 1], vi_bcast(q[t] + 4 * i + 4)));
            s[t] = vi_add(s[t], vi_madd16(sum16, scale));
        }
}

/* s = sum of 32 weights -128..127 in eight vectors at w; `sum`, of the activations, goes unused. The weights'
 * signs go to the activations; 16-bit sums: at most 2 * 128 * 127 = 32512 */
KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const uint8_t *w, const int8_t *const q[],
                                    const int16_t *const sum[], int n_tok)
{
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_set1(0);
    for (int i = 0; i < 8; i++) {
        vi x = vi_load(w + 64 * i), mag = vi_abs8(x);
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_add(s[t],
                          vi_madd16(vi_maddubs(mag, vi_sign8(vi_bcast(q[t] + 4 * i), x)), vi_set1(0x10001)));
    }
}

#endif
