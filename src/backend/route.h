/* The router's choice for one token, in plain C. Devices without a kernel for it run this; it is the reference for
 * those that have one. */
#ifndef BACKEND_ROUTE_H
#define BACKEND_ROUTE_H

#include "backend/backend.h"

struct kernels;

enum { ROUTE_MAX_GROUP = 256 };

/* One token before its router: what the choice starts from, and where it goes. Scores may be anything: minus infinity
 * is the lowest number, and NaN is below that. */
struct route_token {
    const struct op *op;       /* its `route` is the rule */
    const float *bias;         /* [n] or NULL: ROUTE's choice_bias */
    const float *expert_scale; /* [n] or NULL: ROUTE's expert_scale */
    int64_t n, k;              /* experts, and how many of them are chosen; 1 <= k <= n */
    float *logits;             /* [n]; overwritten */
    float *choice;             /* [n] of work space */
    const int32_t *given;      /* [k] the experts, where they are not chosen; or NULL */
    int32_t *ids;              /* out: [k], best first, ties to the lower id */
    float *weights;            /* out: [k] */
    float *scores;             /* out: [n], as ROUTE's scores; or NULL */
};

void route_choose(const struct kernels *kernels, const struct route_token *t);

/* Turns the chosen experts' scores into their weights, in place: divided by their sum if `norm`, times `scale`, times
 * expert_scale[id] unless that is NULL. */
void route_weigh(bool norm, float scale, const float *expert_scale, int64_t k, const int32_t *ids, float *weights);

#endif
