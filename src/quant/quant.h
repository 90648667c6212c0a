/* Block formats: the table of weight types that GGUF files hold, with a reference decoder for each.
 *
 * A row of a weight matrix is a whole number of blocks; a block holds `block_len` weights in `block_bytes` bytes. Rows
 * of a few types begin with a head of `head_bytes`, which all their blocks need. All code that depends on a type asks
 * this table. Types that are not in it can't be run; callers report them by their ids. Decoders are plain C, exact and
 * slow: the reference that all fast kernels are tested against. */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Type ids are those of GGUF, or of ik_llama.cpp for the trellis types (KT). */
enum quant_type {
#define QUANT(name, id, block_len, block_bytes, decoder, act) QUANT_##name = id,
#include "quant/quant_types.def"
#undef QUANT
};

enum { QUANT_MAX_ID = 160 }; /* every known id is below this, so tables may be indexed by id */

/* What activations are rounded to, in fast mode, before they are multiplied by weights of a type. */
enum quant_act {
    QUANT_ACT_FLOAT,    /* float32, not rounded */
    QUANT_ACT_INT8_32,  /* int8 with one float scale for each 32 of them */
    QUANT_ACT_INT8_256, /* int8 with one float scale for each 256 of them */
    QUANT_N_ACT
};

struct quant_info {
    const char *name; /* the usual one, such as "Q4_K" */
    enum quant_type type;
    int block_len, block_bytes, head_bytes;
    enum quant_act act;
    void (*decode)(const void *row, float *dst, int64_t n); /* from a row's start; n: a multiple of block_len */
};

/* A type by its id; NULL where it is not in the table. */
const struct quant_info *quant_info(uint32_t type_id);

/* A type by its name, in upper or lower case ("q4_k"); NULL where there is none. */
const struct quant_info *quant_find(const char *name);

/* Computes the bytes of a row of n weights; false when n is not a multiple of the block length, and on overflow. */
bool quant_row_bytes(const struct quant_info *q, uint64_t n, size_t *out);

/* Decodes weights [block * block_len, (block + 1) * block_len) of the row that starts at `row`. */
void quant_decode_block(const struct quant_info *q, const void *row, int64_t block, float *dst);

/* Converts IEEE half precision and bfloat16 to float (exactly) and back (rounding to nearest even). */
float quant_half_to_float(uint16_t h);
uint16_t quant_float_to_half(float f);
float quant_bf16_to_float(uint16_t h);
uint16_t quant_float_to_bf16(float f);

#endif
