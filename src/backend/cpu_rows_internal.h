/* Loops over the rows of an operation. */
#ifndef BACKEND_CPU_ROWS_INTERNAL_H
#define BACKEND_CPU_ROWS_INTERNAL_H

#include "backend/cpu_internal.h"

/* What fn gets as its argument. */
struct cpu_row_loop {
    struct cpu *c;
    const struct op *op;
};

/* Runs fn for each of n rows of an operation. */
void cpu_run_rows(struct cpu *c, const struct op *op, int64_t n, bool in_parallel, pool_fn *fn);

#endif
