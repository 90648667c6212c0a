/* Products of formats whose weights take many steps to unpack, in layout R16. For each vector of rows, either a whole
 * block is expanded to bytes (expand_blocks.h), which stay in L1 while they are multiplied by up to CHUNK tokens, or 32
 * weights of each row are expanded in registers, again for each FEW tokens (kernel_how.panels_from).
 *
 * The including file has chosen lanes_*.h, expand_ops_*.h and expand_dot_*.h, and defines TILE, the most tokens of a
 * register tile, and EX_NAME(type), the kernels' names. */
#include "kernels/kernels_internal.h"
#include "kernels/body/expand_blocks.h"
#include "quant/layout.h"

enum {
    CHUNK = 64,             /* the most tokens that an expanded block is multiplied by */
    FEW = TILE > 4 ? 4 : 1, /* the most that 32 weights in registers are: 16 registers have room for one */
};

typedef void ex_expand_fn(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j);

/* A format. All functions that take one are inlined, so that it is a constant in them. */
struct ex_format {
    ex_expand_fn *expand;
    const uint16_t *grid;      /* [n_grid]; NULL: it has none */
    const uint8_t *levels;     /* [16], the weights that levels stand for */
    int n_grid, n_weight;      /* entries of the grid; weights that each of them stands for */
    int len, n_vec;            /* weights and vectors of a block */
    int head, tail;            /* bytes of a row's scale, in front of it, and of a block's, behind it; 0: none */
    vf (*d)(const uint8_t *p); /* reads a block's scale that is neither; NULL: there is none */
    int sub;                   /* weights that share a scale within a block: 16 or 32; 0: there are no such scales */
    float unit; /* factor of the scale behind a block, as weights and sub-blocks' scales become integers */
    bool wide;  /* weights need the whole range of a signed byte */
};

/* Activations of tokens [t0, t0 + n_tok) for block i of a row, of 256 or 32 weights. */
struct ex_tokens {
    const int8_t *q[TILE];    /* quants */
    const int16_t *sum[TILE]; /* sums of quants over 16, or in blocks of 32 over those */
    const float *d[TILE];     /* scales of blocks of activations */
};

KERNELS_ALWAYS_INLINE void ex_tokens_at(struct ex_tokens *x, const struct kernel_act *a, int64_t i, int len, int64_t t0,
                                        int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        x->q[t] = a->q + (t0 + t) * kernel_act_q_stride(a->k) + i * len;
        x->sum[t] = a->sum + (t0 + t) * kernel_act_n_sum(a->kind, a->k) + i * (len == 256 ? 16 : 1);
        x->d[t] = a->d + (t0 + t) * (a->k / len) + i;
    }
}

/* How much larger expanded weights are than the weights they stand for. */
KERNELS_ALWAYS_INLINE int ex_offset(struct ex_format f)
{
    return f.wide ? EX_WIDE_OFFSET : EX_NARROW_OFFSET;
}

/* The weights of LANES rows. */
struct ex_rows {
    const uint8_t *block;         /* the first one, of all rows of the layout's group */
    int64_t n_block, block_bytes; /* blocks of a row; bytes from a block of the group to the next */
    int64_t lane;                 /* the first row's lane in the group */
    vf d;                         /* the rows' scales, where these are in front of rows */
};

/* A block of these rows. */
struct ex_block {
    const uint8_t *p;       /* the rows' lanes in its first vector */
    const struct ex_sub *e; /* its expanded weights; NULL: they are expanded where they are used */
    vf d;                   /* its scale, if weights have none of their own */
};

/* Weights 32j to 32j + 31 of a block, ready to be multiplied. */
KERNELS_ALWAYS_INLINE void ex_expand(struct ex_sub *s, struct ex_format f, const struct ex_grid *grid, const uint8_t *p,
                                     int j)
{
    f.expand(s, grid, p, j);
    if (f.len < 256)
        return;
    vi second = f.sub == 16 ? s->scale[1] : s->scale[0];
    if (ex_offset(f))
        s->words = vi_or(vi_and(s->scale[0], vi_set1(0xffff)), vi_shl(second, 16));
    s->scale[0] = ex_factor(s->scale[0]);
    s->scale[1] = ex_factor(second);
}

/* Adds what 32 weights of a block of 256 give with token t: to s[t] the scaled products, to m[t] the scaled sum of
 * activations, for subtracting the offset later. Moves x to the next 32. */
KERNELS_ALWAYS_INLINE void ex_add_scaled(vi s[], vi m[], const struct ex_sub *e, struct ex_format f,
                                         struct ex_tokens *x, int n_tok, bool arranged)
{
    int n_part = f.sub == 16 ? 2 : 1;
    KERNELS_UNROLL
    for (int part = 0; part < n_part; part++) {
        ex_dot(s, e->w + 4 * part, 8 / n_part, e->scale[part], f.wide, arranged, x->q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            x->q[t] += 32 / n_part;
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        if (ex_offset(f))
            m[t] = ex_dot_words(m[t], e->words, vi_bcast(x->sum[t]));
        x->sum[t] += 2;
    }
}

/* acc[t] += the product of 32 weights of a smaller block with token t. d: the scale of all, or of each 16. The sums
 * over the first 16 of each 32 are `first` elements behind those over 32. */
KERNELS_ALWAYS_INLINE void ex_add_plain(vf acc[], const struct ex_sub *e, const vf *d, struct ex_format f,
                                        struct ex_tokens *x, int64_t first, int n_tok, bool arranged)
{
    int n_part = f.sub == 16 ? 2 : 1;
    vf v[TILE];
    KERNELS_UNROLL
    for (int part = 0; part < n_part; part++) {
        vi s[TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_set1(0);
        ex_dot(s, e->w + 4 * part, 8 / n_part, ex_factor(vi_set1(1)), false, arranged, x->q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            int sum = n_part == 1 ? *x->sum[t] : part == 0 ? x->sum[t][first] : *x->sum[t] - x->sum[t][first];
            vf of_part = vf_of(vi_sub(s[t], vi_set1(EX_NARROW_OFFSET * sum)));
            v[t] = part ? vf_fma(d[1], of_part, v[t]) : vf_mul(d[0], of_part);
            x->q[t] += 32 / n_part;
        }
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        acc[t] = vf_fma(v[t], vf_bcast(x->d[t]), acc[t]);
        x->sum[t]++;
        x->d[t]++;
    }
}

/* acc[t] += the product of block i with token t0 + t, for n_tok tokens, a constant. arranged: ex_arrange has rearranged
 * the weights. */
KERNELS_ALWAYS_INLINE void ex_tile(vf acc[], struct ex_block b, struct ex_format f, const struct ex_grid *grid,
                                   const struct kernel_act *a, int64_t i, int64_t t0, int n_tok, bool arranged)
{
    struct ex_tokens x;
    vi s[TILE], m[TILE];
    ex_tokens_at(&x, a, f.len == 256 ? i : i * (f.len / 32), f.len == 256 ? 256 : 32, t0, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = m[t] = vi_set1(0);
    for (int j = 0; j < f.len / 32; j++) {
        struct ex_sub own;
        const struct ex_sub *e = b.e ? b.e + j : &own;
        if (!b.e)
            ex_expand(&own, f, grid, b.p, j);
        if (f.len == 256)
            ex_add_scaled(s, m, e, f, &x, n_tok, arranged);
        else
            ex_add_plain(acc, e, f.sub ? e->d : &b.d, f, &x, a->k / 32 * 3, n_tok, arranged);
    }
    if (f.len != 256)
        return;
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        vi sum = ex_offset(f) ? vi_sub(s[t], vi_mul(m[t], vi_set1(ex_offset(f)))) : s[t];
        acc[t] = vf_fma(vf_mul(b.d, vf_of(sum)), vf_bcast(x.d[t]), acc[t]);
    }
}

KERNELS_ALWAYS_INLINE void ex_tiles(vf acc[], struct ex_block b, struct ex_format f, const struct kernel_act *a,
                                    int64_t i, int64_t t0, int64_t n_tok, bool arranged)
{
    int64_t t = 0;
    for (; t + TILE <= n_tok; t += TILE)
        ex_tile(acc + t, b, f, NULL, a, i, t0 + t, TILE, arranged);
    if (TILE > 4 && n_tok - t >= 4) {
        ex_tile(acc + t, b, f, NULL, a, i, t0 + t, 4, arranged);
        t += 4;
    }
    if (n_tok - t >= 2) {
        ex_tile(acc + t, b, f, NULL, a, i, t0 + t, 2, arranged);
        t += 2;
    }
    if (n_tok - t == 1)
        ex_tile(acc + t, b, f, NULL, a, i, t0 + t, 1, arranged);
}

KERNELS_ALWAYS_INLINE struct ex_rows ex_rows_at(const struct kernel_matmul *a, struct ex_format f, int64_t row)
{
    struct ex_rows r = {.n_block = a->k / f.len, .lane = row % LAYOUT_R16_ROWS, .d = vf_zero()};
    r.block_bytes = f.n_vec * 64 + f.tail * LAYOUT_R16_ROWS;
    const uint8_t *group =
        (const uint8_t *)a->w + row / LAYOUT_R16_ROWS * (f.head * LAYOUT_R16_ROWS + r.n_block * r.block_bytes);
    r.block = group + f.head * LAYOUT_R16_ROWS;
    if (f.head)
        r.d = vf_load(group + r.lane * f.head);
    return r;
}

/* Block i, not expanded; prefetches what follows. */
KERNELS_ALWAYS_INLINE struct ex_block ex_block_at(const struct kernel_matmul *a, struct ex_format f,
                                                  const struct ex_rows *r, int64_t i)
{
    const uint8_t *block = r->block + i * r->block_bytes;
    struct ex_block b = {.p = block + r->lane * 4, .d = r->d};
    for (int v = 0; v < f.n_vec && a->how.prefetch.ahead_bytes; v++)
        kernels_prefetch(block + 64 * v, a->how.prefetch);
    if (f.tail)
        b.d = vf_mul(vf_load_half(block + f.n_vec * 64 + r->lane * f.tail), vf_set1(f.unit));
    else if (f.d)
        b.d = f.d(b.p);
    return b;
}

/* Multiplies the LANES rows from `row` on by tokens [t0, t0 + n_tok). */
KERNELS_ALWAYS_INLINE void ex_multiply(const struct kernel_matmul *a, struct ex_format f, const struct ex_grid *grid,
                                       int64_t row, int64_t t0, int64_t n_tok)
{
    const struct ex_rows r = ex_rows_at(a, f, row);
    bool arrange = n_tok > TILE && EX_ARRANGES != 0;
    struct ex_sub e[8];
    vf acc[CHUNK];
    for (int64_t t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t i = 0; i < r.n_block; i++) {
        struct ex_block b = ex_block_at(a, f, &r, i);
        b.e = e;
        for (int j = 0; j < f.len / 32; j++) {
            ex_expand(e + j, f, grid, b.p, j);
            for (int v = 0; arrange && v < 8; v += 2)
                ex_arrange(e[j].w + v);
        }
        if (arrange)
            ex_tiles(acc, b, f, a->x, i, t0, n_tok, true);
        else
            ex_tiles(acc, b, f, a->x, i, t0, n_tok, false);
    }
    for (int64_t t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* The same for a constant number of tokens, at most FEW, with expanded weights in registers. */
KERNELS_ALWAYS_INLINE void ex_multiply_few(const struct kernel_matmul *a, struct ex_format f,
                                           const struct ex_grid *grid, int64_t row, int64_t t0, int n_tok)
{
    const struct ex_rows r = ex_rows_at(a, f, row);
    vf acc[FEW];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t i = 0; i < r.n_block; i++)
        ex_tile(acc, ex_block_at(a, f, &r, i), f, grid, a->x, i, t0, n_tok, false);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* The same for any number of tokens, FEW at a time. */
KERNELS_ALWAYS_INLINE void ex_multiply_by_few(const struct kernel_matmul *a, struct ex_format f,
                                              const struct ex_grid *grid, int64_t row)
{
    for (int64_t t = 0; t < a->m; t += FEW)
        switch (FEW == 1 ? 1 : a->m - t) {
        case 1: ex_multiply_few(a, f, grid, row, t, 1); break;
        case 2: ex_multiply_few(a, f, grid, row, t, 2); break;
        case 3: ex_multiply_few(a, f, grid, row, t, 3); break;
        default: ex_multiply_few(a, f, grid, row, t, FEW);
        }
}

KERNELS_ALWAYS_INLINE void ex_matmul(const struct kernel_matmul *a, struct ex_format f)
{
    bool by_few = a->m <= FEW || !a->how.panels_from || a->m < a->how.panels_from;
    struct ex_grid grid;
    if (f.grid)
        ex_grid_open(&grid, f.grid, f.n_grid, f.levels, f.n_weight);
    for (int64_t t = 0; t < a->m; t += by_few ? a->m : CHUNK)
        for (int64_t row = a->row0; row < a->row1; row += LANES)
            if (by_few)
                ex_multiply_by_few(a, f, &grid, row);
            else
                ex_multiply(a, f, &grid, row, t, a->m - t < CHUNK ? a->m - t : CHUNK);
}

#define EX_KERNEL(type, ...)                                                                                           \
    void EX_NAME(type)(const struct kernel_matmul *a)                                                                  \
    {                                                                                                                  \
        ex_matmul(a, (struct ex_format){.expand = ex_##type, __VA_ARGS__});                                            \
    }
#define EX_GRID(name, n, of, weights)                                                                                  \
    .grid = quant_grid_##name, .n_grid = n, .levels = ex_levels_##of, .n_weight = weights
EX_KERNEL(iq1_s, EX_GRID(iq1, 2048, iq1, 8), .len = 256, .n_vec = 12, .tail = 2, .sub = 32, .unit = 0.125f)
EX_KERNEL(iq1_m, EX_GRID(iq1, 2048, iq1, 8), .len = 256, .n_vec = 14, .d = ex_iq1m_d, .sub = 16)
EX_KERNEL(iq2_xxs, EX_GRID(iq2_xxs, 256, iq2, 8), .len = 256, .n_vec = 16, .tail = 2, .sub = 32, .unit = 0.125f)
EX_KERNEL(iq2_xs, EX_GRID(iq2_xs, 512, iq2, 8), .len = 256, .n_vec = 18, .tail = 2, .sub = 16, .unit = 0.125f)
EX_KERNEL(iq2_s, EX_GRID(iq2_s, 1024, iq2, 8), .len = 256, .n_vec = 20, .tail = 2, .sub = 16, .unit = 0.125f)
EX_KERNEL(iq3_xxs, EX_GRID(iq3_xxs, 256, iq3_xxs, 4), .len = 256, .n_vec = 24, .tail = 2, .sub = 32, .unit = 0.25f)
EX_KERNEL(iq3_s, EX_GRID(iq3_s, 512, iq3_s, 4), .len = 256, .n_vec = 27, .tail = 2, .sub = 32, .unit = 1)
EX_KERNEL(tq1_0, .len = 256, .n_vec = 13, .tail = 2, .unit = 1)
EX_KERNEL(tq2_0, .len = 256, .n_vec = 16, .tail = 2, .unit = 1)
EX_KERNEL(q1_0, .len = 128, .n_vec = 4, .tail = 2, .unit = 1)
EX_KERNEL(q2_0, .len = 64, .n_vec = 4, .tail = 2, .unit = 1)
EX_KERNEL(nvfp4, .len = 64, .n_vec = 9, .sub = 16)
EX_KERNEL(iq2_kt, .head = 4, .len = 256, .n_vec = 17, .sub = 32, .wide = true)
EX_KERNEL(iq3_kt, .head = 4, .len = 256, .n_vec = 25, .sub = 32, .wide = true)
EX_KERNEL(iq4_kt, .head = 4, .len = 256, .n_vec = 32, .sub = 32, .wide = true)
