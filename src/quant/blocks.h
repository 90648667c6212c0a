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

/* ---- codebooks (quant/quant_grids.h) --------------------------------------------------------------------------
 * Sub-blocks j of 32 weights, with an index into a grid for each 8 (IQ3: 4). The scale 2s + 1 is half an integer
 * plus a half in the formats' own words. Signs are a bit a weight, set for minus; where only seven bits are
 * stored, the eighth makes their number even (quant_even_signs). */

/* d / 8 * (2s + 1) * grid. Two dwords a sub-block: four indices; four times seven signs, s in the top four bits. */
struct block_iq2_xxs {
    uint8_t d[2], qs[64];
};
/* d / 8 * (2s + 1) * grid, a scale (four bits) each 16. A word each 8: nine bits of index, seven signs. */
struct block_iq2_xs {
    uint8_t d[2], qs[64], scales[8];
};
/* As IQ2_XS; bits 2i and 2i + 1 of qh[j] are the high bits of index i of the sub-block. */
struct block_iq2_s {
    uint8_t d[2], qs[32], signs[32], qh[8], scales[8];
};
/* d / 4 * (2s + 1) * grid. Eight indices a sub-block; aux: a dword each, as IQ2_XXS's second one. */
struct block_iq3_xxs {
    uint8_t d[2], qs[64], aux[32];
};
/* d * (2s + 1) * grid, a scale (four bits) each 32; bit i of qh[j] is the high bit of index i. */
struct block_iq3_s {
    uint8_t d[2], qs[64], qh[8], signs[32], scales[4];
};
/* d * (2s + 1) * (grid +- 1/8). A word a sub-block in qh: bits 3i to 3i + 2 are the high bits of index i, then
 * three bits s, then one that makes it - 1/8. */
struct block_iq1_s {
    uint8_t d[2], qs[32], qh[16];
};
/* As IQ1_S with a scale each 16 and a sign of 1/8 each 8: half a byte an index in qh, three high bits and that
 * sign. Four words of scales: three bits each 16 weights, and a quarter of the half-precision d in the top. */
struct block_iq1_m {
    uint8_t qs[32], qh[16], scales[8];
};

/* ---- ternary and smaller ---------------------------------------------------------------------------------- */

/* d * (q - 1). Five (in qh four) ternary digits a byte: byte b is a fraction of 256, and its digits base three
 * after the point are the weights i, i + n, i + 2n ... of a run that n bytes hold; n is 32, then 16, then 4. */
struct block_tq1_0 {
    uint8_t qs[48], qh[4], d[2];
};
/* d * (q - 1), laid out as Q2_K's. */
struct block_tq2_0 {
    uint8_t qs[64], d[2];
};
struct block_q1_0 {
    uint8_t d[2], qs[16]; /* 128 weights: d or, where the bit is clear, -d */
};
struct block_q2_0 {
    uint8_t d[2], qs[16]; /* 64 weights: d * (q - 1), four in a byte */
};
/* 64 weights: scale * quant_mxfp4_values[q]; a scale (quant_nvfp4_scale) and eight bytes each 16, which hold
 * weight i in the low and weight i + 8 in the high four bits. */
struct block_nvfp4 {
    uint8_t scales[4], qs[32];
};

/* ---- trellises (ik_llama.cpp) -------------------------------------------------------------------------------
 * Rows begin with a float d. A seed starts a sequence of 8 (IQ4: 4) weights, quant_trellis. Sub-blocks of 32. */

/* d * quant_iq4_values[s] * trellis, s four bits: low of scales[j] for sub-block j, high for j + 4; seeds of 16
 * bits. */
struct block_iq2_kt {
    uint8_t scales[4], qs[64];
};
/* d * s * |trellis|; the rest as IQ2_KT. Bit j of qh[i] is the sign of weight 32j + i. */
struct block_iq3_kt {
    uint8_t scales[4], qs[64], qh[32];
};
/* d * (s - 64) * trellis. A dword a sub-block: whether seeds begin 2^15 later, s (seven bits), and three bits
 * above the twelve of each of its eight seeds: qs, and qh for seed i in the low and i + 32 in the high bits. */
struct block_iq4_kt {
    uint8_t head[32], qs[64], qh[32];
};

/* The values that the four-bit codes of IQ4_NL and IQ4_XS stand for, and twice those of MXFP4 (E2M1). */
static const int8_t quant_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t quant_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline uint16_t quant_load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t quant_load32(const uint8_t *p)
{
    return (uint32_t)quant_load16(p) | (uint32_t)quant_load16(p + 2) << 16;
}

/* Half of the power of two that MXFP4's shared exponent stands for, 2^(e - 128); 255 is 2^127, not NaN. */
static inline float quant_mxfp4_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A sub-block's scale in NVFP4: an eight-bit float without sign (E4M3), halved because the values are doubled. */
static inline float quant_nvfp4_scale(uint8_t s)
{
    int exponent = s >> 3 & 15, mantissa = s & 7;
    if (s == 0x7f)
        return 0; /* NaN */
    return (float)(exponent ? (8 + mantissa) << (exponent - 1) : mantissa) * 0x1p-10f;
}

/* Eight signs from the seven that are stored. */
static inline int quant_even_signs(int seven)
{
    int odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | (odd & 1) << 7;
}

/* The float d of IQ1_M. */
static inline uint16_t quant_iq1m_half(const struct block_iq1_m *b)
{
    const uint8_t *s = b->scales;
    return (uint16_t)(s[1] >> 4 | (s[3] & 0xf0) | (s[5] & 0xf0) << 4 | (s[7] & 0xf0) << 8);
}

/* Scale s (three bits) of 16 weights j of IQ1_M. */
static inline int quant_iq1m_scale(const struct block_iq1_m *b, int j)
{
    return quant_load16(b->scales + j / 4 * 2) >> j % 4 * 3 & 7;
}

/* The next weight of a trellis, -126..126: the state's next number, of whose bytes the low six bits are added. */
enum { QUANT_TRELLIS_START = 4096 }; /* what a seed adds to */
static inline int quant_trellis(uint32_t *state)
{
    uint32_t s = *state *= 0xcbac1fed;
    return (int)((s & 63) + (s >> 8 & 63) + (s >> 16 & 63) + (s >> 24 & 63)) - 126;
}

/* IQ4_KT's state before the first weight of group i of 4 in sub-block j. */
static inline uint32_t quant_iq4kt_seed(const struct block_iq4_kt *b, int j, int i)
{
    uint32_t head = quant_load32(b->head + 4 * j), at = (uint32_t)(8 * j + i);
    uint32_t seed = b->qs[at] | (uint32_t)(b->qh[at % 32] >> at / 32 * 4 & 15) << 8 | (head >> (8 + 3 * i) & 7) << 12;
    return seed + QUANT_TRELLIS_START + (head & 1) * 32768;
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
