/* Products and layouts of every weight type. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "check.h"

enum { MAX_ROWS = 48, N_TOKENS = 33, MANY_TOKENS = 128, N_KIND = 6 };

static const int rows_list[] = {1, 5, 15, 16, 17, 33, 48};
static const int tokens_list[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 31, 33};
static const int k_super[] = {1, 2, 3, 9}, k_small[] = {1, 3, 8, 11, 90}, k_float[] = {1, 7, 16, 17, 63, 640};

#define N_OF(list) ((int)(sizeof(list) / sizeof *(list)))

/* ---- random blocks ------------------------------------------------------------------------------------------- */

/* The half-precision fields of a block. */
static void block_fields(const struct quant_info *q, int off[2])
{
    off[0] = 0;
    off[1] = -1;
    switch (q->type) {
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K: off[1] = 2; break;
    case QUANT_Q2_K:
        off[0] = 80;
        off[1] = 82;
        break;
    case QUANT_Q3_K: off[0] = 108; break;
    case QUANT_Q6_K: off[0] = 208; break;
    case QUANT_TQ1_0: off[0] = 52; break;
    case QUANT_TQ2_0: off[0] = 64; break;
    case QUANT_IQ1_M:
    case QUANT_MXFP4:
    case QUANT_NVFP4:
    case QUANT_IQ2_KT:
    case QUANT_IQ3_KT:
    case QUANT_IQ4_KT: off[0] = -1; break;
    default: break;
    }
}

int block_min_off(const struct quant_info *q)
{
    int off[2];
    block_fields(q, off);
    return off[1];
}

static void random_weight_float(struct random *r, const struct quant_info *q, uint8_t *dst, int kind)
{
    float f;
    random_floats(r, &f, 1, kind == 1 ? 1 : kind == 3 ? 3 : kind == 4 ? 4 : 0);
    uint16_t h = q->type == QUANT_F16 ? quant_float_to_half(f) : quant_float_to_bf16(f);
    if (q->type == QUANT_F16 && (h & 0x7fff) == 0x7c00) /* the largest, rather than infinity */
        h--;
    if (q->type == QUANT_F32)
        memcpy(dst, &f, sizeof f);
    else
        memcpy(dst, &h, sizeof h);
}

static uint16_t random_scale(struct random *r, int kind)
{
    static const uint16_t extreme[] = {0x0000, 0x0001, 0x8001, 0x7bff, 0xfbff, 0x03ff, 0x0400, 0xbc00};
    if (kind == 0)
        return quant_float_to_half(0.01f * random_normal(r));
    return extreme[random_u32(r) % 8];
}

static void random_fields(struct random *r, const struct quant_info *q, uint8_t *block, int kind)
{
    int off[2];
    block_fields(q, off);
    if (q->type == QUANT_MXFP4) /* at most 2^72: sums stay finite */
        block[0] = (uint8_t)(kind == 0 ? 120 + random_u32(r) % 8 : random_u32(r) % 200);
    for (int i = 0; i < 2; i++)
        if (off[i] >= 0) {
            uint16_t h = random_scale(r, kind);
            memcpy(block + off[i], &h, sizeof h);
        }
    if (q->type == QUANT_IQ1_M) { /* four bits of d in each of four words */
        uint16_t h = random_scale(r, kind);
        for (int i = 0; i < 4; i++)
            block[48 + 2 * i + 1] = (uint8_t)((block[48 + 2 * i + 1] & 15) | (h >> 4 * i & 15) << 4);
    }
}

void random_row(struct random *r, const struct quant_info *q, uint8_t *dst, int64_t n_block, int kind)
{
    if (q->head_bytes) {
        float d = kind == 0 ? 0.01f * random_normal(r) : ldexpf(random_normal(r), (int)(random_u32(r) % 160) - 130);
        memcpy(dst, &d, sizeof d);
        dst += q->head_bytes;
    }
    for (int64_t b = 0; b < n_block; b++, dst += q->block_bytes) {
        if (q->block_len == 1) {
            random_weight_float(r, q, dst, kind);
            continue;
        }
        for (int i = 0; i < q->block_bytes; i++)
            dst[i] = kind == 1   ? 0xff
                     : kind == 2 ? 0x00
                     : kind == 3 ? (random_u32(r) % 2 ? 0x80 : 0x7f)
                                 : (uint8_t)random_u32(r);
        random_fields(r, q, dst, kind);
    }
}

/* ---- cases --------------------------------------------------------------------------------------------------- */

/* One type and k: a matrix, activations, and what the scalar table makes of them. */
struct product {
    const struct quant_info *q;
    int64_t k, n_tok;
    int kind;
    size_t row_bytes;
    uint8_t *w;   /* [MAX_ROWS] rows */
    float *x, *y; /* [n_tok][k], [n_tok][MAX_ROWS] */
    int8_t *xq;   /* rounded activations, as kernel_act has them */
    float *xd;
    int16_t *xsum;
};

static void *must_alloc(size_t n)
{
    void *p = mem_alloc(n);
    if (!p)
        abort();
    return p;
}

static void product_open(struct product *p, struct check *c, const struct quant_info *q, int64_t k, int64_t n_tok,
                         int kind)
{
    *p = (struct product){.q = q, .k = k, .n_tok = n_tok, .kind = kind};
    if (!quant_row_bytes(q, (uint64_t)k, &p->row_bytes))
        abort();
    p->w = must_alloc(MAX_ROWS * p->row_bytes);
    p->x = must_alloc((size_t)(p->n_tok * k) * sizeof *p->x);
    p->y = must_alloc(p->n_tok * MAX_ROWS * sizeof *p->y);
    int64_t q_stride = kernel_act_q_stride(k);
    p->xq = must_alloc((size_t)(p->n_tok * q_stride));
    p->xd = must_alloc((size_t)(p->n_tok * (k / 32 + 1)) * sizeof *p->xd);
    p->xsum = must_alloc((size_t)(p->n_tok * (k / 16 * 3 + 3)) * sizeof *p->xsum);
    for (int r = 0; r < MAX_ROWS; r++)
        random_row(&c->rng, q, p->w + (size_t)r * p->row_bytes, k / q->block_len, r % 4 ? 0 : kind);
    int64_t n_scale = kernel_act_n_scale(q->act, k), n_sum = kernel_act_n_sum(q->act, k);
    for (int t = 0; t < p->n_tok; t++) {
        random_floats(&c->rng, p->x + t * k, k, t % 3 ? t : kind);
        if (q->act == QUANT_ACT_INT8_32)
            c->tables[0]->quantize_int8_32(p->x + t * k, k, p->xq + t * q_stride, p->xd + t * n_scale,
                                           p->xsum + t * n_sum);
        if (q->act == QUANT_ACT_INT8_256)
            c->tables[0]->quantize_int8_256(p->x + t * k, k, p->xq + t * q_stride, p->xd + t * n_scale,
                                            p->xsum + t * n_sum);
    }
    struct kernel_act act = {.kind = q->act, .k = k, .f32 = p->x, .q = p->xq, .d = p->xd, .sum = p->xsum};
    struct kernel_matmul mm = {
        .w = p->w, .k = k, .n_row = MAX_ROWS, .row1 = MAX_ROWS, .x = &act, .m = p->n_tok, .y = p->y, .ldy = MAX_ROWS};
    c->tables[0]->matmul[q->type](&mm);
}

static void product_close(struct product *p)
{
    mem_free(p->w);
    mem_free(p->x);
    mem_free(p->y);
    mem_free(p->xq);
    mem_free(p->xd);
    mem_free(p->xsum);
}

/* The activations that the product really multiplies with, [n_tok][k]. */
static void rounded_x(const struct product *p, double *x)
{
    int64_t len = p->q->act == QUANT_ACT_INT8_32 ? 32 : 256, n = p->n_tok * p->k;
    for (int64_t i = 0; i < n; i++) {
        const int8_t *q = p->xq + i / p->k * kernel_act_q_stride(p->k) + i % p->k;
        x[i] = p->q->act == QUANT_ACT_FLOAT ? (double)p->x[i] : (double)*q * (double)p->xd[i / len];
    }
}

/* Row r in double, and for each weight the sum of its parts' magnitudes: scale and minimum count apart
 * because they may cancel. */
static void decode_row(const struct product *p, int r, double *w, double *mag)
{
    int64_t k = p->k;
    float *value = must_alloc((size_t)k * sizeof *value), *part = must_alloc((size_t)k * sizeof *part);
    uint8_t *blocks = must_alloc(p->row_bytes);
    int min_off = block_min_off(p->q);
    memcpy(blocks, p->w + (size_t)r * p->row_bytes, p->row_bytes);
    p->q->decode(blocks, value, k);
    for (size_t b = 0; min_off >= 0 && b < p->row_bytes; b += (size_t)p->q->block_bytes)
        memset(blocks + b + min_off, 0, 2);
    p->q->decode(blocks, part, k);
    for (int64_t i = 0; i < k; i++) {
        w[i] = (double)value[i];
        mag[i] = fabs((double)part[i]) + fabs((double)part[i] - w[i]);
    }
    mem_free(value);
    mem_free(part);
    mem_free(blocks);
}

/* The scalar table against sums in double. The bound: each rounding errs by at most 2^-24 of the sum of
 * magnitudes; there is one for each step of the longest chain and a few for each block. Below the normal
 * range a rounding errs by 2^-150 at most. */
static void check_scalar(struct check *c, const struct product *p)
{
    int64_t k = p->k;
    int64_t chain = p->q->act == QUANT_ACT_FLOAT     ? k / 16 + 8
                    : p->q->act == QUANT_ACT_INT8_32 ? k / 32 + 16
                                                     : k / 256 + 16;
    double *w = must_alloc((size_t)k * sizeof *w), *mag = must_alloc((size_t)k * sizeof *mag);
    double *x = must_alloc((size_t)(p->n_tok * k) * sizeof *x);
    rounded_x(p, x);
    for (int r = 0; r < MAX_ROWS; r++) {
        decode_row(p, r, w, mag);
        for (int t = 0; t < p->n_tok; t++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < k; i++) {
                sum += w[i] * x[t * k + i];
                size += mag[i] * fabs(x[t * k + i]);
            }
            float got = p->y[t * MAX_ROWS + r];
            double bound = (double)chain * (size * 0x1p-24 + 0x1p-140);
            expect(c, fabs((double)got - sum) <= bound,
                   "%s scalar k=%ld kind=%d row %d token %d: %g, expected %g +- %g", p->q->name, (long)k, p->kind, r, t,
                   (double)got, sum, bound);
        }
    }
    mem_free(w);
    mem_free(mag);
    mem_free(x);
}

static struct guard guard_copy(const void *p, size_t n)
{
    struct guard g = guard_alloc(n);
    memcpy(g.p, p, n);
    return g;
}

/* The first n_row rows and m tokens in one table: between guards, all rows or [row0, row1). */
static void check_call(struct check *c, const struct kernels *table, const struct product *p, int64_t n_row, int64_t m,
                       int64_t row0, int64_t row1)
{
    enum quant_layout layout = table->layout[p->q->type];
    int64_t k = p->k, ldy = n_row + m % 3, n_scale = kernel_act_n_scale(p->q->act, k),
            n_sum = kernel_act_n_sum(p->q->act, k);
    bool ints = p->q->act != QUANT_ACT_FLOAT, panels = (m / 2 + n_row + p->kind) % 2 == 0;
    size_t w_bytes = 0;
    if (!layout_bytes(layout, p->q, (uint64_t)n_row, (uint64_t)k, &w_bytes))
        abort();
    struct guard w = guard_alloc(w_bytes), y = guard_alloc((size_t)((m - 1) * ldy + n_row) * sizeof(float));
    layout_pack(&(struct layout_matrix){layout, p->q, (uint64_t)n_row, (uint64_t)k}, w.p, p->w, 0, (uint64_t)n_row,
                table->r16_put);
    struct guard x = guard_copy(p->x, ints ? 0 : (size_t)(m * k) * sizeof(float));
    struct guard q = guard_copy(p->xq, ints ? (size_t)((m - 1) * kernel_act_q_stride(k) + k) : 0);
    struct guard d = guard_copy(p->xd, (size_t)(m * n_scale) * sizeof(float));
    struct guard sum = guard_copy(p->xsum, (size_t)(m * n_sum) * sizeof(int16_t));
    memset(y.p, 0x77, y.n_bytes);
    struct kernel_act act = {.kind = p->q->act,
                             .k = k,
                             .f32 = (const float *)(void *)x.p,
                             .q = (const int8_t *)q.p,
                             .d = (const float *)(void *)d.p,
                             .sum = (const int16_t *)(void *)sum.p};
    float *out = (float *)(void *)y.p, untouched;
    static const int32_t ahead_bytes[] = {0, 256, 1 << 20, 3}; /* of lines that nobody may read, too */
    struct kernel_matmul mm = {
        .w = w.p,
        .k = k,
        .n_row = n_row,
        .row0 = row0,
        .row1 = row1,
        .x = &act,
        .m = m,
        .y = out,
        .ldy = ldy,
        .how = {.prefetch = {ahead_bytes[(m + p->kind) % 4], (enum kernel_cache)((m + n_row) % 4)},
                .tiles_from = 1,
                .panels_from = panels}};
    memset(&untouched, 0x77, sizeof untouched);
    table->matmul[p->q->type](&mm);
    bool ok = guard_intact(&y);
    int64_t bad_row = -1, bad_tok = -1;
    for (int64_t t = 0; t < m; t++)
        for (int64_t r = 0; r < (t + 1 < m ? ldy : n_row); r++) {
            float want = r >= row0 && r < row1 ? p->y[t * MAX_ROWS + r] : untouched;
            if (ok && !same_float(out[t * ldy + r], want)) {
                ok = false;
                bad_row = r;
                bad_tok = t;
            }
        }
    expect(c, ok, "%s %s k=%ld n_row=%ld [%ld, %ld) m=%ld kind=%d: row %ld token %ld differs from scalar", p->q->name,
           table->name, (long)k, (long)n_row, (long)row0, (long)row1, (long)m, p->kind, (long)bad_row, (long)bad_tok);
    guard_free(&w);
    guard_free(&y);
    guard_free(&x);
    guard_free(&q);
    guard_free(&d);
    guard_free(&sum);
}

static void check_type(struct check *c, const struct quant_info *q)
{
    const int *list = q->block_len == 1 ? k_float : q->block_len == 32 ? k_small : k_super;
    int n_k = q->block_len == 1 ? N_OF(k_float) : q->block_len == 32 ? N_OF(k_small) : N_OF(k_super);
    for (int i = 0; i < n_k * N_KIND; i++) {
        struct product p;
        int kind = i / n_k;
        product_open(&p, c, q, (int64_t)list[i % n_k] * q->block_len, N_TOKENS, kind);
        check_scalar(c, &p);
        for (int table = 0; table < c->n_table; table++) {
            for (int r = 0; r < N_OF(rows_list); r++)
                for (int m = 0; m < N_OF(tokens_list); m++)
                    if (kind == 0 || (r + m + kind) % 5 == 0) /* every shape once, a fifth of them for each kind */
                        check_call(c, c->tables[table], &p, rows_list[r], tokens_list[m], 0, rows_list[r]);
            check_call(c, c->tables[table], &p, 48, 5, 16, 32);
            check_call(c, c->tables[table], &p, 33, 1, 32, 33);
            check_call(c, c->tables[table], &p, 33, 3, 16, 33);
        }
        if (tiles_model.matmul[q->type]) {
            check_call(c, &tiles_model, &p, 17, 33, 0, 17);
            check_call(c, &tiles_model, &p, 48, 5, 16, 48);
        }
        product_close(&p);
    }
    struct product many; /* more tokens than kernels take at once */
    product_open(&many, c, q, (int64_t)list[1] * q->block_len, MANY_TOKENS, 0);
    static const int many_list[] = {67, MANY_TOKENS}; /* odd parts, and tiles that are full */
    for (int m = 0; m < N_OF(many_list); m++) {
        for (int table = 0; table < c->n_table; table++)
            check_call(c, c->tables[table], &many, 17, many_list[m], 0, 17);
        if (tiles_model.matmul[q->type])
            check_call(c, &tiles_model, &many, 17, many_list[m], 0, 17);
    }
    product_close(&many);
}

void check_products(struct check *c)
{
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        if (!q)
            continue;
        group_begin(c);
        check_type(c, q);
        group_end(c, q->name);
    }
}

/* ---- layouts ------------------------------------------------------------------------------------------------- */

static void check_layout(struct check *c, const struct quant_info *q, uint64_t n_row, uint64_t n_block)
{
    uint64_t k = n_block * (uint64_t)q->block_len, half = n_row / 2 / 16 * 16;
    size_t row = n_block * (size_t)q->block_bytes + (size_t)q->head_bytes, n = 0;
    struct guard src = guard_alloc(n_row * row), back = guard_alloc(n_row * row);
    for (size_t i = 0; i < src.n_bytes; i++)
        src.p[i] = (uint8_t)random_u32(&c->rng);
    bool ok = layout_bytes(LAYOUT_R16, q, n_row, k, &n);
    expect(c, ok && n == (n_row + 15) / 16 * 16 * row, "%s layout_bytes", q->name);
    struct guard packed = guard_alloc(n), again = guard_alloc(n);
    const struct layout_matrix m = {LAYOUT_R16, q, n_row, k};
    layout_pack(&m, packed.p, src.p, 0, n_row, NULL);
    layout_pack(&m, again.p, src.p + half * row, half, n_row - half, NULL);
    layout_pack(&m, again.p, src.p, 0, half, NULL);
    expect(c, !memcmp(packed.p, again.p, n), "%s rows=%lu blocks=%lu: packed in two parts differs", q->name,
           (unsigned long)n_row, (unsigned long)n_block);
    for (int i = 0; i < c->n_table; i++) {
        memset(again.p, 0x77, n);
        layout_pack(&m, again.p, src.p, 0, n_row, c->tables[i]->r16_put);
        expect(c, !memcmp(packed.p, again.p, n), "%s rows=%lu blocks=%lu: %s packs it differently", q->name,
               (unsigned long)n_row, (unsigned long)n_block, c->tables[i]->name);
    }
    struct guard tile = guard_alloc(LAYOUT_R16_ROWS * row);
    memset(again.p, 0x77, n);
    memcpy(again.p, src.p, n_row * row);
    layout_pack_in_place(&m, again.p, half, n_row - half, NULL, tile.p);
    layout_pack_in_place(&m, again.p, 0, half, NULL, tile.p);
    expect(c, !memcmp(packed.p, again.p, n), "%s rows=%lu blocks=%lu: packed in place differs", q->name,
           (unsigned long)n_row, (unsigned long)n_block);
    guard_free(&tile);
    layout_unpack(&m, back.p, packed.p, 0, n_row);
    expect(c, !memcmp(back.p, src.p, n_row * row), "%s rows=%lu blocks=%lu: unpacked differs", q->name,
           (unsigned long)n_row, (unsigned long)n_block);
    memset(back.p, 0, n_row * row);
    layout_unpack(&m, back.p, packed.p, n_row - 1, 1);
    expect(c, !memcmp(back.p, src.p + (n_row - 1) * row, row), "%s: last row alone differs", q->name);
    expect(c, guard_intact(&packed) && guard_intact(&again) && guard_intact(&back), "%s: wrote before the start",
           q->name);
    guard_free(&src);
    guard_free(&back);
    guard_free(&packed);
    guard_free(&again);
}

void check_layouts(struct check *c)
{
    group_begin(c);
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        size_t n;
        if (!q)
            continue;
        expect(c, layout_supports(LAYOUT_ROWS, q), "%s: no ROWS", q->name);
        expect(c, !layout_bytes(LAYOUT_ROWS, q, UINT64_MAX, (uint64_t)q->block_len * 2, &n), "%s: overflow", q->name);
        if (layout_supports(LAYOUT_R16, q)) {
            expect(c, !layout_bytes(LAYOUT_R16, q, UINT64_MAX, (uint64_t)q->block_len, &n), "%s: overflow", q->name);
            check_layout(c, q, 1, 1);
            check_layout(c, q, 16, 3);
            check_layout(c, q, 53, 2);
            check_layout(c, q, 64, 5);
        }
    }
    group_end(c, "layouts");
}
