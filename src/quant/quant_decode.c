/* Reference decoders: each weight from its format's definition, in the order of roundings that the formats'
 * own tools use (scale times sub-scale first), so that decoded weights agree with theirs to the bit. */
#include "quant/quant_decode.h"

#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"

static float half_at(const uint8_t *p)
{
    return quant_half_to_float(quant_load16(p));
}

void decode_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

void decode_f16(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = half_at(p + 2 * i);
}

void decode_bf16(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = quant_bf16_to_float(quant_load16(p + 2 * i));
}

/* The code of weight i (0..31) in 16 bytes that hold weights i and i + 16. */
static int nibble(const uint8_t qs[16], int i)
{
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int fifth_bit(const uint8_t qh[4], int i)
{
    return (qh[i / 8] >> i % 8 & 1) << 4;
}

void decode_q4_0(const void *src, float *dst, int64_t n)
{
    for (const struct block_q4_0 *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = (float)(nibble(b->qs, i) - 8) * half_at(b->d);
}

void decode_q4_1(const void *src, float *dst, int64_t n)
{
    for (const struct block_q4_1 *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = (float)nibble(b->qs, i) * half_at(b->d) + half_at(b->m);
}

void decode_q5_0(const void *src, float *dst, int64_t n)
{
    for (const struct block_q5_0 *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = (float)((nibble(b->qs, i) | fifth_bit(b->qh, i)) - 16) * half_at(b->d);
}

void decode_q5_1(const void *src, float *dst, int64_t n)
{
    for (const struct block_q5_1 *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = (float)(nibble(b->qs, i) | fifth_bit(b->qh, i)) * half_at(b->d) + half_at(b->m);
}

void decode_q8_0(const void *src, float *dst, int64_t n)
{
    for (const struct block_q8_0 *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = (float)b->qs[i] * half_at(b->d);
}

void decode_iq4_nl(const void *src, float *dst, int64_t n)
{
    for (const struct block_iq4_nl *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = half_at(b->d) * (float)quant_iq4_values[nibble(b->qs, i)];
}

void decode_mxfp4(const void *src, float *dst, int64_t n)
{
    for (const struct block_mxfp4 *b = src; n > 0; b++, n -= 32)
        for (int i = 0; i < 32; i++)
            *dst++ = (float)quant_mxfp4_values[nibble(b->qs, i)] * quant_mxfp4_scale(b->e);
}

void decode_q2_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q2_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d), dmin = half_at(b->dmin);
        for (int i = 0; i < QUANT_SUPER; i++) {
            int q = b->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, s = b->scales[i / 16];
            *dst++ = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
        }
    }
}

void decode_q3_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q3_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d);
        for (int i = 0; i < QUANT_SUPER; i++) {
            int q = b->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
            q |= (b->hmask[i % 32] >> i / 32 & 1) << 2;
            *dst++ = d * (float)quant_q3k_scale(b->scales, i / 16) * (float)(q - 4);
        }
    }
}

void decode_q4_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q4_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d), dmin = half_at(b->dmin);
        for (int i = 0; i < QUANT_SUPER; i++) {
            int j = i / 32, q = b->qs[j / 2 * 32 + i % 32] >> j % 2 * 4 & 15;
            *dst++ = d * (float)quant_k4_scale(b->scales, j) * (float)q - dmin * (float)quant_k4_min(b->scales, j);
        }
    }
}

void decode_q5_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q5_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d), dmin = half_at(b->dmin);
        for (int i = 0; i < QUANT_SUPER; i++) {
            int j = i / 32, q = b->qs[j / 2 * 32 + i % 32] >> j % 2 * 4 & 15;
            q |= (b->qh[i % 32] >> j & 1) << 4;
            *dst++ = d * (float)quant_k4_scale(b->scales, j) * (float)q - dmin * (float)quant_k4_min(b->scales, j);
        }
    }
}

void decode_q6_k(const void *src, float *dst, int64_t n)
{
    for (const struct block_q6_k *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d);
        for (int i = 0; i < QUANT_SUPER; i++) {
            int half = i / 128, j = i % 128;
            int q = b->ql[half * 64 + j % 64] >> j / 64 * 4 & 15;
            q |= (b->qh[half * 32 + j % 32] >> j / 32 * 2 & 3) << 4;
            *dst++ = d * (float)b->scales[i / 16] * (float)(q - 32);
        }
    }
}

void decode_iq4_xs(const void *src, float *dst, int64_t n)
{
    for (const struct block_iq4_xs *b = src; n > 0; b++, n -= QUANT_SUPER) {
        float d = half_at(b->d);
        for (int i = 0; i < QUANT_SUPER; i++) {
            int j = i / 32, q = nibble(b->qs + 16 * j, i % 32);
            *dst++ = d * (float)quant_iq4xs_scale(b, j) * (float)quant_iq4_values[q];
        }
    }
}
