/* Activations, rounded to what the products take (kernels.h: struct kernel_act). */
#ifndef BACKEND_CPU_ACT_INTERNAL_H
#define BACKEND_CPU_ACT_INTERNAL_H

#include "backend/cpu_internal.h"

/* Rows of activations in memory that may be written: struct kernel_act says how they lie. */
struct cpu_act {
    enum quant_act kind;
    int64_t k;
    float *f32;
    int8_t *q;
    float *d;
    int16_t *sum;
};

/* Bytes of n_row rows of k activations, and such rows in that many bytes at p, which is 64-byte aligned. */
size_t cpu_act_bytes(enum quant_act kind, int64_t n_row, int64_t k);
struct cpu_act cpu_act_at(void *p, enum quant_act kind, int64_t n_row, int64_t k);

/* Writes one row: rounds k floats (FLOAT: copies them), or copies a row that is rounded already. */
void cpu_act_round_row(const struct cpu_act *a, const struct kernels *kernels, int64_t row, const float *x);
void cpu_act_copy_row(const struct cpu_act *a, int64_t row, const struct kernel_act *from, int64_t from_row);

/* The rows from `row` on, for a product. */
struct kernel_act cpu_act_rows(const struct cpu_act *a, int64_t row);
struct kernel_act cpu_act_skip(const struct kernel_act *a, int64_t row);

/* n_row rows in scratch block `id`; kind: not FLOAT. False when out of memory. */
bool cpu_act_place(struct cpu *c, enum cpu_scratch id, enum quant_act kind, int64_t n_row, int64_t k,
                   struct cpu_act *out);

/* Rounds n_row rows of k floats in parallel, into scratch block `id`; FLOAT borrows x instead. False when out of
 * memory. */
bool cpu_act_round(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t n_row, int64_t k,
                   struct kernel_act *out);

#endif
