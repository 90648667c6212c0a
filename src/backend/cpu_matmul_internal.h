/* Products of weights and activations, cut into tasks. */
#ifndef BACKEND_CPU_MATMUL_INTERNAL_H
#define BACKEND_CPU_MATMUL_INTERNAL_H

#include "backend/cpu_internal.h"

/* Rows that a task of a product takes on: a multiple of 16, enough to be worth handing out, few enough that threads
 * finish together. n_row: rows in all; k: their length; m: tokens that meet them. */
int64_t cpu_chunk_rows(const struct cpu *c, int64_t n_row, int64_t k, int64_t m);

/* y [m][w->n_row] = w . x + bias */
struct cpu_product {
    const struct weight *w;
    const float *bias; /* [w->n_row] or NULL */
    float *y;
};

/* Up to OP_MAX_OUT products that share x [m][k]. False when out of memory. */
bool cpu_matmul(struct cpu *c, const struct cpu_product *products, int n, const float *x, int64_t m);

#endif
