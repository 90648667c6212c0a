/* How near a mistyped name is to another, for "did you mean". */
#ifndef BASE_NEAR_H
#define BASE_NEAR_H

#include <stddef.h>

/* Bytes to insert, to drop, to replace or to swap with a neighbour so that a becomes b (the distance of optimal
 * string alignment); more than NEAR_MAX: NEAR_MAX + 1. Takes time in proportion to the shorter name. */
enum { NEAR_MAX = 3 };
int near_distance(const char *a, const char *b);

/* A name is meant by a mistyped one of n bytes where their distance is below this: a third of it, NEAR_MAX at most. */
int near_limit(size_t n);

#endif
