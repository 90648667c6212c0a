/* Tuning parameters of the CPU device: numbers that depend on the machine and affect speed only. Results are the same
 * to the bit whatever is chosen here. The device holds its own copy, and passes its kernels what they need (kernels.h:
 * struct kernel_how).
 *
 * Trials time products of weights that the device holds, so that the best numbers can be chosen. Thread-safety: as the
 * device's. */
#ifndef BACKEND_CPU_TUNING_H
#define BACKEND_CPU_TUNING_H

#include <stdbool.h>

#include "kernels/kernels.h"

struct backend;
struct weight;
struct slot_pool;

/* The smallest and largest sensible values. */
enum {
    CPU_TUNING_MAX_AHEAD = 1 << 20,
    CPU_TUNING_MIN_TASK = 1 << 12,
    CPU_TUNING_MAX_TASK = 1 << 30,
    CPU_TUNING_MAX_SPIN = 1 << 20,
    CPU_TUNING_MAX_FROM = 1 << 20, /* tokens, of each ..._from */
};

struct cpu_tuning {
    struct kernel_prefetch one[QUANT_MAX_ID]; /* for products with one token, by the weights' type */
    struct kernel_prefetch several;           /* for products with several tokens */
    int32_t several_from[QUANT_MAX_ID];       /* number of tokens from which `several` holds; at least 2 */
    int32_t tiles_from[QUANT_MAX_ID];         /* number of tokens from which the matrix unit is used; 0: never */
    int32_t panels_from[QUANT_MAX_ID];        /* as in struct kernel_how */
    int64_t task_weights;                     /* the most weights that a task of one token's product takes */
    int32_t n_spin;                           /* rounds that a thread spins for another one before it sleeps */
};

/* The parameters without measurements. */
struct cpu_tuning cpu_tuning_default(void);

/* Sets the parameters of the device and its pool. Not to be called within an operation. */
void backend_cpu_tune(struct backend *device, const struct cpu_tuning *t);

/* Rows [row0, row1) of a packed matrix: those that lie on the first memory node. */
struct cpu_rows {
    const struct quant_info *type;
    const void *w; /* the whole matrix of n_row rows of k weights, borrowed from the device; NULL: not packed yet */
    int64_t k, n_row, row0, row1;
};
struct cpu_rows backend_cpu_weight_rows(struct backend *device, const struct weight *w);
/* The rows of a matrix (enum expert_matrix) of the expert in a slot, which must be filled. */
struct cpu_rows backend_cpu_slot_rows(struct backend *device, const struct slot_pool *pool, int64_t slot, int matrix);

int64_t backend_cpu_n_slot(const struct slot_pool *pool);

/* Multiplies n pieces of one type, all with rows of k weights, by m tokens, with the threads of the first memory node.
 * Returns the nanoseconds of processor time that each thread took, on average. 0: out of memory. */
int64_t backend_cpu_trial(struct backend *device, const struct cpu_rows *pieces, size_t n, int64_t m,
                          struct kernel_how how);

#endif
