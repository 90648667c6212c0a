/* A small reproducible generator (PCG32, O'Neill 2014: pcg-random.org), the same on every machine. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};

struct random random_seed(uint64_t seed);
uint32_t random_u32(struct random *r);
double random_unit(struct random *r); /* uniform in [0, 1), 53 bits */

#endif
