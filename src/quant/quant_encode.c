/* The table of encoders, and those of blocks with a scale of their own. */
#include "quant/quant_encode.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "quant/quant_fit.h"
#include "quant/quant_grids.h"

static void encode_f32(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    (void)t;
    (void)w;
    memcpy(block, x, sizeof *x);
}

static void encode_f16(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    (void)t;
    (void)w;
    fit_store16(block, quant_float_to_half(*x));
}

static void encode_bf16(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    (void)t;
    (void)w;
    fit_store16(block, quant_float_to_bf16(*x));
}

static encode_block_fn *const encoders[QUANT_MAX_ID] = {
    [QUANT_F32] = encode_f32,       [QUANT_F16] = encode_f16,       [QUANT_BF16] = encode_bf16,
    [QUANT_Q1_0] = encode_q1_0,     [QUANT_Q2_0] = encode_q2_0,     [QUANT_Q4_0] = encode_q4_0,
    [QUANT_Q4_1] = encode_q4_1,     [QUANT_Q5_0] = encode_q5_0,     [QUANT_Q5_1] = encode_q5_1,
    [QUANT_Q8_0] = encode_q8_0,     [QUANT_Q2_K] = encode_q2_k,     [QUANT_Q3_K] = encode_q3_k,
    [QUANT_Q4_K] = encode_q4_k,     [QUANT_Q5_K] = encode_q5_k,     [QUANT_Q6_K] = encode_q6_k,
    [QUANT_IQ1_S] = encode_iq1_s,   [QUANT_IQ1_M] = encode_iq1_m,   [QUANT_IQ2_XXS] = encode_iq2_xxs,
    [QUANT_IQ2_XS] = encode_iq2_xs, [QUANT_IQ2_S] = encode_iq2_s,   [QUANT_IQ3_XXS] = encode_iq3_xxs,
    [QUANT_IQ3_S] = encode_iq3_s,   [QUANT_IQ4_NL] = encode_iq4_nl, [QUANT_IQ4_XS] = encode_iq4_xs,
    [QUANT_TQ1_0] = encode_tq1_0,   [QUANT_TQ2_0] = encode_tq2_0,   [QUANT_MXFP4] = encode_mxfp4,
    [QUANT_NVFP4] = encode_nvfp4,
};

struct quant_tables *quant_tables_create(void)
{
    struct quant_tables *t = mem_alloc(sizeof *t);
    if (!t)
        return NULL;
    fit_book_open(&t->iq4, quant_iq4_values);
    fit_book_open(&t->fp4, quant_mxfp4_values);
    fit_grid_open(&t->iq1, quant_grid_iq1, 2048, 8, quant_iq1_values, 3);
    fit_grid_open(&t->iq2_xxs, quant_grid_iq2_xxs, 256, 8, quant_iq2_values, 3);
    fit_grid_open(&t->iq2_xs, quant_grid_iq2_xs, 512, 8, quant_iq2_values, 3);
    fit_grid_open(&t->iq2_s, quant_grid_iq2_s, 1024, 8, quant_iq2_values, 3);
    fit_grid_open(&t->iq3_xxs, quant_grid_iq3_xxs, 256, 4, quant_iq3_xxs_values, 8);
    fit_grid_open(&t->iq3_s, quant_grid_iq3_s, 512, 4, quant_iq3_s_values, 8);
    return t;
}

void quant_tables_close(struct quant_tables **t)
{
    mem_free(*t);
    *t = NULL;
}

bool quant_can_encode(const struct quant_info *q)
{
    return encoders[q->type] != NULL;
}

void quant_encode_row(const struct quant_tables *t, const struct quant_info *q, const float *x, const float *importance,
                      void *row, int64_t n)
{
    float ones[FIT_MAX], w[FIT_MAX];
    int len = q->block_len;
    uint8_t *block = row;
    assert(quant_can_encode(q) && n % len == 0 && len <= FIT_MAX);
    for (int i = 0; i < len; i++)
        ones[i] = 1;
    for (int64_t at = 0; at < n; at += len, block += q->block_bytes) {
        float sum = 0;
        for (int i = 0; importance && i < len; i++)
            sum += w[i] = importance[at + i];
        encoders[q->type](t, x + at, sum > 0 ? w : ones, block);
    }
}

/* ---- blocks with a scale ------------------------------------------------------------------------------------- */

/* Codes q - lo of integers lo..hi in `codes`; the scale goes to d. */
static void encode_signed(const float *x, const float *w, int n, int lo, int hi, uint8_t d[2], uint8_t *codes)
{
    int8_t q[FIT_MAX];
    float scale = fit_store_half(d, fit_scale(x, w, n, lo, hi));
    fit_error(x, w, n, scale, lo, hi, q);
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)(q[i] - lo);
}

/* The low four bits of 32 codes; returns the fifth bits. */
static uint32_t pack_nibbles(uint8_t qs[16], const uint8_t codes[32])
{
    uint32_t fifth = 0;
    for (int i = 0; i < 16; i++)
        qs[i] = (uint8_t)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
    for (int i = 0; i < 32; i++)
        fifth |= (uint32_t)(codes[i] >> 4) << i;
    return fifth;
}

static void store_fifth(uint8_t qh[4], uint32_t bits)
{
    for (int i = 0; i < 4; i++)
        qh[i] = (uint8_t)(bits >> 8 * i);
}

void encode_q4_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q4_0 *b = block;
    uint8_t codes[32];
    encode_signed(x, w, 32, -8, 7, b->d, codes);
    pack_nibbles(b->qs, codes);
}

void encode_q5_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q5_0 *b = block;
    uint8_t codes[32];
    encode_signed(x, w, 32, -16, 15, b->d, codes);
    store_fifth(b->qh, pack_nibbles(b->qs, codes));
}

static void encode_with_min(const float *x, const float *w, int hi, uint8_t d[2], uint8_t m[2], uint8_t codes[32])
{
    struct fit_affine f = fit_scale_min(x, w, 32, hi, 1, 2, INFINITY);
    f = (struct fit_affine){fit_store_half(d, f.d), fit_store_half(m, f.m)};
    fit_affine_error(x, w, 32, f, hi, codes);
}

void encode_q4_1(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q4_1 *b = block;
    uint8_t codes[32];
    encode_with_min(x, w, 15, b->d, b->m, codes);
    pack_nibbles(b->qs, codes);
}

void encode_q5_1(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q5_1 *b = block;
    uint8_t codes[32];
    encode_with_min(x, w, 31, b->d, b->m, codes);
    store_fifth(b->qh, pack_nibbles(b->qs, codes));
}

void encode_q8_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q8_0 *b = block;
    float d = fit_store_half(b->d, fabsf(fit_extreme(x, 32)) / 127);
    fit_error(x, w, 32, d, -127, 127, b->qs);
}

void encode_q1_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q1_0 *b = block;
    float sum = 0, sum_w = 0;
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 128; i++) {
        b->qs[i / 8] |= (uint8_t)((x[i] >= 0) << i % 8);
        sum += w[i] * fabsf(x[i]);
        sum_w += w[i];
    }
    fit_store_half(b->d, sum / sum_w);
}

void encode_q2_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_q2_0 *b = block;
    uint8_t codes[64];
    encode_signed(x, w, 64, -1, 2, b->d, codes);
    for (int i = 0; i < 16; i++)
        b->qs[i] = (uint8_t)(codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 | codes[4 * i + 3] << 6);
}

/* A byte that n digits base three can be read from as block_tq1_0 says: the fraction rounded up. */
static uint8_t ternary_byte(const uint8_t *codes, int stride, int n)
{
    int value = 0;
    for (int i = 0; i < 5; i++)
        value = 3 * value + (i < n ? codes[i * stride] : 0);
    return (uint8_t)((value * 256 + 242) / 243);
}

void encode_tq1_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_tq1_0 *b = block;
    uint8_t codes[QUANT_SUPER];
    encode_signed(x, w, QUANT_SUPER, -1, 1, b->d, codes);
    for (int i = 0; i < 32; i++)
        b->qs[i] = ternary_byte(codes + i, 32, 5);
    for (int i = 0; i < 16; i++)
        b->qs[32 + i] = ternary_byte(codes + 160 + i, 16, 5);
    for (int i = 0; i < 4; i++)
        b->qh[i] = ternary_byte(codes + 240 + i, 4, 4);
}

void encode_tq2_0(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_tq2_0 *b = block;
    uint8_t codes[QUANT_SUPER];
    encode_signed(x, w, QUANT_SUPER, -1, 1, b->d, codes);
    memset(b->qs, 0, sizeof b->qs);
    for (int i = 0; i < QUANT_SUPER; i++)
        b->qs[i / 128 * 32 + i % 32] |= (uint8_t)(codes[i] << i % 128 / 32 * 2);
}

/* ---- codebooks of four bits ---------------------------------------------------------------------------------- */

void encode_iq4_nl(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq4_nl *b = block;
    uint8_t codes[32];
    const struct fit_book *book = &t->iq4;
    float d = fit_store_half(b->d, fit_book_scale(book, x, w, 32, 6));
    fit_book_error(book, x, w, 32, d, codes);
    pack_nibbles(b->qs, codes);
}

void encode_mxfp4(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_mxfp4 *b = block;
    const struct fit_book *book = &t->fp4;
    uint8_t codes[32];
    int exponent;
    (void)frexpf(fit_extreme(x, 32), &exponent); /* |x| < 2^exponent, at most 12 * 2^(e - 128) */
    int e = exponent + 128 - 4, best_e = 0;
    float best = INFINITY;
    for (int i = e < 0 ? 0 : e; i <= e + 1 && i < 255; i++) {
        float error = fit_book_error(book, x, w, 32, quant_mxfp4_scale((uint8_t)i), NULL);
        if (error < best) {
            best = error;
            best_e = i;
        }
    }
    b->e = (uint8_t)best_e;
    fit_book_error(book, x, w, 32, quant_mxfp4_scale(b->e), codes);
    pack_nibbles(b->qs, codes);
}

/* The least E4M3 code whose scale is at least d, or the largest. */
static int nvfp4_code(float d)
{
    int code = 0;
    for (int bit = 64; bit > 0; bit /= 2)
        if (quant_nvfp4_scale((uint8_t)(code + bit - 1)) < d)
            code += bit;
    return code > 126 ? 126 : code;
}

void encode_nvfp4(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_nvfp4 *b = block;
    const struct fit_book *book = &t->fp4;
    for (int j = 0; j < 4; j++) {
        const float *xs = x + 16 * j, *ws = w + 16 * j;
        uint8_t codes[16];
        int near = nvfp4_code(fabsf(fit_book_scale(book, xs, ws, 16, 6))), best_code = 0;
        float best = INFINITY;
        for (int code = near > 2 ? near - 2 : 0; code <= near + 1 && code < 127; code++) {
            float error = fit_book_error(book, xs, ws, 16, quant_nvfp4_scale((uint8_t)code), NULL);
            if (error < best) {
                best = error;
                best_code = code;
            }
        }
        b->scales[j] = (uint8_t)best_code;
        fit_book_error(book, xs, ws, 16, quant_nvfp4_scale(b->scales[j]), codes);
        for (int i = 0; i < 8; i++)
            b->qs[8 * j + i] = (uint8_t)(codes[i] | codes[i + 8] << 4);
    }
}
