/* Products of the R16 layout (quant/layout.c): one row of weights a lane, activations broadcast, a register
 * tile of up to TILE tokens for each unpacked block of rows.
 *
 * The including file has chosen lanes_*.h (the vectors) and dot_*.h (the integer dots), and defines
 * R16_NAME(type), the kernels' names. Only what is exact integer arithmetic differs between instruction sets.
 * Types and numbers of tokens are constants, as in r16_unpack.h. */
#include "kernels/kernels_internal.h"
#include "kernels/x86/r16_unpack.h"

enum { PREFETCH_BYTES = 6144 }; /* ahead of the weights being read; 4 to 9 KB measured alike */

/* ---- where things lie ---------------------------------------------------------------------------------------- */

/* Vectors a block in a group of rows, and the bytes of each row that stand behind them. */
KERNELS_ALWAYS_INLINE int r16_n_vec(enum quant_type type)
{
    switch (type) {
    case QUANT_Q4_0:
    case QUANT_IQ4_NL:
    case QUANT_MXFP4: return 4;
    case QUANT_Q4_1:
    case QUANT_Q5_0: return 5;
    case QUANT_Q5_1: return 6;
    case QUANT_Q8_0: return 8;
    case QUANT_Q2_K: return 21;
    case QUANT_Q3_K: return 27;
    case QUANT_IQ4_XS: return 34;
    case QUANT_Q4_K: return 36;
    case QUANT_Q5_K: return 44;
    default: return 52; /* Q6_K */
    }
}

KERNELS_ALWAYS_INLINE int r16_tail(enum quant_type type)
{
    switch (type) {
    case QUANT_MXFP4: return 1;
    case QUANT_Q4_0:
    case QUANT_IQ4_NL:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_Q3_K:
    case QUANT_Q6_K: return 2;
    default: return 0;
    }
}

KERNELS_ALWAYS_INLINE int r16_block_bytes(enum quant_type type)
{
    return r16_n_vec(type) * 64 + r16_tail(type) * LAYOUT_R16_ROWS;
}

/* A walk over the blocks of LANES rows and n_tok activation rows. */
struct r16_walk {
    const uint8_t *w, *tail;
    const int8_t *q[TILE];
    const int16_t *sum[TILE];
    const float *d[TILE];
};

KERNELS_ALWAYS_INLINE void r16_walk_start(struct r16_walk *x, const struct kernel_matmul *a, enum quant_type type,
                                          int64_t n_block, int64_t row, int64_t t0, int n_tok)
{
    int64_t lane = row % LAYOUT_R16_ROWS;
    const uint8_t *group = (const uint8_t *)a->w + row / LAYOUT_R16_ROWS * n_block * r16_block_bytes(type);
    int64_t n_scale = kernel_act_n_scale(a->x->kind, a->k), n_sum = kernel_act_n_sum(a->x->kind, a->k);
    x->w = group + lane * 4;
    x->tail = group + r16_n_vec(type) * 64 + lane * r16_tail(type);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        x->q[t] = a->x->q + (t0 + t) * a->k;
        x->sum[t] = a->x->sum + (t0 + t) * n_sum;
        x->d[t] = a->x->d + (t0 + t) * n_scale;
    }
}

KERNELS_ALWAYS_INLINE void r16_walk_next(struct r16_walk *x, enum quant_type type, int n_q, int n_sum, int n_tok)
{
    x->w += r16_block_bytes(type);
    x->tail += r16_block_bytes(type);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        x->q[t] += n_q;
        x->sum[t] += n_sum;
        x->d[t]++;
    }
}

/* Asks for the lines [i, end) of the block PREFETCH_BYTES ahead. */
KERNELS_ALWAYS_INLINE void r16_prefetch(const struct r16_walk *x, enum quant_type type, int i, int end)
{
    for (; i < end; i++)
        _mm_prefetch((const char *)x->w + PREFETCH_BYTES + 64 * i, _MM_HINT_T0);
}

KERNELS_ALWAYS_INLINE void r16_store(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok, const vf acc[])
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* ---- formats with 32 weights a block ------------------------------------------------------------------------- */

/* s[t] = the block's integer sum. */
KERNELS_ALWAYS_INLINE void r16_dot32(const struct r16_walk *x, vi s[], enum quant_type type, int n_tok)
{
    bool five = type == QUANT_Q5_0 || type == QUANT_Q5_1;
    bool int8 = type == QUANT_Q8_0 || type == QUANT_IQ4_NL || type == QUANT_MXFP4;
    int offset = type == QUANT_Q4_0 ? 8 : type == QUANT_Q5_0 ? 16 : 0;
    struct r16_src src = {.type = type, .p = x->w};
    if (five) {
        src.fifth[0] = vi_load(x->w + (r16_nibbles_at(type) - 1) * 64);
        src.fifth[1] = vi_shr(src.fifth[0], 4);
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = int8 ? dot_int8_start(*x->sum[t]) : vi_set1(-offset * *x->sum[t]);
    if (int8)
        dot_int8(s, &src, x->q, n_tok);
    else
        dot_plain(s, &src, five ? 5 : 4, x->q, n_tok);
}

KERNELS_ALWAYS_INLINE void r16_tile_32(const struct kernel_matmul *a, enum quant_type type, int64_t row, int64_t t0,
                                       int n_tok)
{
    bool has_min = type == QUANT_Q4_1 || type == QUANT_Q5_1;
    int64_t n_block = a->k / 32;
    struct r16_walk x;
    vf acc[TILE];
    r16_walk_start(&x, a, type, n_block, row, t0, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < n_block; b++, r16_walk_next(&x, type, 32, 1, n_tok)) {
        vi s[TILE];
        r16_prefetch(&x, type, 0, r16_n_vec(type));
        r16_dot32(&x, s, type, n_tok);
        vi head = vi_load(x.w);
        vf d = has_min ? vf_low_half(head) : type == QUANT_MXFP4 ? vf_load_mxfp4(x.tail) : vf_load_half(x.tail);
        vf min = has_min ? vf_low_half(vi_shr(head, 16)) : vf_zero();
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            vf v = vf_mul(d, vf_of(s[t]));
            if (has_min)
                v = vf_fma(min, vf_set1((float)*x.sum[t]), v);
            acc[t] = vf_fma(v, vf_bcast(x.d[t]), acc[t]);
        }
    }
    r16_store(a, row, t0, n_tok, acc);
}

/* ---- formats with 256 weights a block ------------------------------------------------------------------------ */

/* Scales and minima of a block, as bytes: four sub-blocks a vector. Sub-blocks are 32 weights long in Q4_K,
 * Q5_K and IQ4_XS, else 16. IQ4_XS: scale[0] and [1] hold the packed low and high bits instead. */
struct r16_scales {
    vi scale[4], min[4];
};

KERNELS_ALWAYS_INLINE void r16_scales_load(struct r16_scales *s, const uint8_t *w, enum quant_type type)
{
    vi low4 = vi_set1(0x0f0f0f0f), low6 = vi_set1(0x3f3f3f3f), high2 = vi_set1(0x30303030);
    if (type == QUANT_Q4_K || type == QUANT_Q5_K) { /* quant/blocks.h: quant_k4_scale */
        vi a = vi_load(w + 64), b = vi_load(w + 128), c = vi_load(w + 192);
        s->scale[0] = vi_and(a, low6);
        s->scale[1] = vi_or(vi_and(c, low4), vi_and(vi_shr(a, 2), high2));
        s->min[0] = vi_and(b, low6);
        s->min[1] = vi_or(vi_and(vi_shr(c, 4), low4), vi_and(vi_shr(b, 2), high2));
    } else if (type == QUANT_Q2_K) {
        for (int i = 0; i < 4; i++) {
            s->scale[i] = vi_and(vi_load(w + 64 * i), low4);
            s->min[i] = vi_and(vi_shr(vi_load(w + 64 * i), 4), low4);
        }
    } else if (type == QUANT_Q3_K) { /* quant/blocks.h: quant_q3k_scale */
        vi high = vi_load(w + 26 * 64);
        KERNELS_UNROLL
        for (int i = 0; i < 4; i++) {
            vi low = vi_and(vi_shr(vi_load(w + (24 + i % 2) * 64), i / 2 * 4), low4);
            vi up = i < 2 ? vi_shl(high, 4 - 2 * i) : vi_shr(high, 2 * i - 4);
            s->scale[i] = vi_sub8(vi_or(low, vi_and(up, high2)), vi_set1(0x20202020));
        }
    } else if (type == QUANT_Q6_K) {
        KERNELS_UNROLL
        for (int i = 0; i < 4; i++)
            s->scale[i] = vi_load(w + (48 + i) * 64);
    } else {
        s->scale[0] = vi_load(w + 64);
        s->scale[1] = vi_shr(vi_load(w), 16);
    }
}

/* s[t] += the sum of sub-block j times its scale (or, in sub-blocks of 16, the two sums times theirs). */
KERNELS_ALWAYS_INLINE void r16_dot_sub(const struct r16_walk *x, const struct r16_scales *sc, vi s[],
                                       enum quant_type type, int j, int n_tok)
{
    int bits = type == QUANT_Q6_K ? 6 : type == QUANT_Q5_K ? 5 : 4;
    struct r16_src src = {.type = type, .p = x->w, .j = j};
    const int8_t *q[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        q[t] = x->q[t] + 32 * j;
    if (type == QUANT_IQ4_XS) { /* quant/blocks.h: quant_iq4xs_scale */
        vi low = vi_and(vi_shr(sc->scale[0], 4 * j), vi_set1(15));
        vi high = vi_and(vi_shr(sc->scale[1], 2 * j), vi_set1(3));
        vi scale = vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32)), part[TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            part[t] = dot_int8_start(x->sum[t][2 * j] + x->sum[t][2 * j + 1]);
        dot_int8(part, &src, q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_add(s[t], vi_mul(part[t], scale));
    } else if (type == QUANT_Q4_K || type == QUANT_Q5_K) {
        dot_scaled(s, &src, 0, 8, dot_scale(sc->scale[j / 4], j % 4, bits), bits, q, n_tok);
    } else {
        vi scales = sc->scale[j / 2];
        dot_scaled(s, &src, 0, 4, dot_scale(scales, j % 2 * 2, bits), bits, q, n_tok);
        dot_scaled(s, &src, 4, 4, dot_scale(scales, j % 2 * 2 + 1, bits), bits, q, n_tok);
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

/* Byte i of each lane in both of its words; positive. */
KERNELS_ALWAYS_INLINE vi r16_twice(vi bytes, int i)
{
    static const uint8_t mask[4][16] = {
        {0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12, 128},
        {1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13, 128},
        {2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14, 128},
        {3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15, 128},
    };
    return vi_shuffle8(bytes, vi_mask16(mask[i]));
}

/* m[t] = sum over the 16 sums of activations of each times the factor of its sub-block, in bytes as in
 * r16_scales. */
KERNELS_ALWAYS_INLINE void r16_dot_sums(const struct r16_walk *x, const vi *factor, vi m[], bool subs_of_32, int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        m[t] = vi_set1(0);
    KERNELS_UNROLL
    for (int j = 0; j < 8; j++) {
        vi f = subs_of_32 ? r16_twice(factor[j / 4], j % 4) : r16_words(factor[j / 2], j % 2 * 2);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            m[t] = dot_words(m[t], f, vi_bcast(x->sum[t] + 2 * j));
    }
}

KERNELS_ALWAYS_INLINE void r16_tile_256(const struct kernel_matmul *a, enum quant_type type, int64_t row, int64_t t0,
                                        int n_tok)
{
    bool subs_of_32 = type == QUANT_Q4_K || type == QUANT_Q5_K, has_min = subs_of_32 || type == QUANT_Q2_K;
    int offset_log2 = type == QUANT_Q6_K ? 5 : type == QUANT_Q3_K ? 2 : 0; /* weights are stored 2^this too large */
    int64_t n_block = a->k / 256;
    struct r16_walk x;
    vf acc[TILE];
    r16_walk_start(&x, a, type, n_block, row, t0, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < n_block; b++, r16_walk_next(&x, type, 256, 16, n_tok)) {
        struct r16_scales sc;
        vi s[TILE], m[TILE];
        r16_scales_load(&sc, x.w, type);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_set1(0);
        for (int j = 0; j < 8; j++) {
            r16_prefetch(&x, type, r16_n_vec(type) * j / 8, r16_n_vec(type) * (j + 1) / 8);
            r16_dot_sub(&x, &sc, s, type, j, n_tok);
        }
        if (has_min || offset_log2)
            r16_dot_sums(&x, has_min ? sc.min : sc.scale, m, subs_of_32, n_tok);
        vi halves = vi_load(x.w + (type == QUANT_Q2_K ? 20 * 64 : 0));
        vf d = r16_tail(type) ? vf_load_half(x.tail) : vf_low_half(halves), dmin = vf_low_half(vi_shr(halves, 16));
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            vi sum = offset_log2 ? vi_sub(s[t], vi_shl(m[t], offset_log2)) : s[t];
            vf v = vf_mul(d, vf_of(sum));
            if (has_min)
                v = vf_fnma(dmin, vf_of(m[t]), v);
            acc[t] = vf_fma(v, vf_bcast(x.d[t]), acc[t]);
        }
    }
    r16_store(a, row, t0, n_tok, acc);
}

/* ---- the loops over rows and tokens -------------------------------------------------------------------------- */

typedef void r16_tile_fn(const struct kernel_matmul *a, enum quant_type type, int64_t row, int64_t t0, int n_tok);

KERNELS_ALWAYS_INLINE void r16_matmul(const struct kernel_matmul *a, enum quant_type type, r16_tile_fn *tile)
{
    for (int64_t row = a->row0; row < a->row1; row += LANES) {
        int64_t t = 0;
        for (; t + TILE <= a->m; t += TILE)
            tile(a, type, row, t, TILE);
        if (TILE > 4 && a->m - t >= 4) {
            tile(a, type, row, t, 4);
            t += 4;
        }
        if (a->m - t >= 2) {
            tile(a, type, row, t, 2);
            t += 2;
        }
        if (a->m - t == 1)
            tile(a, type, row, t, 1);
    }
}

#define K(name, type, len)                                                                                             \
    void R16_NAME(type)(const struct kernel_matmul *a)                                                                 \
    {                                                                                                                  \
        r16_matmul(a, QUANT_##name, r16_tile_##len);                                                                   \
    }
KERNELS_R16_LIST(K)
#undef K
