/* Encoders of blocks with a scale of their own, LANES of them at a time (encode_fit.h). */
#ifndef QUANT_ENCODE_BLOCKS_H
#define QUANT_ENCODE_BLOCKS_H

#include "quant/encode_fit.h"

/* Units (blocks, or parts of such) of the same length, side by side. */
struct batch {
    int n; /* units in use, at most LANES */
    const vf *w;
    vf x[QUANT_SUPER], weights[QUANT_SUPER];
};

/* Loads units [first, first + LANES) of n_unit, each of len weights. */
static inline void batch_load(struct batch *b, const float *x, const float *w, int first, int n_unit, int len)
{
    b->n = n_unit - first < LANES ? n_unit - first : LANES;
    lanes_load(x + (size_t)first * (size_t)len, len, b->n, b->x);
    b->w = w ? b->weights : NULL;
    if (w)
        lanes_load(w + (size_t)first * (size_t)len, len, b->n, b->weights);
}

/* Stores nibbles, and fifth bits, of codes as block_q4_0 and block_q5_0 hold them. */
static inline void store_nibbles(uint8_t *qs, size_t stride, int n_lane, const vi codes[32])
{
    vi words[4];
    for (int k = 0; k < 4; k++) {
        const vi *c = codes + 4 * k;
        vi low = v_bytes(c[0] & 15, c[1] & 15, c[2] & 15, c[3] & 15);
        words[k] = low | v_bytes(c[16] & 15, c[17] & 15, c[18] & 15, c[19] & 15) << 4;
    }
    lanes_store(qs, stride, n_lane, words, 4);
}

static inline void store_fifth_bits(uint8_t *qh, size_t stride, int n_lane, const vi codes[32])
{
    vi word = {0};
    for (int i = 0; i < 32; i++)
        word |= (codes[i] >> 4 & 1) << i;
    lanes_store(qh, stride, n_lane, &word, 1);
}

/* Codes q - lo of integers lo..hi; the scales go to d. */
static inline void fit_signed(const struct batch *b, int len, int lo, int hi, uint8_t *d, size_t stride, vi *codes)
{
    vf scale = lanes_store_half(d, stride, b->n, fit_scale(b->x, b->w, len, lo, hi, hi - lo < 4 ? 2 : 1));
    fit_error(b->x, b->w, len, scale, lo, hi, codes);
    for (int i = 0; i < len; i++)
        codes[i] -= lo;
}

static void encode_q4_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q4_0 *dst = blocks;
    struct batch b;
    vi codes[32];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 32);
        fit_signed(&b, 32, -8, 7, dst[at].d, sizeof *dst, codes);
        store_nibbles(dst[at].qs, sizeof *dst, b.n, codes);
    }
}

static void encode_q5_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q5_0 *dst = blocks;
    struct batch b;
    vi codes[32];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 32);
        fit_signed(&b, 32, -16, 15, dst[at].d, sizeof *dst, codes);
        store_nibbles(dst[at].qs, sizeof *dst, b.n, codes);
        store_fifth_bits(dst[at].qh, sizeof *dst, b.n, codes);
    }
}

static inline void fit_with_min(const struct batch *b, int hi, uint8_t *d, uint8_t *m, size_t stride, vi codes[32])
{
    static const struct affine_effort effort = {.n_try = 3, .width = 0.8f, .n_last = 1};
    struct fit_affine f = fit_scale_min(b->x, b->w, 32, hi, INFINITY, effort);
    f.d = lanes_store_half(d, stride, b->n, f.d);
    f.m = lanes_store_half(m, stride, b->n, f.m);
    fit_affine_error(b->x, b->w, 32, f, hi, codes);
}

static void encode_q4_1(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q4_1 *dst = blocks;
    struct batch b;
    vi codes[32];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 32);
        fit_with_min(&b, 15, dst[at].d, dst[at].m, sizeof *dst, codes);
        store_nibbles(dst[at].qs, sizeof *dst, b.n, codes);
    }
}

static void encode_q5_1(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q5_1 *dst = blocks;
    struct batch b;
    vi codes[32];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 32);
        fit_with_min(&b, 31, dst[at].d, dst[at].m, sizeof *dst, codes);
        store_nibbles(dst[at].qs, sizeof *dst, b.n, codes);
        store_fifth_bits(dst[at].qh, sizeof *dst, b.n, codes);
    }
}

/* Lanes are weights of one block: its largest weight decides the scale. */
static void encode_q8_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q8_0 *dst = blocks;
    for (int k = 0; k < n_block; k++, x += 32) {
        int32_t max = 0;
        float largest;
        for (int i = 0; i < 32; i++) { /* floats without their signs are ordered as integers are */
            int32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits &= 0x7fffffff;
            max = bits > max ? bits : max;
        }
        memcpy(&largest, &max, sizeof largest);
        float id = fit_inverse(fit_store_half(dst[k].d, largest / 127));
        for (int i = 0; i < 32; i++) {
            float y = x[i] * id;
            y = y < -127 ? -127 : y > 127 ? 127 : y;
            dst[k].qs[i] = (int8_t)(y + 0x1.8p+23f - 0x1.8p+23f);
        }
    }
}

static void encode_q1_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q1_0 *dst = blocks;
    struct batch b;
    for (int at = 0; at < n_block; at += LANES) {
        vi words[4] = {{0}};
        vf sum = V_ALL(0), sum_w = V_ALL(0);
        batch_load(&b, x, w, at, n_block, 128);
        for (int i = 0; i < 128; i++) {
            words[i / 32] |= (vi)(~((vi)b.x[i] >> 31) & 1) << i % 32;
            sum += v_weigh(b.w, i, v_abs(b.x[i]));
            sum_w += v_weigh(b.w, i, V_ALL(1));
        }
        lanes_store(dst[at].qs, sizeof *dst, b.n, words, 4);
        lanes_store_half(dst[at].d, sizeof *dst, b.n, sum / sum_w);
    }
}

static void encode_q2_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_q2_0 *dst = blocks;
    struct batch b;
    vi codes[64], words[4];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 64);
        fit_signed(&b, 64, -1, 2, dst[at].d, sizeof *dst, codes);
        for (int k = 0; k < 4; k++) {
            words[k] = (vi){0};
            for (int i = 0; i < 16; i++)
                words[k] |= codes[16 * k + i] << 2 * i;
        }
        lanes_store(dst[at].qs, sizeof *dst, b.n, words, 4);
    }
}

/* Stores the codes of each lane one after the other. */
static inline void lanes_bytes(uint8_t *dst, int len, int n_lane, const vi *codes)
{
    vi words[QUANT_SUPER / 4];
    for (int k = 0; k < len / 4; k++)
        words[k] = v_bytes(codes[4 * k] & 255, codes[4 * k + 1] & 255, codes[4 * k + 2] & 255, codes[4 * k + 3] & 255);
    lanes_store(dst, (size_t)len, n_lane, words, len / 4);
}

/* A byte that n digits base three can be read from as block_tq1_0 says: the fraction rounded up. */
static uint8_t ternary_byte(const uint8_t *codes, int stride, int n)
{
    int value = 0;
    for (int i = 0; i < 5; i++)
        value = 3 * value + (i < n ? codes[i * stride] : 0);
    return (uint8_t)((value * 256 + 242) / 243);
}

static void encode_tq1_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct batch b;
    vi codes[QUANT_SUPER];
    uint8_t bytes[LANES][QUANT_SUPER];
    for (int at = 0; at < n_block; at += LANES) {
        struct block_tq1_0 *dst = (struct block_tq1_0 *)blocks + at;
        batch_load(&b, x, w, at, n_block, QUANT_SUPER);
        fit_signed(&b, QUANT_SUPER, -1, 1, dst->d, sizeof *dst, codes);
        lanes_bytes(bytes[0], QUANT_SUPER, b.n, codes);
        for (int l = 0; l < b.n; l++) {
            for (int i = 0; i < 32; i++)
                dst[l].qs[i] = ternary_byte(bytes[l] + i, 32, 5);
            for (int i = 0; i < 16; i++)
                dst[l].qs[32 + i] = ternary_byte(bytes[l] + 160 + i, 16, 5);
            for (int i = 0; i < 4; i++)
                dst[l].qh[i] = ternary_byte(bytes[l] + 240 + i, 4, 4);
        }
    }
}

static void encode_tq2_0(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct batch b;
    vi codes[QUANT_SUPER], words[16];
    for (int at = 0; at < n_block; at += LANES) {
        struct block_tq2_0 *dst = (struct block_tq2_0 *)blocks + at;
        batch_load(&b, x, w, at, n_block, QUANT_SUPER);
        fit_signed(&b, QUANT_SUPER, -1, 1, dst->d, sizeof *dst, codes);
        for (int k = 0; k < 16; k++) { /* bytes 4k to 4k + 3 */
            const vi *c = codes + k / 8 * 128 + k % 8 * 4;
            words[k] = (vi){0};
            for (int j = 0; j < 4; j++)
                words[k] |= v_bytes(c[32 * j], c[32 * j + 1], c[32 * j + 2], c[32 * j + 3]) << 2 * j;
        }
        lanes_store(dst->qs, sizeof *dst, b.n, words, 16);
    }
}

/* ---- codebooks of four bits ---------------------------------------------------------------------------------- */

/* A nearly best scale for values of IQ4. */
static inline vf fit_iq4(const struct fit_book *book, const vf *x, const vf *w, int n)
{
    vf inverse = v_inverse(v_extreme(x, n));
    struct fit_best best = {V_ALL(0), V_ALL(0)};
    for (int end = 0; end < book->n; end += book->n - 1)
        for (int step = -3; step <= 3; step++)
            try_book_scale(book, x, w, n, inverse * (book->value[end] * (1 + 0.06f * (float)step)), &best);
    for (int i = 0; i < 2; i++)
        try_book_scale(book, x, w, n, v_inverse(best.d), &best);
    return best.d;
}

static void encode_iq4_nl(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_iq4_nl *dst = blocks;
    struct batch b;
    vi codes[32];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 32);
        vf d = lanes_store_half(dst[at].d, sizeof *dst, b.n, fit_iq4(&t->iq4, b.x, b.w, 32));
        book_indices(&t->iq4, b.x, 32, d, codes);
        store_nibbles(dst[at].qs, sizeof *dst, b.n, codes);
    }
}

/* Magnitudes of weights: the values of FP4 have no sign. */
static inline void take_sizes(const struct batch *b, int n, vf *size)
{
    for (int i = 0; i < n; i++)
        size[i] = v_abs(b->x[i]);
}

static inline void fp4_codes(const struct quant_tables *t, const struct batch *b, const vf *size, int n, vf d,
                             vi *codes)
{
    book_indices(&t->fp4, size, n, d, codes);
    for (int i = 0; i < n; i++)
        codes[i] |= (vi)b->x[i] >> 31 & 8 & (vi)(codes[i] > 0); /* a zero gets no sign */
}

static inline vf mxfp4_scale(vi e)
{
    return (vf)((e - 1) << 23);
}

static void encode_mxfp4(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct block_mxfp4 *dst = blocks;
    struct batch b;
    vf size[32];
    vi codes[32];
    for (int at = 0; at < n_block; at += LANES) {
        batch_load(&b, x, w, at, n_block, 32);
        take_sizes(&b, 32, size);
        /* the largest is below 2^(e + 4 - 128); scales are normal numbers, as those below are never of use */
        vi e = ((vi)v_abs(v_extreme(b.x, 32)) >> 23) - 2, best_e = (vi){0} + 2;
        vf best = V_ALL(INFINITY);
        for (int i = 0; i < 2; i++, e += 1) {
            vi code = v_choose_int(v_less(v_float(e), V_ALL(2)), (vi){0} + 2, e);
            vf error = book_error(&t->fp4, size, b.w, 32, mxfp4_scale(code));
            vm better = v_less(error, best);
            best = v_choose(better, error, best);
            best_e = v_choose_int(better, code, best_e);
        }
        fp4_codes(t, &b, size, 32, mxfp4_scale(best_e), codes);
        for (int l = 0; l < b.n; l++)
            dst[at + l].e = (uint8_t)best_e[l];
        store_nibbles(dst[at].qs, sizeof *dst, b.n, codes);
    }
}

/* The greatest E4M3 code whose scale is at most d, or 0. */
static int nvfp4_code(float d)
{
    int code = 0;
    for (int bit = 64; bit > 0; bit /= 2)
        if (quant_nvfp4_scale((uint8_t)(code + bit)) <= d && code + bit < 127)
            code += bit;
    return code;
}

/* Units are runs of 16 weights with a scale. Scales that put the largest weight between 7.2 and 13.5 are tried. */
static void encode_nvfp4(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    enum { N_TRY = 9 };
    struct block_nvfp4 *dst = blocks;
    struct batch b;
    vf size[16];
    vi codes[16];
    for (int at = 0; at < 4 * n_block; at += LANES) {
        batch_load(&b, x, w, at, 4 * n_block, 16);
        take_sizes(&b, 16, size);
        vf max = v_abs(v_extreme(b.x, 16)), best = V_ALL(INFINITY), best_d = V_ALL(0), d = V_ALL(0);
        vi first = {0}, best_code = {0};
        for (int l = 0; l < b.n; l++)
            first[l] = nvfp4_code(max[l] / 13.5f);
        for (int i = 0; i < N_TRY; i++) {
            for (int l = 0; l < b.n; l++)
                d[l] = quant_nvfp4_scale((uint8_t)(first[l] + i < 127 ? first[l] + i : 126));
            vf error = book_error(&t->fp4, size, b.w, 16, d);
            vm better = v_less(error, best);
            best = v_choose(better, error, best);
            best_d = v_choose(better, d, best_d);
            best_code = v_choose_int(better, first + i, best_code);
        }
        fp4_codes(t, &b, size, 16, best_d, codes);
        vi words[2];
        for (int k = 0; k < 2; k++) {
            const vi *c = codes + 4 * k;
            words[k] = v_bytes(c[0], c[1], c[2], c[3]) | v_bytes(c[8], c[9], c[10], c[11]) << 4;
        }
        for (int l = 0; l < b.n; l++) {
            struct block_nvfp4 *block = &dst[(at + l) / 4];
            block->scales[(at + l) % 4] = (uint8_t)(best_code[l] < 127 ? best_code[l] : 126);
            for (int k = 0; k < 2; k++) {
                int32_t word = words[k][l];
                memcpy(block->qs + 8 * ((at + l) % 4) + 4 * k, &word, 4);
            }
        }
    }
}

#endif
