#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sample/sample.h"

/* What counts as a logit: NaN is minus infinity, "never"; infinity would turn differences into NaN. */
static inline double usable(float logit)
{
    float most = logit < FLT_MAX ? logit : FLT_MAX;
    return isnan(logit) ? -INFINITY : (double)most;
}

struct softmax {
    double max;     /* the largest logit; minus infinity where nothing may be */
    double log_sum; /* log(sum of exp(logit - max)), summed in LANES sums, each in the order of ids */
};

/* Sums and maxima beside each other, of which compilers make vectors of any length. */
enum { LANES = 8 };

/* exp(x) of an x that is not above 0, to a unit in the last place, and next to nothing for minus infinity: 2^n *
 * exp(r), with a polynomial for the rest r. The same on all machines, and without branches, in which vectors end. */
static inline double exp_of(double x)
{
    static const double c[] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
    const double least = -708, shift = 0x1.8p52, one_over_log2 = 0x1.71547652b82fep0;
    const double log2_high = 0x1.62e42feep-1, log2_low = 0x1.a39ef35793c76p-33;
    x = x > least ? x : least;
    double shifted = x * one_over_log2 + shift; /* n is in its last bits */
    double n = shifted - shift, r = (x - n * log2_high) - n * log2_low, p = c[0], scale;
    uint64_t bits;
    for (int i = 1; i < 14; i++)
        p = p * r + c[i];
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 52) + 0x3ff0000000000000;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static double largest(const float *logits, int32_t n)
{
    float max[LANES];
    for (int k = 0; k < LANES; k++)
        max[k] = -INFINITY;
    for (int32_t i = 0; i < n - n % LANES; i += LANES)
        for (int k = 0; k < LANES; k++)
            max[k] = logits[i + k] > max[k] ? logits[i + k] : max[k];
    for (int32_t i = n - n % LANES; i < n; i++)
        max[0] = logits[i] > max[0] ? logits[i] : max[0];
    for (int k = 1; k < LANES; k++)
        max[0] = max[k] > max[0] ? max[k] : max[0];
    return usable(max[0]);
}

static struct softmax measure(const float *logits, int32_t n)
{
    struct softmax s = {.max = largest(logits, n), .log_sum = -INFINITY};
    double sums[LANES] = {0};
    if (s.max == -INFINITY)
        return s;
    for (int32_t i = 0; i < n - n % LANES; i += LANES)
        for (int k = 0; k < LANES; k++)
            sums[k] += exp_of(usable(logits[i + k]) - s.max);
    for (int32_t i = n - n % LANES; i < n; i++)
        sums[0] += exp_of(usable(logits[i]) - s.max);
    for (int k = 1; k < LANES; k++)
        sums[0] += sums[k];
    s.log_sum = log(sums[0]);
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
    float least = -INFINITY; /* what is not above it is not among the likeliest */
    int n = 0;
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++) {
        if (!(logits[i] > least))
            continue;
        n = insert(top, n, n_top, (moebius_logprob){.id = i, .logprob = usable(logits[i])});
        least = n == n_top ? (float)top[n - 1].logprob : least;
    }
    for (int i = 0; i < n; i++)
        top[i].logprob = logprob(&s, top[i].logprob);
    for (int i = n; i < n_top; i++)
        top[i] = (moebius_logprob){.id = -1, .logprob = -INFINITY};
    return id >= 0 && id < n_vocab && logits[id] > -INFINITY ? logprob(&s, usable(logits[id])) : -INFINITY;
}
