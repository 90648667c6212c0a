/* The nearest of a fixed set of points: of a few tens of thousands, in 4 or 8 dimensions, under a distance that weighs
 * each dimension. Internal to the room.
 *
 * A tree of boxes: each node has four children of as many points, cut where the points are spread widest, and knows the
 * box that each child's points fill. A search walks the nearest boxes first and leaves out those that are farther
 * than the best point so far: of 65536 points in 8 dimensions, spread like weights, it looks at about 1100. */
#ifndef QUANT_QUANT_NEAREST_H
#define QUANT_QUANT_NEAREST_H

#include <stdbool.h>
#include <stdint.h>

struct nearest {
    int n_dim, n_leaf_point; /* 8 dimensions and leaves of 16 points, or 4 and 32 */
    int n_inner;             /* nodes that have children: node i's are 4 i + 1 to 4 i + 4; then come the leaves */
    float *boxes;            /* [n_inner][n_dim][2][4]: of four children, the middles and half the widths */
    uint32_t *points;        /* [leaf][n_leaf_point / 16][n_dim][4]: coordinates of four points in each */
    uint16_t *ids;           /* [leaf][n_leaf_point]: where in the list a point was */
};

/* points: n of n_dim each, n = n_leaf_point times a power of four and at most 65536. False when there is no memory;
 * close it then, too. */
bool nearest_open(struct nearest *t, const int8_t *points, int n, int n_dim);
void nearest_close(struct nearest *t);

/* The point for which sum w (at - point)^2 is least, if that is less than *least, which it becomes; else -1. Exactly so
 * when stretch is 1. With more, boxes are taken for that many times as far away (squared), so fewer are looked into: 3
 * halves the time, and the point that is found is 1 % farther on average. */
int nearest_find(const struct nearest *t, const float *at, const float *w, float stretch, float *least);

#endif
