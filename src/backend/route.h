/* A router's choice of experts for one token, in plain C. Devices without a kernel for it run this code, and it is the
 * reference for those that have one. */
#ifndef BACKEND_ROUTE_H
#define BACKEND_ROUTE_H

#include "backend/backend.h"

struct kernels;

enum { ROUTE_MAX_GROUP = 256 };

/* The input and the results of the choice for one token. Scores may have any value: NaN counts as less than minus
 * infinity. */
struct route_token {
    const struct op *op;       /* the operation, whose `route` parameters hold */
    const float *bias;         /* [n] or NULL: ROUTE's choice_bias */
    const float *expert_scale; /* [n] or NULL: ROUTE's expert_scale */
    int64_t n, k;              /* experts, and how many of them are chosen; 1 <= k <= n */
    float *logits;             /* [n]; overwritten */
    float *choice;             /* [n] work space */
    const int32_t *given;      /* [k] the experts to use, in place of a choice; or NULL */
    int32_t *ids;              /* out: [k], best first, ties to the lower id */
    float *weights;            /* out: [k] */
    float *scores;             /* out: [n], as ROUTE's scores; or NULL */
};

void route_choose(const struct kernels *kernels, const struct route_token *t);

/* Turns the scores of the k chosen experts into their weights, in place: divides them by their sum if `norm`, and
 * multiplies them by `scale` and, unless expert_scale is NULL, by expert_scale[id]. */
void route_weigh(bool norm, float scale, const float *expert_scale, int64_t k, const int32_t *ids, float *weights);

#endif
