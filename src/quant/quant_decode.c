/* Reference decoders: each weight from its format's definition, in the order of roundings that the formats'
 * own tools use (scale times sub-scale first), so that decoded weights agree with theirs to the bit. */
#include "quant/quant_decode.h"

#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"

static float half_at(const uint8_t *p)
{
    return decode_half(quant_load16(p));
}

void decode_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

void decode_f16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, sizeof h);
        dst[i] = decode_half(h);
    }
}

void decode_bf16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, sizeof h);
        dst[i] = decode_float((uint32_t)h << 16);
    }
}

/* The codes of 32 weights: byte i has those of weights i and i + 16. */
static inline void nibbles(const uint8_t qs[16], int codes[32])
{
    for (int i = 0; i < 16; i++) {
        codes[i] = qs[i] & 15;
        codes[i + 16] = qs[i] >> 4;
    }
}

static inline void fifth_bits(const uint8_t qh[4], int codes[32])
{
    uint32_t bits = quant_load32(qh);
    for (int i = 0; i < 32; i++)
        codes[i] |= (int)(bits >> i & 1) << 4;
}

void decode_q4_0(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_q4_0 *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = half_at(b->d);
        nibbles(b->qs, q);
        for (int i = 0; i < 32; i++)
            dst[i] = (float)(q[i] - 8) * d;
    }
}

void decode_q4_1(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_q4_1 *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = half_at(b->d), m = half_at(b->m);
        nibbles(b->qs, q);
        for (int i = 0; i < 32; i++)
            dst[i] = (float)q[i] * d + m;
    }
}

void decode_q5_0(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_q5_0 *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = half_at(b->d);
        nibbles(b->qs, q);
        fifth_bits(b->qh, q);
        for (int i = 0; i < 32; i++)
            dst[i] = (float)(q[i] - 16) * d;
    }
}

void decode_q5_1(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_q5_1 *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = half_at(b->d), m = half_at(b->m);
        nibbles(b->qs, q);
        fifth_bits(b->qh, q);
        for (int i = 0; i < 32; i++)
            dst[i] = (float)q[i] * d + m;
    }
}

void decode_q8_0(const void *src, float *dst, int64_t n)
{
    for (const struct block_q8_0 *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = half_at(b->d);
        for (int i = 0; i < 32; i++)
            dst[i] = (float)b->qs[i] * d;
    }
}

void decode_iq4_nl(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_iq4_nl *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = half_at(b->d);
        nibbles(b->qs, q);
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)quant_iq4_values[q[i]];
    }
}

void decode_mxfp4(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_mxfp4 *b = src; n > 0; b++, n -= 32, dst += 32) {
        float d = quant_mxfp4_scale(b->e);
        nibbles(b->qs, q);
        for (int i = 0; i < 32; i++)
            dst[i] = (float)quant_mxfp4_values[q[i]] * d;
    }
}

/* Below, `run` counts runs of 32 weights. */

void decode_q2_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q2_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d), dmin = half_at(b->dmin);
        for (int run = 0; run < 8; run++, dst += 32)
            for (int i = 0; i < 32; i++) {
                int q = b->qs[run / 4 * 32 + i] >> run % 4 * 2 & 3, s = b->scales[2 * run + i / 16];
                dst[i] = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
            }
    }
}

void decode_q3_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q3_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d);
        for (int j = 0; j < 16; j++, dst += 16) {
            float scale = d * (float)quant_q3k_scale(b->scales, j);
            const uint8_t *qs = b->qs + j / 8 * 32 + j % 2 * 16, *hmask = b->hmask + j % 2 * 16;
            for (int i = 0; i < 16; i++)
                dst[i] = scale * (float)((qs[i] >> j / 2 % 4 * 2 & 3) + (hmask[i] >> j / 2 & 1) * 4 - 4);
        }
    }
}

void decode_q4_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q4_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d), dmin = half_at(b->dmin);
        for (int run = 0; run < 8; run++, dst += 32) {
            float scale = d * (float)quant_k4_scale(b->scales, run), min = dmin * (float)quant_k4_min(b->scales, run);
            const uint8_t *qs = b->qs + run / 2 * 32;
            for (int i = 0; i < 32; i++)
                dst[i] = scale * (float)(qs[i] >> run % 2 * 4 & 15) - min;
        }
    }
}

void decode_q5_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q5_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d), dmin = half_at(b->dmin);
        for (int run = 0; run < 8; run++, dst += 32) {
            float scale = d * (float)quant_k4_scale(b->scales, run), min = dmin * (float)quant_k4_min(b->scales, run);
            const uint8_t *qs = b->qs + run / 2 * 32;
            for (int i = 0; i < 32; i++)
                dst[i] = scale * (float)((qs[i] >> run % 2 * 4 & 15) + (b->qh[i] >> run & 1) * 16) - min;
        }
    }
}

void decode_q6_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q6_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d);
        for (int j = 0; j < 16; j++, dst += 16) {
            float scale = d * (float)b->scales[j];
            const uint8_t *ql = b->ql + j / 8 * 64 + j % 4 * 16, *qh = b->qh + j / 8 * 32 + j % 2 * 16;
            for (int i = 0; i < 16; i++)
                dst[i] = scale * (float)((ql[i] >> j / 4 % 2 * 4 & 15) + (qh[i] >> j / 2 % 4 * 2 & 3) * 16 - 32);
        }
    }
}

void decode_iq4_xs(const void *src, float *dst, int64_t n)
{
    int q[32];
    for (const struct block_iq4_xs *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d);
        for (int run = 0; run < 8; run++, dst += 32) {
            float scale = d * (float)quant_iq4xs_scale(b, run);
            nibbles(b->qs + 16 * run, q);
            for (int i = 0; i < 32; i++)
                dst[i] = scale * (float)quant_iq4_values[q[i]];
        }
    }
}
