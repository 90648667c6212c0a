/* Checks bytes on disk against their checksums: those that a prepared store carries, or those of a GGUF's sidecar
 * (store/checksums.h), which this job also writes. */
#ifndef JOBS_VERIFY_H
#define JOBS_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct verify_params {
    const char *path; /* a GGUF file, or a directory of a prepared store */
    bool write;       /* write the sidecar of a GGUF instead */
    int n_threads;    /* 0: one for each processor */
    /* Called for each damaged or unreadable piece, one at a time. */
    void (*damaged)(void *user, const char *sentence);
    /* Called from any thread; false ends the job. May be NULL. */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

struct verify_result {
    uint64_t n_experts, n_tensors, n_bytes; /* what was checked, or read for the sidecar */
    uint64_t n_damaged;                     /* experts and tensors that are damaged */
};

/* ERR_FORMAT when anything is damaged, ERR_USAGE when there is no sidecar, ERR_CANCELLED when progress said so. */
MUST_USE err_code verify_run(const struct verify_params *p, struct verify_result *out, struct err *e);

#endif
