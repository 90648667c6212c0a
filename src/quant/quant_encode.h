/* Encoders: rows of float weights to the block formats. Each block's scales are searched for the least sum of
 * importance * (weight - decoded weight)^2, with a few dozen tries. In most types of few bits the decoded weights are
 * then made as large as the weights, which gives better models. Results are the same on every machine, to the byte. */
#ifndef QUANT_QUANT_ENCODE_H
#define QUANT_QUANT_ENCODE_H

#include "base/err.h"
#include "quant/quant.h"

/* Tables that the encoders read; constant, so threads may share them. MOEBIUS_CPU (base/cpu.h) chooses the instructions
 * that encoders use, which never changes their results. */
struct quant_tables;
MUST_USE err_code quant_tables_create(struct quant_tables **out, struct err *e);
void quant_tables_close(struct quant_tables **t);

/* Encodes n_row rows, which follow each other, of n finite weights, a multiple of block_len. importance: n numbers,
 * none negative (the mean square of the activation that meets the weights of a column), or NULL: all alike. */
void quant_encode_rows(const struct quant_tables *t, const struct quant_info *q, const float *x,
                       const float *importance, void *rows, int64_t n, int64_t n_row);

#endif
