/* Encoders: rows of float weights to the block formats.
 *
 * Each block's scales are searched for the least sum of importance * (weight - decoded weight)^2, so decoded weights
 * are as near as a few dozen tries find. Of most types of few bits they are then made as large as the weights,
 * which models answer better to. The same input gives the same bytes on every machine. */
#ifndef QUANT_QUANT_ENCODE_H
#define QUANT_QUANT_ENCODE_H

#include "base/err.h"
#include "quant/quant.h"

/* What encoders look things up in; constant, so threads may share one. MOEBIUS_CPU (base/cpu.h) decides with which
 * instructions they work, and never what they give. */
struct quant_tables;
MUST_USE err_code quant_tables_create(struct quant_tables **out, struct err *e);
void quant_tables_close(struct quant_tables **t);

/* Encodes n_row rows, which follow each other, of n finite weights, a multiple of block_len. importance: n numbers,
 * none negative (the mean square of the activation that meets the weights of a column), or NULL: all alike. */
void quant_encode_rows(const struct quant_tables *t, const struct quant_info *q, const float *x,
                       const float *importance, void *rows, int64_t n, int64_t n_row);

#endif
