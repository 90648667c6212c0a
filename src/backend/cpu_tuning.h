/* What depends on the machine and decides speed alone: whatever is chosen here, results are the same to the bit. The
 * CPU device holds its own copy, and hands its kernels what they need of it (kernels.h: struct kernel_how).
 *
 * Trials time products of weights that the device holds, to choose by. Thread-safety: as the device's. */
#ifndef BACKEND_CPU_TUNING_H
#define BACKEND_CPU_TUNING_H

#include <stdbool.h>

#include "kernels/kernels.h"

struct backend;
struct weight;
struct slot_pool;

/* The least and most of each number that makes sense. */
enum {
    CPU_TUNING_MAX_AHEAD = 1 << 20,
    CPU_TUNING_MIN_TASK = 1 << 12,
    CPU_TUNING_MAX_TASK = 1 << 30,
    CPU_TUNING_MAX_SPIN = 1 << 20,
    CPU_TUNING_MAX_FROM = 1 << 20, /* tokens, of each ..._from */
};

struct cpu_tuning {
    struct kernel_prefetch one[QUANT_MAX_ID]; /* of weights that meet one token, by type id */
    struct kernel_prefetch several;           /* of weights that meet more */
    int32_t several_from[QUANT_MAX_ID];       /* tokens that count as more, 2 at least */
    int32_t tiles_from[QUANT_MAX_ID];         /* tokens from which weights go to a matrix unit; 0: never */
    int32_t panels_from[QUANT_MAX_ID];        /* as in struct kernel_how */
    int64_t task_weights;                     /* most weights of a task of one token's product */
    int32_t n_spin;                           /* rounds that a thread waits for another before it sleeps */
};

/* Where nothing was measured. */
struct cpu_tuning cpu_tuning_default(void);

/* The device and its pool go by *t from now on. Not within an operation. */
void backend_cpu_tune(struct backend *device, const struct cpu_tuning *t);

/* Rows [row0, row1) of a packed matrix that lies on the first memory node. w is NULL: they are not packed yet. */
struct cpu_rows {
    const struct quant_info *type;
    const void *w; /* borrowed from the device: the whole matrix, of n_row rows of k weights */
    int64_t k, n_row, row0, row1;
};
struct cpu_rows backend_cpu_weight_rows(struct backend *device, const struct weight *w);
/* Of an expert whose slot, of backend_cpu_n_slot, is filled. */
struct cpu_rows backend_cpu_slot_rows(struct backend *device, const struct slot_pool *pool, int64_t slot, int matrix);

int64_t backend_cpu_n_slot(const struct slot_pool *pool);

/* Nanoseconds of processor time, of each thread in the mean, in which the threads of the first memory node multiply n
 * pieces of one type, all with rows of k weights, by m tokens. 0: out of memory. */
int64_t backend_cpu_trial(struct backend *device, const struct cpu_rows *pieces, size_t n, int64_t m,
                          struct kernel_how how);

#endif
