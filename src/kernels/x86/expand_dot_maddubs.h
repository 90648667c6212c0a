/* Integer dots of expand_template.h by 16-bit products. Include after lanes_*.h.
 *
 * Expanded weights are bytes: unsigned, EX_NARROW_OFFSET too large, or (wide, -127..127) EX_WIDE_OFFSET too large. */
#ifndef KERNELS_X86_EXPAND_DOT_MADDUBS_H
#define KERNELS_X86_EXPAND_DOT_MADDUBS_H

#include "kernels/kernels_internal.h"

enum { EX_NARROW_OFFSET = 64, EX_WIDE_OFFSET = 0 };

/* A signed byte in the wide form. */
static inline vi ex_wide(vi bytes)
{
    return bytes;
}

/* A number in each lane as the factor that ex_dot takes. */
static inline vi ex_factor(vi x)
{
    return vi_or(vi_and(x, vi_set1(0xffff)), vi_shl(x, 16));
}

/* acc + a.lo * b.lo + a.hi * b.hi over the words of each lane */
static inline vi ex_dot_words(vi acc, vi a, vi b)
{
    return vi_add(acc, vi_madd16(a, b));
}

/* The sum of the bytes of each lane, none above 127. */
static inline vi ex_sum_bytes(vi bytes)
{
    return vi_madd16(vi_maddubs(bytes, vi_set1(0x01010101)), vi_set1(0x10001));
}
#include "kernels/x86/expand_dot_common.h"

/* s[t] += factor * (n vectors of weights by the activations at q[t]). Pairs sum to at most 2 * 127 * 127 = 32258 (wide:
 * signs go to the activations). */
KERNELS_ALWAYS_INLINE void ex_dot(vi s[], const vi *w, int n, vi factor, bool wide, bool arranged,
                                  const int8_t *const q[], int n_tok)
{
    (void)arranged;
    KERNELS_UNROLL
    for (int i = 0; i < n; i++) {
        vi mag = wide ? vi_abs8(w[i]) : w[i];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            vi x = vi_bcast(q[t] + 4 * i);
            s[t] = vi_add(s[t], vi_madd16(vi_maddubs(mag, wide ? vi_sign8(x, w[i]) : x), factor));
        }
    }
}

#endif
