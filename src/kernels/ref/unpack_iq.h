/* As unpack.h, for the codebook, ternary and trellis formats. */
#ifndef KERNELS_REF_UNPACK_IQ_H
#define KERNELS_REF_UNPACK_IQ_H

#include <stdlib.h>

#include "kernels/ref/unpack.h"
#include "quant/quant_grids.h"

/* n weights of a grid's entry of `bits` bits each, negative where `signs` has a bit. */
static inline void unpack_grid(int8_t *w, int n, uint16_t entry, const int8_t *values, int signs)
{
    int bits = 16 / n;
    for (int i = 0; i < n; i++) {
        int v = values[entry >> bits * i & ((1 << bits) - 1)];
        w[i] = (int8_t)(signs >> i & 1 ? -v : v);
    }
}

static inline void unpack_iq2_xxs(const void *block, struct unpacked256 *u)
{
    const struct block_iq2_xxs *b = block;
    for (int j = 0; j < 8; j++) {
        uint32_t aux = quant_load32(b->qs + 8 * j + 4);
        for (int i = 0; i < 4; i++)
            unpack_grid(u->w + 32 * j + 8 * i, 8, quant_grid_iq2_xxs[b->qs[8 * j + i]], quant_iq2_values,
                        quant_even_signs(aux >> 7 * i & 127));
        u->scale[2 * j] = u->scale[2 * j + 1] = (int16_t)(2 * (aux >> 28) + 1);
    }
    u->d = unpack_half(b->d) * 0.125f;
}

/* Sixteen scales 2s + 1, four bits s each. */
static inline void unpack_scales4(struct unpacked256 *u, const uint8_t scales[8])
{
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)(2 * (scales[j / 2] >> j % 2 * 4 & 15) + 1);
}

static inline void unpack_iq2_xs(const void *block, struct unpacked256 *u)
{
    const struct block_iq2_xs *b = block;
    for (int i = 0; i < 32; i++) {
        int code = quant_load16(b->qs + 2 * i);
        unpack_grid(u->w + 8 * i, 8, quant_grid_iq2_xs[code & 511], quant_iq2_values, quant_even_signs(code >> 9));
    }
    unpack_scales4(u, b->scales);
    u->d = unpack_half(b->d) * 0.125f;
}

static inline void unpack_iq2_s(const void *block, struct unpacked256 *u)
{
    const struct block_iq2_s *b = block;
    for (int i = 0; i < 32; i++) {
        int index = b->qs[i] | (b->qh[i / 4] >> i % 4 * 2 & 3) << 8;
        unpack_grid(u->w + 8 * i, 8, quant_grid_iq2_s[index], quant_iq2_values, b->signs[i]);
    }
    unpack_scales4(u, b->scales);
    u->d = unpack_half(b->d) * 0.125f;
}

static inline void unpack_iq3_xxs(const void *block, struct unpacked256 *u)
{
    const struct block_iq3_xxs *b = block;
    for (int j = 0; j < 8; j++) {
        uint32_t aux = quant_load32(b->aux + 4 * j);
        for (int i = 0; i < 8; i++)
            unpack_grid(u->w + 32 * j + 4 * i, 4, quant_grid_iq3_xxs[b->qs[8 * j + i]], quant_iq3_xxs_values,
                        quant_even_signs(aux >> i / 2 * 7 & 127) >> i % 2 * 4);
        u->scale[2 * j] = u->scale[2 * j + 1] = (int16_t)(2 * (aux >> 28) + 1);
    }
    u->d = unpack_half(b->d) * 0.25f;
}

static inline void unpack_iq3_s(const void *block, struct unpacked256 *u)
{
    const struct block_iq3_s *b = block;
    for (int i = 0; i < 64; i++) {
        int index = b->qs[i] | (b->qh[i / 8] >> i % 8 & 1) << 8;
        unpack_grid(u->w + 4 * i, 4, quant_grid_iq3_s[index], quant_iq3_s_values, b->signs[i / 2] >> i % 2 * 4);
    }
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)(2 * (b->scales[j / 4] >> j / 2 % 2 * 4 & 15) + 1);
    u->d = unpack_half(b->d);
}

/* Eight weights of IQ1, in eighths. */
static inline void unpack_iq1(int8_t *w, int index, bool down)
{
    for (int i = 0; i < 8; i++)
        w[i] = (int8_t)(8 * quant_iq1_values[quant_grid_iq1[index] >> 2 * i & 3] + (down ? -1 : 1));
}

static inline void unpack_iq1_s(const void *block, struct unpacked256 *u)
{
    const struct block_iq1_s *b = block;
    for (int j = 0; j < 8; j++) {
        int high = quant_load16(b->qh + 2 * j);
        for (int i = 0; i < 4; i++)
            unpack_iq1(u->w + 32 * j + 8 * i, b->qs[4 * j + i] | (high >> 3 * i & 7) << 8, high >> 15);
        u->scale[2 * j] = u->scale[2 * j + 1] = (int16_t)(2 * (high >> 12 & 7) + 1);
    }
    u->d = unpack_half(b->d) * 0.125f;
}

static inline void unpack_iq1_m(const void *block, struct unpacked256 *u)
{
    const struct block_iq1_m *b = block;
    for (int i = 0; i < 32; i++) {
        int high = b->qh[i / 2] >> i % 2 * 4;
        unpack_iq1(u->w + 8 * i, b->qs[i] | (high & 7) << 8, high & 8);
    }
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)(2 * quant_iq1m_scale(b, j) + 1);
    u->d = quant_half_to_float(quant_iq1m_half(b)) * 0.125f;
}

/* n_byte bytes of `n_digit` ternary digits each (quant/blocks.h: block_tq1_0). */
static inline int8_t *unpack_ternary(int8_t *w, const uint8_t *qs, int n_byte, int n_digit)
{
    for (int digit = 0, power = 1; digit < n_digit; digit++, power *= 3)
        for (int i = 0; i < n_byte; i++)
            *w++ = (int8_t)(((qs[i] * power & 255) * 3 >> 8) - 1);
    return w;
}

static inline void unpack_ones(struct unpacked256 *u)
{
    for (int j = 0; j < 16; j++)
        u->scale[j] = 1;
}

static inline void unpack_tq1_0(const void *block, struct unpacked256 *u)
{
    const struct block_tq1_0 *b = block;
    int8_t *w = unpack_ternary(u->w, b->qs, 32, 5);
    w = unpack_ternary(w, b->qs + 32, 16, 5);
    unpack_ternary(w, b->qh, 4, 4);
    unpack_ones(u);
    u->d = unpack_half(b->d);
}

static inline void unpack_tq2_0(const void *block, struct unpacked256 *u)
{
    const struct block_tq2_0 *b = block;
    for (int i = 0; i < 256; i++)
        u->w[i] = (int8_t)((b->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
    unpack_ones(u);
    u->d = unpack_half(b->d);
}

/* The trellis formats: u->d is the row's, and not set here. */
static inline void unpack_iq2_kt(const void *block, struct unpacked256 *u)
{
    const struct block_iq2_kt *b = block;
    for (int i = 0; i < 32; i++) {
        uint32_t state = quant_load16(b->qs + 2 * i) + QUANT_TRELLIS_START;
        for (int w = 8 * i; w < 8 * i + 8; w++)
            u->w[w] = (int8_t)quant_trellis(&state);
    }
    for (int j = 0; j < 16; j++)
        u->scale[j] = quant_iq4_values[b->scales[j / 2 % 4] >> j / 8 * 4 & 15];
}

static inline void unpack_iq3_kt(const void *block, struct unpacked256 *u)
{
    const struct block_iq3_kt *b = block;
    for (int i = 0; i < 32; i++) {
        uint32_t state = quant_load16(b->qs + 2 * i) + QUANT_TRELLIS_START;
        for (int w = 8 * i; w < 8 * i + 8; w++) {
            int size = abs(quant_trellis(&state));
            u->w[w] = (int8_t)(b->qh[w % 32] >> w / 32 & 1 ? -size : size);
        }
    }
    for (int j = 0; j < 16; j++)
        u->scale[j] = b->scales[j / 2 % 4] >> j / 8 * 4 & 15;
}

static inline void unpack_iq4_kt(const void *block, struct unpacked256 *u)
{
    const struct block_iq4_kt *b = block;
    for (int i = 0; i < 64; i++) {
        uint32_t state = quant_iq4kt_seed(b, i / 8, i % 8);
        for (int w = 4 * i; w < 4 * i + 4; w++)
            u->w[w] = (int8_t)quant_trellis(&state);
    }
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)((b->head[j / 2 * 4] >> 1) - 64);
}

/* Formats of larger blocks that meet activations of 32: weights 32 * part .. 32 * part + 31. */
static inline void unpack_q1_0(const void *block, int part, struct unpacked32 *u)
{
    const struct block_q1_0 *b = block;
    for (int i = 0; i < 32; i++)
        u->w[i] = (int8_t)(2 * (b->qs[4 * part + i / 8] >> i % 8 & 1) - 1);
    u->d = unpack_half(b->d);
}

static inline void unpack_q2_0(const void *block, int part, struct unpacked32 *u)
{
    const struct block_q2_0 *b = block;
    for (int i = 0; i < 32; i++)
        u->w[i] = (int8_t)((b->qs[8 * part + i / 4] >> i % 4 * 2 & 3) - 1);
    u->d = unpack_half(b->d);
}

/* d is the scale of the first 16, m that of the others. */
static inline void unpack_nvfp4(const void *block, int part, struct unpacked32 *u)
{
    const struct block_nvfp4 *b = block;
    for (int i = 0; i < 32; i++)
        u->w[i] = quant_mxfp4_values[b->qs[16 * part + i / 16 * 8 + i % 8] >> i % 16 / 8 * 4 & 15];
    u->d = quant_nvfp4_scale(b->scales[2 * part]);
    u->m = quant_nvfp4_scale(b->scales[2 * part + 1]);
}

#endif
