#include <float.h>
#include <math.h>

#include "sample/sample.h"

/* What counts as a logit: NaN is minus infinity, "never"; infinity would turn differences into NaN. */
static double usable(float logit)
{
    return isnan(logit) ? -INFINITY : (double)fminf(logit, FLT_MAX);
}

struct softmax {
    double max;     /* the largest logit; minus infinity where nothing may be */
    double log_sum; /* log(sum of exp(logit - max)), summed in the order of ids */
};

static struct softmax measure(const float *logits, int32_t n)
{
    struct softmax s = {.max = -INFINITY};
    double sum = 0;
    for (int32_t i = 0; i < n; i++) /* not fmax: gcc 12 for 64-bit Arm fails on it */
        if (usable(logits[i]) > s.max)
            s.max = usable(logits[i]);
    for (int32_t i = 0; i < n && s.max > -INFINITY; i++)
        sum += exp(usable(logits[i]) - s.max);
    s.log_sum = log(sum);
    return s;
}

/* The differences come first: huge logits would swallow the sum. */
static double logprob(const struct softmax *s, double logit)
{
    return logit - s->max - s->log_sum;
}

/* Puts a token where it belongs among top[0..n), best first; the last one, or what is beyond n_top, falls out. Ids come
 * ascending, so that equal ones stay before it. Returns how many there are now. */
static int insert(moebius_logprob *top, int n, int n_top, moebius_logprob token)
{
    if (n == n_top && (n == 0 || token.logprob <= top[n - 1].logprob))
        return n;
    int at = n < n_top ? n : n - 1;
    for (; at > 0 && top[at - 1].logprob < token.logprob; at--)
        top[at] = top[at - 1];
    top[at] = token;
    return n < n_top ? n + 1 : n;
}

double sampler_logprobs(const float *logits, int32_t n_vocab, int32_t id, moebius_logprob *top, int n_top)
{
    const struct softmax s = measure(logits, n_vocab);
    int n = 0;
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++)
        if (logits[i] > -INFINITY)
            n = insert(top, n, n_top, (moebius_logprob){.id = i, .logprob = usable(logits[i])});
    for (int i = 0; i < n; i++)
        top[i].logprob = logprob(&s, top[i].logprob);
    for (int i = n; i < n_top; i++)
        top[i] = (moebius_logprob){.id = -1, .logprob = -INFINITY};
    return id >= 0 && id < n_vocab && logits[id] > -INFINITY ? logprob(&s, usable(logits[id])) : -INFINITY;
}
