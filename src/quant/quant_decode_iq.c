/* Reference decoders of the codebook, ternary and trellis formats; as in quant_decode.c, with the roundings of
 * the formats' own tools. */
#include <math.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/quant_decode.h"
#include "quant/quant_grids.h"

static float half_at(const uint8_t *p)
{
    return quant_half_to_float(quant_load16(p));
}

/* Decodes eight weights: scale times the values of a grid's entry, with signs. */
static void grid8(float *dst, uint16_t entry, int signs, float scale)
{
    for (int i = 0; i < 8; i++)
        dst[i] = scale * (float)quant_iq2_values[entry >> 2 * i & 3] * (signs >> i & 1 ? -1.0f : 1.0f);
}

static void grid4(float *dst, uint16_t entry, const int8_t values[8], int signs, float scale)
{
    for (int i = 0; i < 4; i++)
        dst[i] = scale * (float)values[entry >> 4 * i & 7] * (signs >> i & 1 ? -1.0f : 1.0f);
}

void decode_iq2_xxs(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq2_xxs *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int j = 0; j < 8; j++) {
            uint32_t aux = quant_load32(b->qs + 8 * j + 4);
            float scale = half_at(b->d) * (0.5f + (float)(aux >> 28)) * 0.25f;
            for (int i = 0; i < 4; i++, dst += 8)
                grid8(dst, quant_grid_iq2_xxs[b->qs[8 * j + i]], quant_even_signs(aux >> 7 * i & 127), scale);
        }
}

void decode_iq2_xs(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq2_xs *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 32; i++, dst += 8) {
            int code = quant_load16(b->qs + 2 * i), s = b->scales[i / 4] >> i % 4 / 2 * 4 & 15;
            float scale = half_at(b->d) * (0.5f + (float)s) * 0.25f;
            grid8(dst, quant_grid_iq2_xs[code & 511], quant_even_signs(code >> 9), scale);
        }
}

void decode_iq2_s(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq2_s *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 32; i++, dst += 8) {
            int index = b->qs[i] | (b->qh[i / 4] >> i % 4 * 2 & 3) << 8, s = b->scales[i / 4] >> i % 4 / 2 * 4 & 15;
            float scale = half_at(b->d) * (0.5f + (float)s) * 0.25f;
            grid8(dst, quant_grid_iq2_s[index], b->signs[i], scale);
        }
}

void decode_iq3_xxs(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq3_xxs *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 64; i++, dst += 4) {
            uint32_t aux = quant_load32(b->aux + i / 8 * 4);
            int signs = quant_even_signs(aux >> i % 8 / 2 * 7 & 127) >> i % 2 * 4;
            float scale = half_at(b->d) * (0.5f + (float)(aux >> 28)) * 0.5f;
            grid4(dst, quant_grid_iq3_xxs[b->qs[i]], quant_iq3_xxs_values, signs, scale);
        }
}

void decode_iq3_s(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq3_s *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 64; i++, dst += 4) {
            int j = i / 8, index = b->qs[i] | (b->qh[j] >> i % 8 & 1) << 8;
            float scale = half_at(b->d) * (float)(1 + 2 * (b->scales[j / 2] >> j % 2 * 4 & 15));
            grid4(dst, quant_grid_iq3_s[index], quant_iq3_s_values, b->signs[i / 2] >> i % 2 * 4, scale);
        }
}

/* Decodes eight weights of IQ1: scale times the values of a grid's entry, which are shifted by an eighth. */
static void grid_iq1(float *dst, int index, bool down, float scale)
{
    for (int i = 0; i < 8; i++)
        dst[i] = scale * ((float)quant_iq1_values[quant_grid_iq1[index] >> 2 * i & 3] + (down ? -0.125f : 0.125f));
}

void decode_iq1_s(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq1_s *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 32; i++, dst += 8) {
            int high = quant_load16(b->qh + i / 4 * 2), index = b->qs[i] | (high >> i % 4 * 3 & 7) << 8;
            grid_iq1(dst, index, high >> 15, half_at(b->d) * (float)(2 * (high >> 12 & 7) + 1));
        }
}

void decode_iq1_m(const void *row, float *dst, int64_t n)
{
    for (const struct block_iq1_m *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 32; i++, dst += 8) {
            int high = b->qh[i / 2] >> i % 2 * 4, index = b->qs[i] | (high & 7) << 8;
            float d = quant_half_to_float(quant_iq1m_half(b));
            grid_iq1(dst, index, high & 8, d * (float)(2 * quant_iq1m_scale(b, i / 2) + 1));
        }
}

/* Decodes n_byte bytes of n_digit ternary digits each: all bytes' first digits, then their second ones, and so on. */
static float *ternary(float *dst, const uint8_t *qs, int n_byte, int n_digit, float d)
{
    for (int digit = 0, power = 1; digit < n_digit; digit++, power *= 3)
        for (int i = 0; i < n_byte; i++)
            *dst++ = (float)(((qs[i] * power & 255) * 3 >> 8) - 1) * d;
    return dst;
}

void decode_tq1_0(const void *row, float *dst, int64_t n)
{
    for (const struct block_tq1_0 *b = row; n > 0; b++, n -= QUANT_SUPER) {
        dst = ternary(dst, b->qs, 32, 5, half_at(b->d));
        dst = ternary(dst, b->qs + 32, 16, 5, half_at(b->d));
        dst = ternary(dst, b->qh, 4, 4, half_at(b->d));
    }
}

void decode_tq2_0(const void *row, float *dst, int64_t n)
{
    for (const struct block_tq2_0 *b = row; n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < QUANT_SUPER; i++)
            *dst++ = (float)((b->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1) * half_at(b->d);
}

void decode_q1_0(const void *row, float *dst, int64_t n)
{
    for (const struct block_q1_0 *b = row; n > 0; b++, n -= 128)
        for (int i = 0; i < 128; i++)
            *dst++ = b->qs[i / 8] >> i % 8 & 1 ? half_at(b->d) : -half_at(b->d);
}

void decode_q2_0(const void *row, float *dst, int64_t n)
{
    for (const struct block_q2_0 *b = row; n > 0; b++, n -= 64)
        for (int i = 0; i < 64; i++)
            *dst++ = (float)((b->qs[i / 4] >> i % 4 * 2 & 3) - 1) * half_at(b->d);
}

void decode_nvfp4(const void *row, float *dst, int64_t n)
{
    for (const struct block_nvfp4 *b = row; n > 0; b++, n -= 64)
        for (int i = 0; i < 64; i++) {
            int code = b->qs[i / 16 * 8 + i % 8] >> i % 16 / 8 * 4 & 15;
            *dst++ = (float)quant_mxfp4_values[code] * quant_nvfp4_scale(b->scales[i / 16]);
        }
}

static float row_scale(const void *row)
{
    float d;
    memcpy(&d, row, sizeof d);
    return d;
}

void decode_iq2_kt(const void *row, float *dst, int64_t n)
{
    float d = row_scale(row);
    for (const struct block_iq2_kt *b = (const void *)((const char *)row + sizeof d); n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 32; i++) {
            uint32_t state = quant_load16(b->qs + 2 * i) + QUANT_TRELLIS_START;
            float scale = d * (float)quant_iq4_values[b->scales[i / 4 % 4] >> i / 16 * 4 & 15];
            for (int w = 0; w < 8; w++)
                *dst++ = scale * (float)quant_trellis(&state);
        }
}

void decode_iq3_kt(const void *row, float *dst, int64_t n)
{
    float d = row_scale(row);
    for (const struct block_iq3_kt *b = (const void *)((const char *)row + sizeof d); n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 32; i++) {
            uint32_t state = quant_load16(b->qs + 2 * i) + QUANT_TRELLIS_START;
            float scale = d * (float)(b->scales[i / 4 % 4] >> i / 16 * 4 & 15);
            for (int w = 0; w < 8; w++) {
                float size = scale * fabsf((float)quant_trellis(&state));
                *dst++ = b->qh[i % 4 * 8 + w] >> i / 4 & 1 ? -size : size;
            }
        }
}

void decode_iq4_kt(const void *row, float *dst, int64_t n)
{
    float d = row_scale(row);
    for (const struct block_iq4_kt *b = (const void *)((const char *)row + sizeof d); n > 0; b++, n -= QUANT_SUPER)
        for (int i = 0; i < 64; i++) {
            uint32_t state = quant_iq4kt_seed(b, i / 8, i % 8);
            float scale = d * (float)((b->head[i / 8 * 4] >> 1) - 64);
            for (int w = 0; w < 4; w++)
                *dst++ = scale * (float)quant_trellis(&state);
        }
}
