/* The routers' choice for one token, in plain C: what a device without a kernel of its own runs, and the reference
 * for those that have one. */
#ifndef BACKEND_ROUTE_H
#define BACKEND_ROUTE_H

#include "backend/backend.h"

struct kernels;

enum { ROUTE_MAX_GROUP = 256 };

/* Turns the logits of n experts (overwritten) into the k best ids, best first, ties to the lower id, and their
 * weights. bias and expert_scale: [n] or NULL (ROUTE's vec[1] and vec[2]); choice: [n] of work space; scores: [n], as
 * ROUTE's out[2], or NULL. 1 <= k <= n. Scores may be anything: minus infinity is the lowest number, and NaN is below
 * that. */
void route_choose(const struct kernels *kernels, const struct op *op, const float *bias, const float *expert_scale,
                  float *logits, float *choice, int64_t n, int64_t k, int32_t *ids, float *weights, float *scores);

/* The chosen experts' scores to their weights, in place: divided by their sum if `norm`, times `scale`, times
 * expert_scale[id] unless that is NULL. */
void route_weigh(bool norm, float scale, const float *expert_scale, int64_t k, const int32_t *ids, float *weights);

#endif
