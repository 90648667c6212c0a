/* Products of the R16 layout by a matrix unit: tiles of 16 rows of 64 bytes (Intel's AMX; tests/kernels/tiles_plain.h
 * is a model of it in plain C). This is for many tokens. A row of one tile has a token's activations; a row of the
 * other has four bytes of each of 16 rows of weights.
 *
 * A sum over a block of 256 must be exact before it meets its float scale (docs/numerics.md), and the sub-blocks'
 * integer scales change each 16 or 32 weights, which a product of tiles can't follow. So the scale goes into the
 * weight, and what is wider than a byte is split into two: w * scale = low + 8 * high or low + 256 * high, and the sum
 * of products is that of two plain products over all 256. Minima are a product of their own, of bfloat16: integers of
 * at most eight bits, so that its sums, below 2^24, are exact.
 *
 * Tiles, vectors and memory work side by side only where their instructions stand close together, and where nothing is
 * read soon after it was written: tiles are not forwarded from the store buffer. So a slice of 64 weights is expanded
 * three slices before it is multiplied, and the products are folded into the results while the next ones are computed.
 * All that a panel of 256 weights needs must stay within a first-level cache of 48 KB, which it nearly fills: a second
 * set of results makes it slower (docs/experiments.md).
 *
 * The including file has chosen lanes of 16 rows (lanes_*.h) and the tile unit (tiles_*.h):
 *   tiles_begin(n_token, depth), tiles_end(): before and after; n_token: tokens of a tile, depth: its bytes of k
 *   tile_zero(t), tile_load(t, p, stride), tile_store(t, p): of tile t, a literal; results are 64 bytes a row
 *   tile_dot_ss(c, a, b), tile_dot_su(c, a, b), tile_dot_bf16(c, a, b): c += a * b, a signed, b signed, unsigned
 * Tiles 0 and 1 are results of the first tokens, 2 and 3 of the second; 4 and 5 are activations, 6 and 7 weights.
 * Tile 5 is the result of minima, too. */
#include "kernels/body/r16_blocks.h"
#include "kernels/kernels_internal.h"

enum {
    TILES_ROWS = 16,   /* most tokens of a tile */
    TILES_PAIR = 32,   /* most of two tiles, which are multiplied together */
    TILES_TOKENS = 64, /* most that expanded weights are multiplied by: two pairs */
    TILES_GROUPS = 24, /* groups of 16 rows that are multiplied by the same activations */
    TILES_K = 256,     /* weights of a row that are multiplied by them: a panel */
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

/* A slice of 16 rows, as tiles of weights: of a block of 256 one or two, low and high; of 32: half of one for each. */
struct tiles_slice {
    _Alignas(64) uint8_t w[2][LANES][64];
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
            float d[TILES_TOKENS];                      /* scales of the activations */
        };
        struct { /* blocks of 32: the same, by block */
            float d32[TILES_K / 32][TILES_TOKENS], sum32[TILES_K / 32][TILES_TOKENS];
        };
    };
};

/* Products of 16 rows with two tiles of tokens, as tiles store them. */
struct tiles_sums {
    _Alignas(64) int32_t part[2][2][TILES_ROWS][LANES]; /* of each tile: low, high; or a slice's two blocks of 32 */
    _Alignas(64) float min[2][TILES_ROWS][LANES];       /* of each tile, of a block of 256 */
};

/* What makes results of products. */
struct tiles_fold {
    float (*acc)[LANES];               /* results to add to, by token; NULL: there are no products */
    const struct tiles_acts *x;        /* what was multiplied */
    int t[2];                          /* each tile's first token in x */
    struct r16_scale256 scale;         /* of a block of 256 */
    const struct r16_scale32 *scale32; /* of a slice's blocks of 32 */
    int block, n_block;                /* the slice's blocks of 32: the first one's place in the panel, how many */
};

/* Buffers, whose addresses the tile unit gets. */
struct tiles_work {
    struct tiles_slice slices[TILES_SLICES];
    struct r16_scale32 scale32[TILES_SLICES][2]; /* of their blocks of 32 */
    struct tiles_block blocks[2];                /* of 256: the one that is multiplied, and the next one */
    struct tiles_sums sums[2];                   /* blocks of 32 use them in turn, blocks of 256 only the first */
    struct tiles_acts acts[2];                   /* of the panel in hand, and of the one before for its last fold */
};

/* The state of a walk. It is apart from the buffers, so that compilers keep it in registers. */
struct tiles_state {
    int n_pair, n_tile, n;  /* pairs of tiles that tokens are in, tiles of a pair, tokens of a tile */
    int turn, panel;        /* which of `sums` and `acts` are in use */
    struct tiles_fold fold; /* what was multiplied before */
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

/* The factors of a sub-block's weights, in both words of each lane. */
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
    case TILES_ONE: out[0] = vi_mul16(w, f.low); return; /* a byte's product doesn't carry into the next byte */
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

/* Expands half of slice i of the block at w: of each 32 weights the first 16 or the others. */
KERNELS_ALWAYS_INLINE void tiles_expand_256(struct tiles_slice *out, const struct tiles_block *b, const uint8_t *w,
                                            enum quant_type type, int i, int half)
{
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

/* Expands n_block blocks of 32 at w. */
KERNELS_ALWAYS_INLINE void tiles_expand_32(struct tiles_slice *out, struct r16_scale32 scale[2], const uint8_t *w,
                                           enum quant_type type, int64_t row, int n_block)
{
    int offset = r16_offset32(type);
    for (int b = 0; b < n_block; b++, w += r16_block_bytes(type)) {
        struct r16_src src = r16_src32(w, type);
        scale[b] = r16_scale32_load(w, type, row);
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

/* c += a * b, b signed or not */
#define TILES_DOT(c, a, b, is_signed)                                                                                  \
    do {                                                                                                               \
        if (is_signed)                                                                                                 \
            tile_dot_ss(c, a, b);                                                                                      \
        else                                                                                                           \
            tile_dot_su(c, a, b);                                                                                      \
    } while (0)

/* Adds the products of a slice with tile 0 or 1 of the tokens, whose activations lie at q. With `before`, the results
 * that tiles hold are stored there first, each right before its tile is cleared, so that the unit has products to
 * compute meanwhile. */
KERNELS_ALWAYS_INLINE void tiles_products_256(const struct tiles_slice *p, const int8_t *q, int64_t stride,
                                              enum quant_type type, int tile, struct tiles_sums *before)
{
    enum tiles_split split = tiles_split(type);
    if (tile == 0) {
        tile_load(4, q, stride);
        tile_load(6, p->w[0], 64);
        if (before) {
            tile_store(0, before->part[0][0]);
            tile_zero(0);
        }
        TILES_DOT(0, 4, 6, split == TILES_NEGATED);
        if (tiles_n_part(type) == 1)
            return;
        tile_load(7, p->w[1], 64);
        if (before) {
            tile_store(1, before->part[0][1]);
            tile_zero(1);
        }
        TILES_DOT(1, 4, 7, split == TILES_BY_256);
    } else {
        tile_load(5, q, stride);
        if (before) {
            tile_store(2, before->part[1][0]);
            tile_zero(2);
        }
        TILES_DOT(2, 5, 6, split == TILES_NEGATED);
        if (tiles_n_part(type) == 1)
            return;
        if (before) {
            tile_store(3, before->part[1][1]);
            tile_zero(3);
        }
        TILES_DOT(3, 5, 7, split == TILES_BY_256);
    }
}

/* Minima times the sums of a tile's activations, in tile 5. */
KERNELS_ALWAYS_INLINE void tiles_products_min(const struct tiles_block *b, const uint8_t (*sum)[64])
{
    tile_load(6, b->min, 64);
    tile_load(4, sum, 64);
    tile_zero(5);
    tile_dot_bf16(5, 4, 6);
}

/* Folds the products of tokens [from, to) of a tile. */
KERNELS_ALWAYS_INLINE void tiles_fold_256(const struct tiles_work *k, const struct tiles_state *s, enum quant_type type,
                                          int tile, int from, int to)
{
    const struct tiles_fold *f = &s->fold;
    const struct tiles_sums *sums = &k->sums[0];
    float(*acc)[LANES] = f->acc + tile * s->n;
    const float *d = f->x->d + f->t[tile];
    for (int i = from; i < to; i++) {
        vi sum = vi_load(sums->part[tile][0][i]);
        switch (tiles_split(type)) {
        case TILES_ONE: break;
        case TILES_NEGATED: sum = vi_sub(vi_set1(0), sum); break;
        case TILES_BY_8: sum = vi_add(sum, vi_shl(vi_load(sums->part[tile][1][i]), 3)); break;
        case TILES_BY_256: sum = vi_add(sum, vi_shl(vi_load(sums->part[tile][1][i]), 8)); break;
        }
        vf v = vf_mul(f->scale.d, vf_of(sum));
        if (r16_has_min256(type))
            v = vf_fnma(f->scale.dmin, vf_load(sums->min[tile][i]), v);
        vf_store(acc[i], vf_fma(v, vf_bcast(&d[i]), vf_load(acc[i])), LANES);
    }
}

/* Folds one of the six parts of what a pair's tiles have stored; tokens of the first tile come first. */
KERNELS_ALWAYS_INLINE void tiles_fold_part(const struct tiles_work *k, const struct tiles_state *s,
                                           enum quant_type type, int part)
{
    if (!s->fold.acc)
        return;
    if (s->n_tile == 2)
        tiles_fold_256(k, s, type, part / 3, part % 3 * s->n / 3, (part % 3 + 1) * s->n / 3);
    else
        tiles_fold_256(k, s, type, 0, part * s->n / 6, (part + 1) * s->n / 6);
}

/* The products of a slice of blocks of 32 with the tokens at q. */
KERNELS_ALWAYS_INLINE void tiles_products_32(const struct tiles_slice *p, const int8_t *const q[2], int64_t stride,
                                             int n_block, int n_tile)
{
    tile_zero(0);
    tile_load(4, q[0], stride);
    tile_load(6, p->w[0], 64);
    tile_dot_ss(0, 4, 6);
    if (n_tile == 2) {
        tile_zero(2);
        tile_load(5, q[1], stride);
        tile_dot_ss(2, 5, 6);
    }
    if (n_block == 1)
        return;
    tile_zero(1);
    tile_load(4, q[0] + 32, stride);
    tile_load(7, p->w[1], 64);
    tile_dot_ss(1, 4, 7);
    if (n_tile == 2) {
        tile_zero(3);
        tile_load(5, q[1] + 32, stride);
        tile_dot_ss(3, 5, 7);
    }
}

KERNELS_ALWAYS_INLINE void tiles_store_32(struct tiles_sums *sums, int n_block, int n_tile)
{
    if (n_block == 2) {
        if (n_tile == 2)
            tile_store(3, sums->part[1][1]);
        tile_store(1, sums->part[0][1]);
    }
    tile_store(0, sums->part[0][0]);
    if (n_tile == 2)
        tile_store(2, sums->part[1][0]);
}

KERNELS_ALWAYS_INLINE void tiles_fold_32(const struct tiles_state *s, const struct tiles_sums *sums,
                                         enum quant_type type)
{
    const struct tiles_fold *f = &s->fold;
    if (!f->acc)
        return;
    KERNELS_UNROLL
    for (int tile = 0; tile < s->n_tile; tile++) {
        float(*acc)[LANES] = f->acc + tile * s->n;
        const float *d = f->x->d32[f->block] + f->t[tile], *x_sum = f->x->sum32[f->block] + f->t[tile];
        for (int i = 0; i < s->n; i++) {
            vf sum = vf_load(acc[i]);
            for (int b = 0; b < f->n_block; b++) {
                vf v = vf_mul(f->scale32[b].d, vf_of(vi_load(sums->part[tile][b][i])));
                if (r16_has_min32(type))
                    v = vf_fma(f->scale32[b].min, vf_bcast(&x_sum[b * TILES_TOKENS + i]), v);
                sum = vf_fma(v, vf_bcast(&d[b * TILES_TOKENS + i]), sum);
            }
            vf_store(acc[i], sum, LANES);
        }
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
    int n_block;               /* blocks of 32 */
    struct tiles_block *block; /* of 256: where what its slices share is kept */
};

/* How many blocks of 32 slice i of a panel has; 0 or less: it has no slice i. */
KERNELS_ALWAYS_INLINE int tiles_n_block(const struct tiles_panel *p, int i)
{
    return p->n_block - 2 * i < 2 ? p->n_block - 2 * i : 2;
}

/* The panel of group g at k = at. Behind the last group the first one follows, at the next panel's place of k. Behind
 * the last panel there are empty ones, which lie where the first one does. */
KERNELS_ALWAYS_INLINE struct tiles_panel tiles_panel_at(const struct kernel_matmul *a, enum quant_type type, int len,
                                                        const struct tiles_part *part, int g, int64_t at,
                                                        struct tiles_block *block)
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
    return (struct tiles_panel){.w = w, .row = row, .n_block = (int)(n_k / 32), .block = block};
}

/* Expands half of slice i of a panel, or of blocks of 32 all of it with the second half, if there is one. A
 * block of 256 begins with its slice 0. */
KERNELS_ALWAYS_INLINE void tiles_expand(struct tiles_work *k, const struct tiles_panel *p, enum quant_type type,
                                        int len, int i, int half)
{
    int n_block = tiles_n_block(p, i);
    if (n_block <= 0)
        return;
    if (len == 32) {
        if (half == 1)
            tiles_expand_32(&k->slices[i], k->scale32[i], p->w + 2 * i * r16_block_bytes(type), type, p->row, n_block);
        return;
    }
    if (i == 0 && half == 0)
        tiles_block_load(p->block, p->w, type, p->row);
    tiles_expand_256(&k->slices[i], p->block, p->w, type, i, half);
}

/* Prefetches a quarter of the panel two groups of rows behind p. */
KERNELS_ALWAYS_INLINE void tiles_prefetch(const struct kernel_matmul *a, const struct tiles_panel *p,
                                          enum quant_type type, int len, int quarter)
{
    int n_bytes = TILES_K / len * r16_block_bytes(type) / 4;
    const uint8_t *w = p->w + 2 * (a->k / len) * r16_block_bytes(type) + quarter * n_bytes;
    for (int i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(w + i, 0, 2);
}

/* Expands half of the slice that is multiplied three slices behind slice i, when slice (i + 3) % 4 has met the tokens
 * of all pairs. p: the panel in hand, and the next one */
KERNELS_ALWAYS_INLINE void tiles_expand_ahead(struct tiles_work *k, struct tiles_state *s,
                                              const struct kernel_matmul *a, const struct tiles_panel p[2],
                                              enum quant_type type, int len, int pair, int i, int half)
{
    if (pair != (i == 0 ? 0 : s->n_pair - 1))
        return;
    int next = i != 0;
    tiles_expand(k, &p[next], type, len, (i + TILES_AHEAD) % TILES_SLICES, half);
    if (half == 1)
        tiles_prefetch(a, &p[1], type, len, i);
}

/* Multiplies a block of 256 by a pair of tiles of tokens at q, and folds the products of the pair before. */
KERNELS_ALWAYS_INLINE void tiles_pair_256(struct tiles_work *k, struct tiles_state *s, const struct kernel_matmul *a,
                                          const struct tiles_panel p[2], enum quant_type type, int pair,
                                          const struct tiles_fold *products, const int8_t *const q[2])
{
    const struct tiles_acts *x = products->x;
    KERNELS_UNROLL
    for (int i = 0; i < TILES_SLICES; i++) {
        /* The minima of tile min_of come last, when those that were stored in their place have been folded. */
        int min_of = i - (TILES_SLICES - s->n_tile);
        bool has_min = r16_has_min256(type) && min_of >= 0;
        KERNELS_UNROLL
        for (int j = 0; j < 2; j++) {
            if (j < s->n_tile)
                tiles_products_256(&k->slices[i], q[j] + i * TILES_SLICE, x->stride, type, j,
                                   i == 0 ? &k->sums[0] : NULL);
            if (j == 1 && has_min)
                tiles_products_min(p[0].block, &x->sum[products->t[min_of]]);
            if (i > 0)
                tiles_fold_part(k, s, type, 2 * (i - 1) + j);
            tiles_expand_ahead(k, s, a, p, type, 256, pair, i, j);
        }
        if (has_min)
            tile_store(5, k->sums[0].min[min_of]);
    }
    s->fold = *products;
    s->fold.scale = p[0].block->scale;
}

/* Multiplies blocks of 32 by a pair of tiles of tokens at q, slice by slice, and folds the products of the slice
 * before. */
KERNELS_ALWAYS_INLINE void tiles_pair_32(struct tiles_work *k, struct tiles_state *s, const struct kernel_matmul *a,
                                         const struct tiles_panel p[2], enum quant_type type, int pair,
                                         const struct tiles_fold *products, const int8_t *const q[2])
{
    KERNELS_UNROLL
    for (int i = 0; i < TILES_SLICES; i++) {
        int n_block = tiles_n_block(&p[0], i);
        const int8_t *const q_slice[2] = {q[0] + i * TILES_SLICE, q[1] + i * TILES_SLICE};
        if (n_block > 0)
            tiles_products_32(&k->slices[i], q_slice, products->x->stride, n_block, s->n_tile);
        if (n_block > 0 && s->n_tile == 2)
            tiles_store_32(&k->sums[s->turn], n_block, 2);
        tiles_fold_32(s, &k->sums[!s->turn], type);
        if (n_block > 0 && s->n_tile == 1) /* later, as the unit has fewer products in flight */
            tiles_store_32(&k->sums[s->turn], n_block, 1);
        s->fold.acc = n_block > 0 ? products->acc : NULL;
        if (n_block > 0) {
            s->fold.x = products->x;
            s->fold.t[0] = products->t[0];
            s->fold.t[1] = products->t[1];
            s->fold.scale32 = k->scale32[i];
            s->fold.block = 2 * i;
            s->fold.n_block = n_block;
            s->turn = !s->turn;
        }
        tiles_expand_ahead(k, s, a, p, type, 32, pair, i, 1);
    }
}

/* Folds the last products. */
KERNELS_ALWAYS_INLINE void tiles_fold_last(struct tiles_work *k, const struct tiles_state *s, enum quant_type type,
                                           int len)
{
    if (len == 32) {
        tiles_fold_32(s, &k->sums[!s->turn], type);
        return;
    }
    struct tiles_sums *sums = &k->sums[0];
    tile_store(0, sums->part[0][0]);
    tile_store(1, sums->part[0][1]);
    tile_store(2, sums->part[1][0]);
    tile_store(3, sums->part[1][1]);
    for (int part = 0; part < 6; part++)
        tiles_fold_part(k, s, type, part);
}

/* Multiplies tokens in n_pair pairs of n_tile tiles. All tiles have the same number of tokens: where the tokens don't
 * divide evenly, the last tile begins among those of the one before. */
KERNELS_ALWAYS_INLINE void tiles_walk(const struct kernel_matmul *a, enum quant_type type, int len,
                                      const struct tiles_part *part, int n_pair, int n_tile)
{
    _Alignas(64) float acc[TILES_GROUPS * TILES_TOKENS][LANES]; /* those of a group lie together, tile by tile */
    int n = (part->n_tok + n_pair * n_tile - 1) / (n_pair * n_tile), n_acc = n_pair * n_tile * n,
        last = part->n_tok - n;
    struct tiles_work k;
    struct tiles_state s = {.n_pair = n_pair, .n_tile = n_tile, .n = n};
    struct tiles_panel p[2] = {tiles_panel_at(a, type, len, part, 0, 0, &k.blocks[0])};
    memset(acc, 0, (size_t)(part->n_group * n_acc) * sizeof *acc);
    tiles_begin(n, len == 256 ? 64 : 32);
    tiles_block_begin(&k.blocks[0]);
    tiles_block_begin(&k.blocks[1]);
    for (int i = 0; i < TILES_AHEAD; i++)
        for (int half = 0; half < 2; half++)
            tiles_expand(&k, &p[0], type, len, i, half);
    for (int64_t at = 0; at < a->k; at += TILES_K) {
        struct tiles_acts *x = &k.acts[s.panel];
        tiles_acts_load(x, a->x, type, len, at, 32 * p[0].n_block, part->t0, part->n_tok);
        for (int g = 0; g < part->n_group; g++) {
            p[1] = tiles_panel_at(a, type, len, part, g + 1, at, &k.blocks[p[0].block == &k.blocks[0]]);
            for (int pair = 0; pair < n_pair; pair++) {
                int t = pair * n_tile * n, second = n_tile == 2 && t + n < last ? t + n : last;
                struct tiles_fold products = {.acc = acc + g * n_acc + t, .x = x, .t = {t, second}};
                const int8_t *const q[2] = {x->q + t * x->stride, x->q + second * x->stride};
                if (len == 256)
                    tiles_pair_256(&k, &s, a, p, type, pair, &products, q);
                else
                    tiles_pair_32(&k, &s, a, p, type, pair, &products, q);
            }
            p[0] = p[1];
        }
        s.panel = !s.panel;
    }
    tiles_fold_last(&k, &s, type, len);
    tiles_end();
    for (int g = 0; g < part->n_group; g++)
        for (int tile = 0; tile < n_pair * n_tile; tile++) {
            int64_t row = part->row + g * LANES, t = part->t0 + (tile * n < last ? tile * n : last);
            for (int i = 0; i < n; i++)
                vf_store(a->y + (t + i) * a->ldy + row, vf_load(acc[g * n_acc + tile * n + i]), a->n_row - row);
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
            if (part.n_tok <= TILES_ROWS)
                tiles_walk(a, type, len, &part, 1, 1);
            else if (part.n_tok <= TILES_PAIR)
                tiles_walk(a, type, len, &part, 1, 2);
            else
                tiles_walk(a, type, len, &part, 2, 2);
        }
    }
}
