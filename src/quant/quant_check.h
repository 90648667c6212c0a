/* Finds weights that are impossible, as in damaged files.
 *
 * In types with blocks only the scales are checked, as all other bits are valid weights; in float types every value is.
 * Thread-safe. */
#ifndef QUANT_QUANT_CHECK_H
#define QUANT_QUANT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/quant.h"

struct quant_check {
    uint64_t n_scale;  /* scales, or values of float types, that were checked */
    uint64_t n_nan;    /* those of them that are NaN or infinite */
    uint64_t n_absurd; /* those that are finite but larger than in any model: scales over 1024, floats over 2^100 */
};

/* Checks n_bytes of weights and adds to *c. They are whole blocks, or, for types whose rows have heads, whole rows of
 * row_bytes. */
void quant_check_rows(const struct quant_info *q, const void *bytes, size_t n_bytes, size_t row_bytes,
                      struct quant_check *c);

/* Whether all bytes are zero, as in a file that was not written completely. */
bool quant_is_zero(const void *bytes, size_t n_bytes);

#endif
