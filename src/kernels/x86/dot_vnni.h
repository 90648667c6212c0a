/* Integer dots of r16_template.h by AVX-512 VNNI. Include after lanes_avx512.h. The functions are
 * dot_maddubs.h's.
 *
 * The instructions are spelled as assembly because gcc 12 copies the accumulator around its builtins, which
 * halves the speed of tiles that fill the register file. */
#ifndef KERNELS_X86_DOT_VNNI_H
#define KERNELS_X86_DOT_VNNI_H

#include "kernels/kernels_internal.h"

struct dot_bytes4 {
    int8_t b[4];
};

/* acc + the products of four unsigned bytes w with the four signed bytes at q */
static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const struct dot_bytes4 *)q));
    return acc;
}

/* acc + a.lo * b.lo + a.hi * b.hi over the words of each lane */
static inline vi dot_words(vi acc, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

/* Byte i of each lane, zero-extended, in its low word. */
static inline vi dot_scale_u8(vi bytes, int i)
{
    static const uint8_t mask[4][16] = {
        {0, 128, 128, 128, 4, 128, 128, 128, 8, 128, 128, 128, 12, 128, 128, 128},
        {1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13, 128, 128, 128},
        {2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14, 128, 128, 128},
        {3, 128, 128, 128, 7, 128, 128, 128, 11, 128, 128, 128, 15, 128, 128, 128},
    };
    return vi_shuffle8(bytes, vi_mask16(mask[i]));
}

/* Byte i of each lane, sign-extended to the lane. */
static inline vi dot_scale_i8(vi bytes, int i)
{
    static const uint8_t mask[4][16] = {
        {128, 128, 128, 0, 128, 128, 128, 4, 128, 128, 128, 8, 128, 128, 128, 12},
        {128, 128, 128, 1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13},
        {128, 128, 128, 2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14},
        {128, 128, 128, 3, 128, 128, 128, 7, 128, 128, 128, 11, 128, 128, 128, 15},
    };
    return vi_sar(vi_shuffle8(bytes, vi_mask16(mask[i])), 24);
}

KERNELS_ALWAYS_INLINE void dot_scaled_nibbles(vi s[], const vi w[8], vi scale, const int8_t *const q[],
                                              int n_tok)
{
    /* a sum of 16 products is at most 16 * 15 * 127 = 30480, so the low word holds it, and the scale's high
     * word is zero: one vpdpwssd multiplies and adds */
    for (int h = 0; h < 8; h += 4) {
        vi part[TILE];
        for (int t = 0; t < n_tok; t++)
            part[t] = dot_bytes(vi_set1(0), w[h], q[t] + 4 * h);
        for (int i = h + 1; i < h + 4; i++)
            for (int t = 0; t < n_tok; t++)
                part[t] = dot_bytes(part[t], w[i], q[t] + 4 * i);
        for (int t = 0; t < n_tok; t++)
            s[t] = dot_words(s[t], part[t], scale);
    }
}

KERNELS_ALWAYS_INLINE void dot_plain_nibbles(vi s[], const vi w[8], const int8_t *const q[], int n_tok)
{
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < n_tok; t++)
            s[t] = dot_bytes(s[t], w[i], q[t] + 4 * i);
}

KERNELS_ALWAYS_INLINE void dot_scaled_six(vi s[], const vi w[4], vi scale, const int8_t *const q[], int n_tok)
{
    vi part[TILE];
    for (int t = 0; t < n_tok; t++)
        part[t] = dot_bytes(vi_set1(0), w[0], q[t]);
    for (int i = 1; i < 4; i++)
        for (int t = 0; t < n_tok; t++)
            part[t] = dot_bytes(part[t], w[i], q[t] + 4 * i);
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], scale));
}

/* The weights are made unsigned by adding 128, which -128 * sum takes back. */
KERNELS_ALWAYS_INLINE void dot_int8(vi s[], const uint8_t *w, const int8_t *const q[],
                                    const int16_t *const sum[], int n_tok)
{
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_set1(-128 * *sum[t]);
    for (int i = 0; i < 8; i++) {
        vi x = vi_xor(vi_load(w + 64 * i), vi_set1((int32_t)0x80808080));
        for (int t = 0; t < n_tok; t++)
            s[t] = dot_bytes(s[t], x, q[t] + 4 * i);
    }
}

#endif
