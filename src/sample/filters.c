#include <math.h>
#include <stdbool.h>

#include "sample/candidates.h"

int32_t candidates_keep_top_p(struct candidate *c, int32_t n, float share)
{
    return candidates_keep_weight(c, n, share * candidates_weigh(c, n, 1));
}

static struct candidate likeliest(const struct candidate *c, int32_t n)
{
    struct candidate best = c[0];
    for (int32_t i = 1; i < n; i++)
        if (c[i].logit > best.logit || (c[i].logit == best.logit && c[i].id < best.id))
            best = c[i];
    return best;
}

int32_t candidates_keep_min_p(struct candidate *c, int32_t n, float share)
{
    float cut = likeliest(c, n).logit + logf(share);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].logit >= cut)
            c[kept++] = c[i];
    return kept;
}

/* With p = weight / sum, -log p is log(sum) plus the distance to the largest logit, and log(sum) cancels out of the
 * difference from the mean. */
static double mean_distance(const struct candidate *c, int32_t n, double max, double sum)
{
    double mean = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].weight > 0) /* else the distance may be infinite */
            mean += (double)c[i].weight / sum * (max - (double)c[i].logit);
    return mean;
}

int32_t candidates_keep_typical(struct candidate *c, int32_t n, float share)
{
    double max = likeliest(c, n).logit, sum = candidates_weigh(c, n, 1), mean = mean_distance(c, n, max, sum);
    for (int32_t i = 0; i < n; i++)
        c[i].key = (float)-fabs(max - (double)c[i].logit - mean);
    int32_t kept = candidates_keep_weight(c, n, share * sum);
    for (int32_t i = 0; i < kept; i++)
        c[i].key = c[i].logit;
    return kept;
}

/* Whether XTC keeps b rather than a. */
static bool is_lesser_choice(struct candidate a, struct candidate b)
{
    return b.logit < a.logit || (b.logit == a.logit && b.id > a.id);
}

int32_t candidates_exclude_top(struct candidate *c, int32_t n, float threshold)
{
    double least = threshold * candidates_weigh(c, n, 1);
    struct candidate spared = {.logit = INFINITY};
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (!((double)c[i].weight >= least))
            c[kept++] = c[i];
        else if (is_lesser_choice(spared, c[i]))
            spared = c[i];
    if (kept < n)
        c[kept++] = spared;
    return kept;
}

int32_t candidates_keep_unsurprising(struct candidate *c, int32_t n, double max_surprise, double *sum)
{
    double least = *sum * exp2(-max_surprise), rest = 0;
    struct candidate best = likeliest(c, n);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if ((double)c[i].weight >= least || c[i].id == best.id) {
            rest += (double)c[i].weight;
            c[kept++] = c[i];
        }
    *sum = rest;
    return kept;
}
