/* Weights that can't be: what damaged bytes look like.
 *
 * Of types with blocks the scales are looked at, as any other bits are weights like others; of float types each value.
 * Pure, thread-safe. */
#ifndef QUANT_QUANT_CHECK_H
#define QUANT_QUANT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/quant.h"

struct quant_check {
    uint64_t n_scale;  /* scales, or values of float types */
    uint64_t n_nan;    /* those that are NaN or infinite */
    uint64_t n_absurd; /* those that are finite, and so large that no weight is: scales over 1024, floats over 2^100 */
};

/* Adds what n_bytes of rows say: whole blocks, or of types with heads whole rows of row_bytes. */
void quant_check_rows(const struct quant_info *q, const void *bytes, size_t n_bytes, size_t row_bytes,
                      struct quant_check *c);

/* Whether all bytes are zero, as of a file whose middle was never written. */
bool quant_is_zero(const void *bytes, size_t n_bytes);

#endif
