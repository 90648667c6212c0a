/* Integer dots of body/expand_template.h on NEON: expanded weights are signed bytes. Include after dot_neon.h. */
#ifndef KERNELS_ARM_EXPAND_DOT_NEON_H
#define KERNELS_ARM_EXPAND_DOT_NEON_H

#include "kernels/kernels_internal.h"

enum { EX_NARROW_OFFSET = 0, EX_WIDE_OFFSET = 0 };

static inline vi ex_wide(vi bytes)
{
    return bytes;
}

static inline vi ex_factor(vi x)
{
    return x;
}

/* Takes back the offset of expanded weights: there is none. */
static inline vi ex_dot_words(vi acc, vi x, vi y)
{
    (void)x, (void)y;
    return acc;
}

/* Whether ex_arrange rearranges weights, for ex_dot with more than a register tile of tokens. */
enum { EX_ARRANGES = DOT_PANELS == (int)R16_PANELS_ALL };

static inline void ex_arrange(vi w[2])
{
    dot_zip(w);
}

/* s[t] += factor * (n vectors of weights by the activations at q[t]); arranged: they went through ex_arrange */
KERNELS_ALWAYS_INLINE void ex_dot(vi s[], const vi *w, int n, vi factor, bool wide, bool arranged,
                                  const int8_t *const q[], int n_tok)
{
    struct r16_src src = {.unpacked = w};
    vi part[TILE];
    (void)wide;
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        part[t] = vi_set1(0);
    if (arranged)
        dot_run(part, &src, 0, n, q, n_tok);
    else
        dot_run_lanes(part, &src, 0, n, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], vi_mul(part[t], factor));
}

#endif
