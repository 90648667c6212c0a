/* Products of formats whose weights take many steps to unpack. A block of the rows of a vector is expanded to bytes
 * (expand_blocks.h), which stay in L1 while up to CHUNK tokens meet them, or in registers where blocks are small and
 * tokens few. Layout R16.
 *
 * The including file has chosen lanes_*.h, expand_ops_*.h and expand_dot_*.h, and defines TILE, the most tokens of a
 * register tile, and EX_NAME(type), the kernels' names. */
#include "kernels/kernels_internal.h"
#include "kernels/body/expand_blocks.h"
#include "quant/layout.h"

enum {
    CHUNK = 64,                /* most tokens that meet an expanded block */
    FEW = 4,                   /* tokens that meet a small block in registers */
    SMALL = 64,                /* weights of such a block */
    EX_SMALL_BY_FEW = TILE > 4 /* there are registers enough to expand such a block anew for each FEW tokens */
};

typedef void ex_expand_fn(struct ex_block *e, const uint8_t *p);

/* A format. Everything that takes one is inlined, so that it is a constant. */
struct ex_format {
    ex_expand_fn *expand;
    int len, n_vec; /* weights and vectors of a block */
    int tail;       /* bytes of each row behind them: 0, or 2 of a half, the block's d */
    int sub;        /* weights of a sub-block; 0: one scale for the block */
    float unit;     /* what d is multiplied with */
    bool wide;      /* weights use the whole range of a byte */
};

/* Activations of tokens [t0, t0 + n_tok) for block i of a row, of 256 or 32 weights. */
struct ex_tokens {
    const int8_t *q[TILE];
    const int16_t *sum[TILE];
    const float *d[TILE];
};

KERNELS_ALWAYS_INLINE void ex_tokens_at(struct ex_tokens *x, const struct kernel_act *a, int64_t i, int len, int64_t t0,
                                        int n_tok)
{
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        x->q[t] = a->q + (t0 + t) * a->k + i * len;
        x->sum[t] = a->sum + (t0 + t) * kernel_act_n_sum(a->kind, a->k) + i * (len == 256 ? 16 : 1);
        x->d[t] = a->d + (t0 + t) * (a->k / len) + i;
    }
}

/* acc[t] += the product of block i, of 256 weights, with token t0 + t. */
KERNELS_ALWAYS_INLINE void ex_tile_256(vf acc[], const struct ex_block *e, struct ex_format f,
                                       const struct kernel_act *a, int64_t i, int64_t t0, int n_tok, bool arranged)
{
    int sub = f.sub ? f.sub : 32, offset = f.wide ? EX_WIDE_OFFSET : EX_NARROW_OFFSET;
    struct ex_tokens x;
    vi s[TILE], m[TILE];
    ex_tokens_at(&x, a, i, 256, t0, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        s[t] = m[t] = vi_set1(0);
    for (int j = 0; j < 256 / sub; j++) {
        ex_dot(s, e->w + j * (sub / 4), sub / 4, e->factor[j], f.wide, arranged, x.q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            x.q[t] += sub;
    }
    for (int j = 0; offset && j < 8; j++) {
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            m[t] = ex_dot_words(m[t], e->words[j], vi_bcast(x.sum[t] + 2 * j));
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        vi sum = offset ? vi_sub(s[t], vi_mul(m[t], vi_set1(offset))) : s[t];
        acc[t] = vf_fma(vf_mul(e->d[0], vf_of(sum)), vf_bcast(x.d[t]), acc[t]);
    }
}

/* acc[t] += the product of the 32 weights w with activations 32i to 32i + 31 of token t0 + t. d: the scale of all, or
 * of each 16 (halves). */
KERNELS_ALWAYS_INLINE void ex_tile_32(vf acc[], const vi *w, const vf *d, struct ex_format f,
                                      const struct kernel_act *a, int64_t i, int64_t t0, int n_tok, bool arranged)
{
    int n_part = f.sub == 16 ? 2 : 1, first = (int)(a->k / 32 * 3);
    struct ex_tokens x;
    vf v[TILE];
    ex_tokens_at(&x, a, i, 32, t0, n_tok);
    KERNELS_UNROLL
    for (int part = 0; part < n_part; part++) {
        vi s[TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            s[t] = vi_set1(0);
        ex_dot(s, w + 4 * part, 8 / n_part, ex_factor(vi_set1(1)), false, arranged, x.q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++) {
            int sum = n_part == 1 ? *x.sum[t] : part == 0 ? x.sum[t][first] : *x.sum[t] - x.sum[t][first];
            vf of_part = vf_of(vi_sub(s[t], vi_set1(EX_NARROW_OFFSET * sum)));
            v[t] = part ? vf_fma(d[1], of_part, v[t]) : vf_mul(d[0], of_part);
            x.q[t] += 16;
        }
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_fma(v[t], vf_bcast(x.d[t]), acc[t]);
}

/* 32 weights of a block of fewer than 256. */
KERNELS_ALWAYS_INLINE void ex_tile_part(vf acc[], const struct ex_block *e, struct ex_format f,
                                        const struct kernel_act *a, int64_t block, int part, int64_t t0, int n_tok,
                                        bool arranged)
{
    ex_tile_32(acc, e->w + 8 * part, f.sub ? e->d + 2 * part : e->d, f, a, block * (f.len / 32) + part, t0, n_tok,
               arranged);
}

/* Multiplies a block by n_tok tokens, a constant number. arranged: ex_arrange has rearranged its weights. */
KERNELS_ALWAYS_INLINE void ex_tile(vf acc[], const struct ex_block *e, struct ex_format f, const struct kernel_act *a,
                                   int64_t block, int64_t t0, int n_tok, bool arranged)
{
    if (f.len == 256)
        ex_tile_256(acc, e, f, a, block, t0, n_tok, arranged);
    else
        for (int part = 0; part < f.len / 32; part++)
            ex_tile_part(acc, e, f, a, block, part, t0, n_tok, arranged);
}

KERNELS_ALWAYS_INLINE void ex_tiles(vf acc[], const struct ex_block *e, struct ex_format f, const struct kernel_act *a,
                                    int64_t block, int64_t t0, int64_t n_tok, bool arranged)
{
    int64_t t = 0;
    for (; t + TILE <= n_tok; t += TILE)
        ex_tile(acc + t, e, f, a, block, t0 + t, TILE, arranged);
    if (TILE > 4 && n_tok - t >= 4) {
        ex_tile(acc + t, e, f, a, block, t0 + t, 4, arranged);
        t += 4;
    }
    if (n_tok - t >= 2) {
        ex_tile(acc + t, e, f, a, block, t0 + t, 2, arranged);
        t += 2;
    }
    if (n_tok - t == 1)
        ex_tile(acc + t, e, f, a, block, t0 + t, 1, arranged);
}

/* Where the LANES rows from some row on lie. */
struct ex_rows {
    const uint8_t *block;         /* the first, of all rows of the layout's group */
    int64_t n_block, block_bytes; /* of a row, and from one to the next */
    int64_t lane;                 /* the first row's in the group */
    vf d;                         /* of the whole rows, where they have a head */
};

KERNELS_ALWAYS_INLINE struct ex_rows ex_rows_at(const struct kernel_matmul *a, struct ex_format f, int head,
                                                int64_t row)
{
    struct ex_rows r = {.n_block = a->k / f.len, .lane = row % LAYOUT_R16_ROWS, .d = vf_zero()};
    r.block_bytes = f.n_vec * 64 + f.tail * LAYOUT_R16_ROWS;
    const uint8_t *group =
        (const uint8_t *)a->w + row / LAYOUT_R16_ROWS * (head * LAYOUT_R16_ROWS + r.n_block * r.block_bytes);
    r.block = group + head * LAYOUT_R16_ROWS;
    if (head)
        r.d = vf_load(group + r.lane * head);
    return r;
}

KERNELS_ALWAYS_INLINE void ex_expand(struct ex_block *e, const struct kernel_matmul *a, struct ex_format f, int head,
                                     const struct ex_rows *r, const uint8_t *block)
{
    for (int i = 0; i < f.n_vec && a->how.prefetch.ahead_bytes; i++)
        kernels_prefetch(block + 64 * i, a->how.prefetch);
    f.expand(e, block + r->lane * 4);
    if (head)
        e->d[0] = r->d;
    else if (f.tail)
        e->d[0] = vf_mul(vf_load_half(block + f.n_vec * 64 + r->lane * f.tail), vf_set1(f.unit));
}

/* Multiplies the LANES rows from `row` on by tokens [t0, t0 + n_tok). */
KERNELS_ALWAYS_INLINE void ex_multiply(const struct kernel_matmul *a, struct ex_format f, int head, int64_t row,
                                       int64_t t0, int64_t n_tok)
{
    const struct ex_rows r = ex_rows_at(a, f, head, row);
    bool arrange = n_tok > TILE && EX_ARRANGES != 0;
    struct ex_block e;
    vf acc[CHUNK];
    for (int64_t t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < r.n_block; b++) {
        ex_expand(&e, a, f, head, &r, r.block + b * r.block_bytes);
        for (int i = 0; arrange && i < f.len / 4; i += 2)
            ex_arrange(e.w + i);
        if (arrange)
            ex_tiles(acc, &e, f, a->x, b, t0, n_tok, true);
        else
            ex_tiles(acc, &e, f, a->x, b, t0, n_tok, false);
    }
    for (int64_t t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* The same for so few tokens, a constant number, that a small block stays in registers. */
KERNELS_ALWAYS_INLINE void ex_multiply_few(const struct kernel_matmul *a, struct ex_format f, int head, int64_t row,
                                           int64_t t0, int n_tok)
{
    const struct ex_rows r = ex_rows_at(a, f, head, row);
    vf acc[FEW];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < r.n_block; b++) {
        struct ex_block e;
        ex_expand(&e, a, f, head, &r, r.block + b * r.block_bytes);
        KERNELS_UNROLL
        for (int part = 0; part < f.len / 32; part++)
            ex_tile_part(acc, &e, f, a->x, b, part, t0, n_tok, false);
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        vf_store(a->y + (t0 + t) * a->ldy + row, acc[t], a->n_row - row);
}

/* The same for any number of tokens, FEW at a time. */
KERNELS_ALWAYS_INLINE void ex_multiply_by_few(const struct kernel_matmul *a, struct ex_format f, int head, int64_t row)
{
    for (int64_t t = 0; t < a->m; t += FEW)
        switch (a->m - t) {
        case 1: ex_multiply_few(a, f, head, row, t, 1); break;
        case 2: ex_multiply_few(a, f, head, row, t, 2); break;
        case 3: ex_multiply_few(a, f, head, row, t, 3); break;
        default: ex_multiply_few(a, f, head, row, t, FEW);
        }
}

KERNELS_ALWAYS_INLINE void ex_matmul(const struct kernel_matmul *a, struct ex_format f, int head)
{
    bool by_few = f.len <= SMALL && (a->m <= FEW || EX_SMALL_BY_FEW);
    for (int64_t t = 0; t < a->m; t += by_few ? a->m : CHUNK)
        for (int64_t row = a->row0; row < a->row1; row += LANES)
            if (by_few)
                ex_multiply_by_few(a, f, head, row);
            else
                ex_multiply(a, f, head, row, t, a->m - t < CHUNK ? a->m - t : CHUNK);
}

#define EX_KERNEL(type, head, ...)                                                                                     \
    void EX_NAME(type)(const struct kernel_matmul *a)                                                                  \
    {                                                                                                                  \
        ex_matmul(a, (struct ex_format){.expand = ex_##type, __VA_ARGS__}, head);                                      \
    }
EX_KERNEL(iq1_s, 0, .len = 256, .n_vec = 12, .tail = 2, .sub = 32, .unit = 0.125f)
EX_KERNEL(iq1_m, 0, .len = 256, .n_vec = 14, .sub = 16)
EX_KERNEL(iq2_xxs, 0, .len = 256, .n_vec = 16, .tail = 2, .sub = 32, .unit = 0.125f)
EX_KERNEL(iq2_xs, 0, .len = 256, .n_vec = 18, .tail = 2, .sub = 16, .unit = 0.125f)
EX_KERNEL(iq2_s, 0, .len = 256, .n_vec = 20, .tail = 2, .sub = 16, .unit = 0.125f)
EX_KERNEL(iq3_xxs, 0, .len = 256, .n_vec = 24, .tail = 2, .sub = 32, .unit = 0.25f)
EX_KERNEL(iq3_s, 0, .len = 256, .n_vec = 27, .tail = 2, .sub = 32, .unit = 1)
EX_KERNEL(tq1_0, 0, .len = 256, .n_vec = 13, .tail = 2, .unit = 1)
EX_KERNEL(tq2_0, 0, .len = 256, .n_vec = 16, .tail = 2, .unit = 1)
EX_KERNEL(q1_0, 0, .len = 128, .n_vec = 4, .tail = 2, .unit = 1)
EX_KERNEL(q2_0, 0, .len = 64, .n_vec = 4, .tail = 2, .unit = 1)
EX_KERNEL(nvfp4, 0, .len = 64, .n_vec = 9, .sub = 16)
EX_KERNEL(iq2_kt, 4, .len = 256, .n_vec = 17, .sub = 32, .wide = true)
EX_KERNEL(iq3_kt, 4, .len = 256, .n_vec = 25, .sub = 32, .wide = true)
EX_KERNEL(iq4_kt, 4, .len = 256, .n_vec = 32, .sub = 32, .wide = true)
