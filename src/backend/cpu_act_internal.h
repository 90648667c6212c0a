/* Activations, rounded to the form that the kernels' products take (kernels.h: struct kernel_act). */
#ifndef BACKEND_CPU_ACT_INTERNAL_H
#define BACKEND_CPU_ACT_INTERNAL_H

#include "backend/cpu_internal.h"

/* Rows of activations in writable memory. The layout is that of struct kernel_act. */
struct cpu_act {
    enum quant_act kind;
    int64_t k;
    float *f32;
    int8_t *q;
    float *d;
    int16_t *sum;
};

/* The bytes that n_row rows of k activations take, and such rows at p, which must be 64-byte aligned. */
size_t cpu_act_bytes(enum quant_act kind, int64_t n_row, int64_t k);
struct cpu_act cpu_act_at(void *p, enum quant_act kind, int64_t n_row, int64_t k);

/* Write one row: rounding k floats (or copying them, if kind is FLOAT), or copying a row that is rounded already. */
void cpu_act_round_row(const struct cpu_act *a, const struct kernels *kernels, int64_t row, const float *x);
void cpu_act_copy_row(const struct cpu_act *a, int64_t row, const struct kernel_act *from, int64_t from_row);

/* The rows from `row` on, as the kernels take them. */
struct kernel_act cpu_act_rows(const struct cpu_act *a, int64_t row);
struct kernel_act cpu_act_skip(const struct kernel_act *a, int64_t row);

/* Makes room for n_row rows in scratch block `id`; kind must not be FLOAT. False when out of memory. */
bool cpu_act_place(struct cpu *c, enum cpu_scratch id, enum quant_act kind, int64_t n_row, int64_t k,
                   struct cpu_act *out);

/* Rounds n_row rows of k floats in parallel into scratch block `id`; with kind FLOAT, *out refers to x instead. False
 * when out of memory. */
bool cpu_act_round(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t n_row, int64_t k,
                   struct kernel_act *out);

#endif
