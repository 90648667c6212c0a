/* The functions of dot_run_neon.h with matrix products (SMMLA): eight weights of two rows by those of two tokens, twice
 * the multiply-adds of SDOT. Eight weights of a row have to stand side by side, so two neighbouring vectors are zipped:
 * rows 0 and 1 of each register into the first, rows 2 and 3 into the second. Unpacked weights lie so. Weights that few
 * tokens meet are unpacked in registers, where zipping would cost what it saves. Include after dot_lane_dotprod.h. */
#ifndef KERNELS_ARM_DOT_RUN_I8MM_H
#define KERNELS_ARM_DOT_RUN_I8MM_H

#include "kernels/arm/dot_run_lanes.h"

enum { DOT_PANELS = R16_PANELS_ALL };
enum { DOT_DEPTH = 8 };

static inline int32x4_t neon_mmla(int32x4_t acc, int32x4_t w, int32x4_t x)
{
    return vmmlaq_s32(acc, NEON_S8(w), NEON_S8(x));
}

static inline vi dot_bytes(vi acc, vi w, const int8_t *q)
{
    int32x4_t x = vi_bcast(q).a;
    return (vi){neon_mmla(acc.a, w.a, x), neon_mmla(acc.b, w.b, x), neon_mmla(acc.c, w.c, x), neon_mmla(acc.d, w.d, x)};
}

static inline vi neon_zip_low(vi x, vi y)
{
    return (vi){NEON_MAP2(vzip1q_s32, x, y)};
}
static inline vi neon_zip_high(vi x, vi y)
{
    return (vi){NEON_MAP2(vzip2q_s32, x, y)};
}
/* From a pair of tokens' sums (rows 0 and 1, rows 2 and 3 of each register), one token's sums for all rows. */
static inline vi neon_of_token(const vi pair[2], int t)
{
    return t ? (vi){NEON_MAP2(vuzp2q_s32, pair[0], pair[1])} : (vi){NEON_MAP2(vuzp1q_s32, pair[0], pair[1])};
}

static inline void dot_zip(vi w[2])
{
    vi low = neon_zip_low(w[0], w[1]);
    w[1] = neon_zip_high(w[0], w[1]);
    w[0] = low;
}

/* Of sixteen bytes of each of two tokens: the first eight of both, and the last eight of both. */
static inline void neon_token_pair(int32x4_t x[2], const int8_t *q0, const int8_t *q1)
{
    int64x2_t x0 = vreinterpretq_s64_s8(vld1q_s8(q0)), x1 = vreinterpretq_s64_s8(vld1q_s8(q1));
    x[0] = vreinterpretq_s32_s64(vzip1q_s64(x0, x1));
    x[1] = vreinterpretq_s32_s64(vzip2q_s64(x0, x1));
}

/* Multiplies one of the four registers of two zipped vectors by all pairs, so that few weights are in registers at a
 * time. */
#define DOT_PAIRS(r)                                                                                                   \
    do {                                                                                                               \
        int32x4_t first_rows = w[0].r, second_rows = w[1].r;                                                           \
        KERNELS_UNROLL                                                                                                 \
        for (int t = 0; t < n_tok; t += 2) {                                                                           \
            pair[t / 2][0].r = neon_mmla(pair[t / 2][0].r, first_rows, x[t / 2][half]);                                \
            pair[t / 2][1].r = neon_mmla(pair[t / 2][1].r, second_rows, x[t / 2][half]);                               \
        }                                                                                                              \
    } while (0)

/* pair[i] = w . q of tokens 2i and 2i + 1; the last of an odd number is its own partner. */
KERNELS_ALWAYS_INLINE void dot_run_pairs(vi pair[][2], const struct r16_src *src, int first, int n,
                                         const int8_t *const q[], int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t += 2)
        pair[t / 2][0] = pair[t / 2][1] = vi_set1(0);
    KERNELS_UNROLL
    for (int i = first; i < first + n; i += 4) {
        int32x4_t x[TILE / 2][2];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t += 2)
            neon_token_pair(x[t / 2], q[t] + 4 * i, q[t + 1 < n_tok ? t + 1 : t] + 4 * i);
        KERNELS_UNROLL
        for (int half = 0; half < 2; half++) {
            const vi *w = src->unpacked + 8 * src->j + i + 2 * half;
            DOT_PAIRS(a);
            DOT_PAIRS(b);
            DOT_PAIRS(c);
            DOT_PAIRS(d);
        }
    }
}
#undef DOT_PAIRS

/* s += w . q for vectors [first, first + n) of unpacked weights, both multiples of four */
KERNELS_ALWAYS_INLINE void dot_run(vi s[], const struct r16_src *src, int first, int n, const int8_t *const q[],
                                   int n_tok)
{
    vi pair[TILE / 2][2];
    dot_run_pairs(pair, src, first, n, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = vi_add(s[t], neon_of_token(pair[t / 2], t % 2));
}

/* s += scale * (the same). Two tokens' vectors hold a pair's sums until dot_finish puts them in order. */
KERNELS_ALWAYS_INLINE void dot_run_scaled(vi s[], const struct r16_src *src, int first, int n, vi scale,
                                          const int8_t *const q[], int n_tok)
{
    vi pair[TILE / 2][2], low = neon_zip_low(scale, scale), high = neon_zip_high(scale, scale);
    dot_run_pairs(pair, src, first, n, q, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t + 1 < n_tok; t += 2) {
        s[t] = vi_add(s[t], vi_mul(pair[t / 2][0], low));
        s[t + 1] = vi_add(s[t + 1], vi_mul(pair[t / 2][1], high));
    }
    if (n_tok % 2)
        s[n_tok - 1] = vi_add(s[n_tok - 1], vi_mul(neon_of_token(pair[n_tok / 2], 0), scale));
}

KERNELS_ALWAYS_INLINE void dot_finish(vi s[], const struct r16_src *src, int n_tok)
{
    if (!src->unpacked || src->type == QUANT_IQ4_XS) /* IQ4_XS uses dot_run */
        return;
    KERNELS_UNROLL
    for (int t = 0; t + 1 < n_tok; t += 2) {
        vi second = neon_of_token(s + t, 1);
        s[t] = neon_of_token(s + t, 0);
        s[t + 1] = second;
    }
}

#endif
