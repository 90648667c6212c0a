/* Products of weights and activations, divided into tasks. */
#ifndef BACKEND_CPU_MATMUL_INTERNAL_H
#define BACKEND_CPU_MATMUL_INTERNAL_H

#include "backend/cpu_internal.h"

/* The number of rows in a task of a product: a multiple of 16, large enough to be worth a task, and small enough that
 * all threads finish at about the same time. n_row: rows in all; k: their length; m: tokens. */
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
