/* Measurements by others as receipts: what `llama-bench -o json` writes. */
#ifndef JOBS_BENCH_IMPORT_H
#define JOBS_BENCH_IMPORT_H

#include "planner/receipts.h"

/* What the file does not say; 0: not known. */
struct bench_import {
    int64_t n_layer;         /* MoE layers of the model */
    double ceiling[SPEED_N]; /* tokens/s, of the entries of that kind */
};

/* An array of objects, of which each is a prompt or tokens one by one; those that are both at once are passed over.
 * `name` is for messages. *list [*n] is owned by the caller (mem_free). ERR_FORMAT for what is no such file, and where
 * none of its entries can be taken; ERR_USAGE where some experts were on the CPU, and nobody says of how many layers.
 */
MUST_USE err_code bench_import_read(const struct bench_import *in, const char *text, size_t n_text, const char *name,
                                    struct receipt **list, size_t *n, struct err *e);

#endif
