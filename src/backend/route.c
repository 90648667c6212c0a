#include "backend/route.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* A sum of weights counts as at least this, the smallest normal number in half precision, so that tiny weights are not
 * scaled up enormously. */
#define SMALLEST_SUM 6.103515625e-5f

/* Turns logits into scores in place: their softmax, or the sigmoid or the root of softplus of each. */
static void score(const struct kernels *kernels, enum route_score kind, float *x, int64_t n)
{
    float sum, max = x[0];
    const float one = 1;
    if (kind == ROUTE_SOFTMAX_CHOSEN) /* the choice is by logits; the chosen ones' weights are computed later */
        return;
    if (kind == ROUTE_SQRT_SOFTPLUS) {
        for (int64_t i = 0; i < n; i++) {
            kernels->act_mul(KERNEL_SOFTPLUS, 0, &x[i], &x[i], &one, 1);
            x[i] = sqrtf(x[i]);
        }
        return;
    }
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

/* Minus infinity marks experts that can't be chosen. Scores that are minus infinity become the lowest number instead.
 */
static float in_choice(float score)
{
    return score == -INFINITY ? -FLT_MAX : score;
}

/* Whether expert a is chosen before expert b: the higher score first, ties to the lower index, NaN last. */
static bool is_before(const float *s, int32_t a, int32_t b)
{
    if (isnan(s[a]) || isnan(s[b]))
        return isnan(s[a]) ? isnan(s[b]) && a < b : true;
    return s[a] != s[b] ? s[a] > s[b] : a < b;
}

/* Moves heap[i] to its place in a heap of n experts whose root is chosen last. */
static void sink(const float *s, int32_t *heap, int64_t n, int64_t i)
{
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(s, heap[child], heap[child + 1]))
            child++;
        if (is_before(s, heap[child], heap[i]))
            return;
        int32_t id = heap[i];
        heap[i] = heap[child];
        heap[child] = id;
    }
}

/* The k best of n experts, best first, among those whose score is not minus infinity. */
static void choose_best(const float *s, int64_t n, int64_t k, int32_t *ids)
{
    int64_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (s[i] == -INFINITY)
            continue;
        if (m < k) {
            ids[m++] = i;
            for (int64_t j = k / 2 - 1; m == k && j >= 0; j--)
                sink(s, ids, k, j);
        } else if (is_before(s, i, ids[0])) {
            ids[0] = i;
            sink(s, ids, k, 0);
        }
    }
    assert(m == k); /* the groups kept have at least k experts */
    for (int64_t j = k - 1; j > 0; j--) {
        int32_t last = ids[0];
        ids[0] = ids[j];
        ids[j] = last;
        sink(s, ids, j, 0);
    }
}

/* The index of the best of s[from, to) that is not minus infinity, ties to the lower one; NaN never beats a number. */
static int64_t best_of(const float *s, int64_t from, int64_t to)
{
    int64_t best = -1;
    for (int64_t i = from; i < to; i++)
        if (!(s[i] == -INFINITY) && (best < 0 || s[i] > s[best] || (isnan(s[best]) && !isnan(s[i]))))
            best = i;
    return best < 0 ? from : best;
}

/* Sets the scores of experts outside the best groups to minus infinity. */
static void keep_groups(float *s, int64_t n, int64_t n_group, int64_t n_used)
{
    float value[ROUTE_MAX_GROUP];
    bool kept[ROUTE_MAX_GROUP] = {false};
    int64_t size = n / n_group;
    assert(n_group <= ROUTE_MAX_GROUP && n_used <= n_group && size >= 1);
    for (int64_t g = 0; g < n_group; g++) {
        int64_t first = best_of(s, g * size, (g + 1) * size);
        float top = s[first];
        s[first] = -INFINITY;
        value[g] = size > 1 ? in_choice(top + s[best_of(s, g * size, (g + 1) * size)]) : top;
        s[first] = top;
    }
    for (int64_t i = 0; i < n_used; i++) {
        int64_t best = best_of(value, 0, n_group);
        kept[best] = true;
        value[best] = -INFINITY;
    }
    for (int64_t i = 0; i < n; i++)
        if (!kept[i / size])
            s[i] = -INFINITY;
}

/* Writes the scores of all experts (ROUTE's third output), if they are asked for. */
static void copy_scores(const struct kernels *kernels, enum route_score kind, const float *s, const float *choice,
                        int64_t n, float *scores)
{
    memcpy(scores, s, (size_t)n * sizeof *scores);
    if (kind == ROUTE_SOFTMAX_CHOSEN)
        score(kernels, ROUTE_SOFTMAX, scores, n);
    for (int64_t i = 0; i < n; i++)
        if (choice[i] == -INFINITY)
            scores[i] = 0;
}

void route_weigh(bool norm, float scale, const float *expert_scale, int64_t k, const int32_t *ids, float *weights)
{
    float sum = 0;
    for (int64_t r = 0; r < k; r++)
        sum += weights[r];
    if (sum < SMALLEST_SUM)
        sum = SMALLEST_SUM;
    for (int64_t r = 0; r < k; r++) {
        if (norm)
            weights[r] = weights[r] / sum;
        weights[r] = weights[r] * scale;
        if (expert_scale)
            weights[r] = weights[r] * expert_scale[ids[r]];
    }
}

void route_choose(const struct kernels *kernels, const struct route_token *t)
{
    const struct op *op = t->op;
    float *s = t->logits, *choice = t->choice;
    score(kernels, op->route.score, s, t->n);
    for (int64_t i = 0; i < t->n; i++)
        choice[i] = in_choice(t->bias ? s[i] + t->bias[i] : s[i]);
    if (op->route.n_group > 1)
        keep_groups(choice, t->n, op->route.n_group, op->route.n_group_used);
    if (t->scores)
        copy_scores(kernels, op->route.score, s, choice, t->n, t->scores);
    if (t->given)
        memcpy(t->ids, t->given, (size_t)t->k * sizeof *t->ids);
    else
        choose_best(choice, t->n, t->k, t->ids);
    for (int64_t r = 0; r < t->k; r++)
        t->weights[r] = s[t->ids[r]];
    if (op->route.score == ROUTE_SOFTMAX_CHOSEN)
        score(kernels, ROUTE_SOFTMAX, t->weights, t->k);
    route_weigh(op->route.norm_weights, op->route.scale, t->expert_scale, t->k, t->ids, t->weights);
}
