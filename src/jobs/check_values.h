/* Looks at all weights of a model's file for what no weight can be (quant/quant_check.h), and for matrices that were
 * never written. */
#ifndef JOBS_CHECK_VALUES_H
#define JOBS_CHECK_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "gguf/gguf.h"
#include "quant/quant_check.h"

/* What tensors of one type say. */
struct values_of_type {
    uint64_t n_tensor, n_bytes;
    struct quant_check check;
    uint64_t n_zero;                 /* matrices that are all zero bytes */
    uint64_t n_unread;               /* matrices that can't be read */
    const struct gguf_tensor *first; /* of the tensors with such things, the first in the file; NULL: there is none */
    char why_unread[ERR_TEXT_BYTES]; /* of one */
};

struct check_values_params {
    const struct gguf *gguf;
    int n_threads;                                                           /* 0: as many as suit */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* as scan_params */
    void *user;
};

/* out: [QUANT_MAX_ID], by type; tensors of unknown types are passed over. */
MUST_USE err_code check_values(const struct check_values_params *p, struct values_of_type *out, struct err *e);

#endif
