/* The blocks of each format, byte for byte, and how their packed scales are read.
 *
 * All fields are bytes, so a block may lie at any address. Sixteen-bit fields are little-endian, as is
 * everything in a GGUF file. Weights are listed in the order of the row unless said otherwise. Facts: ggml's
 * block definitions. */
#ifndef QUANT_BLOCKS_H
#define QUANT_BLOCKS_H

#include <stdint.h>
#include <string.h>

enum { QUANT_SUPER = 256 }; /* weights in a block of the K formats */

/* Byte i of qs holds weight i in its low and weight i + 16 in its high four bits. */
struct block_q4_0 {
    uint8_t d[2], qs[16]; /* d * (q - 8) */
};
struct block_q4_1 {
    uint8_t d[2], m[2], qs[16]; /* d * q + m */
};
struct block_q5_0 {
    uint8_t d[2], qh[4], qs[16]; /* d * (q - 16); bit i of qh is the fifth bit of weight i */
};
struct block_q5_1 {
    uint8_t d[2], m[2], qh[4], qs[16]; /* d * q + m */
};
struct block_q8_0 {
    uint8_t d[2];
    int8_t qs[32];
};
struct block_iq4_nl {
    uint8_t d[2], qs[16]; /* d * quant_iq4_values[q] */
};
struct block_mxfp4 {
    uint8_t e, qs[16]; /* 2^(e - 128) * quant_mxfp4_values[q] */
};

/* Sixteen sub-blocks of 16; scales: low four bits the scale, high four the minimum. Two halves of 128 weights
 * with 32 bytes of qs each; bits 2j, 2j+1 of byte i hold weight 32j + i of the half. */
struct block_q2_k {
    uint8_t scales[16], qs[64], d[2], dmin[2];
};
/* As Q2_K; bit 4h + j of hmask[i] is the third bit of weight 128h + 32j + i; value q - 4. */
struct block_q3_k {
    uint8_t hmask[32], qs[64], scales[12], d[2];
};
/* Eight sub-blocks of 32; byte i of the 32 bytes j of qs holds weights 64j + i (low) and 64j + 32 + i (high).
 */
struct block_q4_k {
    uint8_t d[2], dmin[2], scales[12], qs[128];
};
/* As Q4_K; bit j of qh[i] is the fifth bit of weight 32j + i. */
struct block_q5_k {
    uint8_t d[2], dmin[2], scales[12], qh[32], qs[128];
};
/* Sixteen sub-blocks of 16. In each half of 128 weights, byte i of 64 bytes ql holds the low bits of weights
 * i (low) and 64 + i (high), byte i of 32 bytes qh the high bits of weights i, 32 + i, 64 + i, 96 + i; value
 * q - 32. */
struct block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint8_t d[2];
};
/* Eight sub-blocks of 32, each laid out as IQ4_NL's. */
struct block_iq4_xs {
    uint8_t d[2], scales_h[2], scales_l[4], qs[128];
};

/* The values that the four-bit codes of IQ4_NL and IQ4_XS stand for, and twice those of MXFP4 (E2M1). */
static const int8_t quant_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t quant_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline uint16_t quant_load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Half of the power of two that MXFP4's shared exponent stands for, 2^(e - 128); 255 is 2^127, not NaN. */
static inline float quant_mxfp4_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Scale and minimum (6 bits each) of sub-block j of Q4_K and Q5_K. */
static inline int quant_k4_scale(const uint8_t s[12], int j)
{
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
static inline int quant_k4_min(const uint8_t s[12], int j)
{
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

/* Scale -32..31 of sub-block j of Q3_K: four low bits in bytes 0-7, two high bits in bytes 8-11. */
static inline int quant_q3k_scale(const uint8_t s[12], int j)
{
    return ((s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

/* Scale -32..31 of sub-block j of IQ4_XS. */
static inline int quant_iq4xs_scale(const struct block_iq4_xs *b, int j)
{
    return ((b->scales_l[j / 2] >> j % 2 * 4 & 15) | (quant_load16(b->scales_h) >> 2 * j & 3) << 4) - 32;
}

#endif
