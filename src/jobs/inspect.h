/* What is in a GGUF file, for people and for programs: metadata, tensor types, and the facts of its experts
 * (gguf/gguf_facts.h). Tensor bytes are read only when one tensor is asked about. */
#ifndef JOBS_INSPECT_H
#define JOBS_INSPECT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* What is asked for; strings may be NULL. */
struct inspect_params {
    bool json;                   /* one JSON object, else text */
    const char *tensor_name;     /* only that tensor: its shape, first values and statistics */
    const char *devices, *split; /* how experts would be divided, as in moebius_engine_options */
    int64_t replica_bytes;       /* the same, as is the next */
    double replica_share;
    const char *usage; /* a file of counts that the division goes by */
    bool must_run;     /* what this build can't run is an error, the one that running it would end with */
};

/* Prints the model at `path` (any part of a split set) to `out`. Strings are printable in the text
 * (base/printable.h); in JSON, U+FFFD stands for what is not UTF-8. */
MUST_USE err_code inspect_print(FILE *out, const char *path, const struct inspect_params *p, struct err *e);

#endif
