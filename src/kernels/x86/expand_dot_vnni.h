/* Integer dots of expand_template.h by VNNI; the functions are expand_dot_maddubs.h's. Include after vnni_*.h. */
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
    return vnni_words(acc, a, b);
}

static inline vi ex_sum_bytes(vi bytes)
{
    return vnni_bytes(vi_set1(0), bytes, vi_set1(0x01010101));
}
#include "kernels/x86/expand_dot_common.h"

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
            part[t] = vnni_bytes_at(part[t], x, q[t] + 4 * i);
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], factor));
}

#endif
