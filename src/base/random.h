/* A small pseudo-random generator whose numbers are the same on every machine (PCG32, O'Neill 2014: pcg-random.org),
 * and the system's cryptographic random numbers. */
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

/* Fills n bytes, at most 256, with the system's random numbers, which nobody can predict. */
MUST_USE err_code random_from_system(void *bytes, size_t n, struct err *e);

#endif
