/* A small reproducible generator (PCG32, O'Neill 2014: pcg-random.org), the same on every machine; and numbers that
 * nobody can foresee. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct random {
    uint64_t state;
};

struct random random_seed(uint64_t seed);
uint32_t random_u32(struct random *r);
double random_unit(struct random *r); /* uniform in [0, 1), 53 bits */

/* n bytes of the system's random numbers, at most 256. */
MUST_USE err_code random_from_system(void *bytes, size_t n, struct err *e);

#endif
