/* Makes a prepared store of a model's experts (store/manifest.h): each in the layouts and the place of a slot, so that
 * it can be read straight into one, with a checksum.
 *
 * It may be interrupted at any moment: a directory becomes a store when its manifest appears, as the last thing and
 * whole; until then, running it again goes on behind the last layer that was finished. Experts that a directory holds
 * already stay where they are. */
#ifndef JOBS_PREPARE_H
#define JOBS_PREPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct prepare_params {
    const char *model; /* a GGUF file */
    const char *const *dirs;
    int n_dirs;
    bool mirror;   /* every directory gets every expert; else each expert goes to one, more to faster drives */
    int n_threads; /* 0: one for each processor */
    /* What is written of what is to be written; from any thread. False: stop; what is done is kept. May be NULL. */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

struct prepare_result {
    uint64_t n_experts, n_bytes;         /* that this run wrote, over all directories */
    uint64_t n_found, n_dir_experts[16]; /* that were there already; experts of each directory in the end */
};

/* ERR_CANCELLED when progress said so. */
MUST_USE err_code prepare_run(const struct prepare_params *p, struct prepare_result *out, struct err *e);

#endif
