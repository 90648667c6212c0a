/* Products of the R16 layout by a matrix unit: tiles of 16 rows of 64 bytes (Intel's AMX; kernels/ref/tiles_plain.h is
 * a model of it in plain C). For many tokens: their activations are the rows of one tile, four bytes of each of 16
 * weight rows are a row of the other.
 *
 * A sum over a block of 256 must be exact before it meets its float scale (docs/numerics.md), and the sub-blocks'
 * integer scales change each 16 or 32 weights, which a product of tiles can't follow. So the scale goes into the
 * weight, and what is wider than a byte is split into two: w * scale = low + 8 * high or (low + 256 * high) / 2, and
 * the sum of products is that of two plain products over all 256. Minima are a product of their own, of bfloat16:
 * integers of at most seven bits, so that its sums, below 2^24, are exact.
 *
 * The including file has chosen lanes of 16 rows (lanes_*.h) and the tile unit (tiles_*.h):
 *   tiles_begin(rows, depth), tiles_end(): before and after: tokens a tile of activations, and bytes of k
 *   tile_zero(t), tile_load(t, p, stride), tile_store(t, p): of tile t, a literal; results are 64 bytes a row
 *   tile_dot_ss(c, a, b), tile_dot_su(c, a, b), tile_dot_bf16(c, a, b): c += a * b, a signed, b signed, unsigned
 * Tiles 0 to 3 are results, 4 and 5 activations, 6 and 7 weights. */
#include "kernels/body/r16_blocks.h"
#include "kernels/kernels_internal.h"

enum {
    TILES_ROWS = 16,   /* most tokens of a tile */
    TILES_TOKENS = 64, /* most that meet expanded weights */
    TILES_GROUPS = 8,  /* groups of 16 rows that meet the same activations */
    TILES_K = 256      /* weights of a row that are expanded together: a panel */
};
_Static_assert((int)LANES == (int)LAYOUT_R16_ROWS, "a row of a tile is a dword of each row of a group");

/* How the weights of a block of 256, times their scales, become bytes. */
enum tiles_split {
    TILES_ONE,     /* w * scale is an unsigned byte */
    TILES_NEGATED, /* -w * scale is a signed byte (w * scale may be 128) */
    TILES_BY_8,    /* w * scale = low + 8 * high, both unsigned */
    TILES_BY_256   /* 2 * w * scale = low + 256 * high, low unsigned */
};

KERNELS_ALWAYS_INLINE enum tiles_split tiles_split(enum quant_type type)
{
    switch (type) {
    case QUANT_Q2_K: return TILES_ONE;
    case QUANT_Q3_K: return TILES_NEGATED;
    case QUANT_Q4_K:
    case QUANT_Q5_K: return TILES_BY_8;
    default: return TILES_BY_256; /* Q6_K, IQ4_XS */
    }
}

KERNELS_ALWAYS_INLINE int tiles_n_part(enum quant_type type)
{
    return tiles_split(type) == TILES_BY_8 || tiles_split(type) == TILES_BY_256 ? 2 : 1;
}

/* A panel of 16 rows. */
struct tiles_panel {
    _Alignas(64) uint8_t w[2 * TILES_K * LANES]; /* 64-byte rows; 256: for each 64 of k a tile, or two: low, high */
    union {
        struct {                              /* blocks of 256 */
            _Alignas(64) uint8_t min[16][64]; /* a bfloat16 twice for each row: minima of sub-blocks, the rest zeros */
            struct r16_scale256 scale256;
        };
        struct r16_scale32 scale32[TILES_K / 32];
    };
};

/* Activations of up to TILES_TOKENS tokens over a panel's part of k. */
struct tiles_acts {
    _Alignas(64) int8_t q[TILES_TOKENS][TILES_K];
    union {
        struct {                                        /* blocks of 256 */
            _Alignas(64) uint8_t sum[TILES_TOKENS][64]; /* two bfloat16 for each sub-block, which add up to its sum */
            float d[TILES_TOKENS];
        };
        struct {
            float d32[TILES_TOKENS][TILES_K / 32], sum32[TILES_TOKENS][TILES_K / 32];
        };
    };
};

/* Products of a panel with two tiles of tokens, as tiles store them. */
struct tiles_sums {
    union {
        struct { /* blocks of 256 */
            _Alignas(64) int32_t low[2][TILES_ROWS][LANES], high[2][TILES_ROWS][LANES];
            _Alignas(64) float min[2][TILES_ROWS][LANES];
        };
        _Alignas(64) int32_t of_32[2][TILES_K / 32][TILES_ROWS][LANES];
    };
};

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* Byte i of each lane in both of its words, signed or not. */
KERNELS_ALWAYS_INLINE vi tiles_words(vi bytes, int i, bool is_signed)
{
    static const uint8_t low[4][16] = {
        {0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12, 128},
        {1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13, 128},
        {2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14, 128},
        {3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15, 128},
    };
    static const uint8_t high[4][16] = {
        {128, 0, 128, 0, 128, 4, 128, 4, 128, 8, 128, 8, 128, 12, 128, 12},
        {128, 1, 128, 1, 128, 5, 128, 5, 128, 9, 128, 9, 128, 13, 128, 13},
        {128, 2, 128, 2, 128, 6, 128, 6, 128, 10, 128, 10, 128, 14, 128, 14},
        {128, 3, 128, 3, 128, 7, 128, 7, 128, 11, 128, 11, 128, 15, 128, 15},
    };
    return is_signed ? vi_sar16(vi_shuffle8(bytes, vi_mask16(high[i])), 8) : vi_shuffle8(bytes, vi_mask16(low[i]));
}

/* What the weights of a sub-block are multiplied by, in both words of each lane. */
struct tiles_factor {
    vi low, high; /* high: of TILES_BY_8 */
};

/* sub: of 16 or 32 weights */
KERNELS_ALWAYS_INLINE struct tiles_factor tiles_factor(const struct r16_scales *sc, enum quant_type type, int sub)
{
    vi bytes = sc->scale[sub / 4], three = vi_set1(0x07070707);
    switch (tiles_split(type)) {
    case TILES_ONE: return (struct tiles_factor){.low = tiles_words(bytes, sub % 4, false)};
    case TILES_NEGATED: return (struct tiles_factor){.low = tiles_words(bytes, sub % 4, true)};
    case TILES_BY_8:
        return (struct tiles_factor){tiles_words(vi_and(bytes, three), sub % 4, false),
                                     tiles_words(vi_and(vi_shr(bytes, 3), three), sub % 4, false)};
    case TILES_BY_256: break;
    }
    if (type == QUANT_Q6_K)
        return (struct tiles_factor){.low = vi_shl16(tiles_words(bytes, sub % 4, true), 8)};
    vi scale = r16_iq4xs_scale(sc, sub); /* five bits and a sign */
    return (struct tiles_factor){.low = vi_or(vi_shl(scale, 25), vi_and(vi_shl(scale, 9), vi_set1(0xffff)))};
}

/* Multiplies weights by their factor, and splits the products. w: as r16_vec256 gives them. */
KERNELS_ALWAYS_INLINE void tiles_scale(vi out[2], vi w, struct tiles_factor f, enum quant_type type)
{
    vi even = vi_set1(0x00ff00ff), odd = vi_set1((int32_t)0xff00ff00);
    switch (tiles_split(type)) {
    case TILES_ONE: out[0] = vi_mul16(w, f.low); return; /* a byte's product doesn't reach the next byte */
    case TILES_NEGATED:
        w = vi_sub8(vi_set1(0x04040404), w);
        out[0] = vi_select(even, vi_mul16(w, f.low), vi_mul16(vi_and(w, odd), f.low));
        return;
    case TILES_BY_8:
        out[0] = vi_mul16(w, f.low);
        out[1] = vi_mul16(w, f.high);
        return;
    case TILES_BY_256: break;
    }
    /* twice the products, as words: high halves of 2^9 w * 2^8 scale, or 2^8 w * 2^9 scale */
    vi of_even, of_odd;
    if (type == QUANT_Q6_K) {
        w = vi_sub8(w, vi_set1(0x20202020));
        of_even = vi_shl16(w, 9);
        of_odd = vi_shl16(vi_and(w, odd), 1);
    } else {
        of_even = vi_shl16(w, 8);
        of_odd = vi_and(w, odd);
    }
    of_even = vi_mulhi16(of_even, f.low);
    of_odd = vi_mulhi16(of_odd, f.low);
    out[0] = vi_select(even, of_even, vi_shl16(of_odd, 8));
    out[1] = vi_select(even, vi_shr16(of_even, 8), of_odd);
}

/* Minima of sub-blocks as bfloat16. */
KERNELS_ALWAYS_INLINE void tiles_min(struct tiles_panel *p, const struct r16_scales *sc, enum quant_type type)
{
    for (int i = 0; i < (r16_subs_of_32(type) ? 8 : 16); i++) {
        vi bytes = vi_and(vi_shr(sc->min[i / 4], i % 4 * 8), vi_set1(0xff));
        vi high = vf_bits(vf_of(bytes)); /* the low word is zero: few bits */
        vi_store(p->min[i], vi_or(high, vi_shr(high, 16)));
    }
}

/* Expands half of a block of 256: sub-blocks 4 * half and the three behind it. */
KERNELS_ALWAYS_INLINE void tiles_expand_half(struct tiles_panel *p, const struct r16_scales *sc, const uint8_t *w,
                                             enum quant_type type, int half)
{
    int n_part = tiles_n_part(type);
    KERNELS_UNROLL
    for (int quarter = 0; quarter < 2; quarter++) { /* 16 weights of each sub-block */
        struct tiles_factor f[4];
        KERNELS_UNROLL
        for (int kind = 0; kind < 4; kind++) {
            int j = 4 * half + kind;
            f[kind] = tiles_factor(sc, type, r16_subs_of_32(type) ? j : 2 * j + quarter);
        }
        for (int i = 0; i < 4; i++) {
            KERNELS_UNROLL
            for (int kind = 0; kind < 4; kind++) {
                int row = (4 * half + kind) * 8 + 4 * quarter + i; /* of four weights */
                uint8_t *at = p->w + (row / 16 * n_part * 16 + row % 16) * 64;
                vi out[2];
                tiles_scale(out, r16_vec256(type, w, half, kind, 4 * quarter + i), f[kind], type);
                vi_store(at, out[0]);
                if (n_part == 2)
                    vi_store(at + 16 * 64, out[1]);
            }
        }
    }
}

KERNELS_ALWAYS_INLINE void tiles_expand_256(struct tiles_panel *p, const uint8_t *w, enum quant_type type, int64_t row)
{
    struct r16_scales sc;
    p->scale256 = r16_scale256_load(w, type, row);
    r16_scales_load(&sc, w, type);
    if (r16_has_min256(type))
        tiles_min(p, &sc, type);
    tiles_expand_half(p, &sc, w, type, 0);
    tiles_expand_half(p, &sc, w, type, 1);
}

KERNELS_ALWAYS_INLINE void tiles_expand_32(struct tiles_panel *p, const uint8_t *w, enum quant_type type, int64_t row,
                                           int n_block)
{
    int offset = type == QUANT_Q4_0 ? 8 : type == QUANT_Q5_0 ? 16 : 0;
    for (int b = 0; b < n_block; b++, w += r16_block_bytes(type)) {
        struct r16_src src = r16_src32(w, type);
        p->scale32[b] = r16_scale32_load(w, type, row);
        KERNELS_UNROLL
        for (int i = 0; i < 8; i++) {
            vi v = r16_vec32(&src, i);
            vi_store(p->w + (8 * b + i) * 64, offset ? vi_sub8(v, vi_set1(offset * 0x01010101)) : v);
        }
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------ */

/* Sums over sub-blocks, at most 12 bits and a sign, as two bfloat16 of at most 7: 32 * high + low. */
KERNELS_ALWAYS_INLINE void tiles_sums_256(uint8_t out[64], const int16_t sum[16], bool subs_of_32)
{
    vi s;
    if (subs_of_32) { /* two words a lane, in half of the lanes */
        s = vi_load_low(sum);
        s = vi_add(vi_sar(vi_shl(s, 16), 16), vi_sar(s, 16));
    } else {
        s = vi_load16(sum);
    }
    vi low = vi_and(s, vi_set1(31)), high = vi_sub(s, low);
    vi_store(out, vi_or(vi_shr(vf_bits(vf_of(low)), 16), vf_bits(vf_of(high))));
}

/* Tokens [t0, t0 + n) over the panel at k = at, of n_k. */
KERNELS_ALWAYS_INLINE void tiles_acts_load(struct tiles_acts *x, const struct kernel_act *a, enum quant_type type,
                                           int len, int64_t at, int64_t n_k, int64_t t0, int n)
{
    int64_t n_scale = a->k / len, n_sum = kernel_act_n_sum(a->kind, a->k);
    for (int t = 0; t < n; t++) {
        const int16_t *sum = a->sum + (t0 + t) * n_sum + at / (len == 256 ? 16 : 32);
        const int8_t *q = a->q + (t0 + t) * a->k + at;
        if (n_k == TILES_K) {
            KERNELS_UNROLL
            for (int i = 0; i < TILES_K; i += 64)
                vi_store(x->q[t] + i, vi_load(q + i));
        } else {
            memcpy(x->q[t], q, (size_t)n_k);
        }
        if (len == 256) {
            x->d[t] = a->d[(t0 + t) * n_scale + at / 256];
            if (r16_has_min256(type))
                tiles_sums_256(x->sum[t], sum, r16_subs_of_32(type));
            continue;
        }
        int64_t first = (t0 + t) * n_scale + at / 32;
        memcpy(x->d32[t], a->d + first, (size_t)(n_k / 32) * sizeof(float));
        for (int64_t i = 0; r16_has_min32(type) && i < n_k / 32; i++)
            x->sum32[t][i] = sum[i];
    }
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* A panel's products with tokens [t, t + rows) and, if `two`, as many behind them. */
KERNELS_ALWAYS_INLINE void tiles_products_256(struct tiles_sums *s, const struct tiles_panel *p,
                                              const struct tiles_acts *x, enum quant_type type, int t, int rows,
                                              bool two)
{
    enum tiles_split split = tiles_split(type);
    const uint8_t *w = p->w;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    KERNELS_UNROLL
    for (int k = 0; k < TILES_K; k += 64, w += tiles_n_part(type) * 16 * 64) {
        tile_load(4, x->q[t] + k, TILES_K);
        tile_load(6, w, 64);
        if (tiles_n_part(type) == 2)
            tile_load(7, w + 16 * 64, 64);
        if (split == TILES_NEGATED)
            tile_dot_ss(0, 4, 6);
        else
            tile_dot_su(0, 4, 6);
        if (split == TILES_BY_8)
            tile_dot_su(1, 4, 7);
        if (split == TILES_BY_256)
            tile_dot_ss(1, 4, 7);
        if (!two)
            continue;
        tile_load(5, x->q[t + rows] + k, TILES_K);
        if (split == TILES_NEGATED)
            tile_dot_ss(2, 5, 6);
        else
            tile_dot_su(2, 5, 6);
        if (split == TILES_BY_8)
            tile_dot_su(3, 5, 7);
        if (split == TILES_BY_256)
            tile_dot_ss(3, 5, 7);
    }
    tile_store(0, s->low[0]);
    if (tiles_n_part(type) == 2)
        tile_store(1, s->high[0]);
    if (two) {
        tile_store(2, s->low[1]);
        if (tiles_n_part(type) == 2)
            tile_store(3, s->high[1]);
    }
    if (r16_has_min256(type)) {
        tile_load(6, p->min, 64);
        tile_zero(0);
        tile_load(4, x->sum[t], 64);
        tile_dot_bf16(0, 4, 6);
        tile_store(0, s->min[0]);
        if (two) {
            tile_zero(2);
            tile_load(5, x->sum[t + rows], 64);
            tile_dot_bf16(2, 5, 6);
            tile_store(2, s->min[1]);
        }
    }
}

/* acc[r] += the panel's product with token t + r. */
KERNELS_ALWAYS_INLINE void tiles_fold_256(float acc[][LANES], const struct tiles_sums *s, int which,
                                          const struct tiles_panel *p, const struct tiles_acts *x, enum quant_type type,
                                          int t, int rows)
{
    vf d = p->scale256.d, dmin = p->scale256.dmin;
    for (int r = 0; r < rows; r++) {
        vi sum = vi_load(s->low[which][r]);
        switch (tiles_split(type)) {
        case TILES_ONE: break;
        case TILES_NEGATED: sum = vi_sub(vi_set1(0), sum); break;
        case TILES_BY_8: sum = vi_add(sum, vi_shl(vi_load(s->high[which][r]), 3)); break;
        case TILES_BY_256: sum = vi_sar(vi_add(sum, vi_shl(vi_load(s->high[which][r]), 8)), 1); break;
        }
        vf v = vf_mul(d, vf_of(sum));
        if (r16_has_min256(type))
            v = vf_fnma(dmin, vf_load(s->min[which][r]), v);
        vf_store(acc[r], vf_fma(v, vf_bcast(&x->d[t + r]), vf_load(acc[r])), LANES);
    }
}

/* The same for blocks of 32, of which a panel has n_block. */
KERNELS_ALWAYS_INLINE void tiles_products_32(struct tiles_sums *s, const struct tiles_panel *p,
                                             const struct tiles_acts *x, int t, int rows, int n_block, bool two)
{
    for (int b = 0; b < n_block; b++) {
        tile_load(6, p->w + b * 8 * 64, 64);
        tile_zero(0);
        tile_load(4, x->q[t] + 32 * b, TILES_K);
        tile_dot_ss(0, 4, 6);
        tile_store(0, s->of_32[0][b]);
        if (!two)
            continue;
        tile_zero(1);
        tile_load(5, x->q[t + rows] + 32 * b, TILES_K);
        tile_dot_ss(1, 5, 6);
        tile_store(1, s->of_32[1][b]);
    }
}

KERNELS_ALWAYS_INLINE void tiles_fold_32(float acc[][LANES], const struct tiles_sums *s, int which,
                                         const struct tiles_panel *p, const struct tiles_acts *x, enum quant_type type,
                                         int t, int rows, int n_block)
{
    for (int r = 0; r < rows; r++) {
        vf sum = vf_load(acc[r]);
        for (int b = 0; b < n_block; b++) {
            vf v = vf_mul(p->scale32[b].d, vf_of(vi_load(s->of_32[which][b][r])));
            if (r16_has_min32(type))
                v = vf_fma(p->scale32[b].min, vf_bcast(&x->sum32[t + r][b]), v);
            sum = vf_fma(v, vf_bcast(&x->d32[t + r][b]), sum);
        }
        vf_store(acc[r], sum, LANES);
    }
}

/* ---- the loops over rows, k and tokens -------------------------------------------------------------------------- */

/* Groups of 16 rows and tokens that are in hand. */
struct tiles_part {
    int64_t row, t0;
    int n_group, n_tok;
    int rows; /* tokens of a tile; the last tile may have fewer */
};

/* Where the panel of rows [row, row + 16) at k = at lies. */
KERNELS_ALWAYS_INLINE const uint8_t *tiles_panel_at(const struct kernel_matmul *a, enum quant_type type, int len,
                                                    int64_t row, int64_t at)
{
    return r16_rows(a, type, row, len) + at / len * r16_block_bytes(type);
}

/* Asks for the panel that will be expanded two panels after that of group g. */
KERNELS_ALWAYS_INLINE void tiles_prefetch(const struct kernel_matmul *a, enum quant_type type, int len,
                                          const struct tiles_part *part, int g, int64_t at)
{
    enum { AHEAD = 2 };
    int64_t next = g + AHEAD, next_at = at + next / part->n_group * TILES_K;
    if (next_at >= a->k)
        return;
    const uint8_t *w = tiles_panel_at(a, type, len, part->row + next % part->n_group * LANES, next_at);
    for (int i = 0; i < TILES_K / len * r16_block_bytes(type); i += 64)
        __builtin_prefetch(w + i, 0, 2);
}

/* Two tiles of tokens from t on meet a panel. */
KERNELS_ALWAYS_INLINE void tiles_meet(float acc[][LANES], const struct tiles_part *part, const struct tiles_panel *p,
                                      const struct tiles_acts *x, enum quant_type type, int len, int t, int64_t n_k)
{
    struct tiles_sums s;
    int rows = part->rows, rest = part->n_tok - t;
    bool two = rest > rows;
    if (len == 256)
        tiles_products_256(&s, p, x, type, t, rows, two);
    else
        tiles_products_32(&s, p, x, t, rows, (int)(n_k / 32), two);
    for (int i = 0; i <= two; i++) {
        int n = rest - i * rows < rows ? rest - i * rows : rows;
        if (len == 256)
            tiles_fold_256(acc + t + i * rows, &s, i, p, x, type, t + i * rows, n);
        else
            tiles_fold_32(acc + t + i * rows, &s, i, p, x, type, t + i * rows, n, (int)(n_k / 32));
    }
}

KERNELS_ALWAYS_INLINE void tiles_walk(const struct kernel_matmul *a, enum quant_type type, int len,
                                      const struct tiles_part *part)
{
    _Alignas(64) float acc[TILES_GROUPS][TILES_TOKENS][LANES];
    struct tiles_acts x;
    struct tiles_panel panel;
    memset(acc, 0, (size_t)part->n_group * sizeof *acc);
    memset(x.q + part->n_tok, 0, (TILES_TOKENS - (size_t)part->n_tok) * sizeof *x.q);
    if (len == 256)
        memset(panel.min, 0, sizeof panel.min); /* not a number times nothing would be none */
    for (int64_t at = 0; at < a->k; at += TILES_K) {
        int64_t n_k = a->k - at < TILES_K ? a->k - at : TILES_K;
        tiles_acts_load(&x, a->x, type, len, at, n_k, part->t0, part->n_tok);
        for (int g = 0; g < part->n_group; g++) {
            int64_t row = part->row + g * LANES;
            const uint8_t *w = tiles_panel_at(a, type, len, row, at);
            if (len == 256)
                tiles_expand_256(&panel, w, type, row);
            else
                tiles_expand_32(&panel, w, type, row, (int)(n_k / 32));
            tiles_prefetch(a, type, len, part, g, at);
            for (int t = 0; t < part->n_tok; t += 2 * part->rows)
                tiles_meet(acc[g], part, &panel, &x, type, len, t, n_k);
        }
    }
    for (int g = 0; g < part->n_group; g++)
        for (int t = 0; t < part->n_tok; t++) {
            int64_t row = part->row + g * LANES;
            vf_store(a->y + (part->t0 + t) * a->ldy + row, vf_load(acc[g][t]), a->n_row - row);
        }
}

/* a / b, rounded up */
static inline int64_t tiles_parts(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

KERNELS_ALWAYS_INLINE void tiles_matmul(const struct kernel_matmul *a, enum quant_type type, int len)
{
    struct tiles_part part;
    int64_t n_tok = tiles_parts(a->m, tiles_parts(a->m, TILES_TOKENS)); /* in equal parts */
    for (part.t0 = 0; part.t0 < a->m; part.t0 += n_tok) {
        part.n_tok = (int)(a->m - part.t0 < n_tok ? a->m - part.t0 : n_tok);
        part.rows = (int)tiles_parts(part.n_tok, tiles_parts(part.n_tok, TILES_ROWS));
        tiles_begin(part.rows, len == 256 ? 64 : 32);
        for (part.row = a->row0; part.row < a->row1; part.row += TILES_GROUPS * LANES) {
            int64_t n_group = tiles_parts(a->row1 - part.row, LANES);
            part.n_group = (int)(n_group < TILES_GROUPS ? n_group : TILES_GROUPS);
            tiles_walk(a, type, len, &part);
        }
        tiles_end();
    }
}
