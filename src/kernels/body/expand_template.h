/* Products of formats whose weights take many steps to unpack. A block of the rows of a vector is expanded to bytes
 * (expand_blocks.h), which stay in L1 while up to CHUNK tokens meet them. Layout R16.
 *
 * The including file has chosen lanes_*.h, expand_ops_*.h and expand_dot_*.h, and defines TILE, the most tokens of a
 * register tile, and EX_NAME(type), the kernels' names. */
#include "kernels/kernels_internal.h"
#include "kernels/body/expand_blocks.h"
#include "quant/layout.h"

enum { CHUNK = 64 };

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
    bool halves = f.sub == 16;
    vi one = ex_factor(vi_set1(1)), ones[4], first[TILE], second[TILE], sum[TILE];
    struct ex_tokens x;
    ex_tokens_at(&x, a, i, 32, t0, n_tok);
    KERNELS_UNROLL
    for (int j = 0; j < 4; j++)
        ones[j] = EX_BYTES(1);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        first[t] = second[t] = sum[t] = vi_set1(0);
    ex_dot(first, w, halves ? 4 : 8, one, false, arranged, x.q, n_tok);
    if (halves) {
        if (EX_NARROW_OFFSET)
            ex_dot(sum, ones, 4, one, false, arranged, x.q, n_tok);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            x.q[t] += 16;
        ex_dot(second, w + 4, 4, one, false, arranged, x.q, n_tok);
    }
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++) {
        vi all = vi_set1(*x.sum[t]), of_first = halves ? sum[t] : all, offset = vi_set1(EX_NARROW_OFFSET);
        vf v = vf_mul(d[0], vf_of(vi_sub(first[t], vi_mul(offset, of_first))));
        if (halves)
            v = vf_fma(d[1], vf_of(vi_sub(second[t], vi_mul(offset, vi_sub(all, of_first)))), v);
        acc[t] = vf_fma(v, vf_bcast(x.d[t]), acc[t]);
    }
}

/* Multiplies a block by n_tok tokens, a constant number. arranged: ex_arrange has rearranged its weights. */
KERNELS_ALWAYS_INLINE void ex_tile(vf acc[], const struct ex_block *e, struct ex_format f, const struct kernel_act *a,
                                   int64_t block, int64_t t0, int n_tok, bool arranged)
{
    if (f.len == 256)
        ex_tile_256(acc, e, f, a, block, t0, n_tok, arranged);
    else
        for (int part = 0; part < f.len / 32; part++)
            ex_tile_32(acc, e->w + 8 * part, f.sub ? e->d + 2 * part : e->d, f, a, block * (f.len / 32) + part, t0,
                       n_tok, arranged);
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

/* Multiplies the LANES rows from `row` on by tokens [t0, t0 + n_tok). */
KERNELS_ALWAYS_INLINE void ex_rows(const struct kernel_matmul *a, struct ex_format f, int head, int64_t row, int64_t t0,
                                   int64_t n_tok)
{
    int64_t n_block = a->k / f.len, block_bytes = f.n_vec * 64 + f.tail * LAYOUT_R16_ROWS, lane = row % LAYOUT_R16_ROWS;
    int64_t group_bytes = head * LAYOUT_R16_ROWS + n_block * block_bytes;
    const uint8_t *group = (const uint8_t *)a->w + row / LAYOUT_R16_ROWS * group_bytes;
    const uint8_t *block = group + head * LAYOUT_R16_ROWS;
    bool arrange = n_tok > TILE && EX_ARRANGES != 0;
    struct ex_block e;
    vf acc[CHUNK], row_d = head ? vf_load(group + lane * head) : vf_zero();
    for (int64_t t = 0; t < n_tok; t++)
        acc[t] = vf_zero();
    for (int64_t b = 0; b < n_block; b++, block += block_bytes) {
        for (int i = 0; i < f.n_vec && a->how.prefetch.ahead_bytes; i++)
            kernels_prefetch(block + 64 * i, a->how.prefetch);
        f.expand(&e, block + lane * 4);
        if (head)
            e.d[0] = row_d;
        else if (f.tail)
            e.d[0] = vf_mul(vf_load_half(block + f.n_vec * 64 + lane * f.tail), vf_set1(f.unit));
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

KERNELS_ALWAYS_INLINE void ex_matmul(const struct kernel_matmul *a, struct ex_format f, int head)
{
    for (int64_t t = 0; t < a->m; t += CHUNK)
        for (int64_t row = a->row0; row < a->row1; row += LANES)
            ex_rows(a, f, head, row, t, a->m - t < CHUNK ? a->m - t : CHUNK);
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
