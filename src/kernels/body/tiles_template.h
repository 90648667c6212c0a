/* Products of the R16 layout by a matrix unit: tiles of 16 rows of 64 bytes (Intel's AMX; tests/kernels/tiles_plain.h
 * is a model of it in plain C). For many tokens: their activations are the rows of one tile, four bytes of each of 16
 * weight rows are a row of the other.
 *
 * A sum over a block of 256 must be exact before it meets its float scale (docs/numerics.md), and the sub-blocks'
 * integer scales change each 16 or 32 weights, which a product of tiles can't follow. So the scale goes into the
 * weight, and what is wider than a byte is split into two: w * scale = low + 8 * high or low + 256 * high, and
 * the sum of products is that of two plain products over all 256. Minima are a product of their own, of bfloat16:
 * integers of at most eight bits, so that its sums, below 2^24, are exact.
 *
 * Tiles, vectors and memory work side by side only where their instructions stand close together, and where nothing is
 * read soon after it was written: tiles are not forwarded from the store buffer. So a slice of 64 weights is expanded
 * three slices before it is multiplied, and the products are folded into the results while the next ones are computed.
 *
 * The including file has chosen lanes of 16 rows (lanes_*.h) and the tile unit (tiles_*.h):
 *   tiles_begin(first, second, depth), tiles_end(): before and after: tokens of two tiles, and bytes of k
 *   tile_zero(t), tile_load(t, p, stride), tile_store(t, p): of tile t, a literal; results are 64 bytes a row
 *   tile_dot_ss(c, a, b), tile_dot_su(c, a, b), tile_dot_bf16(c, a, b): c += a * b, a signed, b signed, unsigned
 * Tiles 0 and 1 are results of the first tokens, 2 and 3 of the second; 4 and 5 are activations, 6 and 7 weights. */
#include "kernels/body/r16_blocks.h"
#include "kernels/kernels_internal.h"

enum {
    TILES_ROWS = 16,   /* most tokens of a tile */
    TILES_PAIR = 32,   /* most of two tiles, which are multiplied together */
    TILES_TOKENS = 64, /* most that meet expanded weights: two pairs */
    TILES_GROUPS = 24, /* groups of 16 rows that meet the same activations */
    TILES_K = 256,     /* weights of a row that meet the activations in hand: a panel */
    TILES_SLICE = 64,  /* of those, the weights of a slice, which are expanded and multiplied together */
    TILES_SLICES = TILES_K / TILES_SLICE,
    TILES_AHEAD = TILES_SLICES - 1 /* slices from expansion to products */
};
_Static_assert((int)LANES == (int)LAYOUT_R16_ROWS, "a row of a tile is a dword of each row of a group");

/* How the weights of a block of 256, times their scales, become bytes. */
enum tiles_split {
    TILES_ONE,     /* w * scale is an unsigned byte */
    TILES_NEGATED, /* -w * scale is a signed byte (w * scale may be 128) */
    TILES_BY_8,    /* w * scale = low + 8 * high, both unsigned */
    TILES_BY_256   /* w * scale = low + 256 * high, low unsigned */
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

/* A slice of 16 rows, as tiles of weights. */
struct tiles_slice {
    _Alignas(
        64) uint8_t w[2][LANES][64]; /* blocks of 256: one tile or two, low and high; of 32: half of one for each */
    struct r16_scale32 scale32[2];   /* blocks of 32 */
};

/* What slices of a block of 256 share. */
struct tiles_block {
    _Alignas(64) uint8_t min[16][64]; /* bfloat16, each twice: minima of sub-blocks, or 128 more (tiles_min) */
    struct r16_scales sub;
    struct r16_scale256 scale;
};

/* What goes with the quants of up to TILES_TOKENS tokens over a panel's part of k. */
struct tiles_acts {
    const int8_t *q; /* of the first token */
    int64_t stride;  /* bytes to the next one's */
    union {
        struct {                                        /* blocks of 256 */
            _Alignas(64) uint8_t sum[TILES_TOKENS][64]; /* two bfloat16 for each sub-block, which add up to its sum */
            float d[TILES_TOKENS];
        };
        struct {
            float d32[TILES_K / 32][TILES_TOKENS], sum32[TILES_K / 32][TILES_TOKENS];
        };
    };
};

/* Tokens in hand, in one tile or two. */
struct tiles_rows {
    int n[2];
};

/* Products of 16 rows with two tiles of tokens, as tiles store them. */
struct tiles_sums {
    union {
        struct {                                                /* a block of 256 */
            _Alignas(64) int32_t part[2][2][TILES_ROWS][LANES]; /* of each tile: low, high */
            _Alignas(64) float min[2][TILES_ROWS][LANES];
        };
        _Alignas(64) int32_t of_32[2][2][TILES_ROWS][LANES]; /* of each tile: a slice's blocks of 32 */
    };
};

/* Products that are stored, and what makes results of them. */
struct tiles_fold {
    float (*acc)[LANES]; /* results to add to, by token; NULL: there are no products */
    int t;               /* the first token */
    const struct tiles_sums *sums;
    struct r16_scale256 scale;       /* of a block of 256 */
    const struct tiles_slice *slice; /* of blocks of 32: these */
    int block, n_block;              /* the slice's blocks of 32: the first one's place in the panel, how many */
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
    vi low;   /* BY_8: three bits of the scale; BY_256: the scale in the lower byte, which meets even weights */
    vi high;  /* BY_8: its other three; BY_256: the scale in the upper byte */
    vi minus; /* BY_256: the scale times what codes are larger than weights by */
};

/* sub: of 16 or 32 weights */
KERNELS_ALWAYS_INLINE struct tiles_factor tiles_factor(const struct r16_scales *sc, enum quant_type type, int sub)
{
    vi bytes = sc->scale[sub / 4], three = vi_set1(0x07070707);
    switch (tiles_split(type)) {
    case TILES_ONE: return (struct tiles_factor){.low = tiles_words(bytes, sub % 4, false)};
    case TILES_NEGATED: return (struct tiles_factor){.low = tiles_words(bytes, sub % 4, true)};
    case TILES_BY_8:
        return (struct tiles_factor){.low = tiles_words(vi_and(bytes, three), sub % 4, false),
                                     .high = tiles_words(vi_and(vi_shr(bytes, 3), three), sub % 4, false)};
    case TILES_BY_256: break;
    }
    vi low = type == QUANT_Q6_K ? tiles_words(bytes, sub % 4, false) : tiles_words(r16_iq4xs_scale(sc, sub), 0, false);
    vi high = vi_shl(low, 8); /* 256 times the scale: codes are 32 or 128 larger */
    return (struct tiles_factor){.low = low, .high = high, .minus = vi_sar16(high, type == QUANT_Q6_K ? 3 : 1)};
}

/* Multiplies weights by their factor, and splits the products. w: as r16_vec256 gives them. */
KERNELS_ALWAYS_INLINE void tiles_scale(vi out[2], vi w, struct tiles_factor f, enum quant_type type)
{
    static const uint8_t up[16] = {128, 0, 128, 2, 128, 4, 128, 6, 128, 8, 128, 10, 128, 12, 128, 14};
    static const uint8_t down[16] = {1, 128, 3, 128, 5, 128, 7, 128, 9, 128, 11, 128, 13, 128, 15, 128};
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
    vi codes = type == QUANT_Q6_K ? w : vi_xor(w, vi_set1((int32_t)0x80808080)); /* 128 more than the value */
    vi of_even = vi_sub16(vi_maddubs(codes, f.low), f.minus), of_odd = vi_sub16(vi_maddubs(codes, f.high), f.minus);
    out[0] = vi_select(even, of_even, vi_shuffle8(of_odd, vi_mask16(up)));
    out[1] = vi_select(even, vi_shuffle8(of_even, vi_mask16(down)), of_odd);
}

/* Minima of sub-blocks as bfloat16. Integers below 128 are the low bits of 128 to 255 as bfloat16: eight minima are
 * stored so, and eight times -128 behind them, which meet the same sums (tiles_sums_256). Sixteen are converted. */
KERNELS_ALWAYS_INLINE void tiles_min(struct tiles_block *b, enum quant_type type)
{
    KERNELS_UNROLL
    for (int i = 0; i < 16; i++) {
        if (!r16_subs_of_32(type)) {
            vi high = vf_bits(vf_of(vi_and(vi_shr(b->sub.min[i / 4], i % 4 * 8), vi_set1(0xff))));
            vi_store(b->min[i], vi_or(high, vi_shr(high, 16))); /* the low word was zero: few bits */
        } else if (i < 8) {
            vi_store(b->min[i], vi_or(tiles_words(b->sub.min[i / 4], i % 4, false), vi_set1(0x43004300)));
        }
    }
}

KERNELS_ALWAYS_INLINE void tiles_block_begin(struct tiles_block *b)
{
    memset(b, 0, sizeof *b);
    for (int i = 8; i < 16; i++)
        vi_store(b->min[i], vi_set1((int32_t)0xc300c300)); /* -128, or what tiles_min replaces */
}

KERNELS_ALWAYS_INLINE void tiles_block_load(struct tiles_block *b, const uint8_t *w, enum quant_type type, int64_t row)
{
    b->scale = r16_scale256_load(w, type, row);
    r16_scales_load(&b->sub, w, type);
    if (r16_has_min256(type))
        tiles_min(b, type);
}

/* Expands slice i of the block at w: two sub-blocks of 32, or four of 16. */
KERNELS_ALWAYS_INLINE void tiles_expand_256(struct tiles_slice *out, const struct tiles_block *b, const uint8_t *w,
                                            enum quant_type type, int i)
{
    KERNELS_UNROLL
    for (int half = 0; half < 2; half++) { /* of each 32 weights */
        struct tiles_factor f[2];
        KERNELS_UNROLL
        for (int j = 0; j < 2; j++)
            f[j] = tiles_factor(&b->sub, type, r16_subs_of_32(type) ? 2 * i + j : 4 * i + 2 * j + half);
        KERNELS_UNROLL
        for (int v = 4 * half; v < 4 * half + 4; v++) {
            KERNELS_UNROLL
            for (int j = 0; j < 2; j++) {
                vi part[2];
                tiles_scale(part, r16_vec256(type, w, i / 2, i % 2 * 2 + j, v), f[j], type);
                vi_store(out->w[0][8 * j + v], part[0]);
                if (tiles_n_part(type) == 2)
                    vi_store(out->w[1][8 * j + v], part[1]);
            }
        }
    }
}

/* Expands n_block blocks of 32 at w. */
KERNELS_ALWAYS_INLINE void tiles_expand_32(struct tiles_slice *out, const uint8_t *w, enum quant_type type, int64_t row,
                                           int n_block)
{
    int offset = r16_offset32(type);
    for (int b = 0; b < n_block; b++, w += r16_block_bytes(type)) {
        struct r16_src src = r16_src32(w, type);
        out->scale32[b] = r16_scale32_load(w, type, row);
        KERNELS_UNROLL
        for (int i = 0; i < 8; i++) {
            vi v = r16_vec32(&src, i);
            vi_store(out->w[b][i], offset ? vi_sub8(v, vi_set1(offset * 0x01010101)) : v);
        }
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------ */

/* Sums over sub-blocks, at most 12 bits and a sign, as two bfloat16 of at most 7: 32 * high + low. Eight sums stand
 * there twice. */
KERNELS_ALWAYS_INLINE void tiles_sums_256(uint8_t out[64], const int16_t sum[16], bool subs_of_32)
{
    vi s;
    if (subs_of_32) { /* two words a lane */
        s = vi_load_twice(sum);
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
    x->stride = kernel_act_q_stride(a->k);
    x->q = a->q + t0 * x->stride + at;
    for (int t = 0; t < n; t++) {
        const int16_t *sum = a->sum + (t0 + t) * n_sum + at / (len == 256 ? 16 : 32);
        const float *d = a->d + (t0 + t) * n_scale + at / len;
        if (len == 256) {
            x->d[t] = d[0];
            if (r16_has_min256(type))
                tiles_sums_256(x->sum[t], sum, r16_subs_of_32(type));
            continue;
        }
        for (int64_t i = 0; i < n_k / 32; i++) {
            x->d32[i][t] = d[i];
            if (r16_has_min32(type))
                x->sum32[i][t] = sum[i];
        }
    }
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* Minima times the sums of activations, and nothing in tiles 0 to 3. */
KERNELS_ALWAYS_INLINE void tiles_begin_256(struct tiles_sums *s, const struct tiles_block *b,
                                           const struct tiles_acts *x, enum quant_type type, int t,
                                           struct tiles_rows rows)
{
    if (r16_has_min256(type)) {
        tile_zero(0);
        tile_load(6, b->min, 64);
        tile_load(4, x->sum[t], 64);
        tile_dot_bf16(0, 4, 6);
        tile_store(0, s->min[0]);
        if (rows.n[1]) {
            tile_zero(2);
            tile_load(5, x->sum[t + rows.n[0]], 64);
            tile_dot_bf16(2, 5, 6);
            tile_store(2, s->min[1]);
        }
    }
    tile_zero(0);
    tile_zero(1);
    if (rows.n[1]) {
        tile_zero(2);
        tile_zero(3);
    }
}

/* Adds the products of a slice, at k of x. */
KERNELS_ALWAYS_INLINE void tiles_products_256(const struct tiles_slice *p, const struct tiles_acts *x,
                                              enum quant_type type, int k, int t, struct tiles_rows rows)
{
    enum tiles_split split = tiles_split(type);
    tile_load(4, x->q + t * x->stride + k, x->stride);
    tile_load(6, p->w[0], 64);
    if (split == TILES_NEGATED)
        tile_dot_ss(0, 4, 6);
    else
        tile_dot_su(0, 4, 6);
    if (tiles_n_part(type) == 2)
        tile_load(7, p->w[1], 64);
    if (split == TILES_BY_8)
        tile_dot_su(1, 4, 7);
    if (split == TILES_BY_256)
        tile_dot_ss(1, 4, 7);
    if (!rows.n[1])
        return;
    tile_load(5, x->q + (t + rows.n[0]) * x->stride + k, x->stride);
    if (split == TILES_NEGATED)
        tile_dot_ss(2, 5, 6);
    else
        tile_dot_su(2, 5, 6);
    if (split == TILES_BY_8)
        tile_dot_su(3, 5, 7);
    if (split == TILES_BY_256)
        tile_dot_ss(3, 5, 7);
}

KERNELS_ALWAYS_INLINE void tiles_end_256(struct tiles_sums *s, enum quant_type type, struct tiles_rows rows)
{
    tile_store(0, s->part[0][0]);
    if (tiles_n_part(type) == 2)
        tile_store(1, s->part[0][1]);
    if (!rows.n[1])
        return;
    tile_store(2, s->part[1][0]);
    if (tiles_n_part(type) == 2)
        tile_store(3, s->part[1][1]);
}

/* Folds a quarter of the products of a block: tokens `first`, first + 4, ... of each tile. */
KERNELS_ALWAYS_INLINE void tiles_fold_256(const struct tiles_fold *f, const struct tiles_acts *x, enum quant_type type,
                                          int first, struct tiles_rows rows)
{
    if (!f->acc)
        return;
    for (int i = 0; i < 2; i++)
        for (int r = first; r < rows.n[i]; r += TILES_SLICES) {
            int t = i * rows.n[0] + r;
            vi sum = vi_load(f->sums->part[i][0][r]);
            switch (tiles_split(type)) {
            case TILES_ONE: break;
            case TILES_NEGATED: sum = vi_sub(vi_set1(0), sum); break;
            case TILES_BY_8: sum = vi_add(sum, vi_shl(vi_load(f->sums->part[i][1][r]), 3)); break;
            case TILES_BY_256: sum = vi_add(sum, vi_shl(vi_load(f->sums->part[i][1][r]), 8)); break;
            }
            vf v = vf_mul(f->scale.d, vf_of(sum));
            if (r16_has_min256(type))
                v = vf_fnma(f->scale.dmin, vf_load(f->sums->min[i][r]), v);
            vf_store(f->acc[t], vf_fma(v, vf_bcast(&x->d[f->t + t]), vf_load(f->acc[t])), LANES);
        }
}

/* Stores the products of a slice of blocks of 32, of which the first is number `block` of the panel. */
KERNELS_ALWAYS_INLINE void tiles_products_32(struct tiles_sums *s, const struct tiles_slice *p,
                                             const struct tiles_acts *x, int block, int n_block, int t,
                                             struct tiles_rows rows)
{
    const int8_t *q[2] = {x->q + t * x->stride + 32 * block, x->q + (t + rows.n[0]) * x->stride + 32 * block};
    tile_zero(0);
    tile_load(4, q[0], x->stride);
    tile_load(6, p->w[0], 64);
    tile_dot_ss(0, 4, 6);
    if (rows.n[1]) {
        tile_zero(2);
        tile_load(5, q[1], x->stride);
        tile_dot_ss(2, 5, 6);
    }
    if (n_block == 2) {
        tile_zero(1);
        tile_load(4, q[0] + 32, x->stride);
        tile_load(7, p->w[1], 64);
        tile_dot_ss(1, 4, 7);
        if (rows.n[1]) {
            tile_zero(3);
            tile_load(5, q[1] + 32, x->stride);
            tile_dot_ss(3, 5, 7);
            tile_store(3, s->of_32[1][1]);
        }
        tile_store(1, s->of_32[0][1]);
    }
    tile_store(0, s->of_32[0][0]);
    if (rows.n[1])
        tile_store(2, s->of_32[1][0]);
}

KERNELS_ALWAYS_INLINE void tiles_fold_32(const struct tiles_fold *f, const struct tiles_acts *x, enum quant_type type,
                                         struct tiles_rows rows)
{
    if (!f->acc)
        return;
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < rows.n[i]; r++) {
            int t = i * rows.n[0] + r;
            vf sum = vf_load(f->acc[t]);
            for (int b = 0; b < f->n_block; b++) {
                vf v = vf_mul(f->slice->scale32[b].d, vf_of(vi_load(f->sums->of_32[i][b][r])));
                if (r16_has_min32(type))
                    v = vf_fma(f->slice->scale32[b].min, vf_bcast(&x->sum32[f->block + b][f->t + t]), v);
                sum = vf_fma(v, vf_bcast(&x->d32[f->block + b][f->t + t]), sum);
            }
            vf_store(f->acc[t], sum, LANES);
        }
}

/* ---- the loops over rows, k and tokens -------------------------------------------------------------------------- */

/* Groups of 16 rows and tokens that are in hand. */
struct tiles_part {
    int64_t row, t0;
    int n_group, n_tok;
};

/* A panel of 16 rows, and how much of it there is: the last one of a row may be shorter. */
struct tiles_panel {
    const uint8_t *w; /* its first block */
    int64_t row;
    int n_block; /* blocks of 32 */
};

/* The panel of group g at k = at. Behind the last group the first one follows, at the next panel's place of k. Behind
 * the last panel there are empty ones, which lie where the first one does. */
KERNELS_ALWAYS_INLINE struct tiles_panel tiles_panel_at(const struct kernel_matmul *a, enum quant_type type, int len,
                                                        const struct tiles_part *part, int g, int64_t at)
{
    if (g >= part->n_group) {
        g -= part->n_group;
        at += TILES_K;
    }
    int64_t n_k = a->k - at < TILES_K ? a->k - at : TILES_K;
    if (n_k <= 0) {
        g = 0;
        at = n_k = 0;
    }
    int64_t row = part->row + g * LANES;
    const uint8_t *w = r16_rows(a, type, row, len) + at / len * r16_block_bytes(type);
    return (struct tiles_panel){.w = w, .row = row, .n_block = (int)(n_k / 32)};
}

/* Expands slice i of a panel, if it has one. Of a block of 256 b is the one's, from its slice 0 on. */
KERNELS_ALWAYS_INLINE void tiles_expand(struct tiles_slice *slices, struct tiles_block *b, const struct tiles_panel *p,
                                        enum quant_type type, int len, int i)
{
    int n_block = p->n_block - 2 * i < 2 ? p->n_block - 2 * i : 2;
    if (n_block <= 0)
        return;
    if (len == 32) {
        tiles_expand_32(&slices[i], p->w + 2 * i * r16_block_bytes(type), type, p->row, n_block);
        return;
    }
    if (i == 0)
        tiles_block_load(b, p->w, type, p->row);
    tiles_expand_256(&slices[i], b, p->w, type, i);
}

/* Asks for a quarter of the panel two groups of rows behind p. */
KERNELS_ALWAYS_INLINE void tiles_prefetch(const struct kernel_matmul *a, const struct tiles_panel *p,
                                          enum quant_type type, int len, int quarter)
{
    int n_bytes = TILES_K / len * r16_block_bytes(type) / 4;
    const uint8_t *w = p->w + 2 * (a->k / len) * r16_block_bytes(type) + quarter * n_bytes;
    for (int i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(w + i, 0, 2);
}

KERNELS_ALWAYS_INLINE void tiles_fold_all(struct tiles_fold *f, const struct tiles_acts *x, enum quant_type type,
                                          int len, struct tiles_rows rows)
{
    if (len == 32)
        tiles_fold_32(f, x, type, rows);
    for (int i = 0; len == 256 && i < TILES_SLICES; i++)
        tiles_fold_256(f, x, type, i, rows);
    f->acc = NULL;
}

/* n_pair: pairs of tiles that the tokens are in. */
KERNELS_ALWAYS_INLINE void tiles_walk(const struct kernel_matmul *a, enum quant_type type, int len,
                                      const struct tiles_part *part, int n_pair)
{
    _Alignas(64) float acc[TILES_GROUPS * TILES_TOKENS][LANES]; /* n_pair * n of a group beside each other */
    struct tiles_acts x;
    struct tiles_slice slices[TILES_SLICES];
    struct tiles_block block;
    struct tiles_sums sums[2];
    struct tiles_fold fold = {.acc = NULL};
    int n = (part->n_tok + n_pair - 1) / n_pair; /* of a pair: the second one begins with the first one's last where
                                                  * they are odd */
    int n_second = n > TILES_ROWS ? n / 2 : 0, turn = 0;
    struct tiles_rows rows = {{n - n_second, n_second}};
    struct tiles_panel p = tiles_panel_at(a, type, len, part, 0, 0);
    memset(acc, 0, (size_t)(part->n_group * n_pair * n) * sizeof *acc);
    tiles_begin(rows.n[0], rows.n[1], len == 256 ? 64 : 32);
    tiles_block_begin(&block);
    for (int i = 0; i < TILES_AHEAD; i++)
        tiles_expand(slices, &block, &p, type, len, i);
    for (int64_t at = 0; at < a->k; at += TILES_K) {
        tiles_fold_all(&fold, &x, type, len, rows);
        tiles_acts_load(&x, a->x, type, len, at, 32 * p.n_block, part->t0, part->n_tok);
        for (int g = 0; g < part->n_group; g++) {
            struct tiles_panel next = tiles_panel_at(a, type, len, part, g + 1, at);
            struct r16_scale256 scale = block.scale; /* before the next block's */
            for (int pair = 0; pair < n_pair; pair++) {
                struct tiles_fold products = {.acc = acc + (g * n_pair + pair) * n, .t = pair * (part->n_tok - n)};
                products.scale = scale;
                if (len == 256)
                    tiles_begin_256(&sums[turn], &block, &x, type, products.t, rows);
                KERNELS_UNROLL
                for (int i = 0; i < TILES_SLICES; i++) {
                    int n_block = p.n_block - 2 * i < 2 ? p.n_block - 2 * i : 2;
                    products.sums = &sums[turn];
                    if (len == 256) {
                        tiles_products_256(&slices[i], &x, type, i * TILES_SLICE, products.t, rows);
                        tiles_fold_256(&fold, &x, type, i, rows);
                    } else {
                        if (n_block > 0)
                            tiles_products_32(&sums[turn], &slices[i], &x, 2 * i, n_block, products.t, rows);
                        tiles_fold_32(&fold, &x, type, rows);
                        fold = products;
                        fold.slice = &slices[i];
                        fold.block = 2 * i;
                        fold.n_block = n_block;
                        if (n_block <= 0)
                            fold.acc = NULL;
                        turn = !turn;
                    }
                    if (i == 0 ? pair == 0 : pair == n_pair - 1) { /* when slice (i + 3) % 4 has met all tokens */
                        tiles_expand(slices, &block, i == 0 ? &p : &next, type, len, (i + TILES_AHEAD) % TILES_SLICES);
                        tiles_prefetch(a, &next, type, len, i);
                    }
                }
                if (len == 256) {
                    tiles_end_256(&sums[turn], type, rows);
                    fold = products;
                    turn = !turn;
                }
            }
            p = next;
        }
    }
    tiles_fold_all(&fold, &x, type, len, rows);
    tiles_end();
    for (int g = 0; g < part->n_group; g++)
        for (int t = 0; t < part->n_tok; t++) {
            int64_t row = part->row + g * LANES;
            int at = t < n ? t : t + n_pair * n - part->n_tok;
            vf_store(a->y + (part->t0 + t) * a->ldy + row, vf_load(acc[g * n_pair * n + at]), a->n_row - row);
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
    for (part.row = a->row0; part.row < a->row1; part.row += TILES_GROUPS * LANES) {
        int64_t n_group = tiles_parts(a->row1 - part.row, LANES);
        part.n_group = (int)(n_group < TILES_GROUPS ? n_group : TILES_GROUPS);
        for (part.t0 = 0; part.t0 < a->m; part.t0 += n_tok) {
            part.n_tok = (int)(a->m - part.t0 < n_tok ? a->m - part.t0 : n_tok);
            if (part.n_tok <= TILES_PAIR)
                tiles_walk(a, type, len, &part, 1);
            else
                tiles_walk(a, type, len, &part, 2);
        }
    }
}
