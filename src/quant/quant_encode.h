/* Encoders: rows of float weights to the block formats.
 *
 * Each block's scales are searched for the least sum of importance * (weight - decoded weight)^2, so decoded weights
 * are as near as a few dozen tries find. The same input gives the same bytes on every machine. Not for hot paths. */
#ifndef QUANT_QUANT_ENCODE_H
#define QUANT_QUANT_ENCODE_H

#include "quant/quant.h"

/* What encoders look things up in; constant, so threads may share one. NULL when there is no memory. */
struct quant_tables;
struct quant_tables *quant_tables_create(void);
void quant_tables_close(struct quant_tables **t);

/* Whether there is an encoder for the type. */
bool quant_can_encode(const struct quant_info *q);

/* Encodes n finite weights, a multiple of block_len, as a row. importance: n numbers, none negative (the mean square of
 * the activation that meets the weight), or NULL: all alike. */
void quant_encode_row(const struct quant_tables *t, const struct quant_info *q, const float *x, const float *importance,
                      void *row, int64_t n);

#endif
