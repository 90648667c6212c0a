/* Products of the R16 layout (quant/layout.c): each lane holds a row of weights, activations are broadcast.
 *
 * For a register tile of up to TILE tokens, weights are unpacked in registers right where a dot product needs them. For
 * more tokens, formats that are costly to unpack are processed in panels: 256 weights of LANES rows are unpacked into
 * the first-level cache, and multiplied by all tiles from there.
 *
 * The including file has chosen lanes_*.h (the vectors) and dot_*.h (the integer dots), and defines
 * R16_NAME(type), the kernels' names, and R16_GROUPS as 2 if registers hold the sums of two vectors of rows: then
 * panels are multiplied in pairs (r16_pairs.h). Only what is exact integer arithmetic differs between instruction sets.
 * Types and numbers of tokens are constants, as in r16_unpack.h. */
#include "kernels/kernels_internal.h"
#include "kernels/body/r16_blocks.h"
#include "kernels/body/r16_prefetch.h"

#ifndef R16_GROUPS
#define R16_GROUPS 1
#endif

enum {
    PANEL = 256, /* weights of a row that are unpacked together */
    PANEL_ROWS = R16_GROUPS * LANES,
    MANY = 64 /* the most tokens that an unpacked panel is multiplied by */
};

/* ---- where things lie ---------------------------------------------------------------------------------------- */

/* Where the activations of a tile's tokens lie, for the current block. */
struct r16_acts {
    const int8_t *q[TILE];                  /* quants */
    const int16_t *sum[TILE], *parts[TILE]; /* sums of quants; the two parts of each, as dot_start takes them */
    const float *d[TILE];                   /* scales */
};

KERNELS_ALWAYS_INLINE void r16_acts_at(struct r16_acts *x, const struct kernel_act *a, int64_t t0, int64_t block,
                                       int block_len, int n_tok)
{
    enum quant_act kind = block_len == 32 ? QUANT_ACT_INT8_32 : QUANT_ACT_INT8_256; /* a->kind, but a constant */
    int64_t n_scale = kernel_act_n_scale(kind, a->k), n_sum = kernel_act_n_sum(kind, a->k);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        x->q[t] = a->q + (t0 + t) * kernel_act_q_stride(a->k) + block * block_len;
        x->sum[t] = a->sum + (t0 + t) * n_sum + block * (block_len == 32 ? 1 : 16);
        x->parts[t] =
            a->sum + (t0 + t) * n_sum + a->k / (block_len == 32 ? 32 : 16) + block * (block_len == 32 ? 2 : 32);
        x->d[t] = a->d + (t0 + t) * n_scale + block;
    }
}

/* ---- formats with 32 weights a block ------------------------------------------------------------------------- */

/* s[t] = the block's sum of products with token t. */
KERNELS_ALWAYS_INLINE void r16_dot_32(vi s[], const struct r16_src *src, const struct r16_acts *x, int n_tok)
{
    enum quant_type type = src->type;
    bool five = type == QUANT_Q5_0 || type == QUANT_Q5_1;
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = dot_start_32(type, x->sum[t], x->parts[t]);
    if (r16_is_int8(type))
        dot_int8(s, src, x->q, n_tok);
    else
        dot_plain(s, src, five ? 5 : 4, x->q, n_tok);
}

/* acc[t] += the block's product with token t; moves x to the next block. */
KERNELS_ALWAYS_INLINE void r16_add_32(vf acc[], const vi s[], const struct r16_scale32 *scale, enum quant_type type,
                                      struct r16_acts *x, int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        vf v = vf_mul(scale->d, vf_of(s[t]));
        if (r16_has_min32(type))
            v = vf_fma(scale->min, vf_set1((float)*x->sum[t]), v);
        acc[t] = vf_fma(v, vf_bcast(x->d[t]), acc[t]);
        x->q[t] += 32;
        x->sum[t]++;
        x->parts[t] += 2;
        x->d[t]++;
    }
}

/* Multiplies LANES rows, unpacked in registers, by n_tok tokens from t0 on. */
KERNELS_ALWAYS_INLINE void r16_walk_32(const struct kernel_matmul *a, enum quant_type type, int64_t row, int64_t t0,
                                       int n_tok)
{
    const uint8_t *w = r16_rows(a, type, row, 32);
    struct r16_acts x;
    vf acc[TILE];
    r16_acts_at(&x, a->x, t0, 0, 32, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < a->k / 32; b++, w += r16_block_bytes(type)) {
        struct r16_prefetch prefetch = r16_prefetch(a, w, r16_n_vec(type));
        r16_prefetch_lines(&prefetch);
        struct r16_src src = r16_src32(w, type);
        struct r16_scale32 scale;
        vi s[TILE];
        if (!r16_scale_behind(type))
            scale = r16_scale32_load(w, type, row);
        r16_dot_32(s, &src, &x, n_tok);
        if (r16_scale_behind(type))
            scale = r16_scale32_load(w, type, row);
        r16_add_32(acc, s, &scale, type, &x, n_tok);
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* ---- formats with 256 weights a block ------------------------------------------------------------------------ */

/* What a tile's sums of activations over sub-blocks are needed for. */
struct r16_sums {
    int32_t start[TILE][16]; /* where the dots of sub-blocks begin (dot_start) */
    int16_t of_32[TILE][8];  /* sums over each 32 */
};

KERNELS_ALWAYS_INLINE void r16_sums_load(struct r16_sums *s, const struct r16_acts *x, enum quant_type type, int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        dot_start(type, x->sum[t], x->parts[t], s->start[t]);
        pair_sums(x->sum[t], s->of_32[t]);
    }
}

/* s[t] += the sum of sub-block j times its scale (or, in sub-blocks of 16, the two sums times theirs). */
KERNELS_ALWAYS_INLINE void r16_dot_sub(const struct r16_src *src, const struct r16_scales *sc, const struct r16_acts *x,
                                       const struct r16_sums *sums, vi s[], int n_tok)
{
    enum quant_type type = src->type;
    int j = src->j;
    const int8_t *q[TILE];
    const int32_t *start[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        q[t] = x->q[t] + 32 * j;
        start[t] = sums->start[t] + 2 * j;
    }
    if (type == QUANT_IQ4_XS) {
        vi scale = r16_iq4xs_scale(sc, j), part[TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            part[t] = dot_start_iq4xs(sums->of_32[t][j]);
        dot_int8(part, src, q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_add(s[t], vi_mul(part[t], scale));
    } else {
        vi scale[2];
        KERNELS_UNROLL
        for (int half = 0; half < 2; half++) {
            int i = r16_subs_of_32(type) ? j : 2 * j + half;
            scale[half] = src->scales ? src->scales[i] : dot_scale(sc->scale[i / 4], i % 4, type);
        }
        dot_scaled(s, src, scale, q, start, n_tok);
    }
}

/* How many sub-blocks have their weights in the same bytes. */
KERNELS_ALWAYS_INLINE int r16_n_kind(enum quant_type type)
{
    return type == QUANT_Q2_K || type == QUANT_Q3_K || type == QUANT_Q6_K ? 4
           : type == QUANT_Q4_K || type == QUANT_Q5_K                     ? 2
                                                                          : 1;
}

/* How many of these are multiplied by n_tok tokens side by side, so that bytes are read less often. */
KERNELS_ALWAYS_INLINE int r16_n_together(enum quant_type type, int n_tok)
{
    if (r16_n_kind(type) == 4 && n_tok == 1)
        return 4;
    return r16_n_kind(type) > 1 && n_tok <= (int)DOT_PAIRS_TOKENS ? 2 : 1;
}

/* r16_dot_sub of sub-blocks j and j + 1 of a format of two kinds, side by side. */
KERNELS_ALWAYS_INLINE void r16_dot_pair(struct r16_src *src, int j, const struct r16_scales *sc,
                                        const struct r16_acts *x, struct r16_prefetch *prefetch, vi s[], int n_tok)
{
    const int8_t *q[TILE];
    vi scale[4];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        q[t] = x->q[t] + 32 * j;
    KERNELS_UNROLL
    for (int kind = 0; kind < 2; kind++)
        scale[kind] = dot_scale(sc->scale[j / 4], j % 4 + kind, src->type);
    src->j = j;
    dot_kinds(s, src, (struct r16_kinds){2, 0, 1, 0, 8}, scale, q, NULL, prefetch, n_tok);
}

/* The same of all sub-blocks. Shifting Q5_K's fifth bits by a constant is worth the code where tokens are several, and
 * where vectors are short: there the units limit one token, too. */
KERNELS_ALWAYS_INLINE void r16_dot_pairs(struct r16_src *src, const struct r16_scales *sc, const struct r16_acts *x,
                                         struct r16_prefetch *prefetch, vi s[], int n_tok)
{
    if (src->type == QUANT_Q5_K && (n_tok >= 4 || TILE <= 4)) {
        KERNELS_UNROLL
        for (int j = 0; j < 8; j += 2)
            r16_dot_pair(src, j, sc, x, prefetch, s, n_tok);
    } else {
        for (int j = 0; j < 8; j += 2)
            r16_dot_pair(src, j, sc, x, prefetch, s, n_tok);
    }
}

/* r16_dot_sub of all sub-blocks of a format of four kinds, `together` at a time: four are read once and in order. */
KERNELS_ALWAYS_INLINE void r16_dot_halves(struct r16_src *src, const struct r16_scales *sc, const struct r16_acts *x,
                                          const struct r16_sums *sums, struct r16_prefetch *prefetch, vi s[],
                                          int together, int n_tok)
{
    int step = 4 / together;
    KERNELS_UNROLL
    for (int half = 0; half < 2; half++) {
        KERNELS_UNROLL
        for (int first = 0; first < 8; first += 4) {
            const int8_t *q[TILE];
            const int32_t *start[TILE];
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++) {
                q[t] = x->q[t] + 128 * half;
                start[t] = sums->start[t] + 8 * half + first / 4;
            }
            src->j = 4 * half;
            KERNELS_UNROLL
            for (int from = 0; from < step; from++) {
                vi scale[4];
                KERNELS_UNROLL
                for (int c = 0; c < together; c++) {
                    int kind = from + c * step;
                    vi scales = half ? sc->scale[2 + kind / 2] : sc->scale[kind / 2];
                    scale[c] = dot_scale(scales, kind % 2 * 2 + first / 4, src->type);
                }
                dot_kinds(s, src, (struct r16_kinds){together, from, step, first, 4}, scale, q, start, prefetch, n_tok);
            }
        }
    }
}

/* m[t] = the sum over sub-blocks of the sum of activations times the sub-block's factor. factor: bytes, as in
 * r16_scales. */
KERNELS_ALWAYS_INLINE void r16_dot_sums(const struct r16_acts *x, const struct r16_sums *sums, const vi *factor, vi m[],
                                        enum quant_type type, bool are_signed, int n_tok)
{
    const int16_t *sum[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        sum[t] = r16_subs_of_32(type) ? sums->of_32[t] : x->sum[t];
    dot_sums(m, factor, sum, r16_subs_of_32(type) ? 8 : 16, are_signed, n_tok);
}

/* What a block gives for each token of a tile: sums of products and, in some formats, of minima. */
struct r16_sums256 {
    vi s[TILE], m[TILE];
};

/* src: the block, at j = 0 */
KERNELS_ALWAYS_INLINE void r16_dot_block(struct r16_sums256 *out, struct r16_src src, const struct r16_scales *sc,
                                         const struct r16_acts *x, struct r16_prefetch *prefetch, int n_tok)
{
    enum quant_type type = src.type;
    /* stored weights are this much too large; dots subtract dot_offset of it */
    int offset = type == QUANT_Q6_K ? 32 : type == QUANT_Q3_K ? 4 : 0, missing = offset - dot_offset(type);
    struct r16_sums sums;
    r16_sums_load(&sums, x, type, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        out->s[t] = vi_set1(0);
    int together = src.unpacked ? 1 : r16_n_together(type, n_tok);
    if (together > 1 && r16_n_kind(type) == 4) {
        r16_dot_halves(&src, sc, x, &sums, prefetch, out->s, together, n_tok);
    } else if (together > 1) {
        r16_dot_pairs(&src, sc, x, prefetch, out->s, n_tok);
    } else {
        for (src.j = 0; src.j < 8; src.j++) {
            r16_prefetch_lines(prefetch);
            r16_dot_sub(&src, sc, x, &sums, out->s, n_tok);
        }
        dot_finish(out->s, &src, n_tok);
    }
    if (missing) {
        r16_dot_sums(x, &sums, sc->scale, out->m, type, true, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            out->s[t] = vi_sub(out->s[t], vi_mul(out->m[t], vi_set1(missing)));
    }
    if (r16_has_min256(type))
        r16_dot_sums(x, &sums, sc->min, out->m, type, false, n_tok);
}

/* acc[t] += the block's product with token t. */
KERNELS_ALWAYS_INLINE void r16_add_block(vf acc[], const struct r16_sums256 *sums, const struct r16_scale256 *scale,
                                         enum quant_type type, const struct r16_acts *x, int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        vf v = vf_mul(scale->d, vf_of(sums->s[t]));
        if (r16_has_min256(type))
            v = vf_fnma(scale->dmin, vf_of(sums->m[t]), v);
        acc[t] = vf_fma(v, vf_bcast(x->d[t]), acc[t]);
    }
}

/* Multiplies LANES rows, unpacked in registers, by n_tok tokens from t0 on. */
KERNELS_ALWAYS_INLINE void r16_walk_256(const struct kernel_matmul *a, enum quant_type type, int64_t row, int64_t t0,
                                        int n_tok)
{
    const uint8_t *w = r16_rows(a, type, row, 256);
    struct r16_acts x;
    vf acc[TILE];
    r16_acts_at(&x, a->x, t0, 0, 256, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < a->k / 256; b++, w += r16_block_bytes(type)) {
        struct r16_scale256 scale;
        struct r16_scales sub;
        struct r16_sums256 sums;
        struct r16_prefetch prefetch = r16_prefetch(a, w, r16_n_vec(type) / 8 + 1);
        if (!r16_scale_behind(type))
            scale = r16_scale256_load(w, type, row);
        r16_scales_load(&sub, w, type);
        r16_dot_block(&sums, (struct r16_src){.type = type, .p = w}, &sub, &x, &prefetch, n_tok);
        if (r16_scale_behind(type))
            scale = r16_scale256_load(w, type, row);
        r16_add_block(acc, &sums, &scale, type, &x, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            x.q[t] += 256;
            x.sum[t] += 16;
            x.parts[t] += 32;
            x.d[t]++;
        }
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* ---- tiles --------------------------------------------------------------------------------------------------- */

/* The number of tokens in the next tile, where `rest` are left. The last two tiles share theirs evenly. */
static inline int r16_next_tile(int64_t rest)
{
    return (int)(rest >= 2 * TILE ? TILE : rest > TILE ? (rest + 1) / 2 : rest);
}

/* Calls fn(..., n) with a constant n, of least to TILE. */
_Static_assert(TILE <= 8, "the cases");
#define R16_CONSTANT(n, least, fn, ...)                                                                                \
    switch (n) {                                                                                                       \
        R16_CASE(1, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(2, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(3, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(4, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(5, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(6, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(7, least, fn, __VA_ARGS__)                                                                            \
        R16_CASE(8, least, fn, __VA_ARGS__)                                                                            \
    default: break;                                                                                                    \
    }
#define R16_CASE(number, least, fn, ...)                                                                               \
    case number:                                                                                                       \
        if (number >= (least) && number <= (int)TILE)                                                                  \
            fn(__VA_ARGS__, number);                                                                                   \
        break;

/* ---- panels -------------------------------------------------------------------------------------------------- */

/* PANEL weights of LANES rows, unpacked: a block of 256, or up to eight blocks of 32. */
struct r16_panel {
    vi w[PANEL / 4];
    union {
        struct {
            struct r16_scales sub;
            vi scales[16]; /* r16_src.scales */
            struct r16_scale256 scale256;
        };
        struct r16_scale32 scale32[PANEL / 32];
    };
};

KERNELS_ALWAYS_INLINE void r16_panel_put(struct r16_panel *p, int at, enum quant_type type, vi first, vi second)
{
    vi two[2] = {first, second};
    dot_arrange(two, type);
    p->w[at] = two[0];
    p->w[at + 1] = two[1];
}

KERNELS_ALWAYS_INLINE void r16_unpack_256(struct r16_panel *p, const uint8_t *w, enum quant_type type, int64_t row)
{
    p->scale256 = r16_scale256_load(w, type, row);
    r16_scales_load(&p->sub, w, type);
    int n_scale = type == QUANT_IQ4_XS ? 0 : r16_subs_of_32(type) ? 8 : 16;
    KERNELS_UNROLL
    for (int i = 0; i < n_scale; i++)
        p->scales[i] = dot_scale(p->sub.scale[i / 4], i % 4, type);
    for (int half = 0; half < 2; half++) {
        KERNELS_UNROLL
        for (int i = 0; i < 8; i += 2) { /* the sub-blocks of a half lie in the same bytes */
            KERNELS_UNROLL
            for (int kind = 0; kind < 4; kind++)
                r16_panel_put(p, (half * 4 + kind) * 8 + i, type, r16_vec256(type, w, half, kind, i),
                              r16_vec256(type, w, half, kind, i + 1));
        }
    }
}

KERNELS_ALWAYS_INLINE void r16_unpack_32(struct r16_panel *p, const uint8_t *w, enum quant_type type, int64_t row,
                                         int n_block)
{
    for (int b = 0; b < n_block; b++, w += r16_block_bytes(type)) {
        struct r16_src src = r16_src32(w, type);
        p->scale32[b] = r16_scale32_load(w, type, row);
        KERNELS_UNROLL
        for (int i = 0; i < 8; i += 2)
            r16_panel_put(p, 8 * b + i, type, r16_vec32(&src, i), r16_vec32(&src, i + 1));
    }
}

#if R16_GROUPS == 2
#include "kernels/body/r16_pairs.h"
#endif

/* The sums of the tokens that panels are multiplied by. */
struct r16_totals {
    vf of[R16_GROUPS][MANY];
};

/* Adds the products of the panels with n_tok tokens from t0 + t on to the totals from t on. block, n_block: the panels'
 * blocks */
KERNELS_ALWAYS_INLINE void r16_tile(const struct r16_panel *p, enum quant_type type, int len,
                                    const struct kernel_act *a, int64_t t0, int t, int64_t block, int n_block,
                                    struct r16_prefetch *prefetch, struct r16_totals *totals, int n_tok)
{
    struct r16_acts x;
    r16_acts_at(&x, a, t0 + t, block, len, n_tok);
#if R16_GROUPS == 2
    if (len == 256)
        r16_pair_256(p, type, &x, prefetch, totals->of[0] + t, totals->of[1] + t, n_tok);
    else
        r16_pair_32(p, type, n_block, &x, prefetch, totals->of[0] + t, totals->of[1] + t, n_tok);
#else
    struct r16_src src = {.type = type, .unpacked = p->w, .scales = len == 256 ? p->scales : NULL};
    if (len == 256) {
        struct r16_sums256 sums;
        r16_dot_block(&sums, src, &p->sub, &x, prefetch, n_tok);
        r16_add_block(totals->of[0] + t, &sums, &p->scale256, type, &x, n_tok);
        return;
    }
    for (; src.j < n_block; src.j++) {
        vi s[TILE];
        r16_prefetch_lines(prefetch);
        r16_dot_32(s, &src, &x, n_tok);
        r16_add_32(totals->of[0] + t, s, &p->scale32[src.j], type, &x, n_tok);
    }
#endif
}

/* Behind a vector of rows, prefetching skips the others of the same panels. at: of the panel, in its rows of n_bytes */
KERNELS_ALWAYS_INLINE void r16_prefetch_skips(struct r16_prefetch *a, int64_t at, int64_t n_bytes)
{
    if (a->how.ahead_bytes)
        a->how.ahead_bytes += (int32_t)((at + a->how.ahead_bytes) / n_bytes * n_bytes * (R16_GROUPS - 1));
}

/* Multiplies PANEL_ROWS rows by tokens [t0, t0 + n), TILE / 2 <= n <= MANY: unpacks panel after panel, and multiplies
 * each by all tokens. */
KERNELS_ALWAYS_INLINE void r16_many(const struct kernel_matmul *a, enum quant_type type, int len, int64_t row,
                                    int64_t t0, int n)
{
    int64_t n_block = a->k / len, step = PANEL / len;
    int n_call = (n + TILE - 1) / TILE * 8; /* of r16_prefetch_lines for a panel */
    struct r16_panel p[R16_GROUPS];
    struct r16_totals totals;
    for (int g = 0; g < R16_GROUPS; g++)
        for (int t = 0; t < n; t++)
            totals.of[g][t] = vf_zero();
    for (int64_t b = 0; b < n_block; b += step) {
        struct r16_prefetch prefetch[R16_GROUPS];
        int t = 0, here = n_block - b < step ? (int)(n_block - b) : (int)step;
        for (int g = 0; g < R16_GROUPS; g++) {
            const uint8_t *w = r16_rows(a, type, row + g * LANES, len) + b * r16_block_bytes(type);
            prefetch[g] = r16_prefetch(a, w, (r16_n_vec(type) * PANEL / len + n_call - 1) / n_call);
            r16_prefetch_skips(&prefetch[g], b * r16_block_bytes(type), n_block * r16_block_bytes(type));
            if (len == 256)
                r16_unpack_256(&p[g], w, type, row + g * LANES);
            else
                r16_unpack_32(&p[g], w, type, row + g * LANES, here);
        }
        for (int n_tok; t < n; t += n_tok) {
            n_tok = r16_next_tile(n - t);
            R16_CONSTANT(n_tok, TILE / 2, r16_tile, p, type, len, a->x, t0, t, b, here, prefetch, &totals);
        }
    }
    for (int g = 0; g < R16_GROUPS; g++)
        for (int t = 0; t < n; t++)
            vf_store(a->y + (t0 + t) * a->ldy + row + g * LANES, totals.of[g][t], a->n_row - row - g * LANES);
}

/* ---- the loops over rows and tokens -------------------------------------------------------------------------- */

/* Whether weights can be unpacked once for many tokens (kernel_how.panels_from): those that may cost more to unpack
 * than to store and load. Small tiles unpack the same weights more often, so with these there are more such formats. */
KERNELS_ALWAYS_INLINE bool r16_has_panels(enum quant_type type)
{
    switch ((enum r16_panels)DOT_PANELS) {
    case R16_PANELS_ALL: return true;
    case R16_PANELS_UNPACKED: return type != QUANT_Q8_0;
    case R16_PANELS_MOST: return type != QUANT_Q8_0 && type != QUANT_Q4_0;
    default:
        return type == QUANT_Q3_K || type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_Q6_K ||
               (TILE <= 4 && (type == QUANT_Q5_0 || type == QUANT_Q5_1 || type == QUANT_Q2_K));
    }
}

/* The least number of tokens for which they are unpacked once, TILE / 2 or more. Sub-blocks of Q6_K share their bytes,
 * which a tile in registers would read and shift four times. */
KERNELS_ALWAYS_INLINE int r16_unpack_from(enum quant_type type)
{
    return type == QUANT_Q6_K ? (int)DOT_Q6K_UNPACK_FROM : TILE + 1;
}

/* len: weights of a block, a constant like the number of tokens. Not called through a pointer, because compilers would
 * merge calls that differ in a constant alone. */
KERNELS_ALWAYS_INLINE void r16_walk(const struct kernel_matmul *a, enum quant_type type, int len, int64_t row,
                                    int64_t t0, int n_tok)
{
    if (len == 32)
        r16_walk_32(a, type, row, t0, n_tok);
    else
        r16_walk_256(a, type, row, t0, n_tok);
}

/* Multiplies rows [row0, row1) by tokens [t0, end), tile by tile. */
KERNELS_ALWAYS_INLINE void r16_tiles(const struct kernel_matmul *a, enum quant_type type, int len, int64_t row0,
                                     int64_t row1, int64_t t0, int64_t end)
{
    for (int64_t row = row0; row < row1; row += LANES)
        for (int64_t t = t0; t < end;) {
            int n = r16_next_tile(end - t);
            R16_CONSTANT(n, 1, r16_walk, a, type, len, row, t);
            t += n;
        }
}

/* Takes MANY tokens at a time, whose activations stay in the second-level cache while all rows are multiplied by
 * them. Rows that are fewer than panels take are multiplied tile by tile. */
KERNELS_ALWAYS_INLINE void r16_matmul(const struct kernel_matmul *a, enum quant_type type, int len)
{
    bool panels = r16_has_panels(type) && a->how.panels_from && a->m >= a->how.panels_from;
    for (int64_t t = 0, n; t < a->m; t += n) {
        int64_t row = a->row0;
        n = a->m - t < MANY ? a->m - t : MANY;
        for (; panels && n >= r16_unpack_from(type) && row + PANEL_ROWS - LANES < a->row1; row += PANEL_ROWS)
            r16_many(a, type, len, row, t, (int)n);
        r16_tiles(a, type, len, row, a->row1, t, t + n);
    }
}

#define K(name, type, len)                                                                                             \
    void R16_NAME(type)(const struct kernel_matmul *a)                                                                 \
    {                                                                                                                  \
        r16_matmul(a, QUANT_##name, len);                                                                              \
    }
KERNELS_R16_LIST(K)
#undef K
