#include "backend/route.h"

#include <math.h>

#include "kernels/kernels.h"

/* scores = softmax(logits), or the sigmoid of each, in place. */
static void score(const struct kernels *kernels, enum route_score kind, float *x, int64_t n)
{
    float sum, max = x[0];
    if (kind == ROUTE_SIGMOID) {
        for (int64_t i = 0; i < n; i++) {
            float minus = -x[i];
            kernels->exp_sum(&x[i], &minus, 0, 1, &sum);
            x[i] = 1 / (1 + x[i]);
        }
        return;
    }
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    kernels->exp_sum(x, x, max, n, &sum);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / sum;
}

void route_choose(const struct kernels *kernels, const struct op *op, float *logits, int64_t n, int64_t k, int32_t *ids,
                  float *weights)
{
    float *s = logits;
    score(kernels, op->route.score, s, n);
    float sum = 0;
    for (int64_t r = 0; r < k; r++) {
        /* the best not yet taken: taken ones are below every score. NaN never wins; the first one left does then */
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!(s[i] == -INFINITY) && (best < 0 || s[i] > s[best]))
                best = i;
        ids[r] = (int32_t)best;
        weights[r] = s[best];
        s[best] = -INFINITY;
        sum += weights[r];
    }
    for (int64_t r = 0; r < k; r++) {
        if (op->route.norm_weights)
            weights[r] = weights[r] / sum;
        weights[r] = weights[r] * op->route.scale;
    }
}
