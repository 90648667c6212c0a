/* Makes a prepared store of a model's experts (store/manifest.h). Each expert lies in it as it lies in a slot, so that
 * it can be read straight into one, and has a checksum.
 *
 * The job may be interrupted at any moment. A directory becomes a store when its manifest appears, complete, at the
 * end; until then the same job goes on behind the last layer that was finished. Experts that a directory holds already
 * are read and compared with their checksums: damaged ones are written again, all others stay as they are. */
#ifndef JOBS_PREPARE_H
#define JOBS_PREPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct prepare_params {
    const char *model;       /* a GGUF file */
    const char *const *dirs; /* [n_dirs] */
    int n_dirs;
    bool
        mirror; /* every directory gets every expert; else each expert goes to one, and more of them to faster drives */
    int n_threads; /* 0: one for each processor */
    /* Called from any thread with the bytes that are compared and written. False ends the job, and what is done is
     * kept. May be NULL. */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

struct prepare_result {
    uint64_t n_experts, n_bytes; /* experts and bytes that this run wrote, over all directories */
    uint64_t n_found;            /* experts that were there already, whole */
    uint64_t n_damaged;          /* of n_experts, those that were there and damaged */
    uint64_t n_dir_experts[16];  /* experts that each directory has in the end */
};

/* ERR_CANCELLED when progress said so. */
MUST_USE err_code prepare_run(const struct prepare_params *p, struct prepare_result *out, struct err *e);

#endif
