/* Products of the R16 layout (quant/layout.c): one row of weights a lane, activations broadcast, a register
 * tile of up to TILE tokens for each unpacked block of rows.
 *
 * The including file has chosen lanes_*.h (the vectors) and dot_*.h (the integer dots), and defines
 * R16_NAME(type), the kernels' names. Only what is exact integer arithmetic differs between instruction sets.
 */
#include "kernels/kernels_internal.h"

enum { PREFETCH_BYTES = 6144 }; /* ahead of the weights being read; 4 to 9 KB measured alike */

/* One tile: rows [row, row + LANES), tokens [t0, t0 + n_tok), n_tok a constant. */
typedef void r16_tile_fn(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok);

/* Activation rows t0.. of a block: pointers that the block loop moves on. */
struct r16_act {
    const int8_t *q[TILE];
    const int16_t *sum[TILE];
    const float *d[TILE];
};

KERNELS_ALWAYS_INLINE void r16_act_init(struct r16_act *x, const struct kernel_act *act, int64_t t0,
                                        int n_tok)
{
    int64_t n_scale = kernel_act_n_scale(act->kind, act->k), n_sum = kernel_act_n_sum(act->kind, act->k);
    for (int t = 0; t < n_tok; t++) {
        x->q[t] = act->q + (t0 + t) * act->k;
        x->sum[t] = act->sum + (t0 + t) * n_sum;
        x->d[t] = act->d + (t0 + t) * n_scale;
    }
}

KERNELS_ALWAYS_INLINE void r16_act_next(struct r16_act *x, int n_tok, int n_q, int n_sum)
{
    for (int t = 0; t < n_tok; t++) {
        x->q[t] += n_q;
        x->sum[t] += n_sum;
        x->d[t]++;
    }
}

/* The bytes of the lanes that start at `row` in the first vector of its group. */
KERNELS_ALWAYS_INLINE const uint8_t *r16_rows(const struct kernel_matmul *a, int64_t row, int64_t row_bytes)
{
    int64_t lane = row % LAYOUT_R16_ROWS;
    return (const uint8_t *)a->w + (row - lane) * row_bytes + lane * 4;
}

/* The halves behind the group's vectors, from the lane of `row` on. */
KERNELS_ALWAYS_INLINE const uint8_t *r16_halves(const uint8_t *w, int64_t row, int64_t vec_bytes)
{
    int64_t lane = row % LAYOUT_R16_ROWS;
    return w - lane * 4 + vec_bytes + lane * 2;
}

KERNELS_ALWAYS_INLINE void r16_prefetch(const uint8_t *w, int n_vec)
{
    for (int i = 0; i < n_vec; i++)
        _mm_prefetch((const char *)w + PREFETCH_BYTES + 64 * i, _MM_HINT_T0);
}

KERNELS_ALWAYS_INLINE void r16_store(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok,
                                     const vf acc[])
{
    for (int t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* Low or high four bits of n vectors. */
KERNELS_ALWAYS_INLINE void r16_nibbles(vi *w, const uint8_t *p, bool high, int n)
{
    for (int i = 0; i < n; i++) {
        vi x = vi_load(p + 64 * i);
        w[i] = vi_and(high ? vi_shr(x, 4) : x, vi_set1(0x0f0f0f0f));
    }
}

/* ---- Q4_K: d and dmin, three vectors of scales, 32 of quants ----------------------------------------------
 */

/* The eight scales and eight minima as bytes (quant/blocks.h: quant_k4_scale). */
KERNELS_ALWAYS_INLINE void r16_k4_scales(const uint8_t *w, vi scale[2], vi min[2])
{
    vi a = vi_load(w), b = vi_load(w + 64), c = vi_load(w + 128);
    vi low6 = vi_set1(0x3f3f3f3f), low4 = vi_set1(0x0f0f0f0f), high2 = vi_set1(0x30303030);
    scale[0] = vi_and(a, low6);
    scale[1] = vi_or(vi_and(c, low4), vi_and(vi_shr(a, 2), high2));
    min[0] = vi_and(b, low6);
    min[1] = vi_or(vi_and(vi_shr(c, 4), low4), vi_and(vi_shr(b, 2), high2));
}

/* Byte i of each lane in both of its words. */
KERNELS_ALWAYS_INLINE vi r16_pair(vi bytes, int i)
{
    static const uint8_t mask[4][16] = {
        {0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12, 128},
        {1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13, 128},
        {2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14, 128},
        {3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15, 128},
    };
    return vi_shuffle8(bytes, vi_mask16(mask[i]));
}

KERNELS_ALWAYS_INLINE void r16_tile_q4_k(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok)
{
    const uint8_t *w = r16_rows(a, row, a->k / 256 * 144);
    struct r16_act x;
    r16_act_init(&x, a->x, t0, n_tok);
    vf acc[TILE];
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < a->k / 256; b++, w += 36 * 64, r16_act_next(&x, n_tok, 256, 16)) {
        vi s[TILE], m[TILE], scale[2], min[2];
        for (int t = 0; t < n_tok; t++)
            s[t] = m[t] = vi_set1(0);
        r16_prefetch(w, 4);
        r16_k4_scales(w + 64, scale, min);
        for (int j = 0; j < 8; j++) {
            vi pair = r16_pair(min[j / 4], j % 4);
            for (int t = 0; t < n_tok; t++)
                m[t] = dot_words(m[t], pair, vi_bcast(x.sum[t] + 2 * j));
        }
        for (int j = 0; j < 8; j += 2) { /* 64 weights: sub-block j in the low and j + 1 in the high bits */
            const uint8_t *p = w + (4 + 4 * j) * 64;
            const int8_t *q[TILE];
            vi v[8];
            r16_prefetch(p, 8);
            for (int t = 0; t < n_tok; t++)
                q[t] = x.q[t] + 32 * j;
            r16_nibbles(v, p, false, 8);
            dot_scaled_nibbles(s, v, dot_scale_u8(scale[j / 4], j % 4), q, n_tok);
            for (int t = 0; t < n_tok; t++)
                q[t] += 32;
            r16_nibbles(v, p, true, 8);
            dot_scaled_nibbles(s, v, dot_scale_u8(scale[j / 4], j % 4 + 1), q, n_tok);
        }
        vi halves = vi_load(w);
        vf d = vf_low_half(halves), dmin = vf_low_half(vi_shr(halves, 16));
        for (int t = 0; t < n_tok; t++) {
            vf v = vf_fnma(dmin, vf_of(m[t]), vf_mul(d, vf_of(s[t])));
            acc[t] = vf_fma(v, vf_bcast(x.d[t]), acc[t]);
        }
    }
    r16_store(a, row, t0, n_tok, acc);
}

/* ---- Q6_K: 16 triples (low, low, high bits), four vectors of scales, halves behind ------------------------
 */

/* Bits of 16 weights 0..63 from four triples. kind 0..3: which 32 of the 128 weights of a half block. */
KERNELS_ALWAYS_INLINE void r16_six(vi w[4], const uint8_t *p, int kind)
{
    for (int i = 0; i < 4; i++, p += 3 * 64) {
        vi low = vi_load(p + kind % 2 * 64), high = vi_load(p + 128);
        low = vi_and(kind < 2 ? low : vi_shr(low, 4), vi_set1(0x0f0f0f0f));
        high = kind == 0 ? vi_shl(high, 4) : kind == 1 ? vi_shl(high, 2) : kind == 2 ? high : vi_shr(high, 2);
        w[i] = vi_or(low, vi_and(high, vi_set1(0x30303030)));
    }
}

/* Bytes i and i + 1 of each lane, sign-extended to its two words (i: 0 or 2). */
KERNELS_ALWAYS_INLINE vi r16_words(vi bytes, int i)
{
    static const uint8_t mask[2][16] = {
        {128, 0, 128, 1, 128, 4, 128, 5, 128, 8, 128, 9, 128, 12, 128, 13},
        {128, 2, 128, 3, 128, 6, 128, 7, 128, 10, 128, 11, 128, 14, 128, 15},
    };
    return vi_sar16(vi_shuffle8(bytes, vi_mask16(mask[i / 2])), 8);
}

KERNELS_ALWAYS_INLINE void r16_tile_q6_k(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok)
{
    int64_t n_block = a->k / 256;
    const uint8_t *w = r16_rows(a, row, n_block * 210), *half = r16_halves(w, row, n_block * 52 * 64);
    struct r16_act x;
    r16_act_init(&x, a->x, t0, n_tok);
    vf acc[TILE];
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < n_block; b++, w += 52 * 64, half += 32, r16_act_next(&x, n_tok, 256, 16)) {
        vi s[TILE];
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_set1(0);
        r16_prefetch(w + 48 * 64, 4);
        for (int j = 0; j < 16; j += 2) { /* what the offset of 32 adds up to */
            vi pair = r16_words(vi_load(w + (48 + j / 4) * 64), j % 4);
            for (int t = 0; t < n_tok; t++)
                s[t] = dot_words(s[t], pair, vi_bcast(x.sum[t] + j));
        }
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_sub(vi_set1(0), vi_shl(s[t], 5));
        for (int part = 0; part < 4;
             part++) { /* half block part / 2, its sub-blocks of 16 part % 2 of each 32 */
            const uint8_t *p = w + part * 12 * 64;
            r16_prefetch(p, 12);
            for (int kind = 0; kind < 4; kind++) {
                const int8_t *q[TILE];
                vi v[4], scales = vi_load(w + (48 + part / 2 * 2 + kind / 2) * 64);
                for (int t = 0; t < n_tok; t++)
                    q[t] = x.q[t] + part / 2 * 128 + kind * 32 + part % 2 * 16;
                r16_six(v, p, kind);
                dot_scaled_six(s, v, dot_scale_i8(scales, kind % 2 * 2 + part % 2), q, n_tok);
            }
        }
        vf d = vf_load_half(half);
        for (int t = 0; t < n_tok; t++)
            acc[t] = vf_fma(vf_mul(d, vf_of(s[t])), vf_bcast(x.d[t]), acc[t]);
    }
    r16_store(a, row, t0, n_tok, acc);
}

/* ---- Q8_0: eight vectors of quants; Q4_0: four; halves behind ---------------------------------------------
 */

KERNELS_ALWAYS_INLINE void r16_tile_q8_0(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok)
{
    int64_t n_block = a->k / 32;
    const uint8_t *w = r16_rows(a, row, n_block * 34), *half = r16_halves(w, row, n_block * 8 * 64);
    struct r16_act x;
    r16_act_init(&x, a->x, t0, n_tok);
    vf acc[TILE];
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < n_block; b++, w += 8 * 64, half += 32, r16_act_next(&x, n_tok, 32, 1)) {
        vi s[TILE];
        r16_prefetch(w, 8);
        dot_int8(s, w, x.q, x.sum, n_tok);
        vf d = vf_load_half(half);
        for (int t = 0; t < n_tok; t++)
            acc[t] = vf_fma(vf_mul(d, vf_of(s[t])), vf_bcast(x.d[t]), acc[t]);
    }
    r16_store(a, row, t0, n_tok, acc);
}

KERNELS_ALWAYS_INLINE void r16_tile_q4_0(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok)
{
    int64_t n_block = a->k / 32;
    const uint8_t *w = r16_rows(a, row, n_block * 18), *half = r16_halves(w, row, n_block * 4 * 64);
    struct r16_act x;
    r16_act_init(&x, a->x, t0, n_tok);
    vf acc[TILE];
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < n_block; b++, w += 4 * 64, half += 32, r16_act_next(&x, n_tok, 32, 1)) {
        vi s[TILE], v[8];
        r16_prefetch(w, 4);
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_set1(-8 * *x.sum[t]);
        r16_nibbles(v, w, false, 4);
        r16_nibbles(v + 4, w, true, 4);
        dot_plain_nibbles(s, v, x.q, n_tok);
        vf d = vf_load_half(half);
        for (int t = 0; t < n_tok; t++)
            acc[t] = vf_fma(vf_mul(d, vf_of(s[t])), vf_bcast(x.d[t]), acc[t]);
    }
    r16_store(a, row, t0, n_tok, acc);
}

/* ---- the loops over rows and tokens -----------------------------------------------------------------------
 */

KERNELS_ALWAYS_INLINE void r16_matmul(const struct kernel_matmul *a, r16_tile_fn *tile)
{
    for (int64_t row = a->row0; row < a->row1; row += LANES) {
        int64_t t = 0;
        for (; t + TILE <= a->m; t += TILE)
            tile(a, row, t, TILE);
        if (TILE > 4 && a->m - t >= 4) {
            tile(a, row, t, 4);
            t += 4;
        }
        if (a->m - t == 3)
            tile(a, row, t, 3);
        else if (a->m - t == 2)
            tile(a, row, t, 2);
        else if (a->m - t == 1)
            tile(a, row, t, 1);
    }
}

#define R16_MATMUL(type)                                                                                     \
    void R16_NAME(type)(const struct kernel_matmul *a)                                                       \
    {                                                                                                        \
        r16_matmul(a, r16_tile_##type);                                                                      \
    }

R16_MATMUL(q4_0)
R16_MATMUL(q8_0)
R16_MATMUL(q4_k)
R16_MATMUL(q6_k)
