/* Searches a fixed set of points (tens of thousands in 4 or 8 dimensions) for the nearest one, under a distance with a
 * weight for each dimension. For this folder only.
 *
 * The points are in a tree of boxes: each node has four children with equal numbers of points, divided along the
 * dimensions in which the points spread widest, and knows the bounding box of each child. A search visits the nearest
 * boxes first and skips those that are farther away than the best point so far: of 65536 points in 8 dimensions,
 * distributed like weights, it looks at about 1100. */
#ifndef QUANT_QUANT_NEAREST_H
#define QUANT_QUANT_NEAREST_H

#include <stdbool.h>
#include <stdint.h>

struct nearest {
    int n_dim, n_leaf_point; /* 8 dimensions and leaves of 16 points, or 4 and 32 */
    int n_inner;             /* nodes with children; those of node i are 4 i + 1 to 4 i + 4. The leaves come behind */
    float *boxes;            /* [n_inner][n_dim][2][4]: the middles, then half the widths, of four children */
    uint32_t *points;        /* [leaf][n_leaf_point / 16][n_dim][4]: each number holds coordinates of four points */
    uint16_t *ids;           /* [leaf][n_leaf_point]: the index of each point in the list that the tree was made of */
};

/* Makes the tree of n points of n_dim coordinates; n is n_leaf_point times a power of four, and at most 65536. False
 * when out of memory; it must be closed then, too. */
bool nearest_open(struct nearest *t, const int8_t *points, int n, int n_dim);
void nearest_close(struct nearest *t);

/* Returns the index of the point with the least sum of w * (at - point)^2, and sets *least to that sum, if it is less
 * than *least; else returns -1. Where stretch is 1 the result is exact. Where it is larger, the squared distances of
 * boxes are multiplied by it, so that fewer are searched: 3 halves the time, and finds points that are 1 % farther away
 * on average. */
int nearest_find(const struct nearest *t, const float *at, const float *w, float stretch, float *least);

#endif
