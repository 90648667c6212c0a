/* Imports measurements of other programs as receipts: the output of `llama-bench -o json`. */
#ifndef JOBS_BENCH_IMPORT_H
#define JOBS_BENCH_IMPORT_H

#include "planner/receipts.h"

/* Facts that the file does not have; 0: not known. */
struct bench_import {
    int64_t n_layer;         /* MoE layers of the model */
    double ceiling[SPEED_N]; /* tokens/s, for entries of that kind */
};

/* Parses an array of objects. Each is a measurement of prompts or of decoding; those of both together are skipped.
 * `name` is for messages. *list [*n] is owned by the caller (mem_free). ERR_FORMAT: it is no such file, or none of its
 * entries can be used. ERR_USAGE: some experts were on the CPU, and the number of layers is not known. */
MUST_USE err_code bench_import_read(const struct bench_import *in, const char *text, size_t n_text, const char *name,
                                    struct receipt **list, size_t *n, struct err *e);

#endif
