/* Searches all weights of a model's file for values that no weight can have (quant/quant_check.h), and for matrices
 * that were never written. */
#ifndef JOBS_CHECK_VALUES_H
#define JOBS_CHECK_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "gguf/gguf.h"
#include "quant/quant_check.h"

/* Findings in tensors of one type. */
struct values_of_type {
    uint64_t n_tensor, n_bytes;
    struct quant_check check;
    uint64_t n_zero;                 /* matrices that are all zero bytes */
    uint64_t n_unread;               /* matrices that can't be read */
    const struct gguf_tensor *first; /* the first tensor in the file with a finding; NULL: there is none */
    char why_unread[ERR_TEXT_BYTES]; /* why one of them can't be read */
};

struct check_values_params {
    const struct gguf *gguf;
    int n_threads;                                                           /* 0: as many as suit */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* as scan_params */
    void *user;
};

/* out: [QUANT_MAX_ID], by type. Tensors of unknown types are skipped. */
MUST_USE err_code check_values(const struct check_values_params *p, struct values_of_type *out, struct err *e);

#endif
