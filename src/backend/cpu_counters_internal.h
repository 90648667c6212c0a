/* Counters of what operations need. */
#ifndef BACKEND_CPU_COUNTERS_INTERNAL_H
#define BACKEND_CPU_COUNTERS_INTERNAL_H

#include "backend/cpu_internal.h"

/* Adds one operation that took n_ns to the counters. OP_EXPERTS counts its own products. */
void cpu_count(struct cpu *c, const struct op *op, int64_t n_ns);

/* Adds the work of reading n_read matrices [n_row][k] once, and of multiplying m rows of activations by one of them. */
void cpu_count_product(struct cpu *c, enum op_kind kind, const struct quant_info *type, int64_t n_row, int64_t k,
                       int64_t n_read, int64_t m);

#endif
