/* Integer dots of expand_template.h by AVX-512 VNNI; the functions are expand_dot_maddubs.h's. Include after
 * lanes_avx512.h. Assembly where gcc 12 would copy accumulators (kernels/x86/dot_vnni.h). */
#ifndef KERNELS_X86_EXPAND_DOT_VNNI_H
#define KERNELS_X86_EXPAND_DOT_VNNI_H

#include "kernels/kernels_internal.h"

enum { EX_NARROW_OFFSET = 64, EX_WIDE_OFFSET = 128 };

static inline vi ex_wide(vi bytes)
{
    return vi_xor(bytes, vi_set1((int32_t)0x80808080));
}

static inline vi ex_factor(vi x)
{
    return x;
}

static inline vi ex_dot_words(vi acc, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

static inline vi ex_sum_bytes(vi bytes)
{
    return _mm512_dpbusd_epi32(vi_set1(0), bytes, vi_set1(0x01010101));
}
#include "kernels/x86/expand_dot_common.h"

struct ex_bytes4 {
    int8_t b[4];
};

KERNELS_ALWAYS_INLINE void ex_dot(vi s[], const vi *w, int n, vi factor, bool wide, bool arranged,
                                  const int8_t *const q[], int n_tok)
{
    vi part[TILE];
    (void)wide, (void)arranged;
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[t] = vi_set1(0);
    KERNELS_UNROLL
    for (int i = 0; i < n; i++) {
        vi x = w[i];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            __asm__("vpdpbusd %2%{1to16%}, %1, %0"
                    : "+v"(part[t])
                    : "v"(x), "m"(*(const struct ex_bytes4 *)(q[t] + 4 * i)));
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], factor));
}

#endif
