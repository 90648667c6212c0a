/* Quantising a model: a GGUF file of F32, F16, BF16 or Q8_0 weights to the block formats.
 *
 * Each thread reads, encodes and writes pieces of tensors, so memory is needed for a few of them. The result appears
 * under its name when it is complete; what it says does not depend on the machine or its threads. It may be interrupted
 * at any moment: the pieces that are done stay in OUT.unfinished, and the same call goes on with them. */
#ifndef JOBS_QUANTIZE_H
#define JOBS_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct quantize_params {
    const char *in, *out;     /* two different files */
    const char *type;         /* the name of a mix or of a weight type */
    const char *const *rules; /* [n_rule], as in quantize_mix.h */
    int n_rule;
    const char *imatrix; /* a file of importances, which errors are weighed with; NULL: all weights are alike */
    int n_threads;       /* 0: one for each processor */
    bool pure;           /* every matrix becomes `type`, which is no mix then */
    /* Called now and then, by one thread at a time, with the source bytes that are done; `found` of them were done by a
     * run before. False ends the job. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t found, uint64_t total);
    void *user;
};

/* ERR_CANCELLED when progress said so. Prints each tensor with its type and error to `report`, and at the end bits and
 * error by use. The error is the root of sum (weight - decoded)^2 / sum weight^2. */
MUST_USE err_code quantize_run(const struct quantize_params *p, FILE *report, struct err *e);

#endif
