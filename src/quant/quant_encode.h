/* Encoders from rows of float weights to the block formats. For each block they search, with a few dozen tries, for the
 * scales with the least sum of importance * (weight - decoded weight)^2. In most types of few bits the scales are then
 * changed so that the decoded weights are as large as the weights on the whole, which gives better models. Results are
 * the same on every machine, to the byte. */
#ifndef QUANT_QUANT_ENCODE_H
#define QUANT_QUANT_ENCODE_H

#include "base/err.h"
#include "quant/quant.h"

/* The tables that the encoders read. They are constant, so threads may share them. MOEBIUS_CPU (base/cpu.h) chooses the
 * instruction set that the encoders use, which never changes their results. */
struct quant_tables;
MUST_USE err_code quant_tables_create(struct quant_tables **out, struct err *e);
void quant_tables_close(struct quant_tables **t);

/* Encodes n_row contiguous rows of n finite weights; n is a multiple of block_len. importance: for each of the n
 * columns the mean square of the activations that its weights are multiplied by, or any number that isn't negative;
 * NULL: all columns are alike. */
void quant_encode_rows(const struct quant_tables *t, const struct quant_info *q, const float *x,
                       const float *importance, void *rows, int64_t n, int64_t n_row);

#endif
