/* The reference decoders in quant.c's table, one for each format. For this folder only. */
#ifndef QUANT_QUANT_DECODE_H
#define QUANT_QUANT_DECODE_H

#include <stdint.h>
#include <string.h>

#define QUANT(name, id, block_len, block_bytes, decoder, act)                                                          \
    void decode_##decoder(const void *src, float *dst, int64_t n);
#include "quant/quant_types.def"
#undef QUANT

static inline float decode_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* quant_half_to_float without branches. NaNs keep the leading bits of their payload and become quiet, as with the
 * conversion instructions of x86. */
static inline float decode_half(uint16_t h)
{
    uint32_t mag = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16, bits = mag << 13, small;
    uint32_t is_small = 0 - (uint32_t)(mag < 0x400), is_special = 0 - (uint32_t)(mag >= 0x7c00);
    float subnormal = (float)(int32_t)mag * 0x1p-24f;
    memcpy(&small, &subnormal, sizeof small);
    small = (small & is_small) | ((bits + (112u << 23)) & ~is_small);
    bits |= 0x7f800000 | (uint32_t)(mag > 0x7c00) << 22;
    return decode_float(sign | (bits & is_special) | (small & ~is_special));
}

#endif
