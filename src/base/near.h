/* The edit distance of a mistyped name to another one, for "did you mean". */
#ifndef BASE_NEAR_H
#define BASE_NEAR_H

#include <stddef.h>

/* How many bytes must be inserted, removed, replaced or swapped with their neighbour to turn a into b (the optimal
 * string alignment distance); NEAR_MAX + 1 stands for any larger number. Takes time in proportion to the shorter
 * name. */
enum { NEAR_MAX = 3 };
int near_distance(const char *a, const char *b);

/* A mistyped name of n bytes may mean another one whose distance is below this: a third of n, NEAR_MAX at most. */
int near_limit(size_t n);

#endif
