/* The reference decoders that quant.c's table names, one a format. Internal to the room. */
#ifndef QUANT_QUANT_DECODE_H
#define QUANT_QUANT_DECODE_H

#include <stdint.h>

#define QUANT(name, id, block_len, block_bytes, decoder, act)                                                          \
    void decode_##decoder(const void *src, float *dst, int64_t n);
#include "quant/quant_types.def"
#undef QUANT

#endif
