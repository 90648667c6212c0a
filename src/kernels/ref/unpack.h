/* Blocks of the integer formats as int8 weights with integer scales: what the scalar products work on. */
#ifndef KERNELS_REF_UNPACK_H
#define KERNELS_REF_UNPACK_H

#include "quant/blocks.h"
#include "quant/quant.h"

/* 32 weights: value = d * w + m */
struct unpacked32 {
    int8_t w[32];
    float d, m;
};

/* 256 weights: value = d * scale[i / 16] * w[i] - dmin * min[i / 16] */
struct unpacked256 {
    int8_t w[256];
    int16_t scale[16], min[16];
    float d, dmin;
};

static inline float unpack_half(const uint8_t *p)
{
    return quant_half_to_float(quant_load16(p));
}

static inline void unpack_nibbles(int8_t w[32], const uint8_t qs[16], int offset)
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)((qs[i] & 15) - offset);
        w[i + 16] = (int8_t)((qs[i] >> 4) - offset);
    }
}

static inline void unpack_fifth_bits(int8_t w[32], const uint8_t qh[4])
{
    for (int i = 0; i < 32; i++)
        w[i] = (int8_t)(w[i] + ((qh[i / 8] >> i % 8 & 1) << 4));
}

static inline void unpack_codes(int8_t w[32], const uint8_t qs[16], const int8_t values[16])
{
    for (int i = 0; i < 16; i++) {
        w[i] = values[qs[i] & 15];
        w[i + 16] = values[qs[i] >> 4];
    }
}

static inline void unpack_q4_0(const void *block, struct unpacked32 *u)
{
    const struct block_q4_0 *b = block;
    unpack_nibbles(u->w, b->qs, 8);
    u->d = unpack_half(b->d);
}

static inline void unpack_q4_1(const void *block, struct unpacked32 *u)
{
    const struct block_q4_1 *b = block;
    unpack_nibbles(u->w, b->qs, 0);
    u->d = unpack_half(b->d);
    u->m = unpack_half(b->m);
}

static inline void unpack_q5_0(const void *block, struct unpacked32 *u)
{
    const struct block_q5_0 *b = block;
    unpack_nibbles(u->w, b->qs, 16);
    unpack_fifth_bits(u->w, b->qh);
    u->d = unpack_half(b->d);
}

static inline void unpack_q5_1(const void *block, struct unpacked32 *u)
{
    const struct block_q5_1 *b = block;
    unpack_nibbles(u->w, b->qs, 0);
    unpack_fifth_bits(u->w, b->qh);
    u->d = unpack_half(b->d);
    u->m = unpack_half(b->m);
}

static inline void unpack_q8_0(const void *block, struct unpacked32 *u)
{
    const struct block_q8_0 *b = block;
    memcpy(u->w, b->qs, 32);
    u->d = unpack_half(b->d);
}

static inline void unpack_iq4_nl(const void *block, struct unpacked32 *u)
{
    const struct block_iq4_nl *b = block;
    unpack_codes(u->w, b->qs, quant_iq4_values);
    u->d = unpack_half(b->d);
}

static inline void unpack_mxfp4(const void *block, struct unpacked32 *u)
{
    const struct block_mxfp4 *b = block;
    unpack_codes(u->w, b->qs, quant_mxfp4_values);
    u->d = quant_mxfp4_scale(b->e);
}

static inline void unpack_q2_k(const void *block, struct unpacked256 *u)
{
    const struct block_q2_k *b = block;
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++)
            u->w[32 * j + i] = (int8_t)(b->qs[j / 4 * 32 + i] >> j % 4 * 2 & 3);
    for (int j = 0; j < 16; j++) {
        u->scale[j] = b->scales[j] & 15;
        u->min[j] = b->scales[j] >> 4;
    }
    u->d = unpack_half(b->d);
    u->dmin = unpack_half(b->dmin);
}

static inline void unpack_q3_k(const void *block, struct unpacked256 *u)
{
    const struct block_q3_k *b = block;
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) {
            int low = b->qs[j / 4 * 32 + i] >> j % 4 * 2 & 3, high = b->hmask[i] >> j & 1;
            u->w[32 * j + i] = (int8_t)(low + 4 * high - 4);
        }
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)quant_q3k_scale(b->scales, j);
    u->d = unpack_half(b->d);
}

/* The eight scales and minima of Q4_K and Q5_K, four at a time (quant/blocks.h: quant_k4_scale), each for two
 * sub-blocks of 16. */
static inline void unpack_k4_scales(struct unpacked256 *u, const uint8_t scales[12])
{
    uint32_t a, b, c, s[2], m[2];
    memcpy(&a, scales, 4);
    memcpy(&b, scales + 4, 4);
    memcpy(&c, scales + 8, 4);
    s[0] = a & 0x3f3f3f3f;
    s[1] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    m[0] = b & 0x3f3f3f3f;
    m[1] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    for (int j = 0; j < 16; j++) {
        u->scale[j] = (int16_t)(s[j / 8] >> j % 8 / 2 * 8 & 63);
        u->min[j] = (int16_t)(m[j / 8] >> j % 8 / 2 * 8 & 63);
    }
}

static inline void unpack_q4_k(const void *block, struct unpacked256 *u)
{
    const struct block_q4_k *b = block;
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++) {
            u->w[64 * j + i] = (int8_t)(b->qs[32 * j + i] & 15);
            u->w[64 * j + 32 + i] = (int8_t)(b->qs[32 * j + i] >> 4);
        }
    unpack_k4_scales(u, b->scales);
    u->d = unpack_half(b->d);
    u->dmin = unpack_half(b->dmin);
}

static inline void unpack_q5_k(const void *block, struct unpacked256 *u)
{
    const struct block_q5_k *b = block;
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++) {
            int q = b->qs[32 * j + i], h = b->qh[i] >> 2 * j;
            u->w[64 * j + i] = (int8_t)((q & 15) | (h & 1) << 4);
            u->w[64 * j + 32 + i] = (int8_t)(q >> 4 | (h & 2) << 3);
        }
    unpack_k4_scales(u, b->scales);
    u->d = unpack_half(b->d);
    u->dmin = unpack_half(b->dmin);
}

static inline void unpack_q6_k(const void *block, struct unpacked256 *u)
{
    const struct block_q6_k *b = block;
    for (int j = 0; j < 8; j++) {
        const uint8_t *ql = b->ql + j / 4 * 64 + j % 2 * 32, *qh = b->qh + j / 4 * 32;
        for (int i = 0; i < 32; i++)
            u->w[32 * j + i] = (int8_t)(((ql[i] >> j % 4 / 2 * 4 & 15) | (qh[i] >> j % 4 * 2 & 3) << 4) - 32);
    }
    for (int j = 0; j < 16; j++)
        u->scale[j] = b->scales[j];
    u->d = unpack_half(b->d);
}

static inline void unpack_iq4_xs(const void *block, struct unpacked256 *u)
{
    const struct block_iq4_xs *b = block;
    for (int j = 0; j < 8; j++)
        unpack_codes(u->w + 32 * j, b->qs + 16 * j, quant_iq4_values);
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)quant_iq4xs_scale(b, j / 2);
    u->d = unpack_half(b->d);
}

#endif
