#include "sample/candidates.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

/* A total order: no two candidates have the same id. */
static bool is_better(struct candidate a, struct candidate b)
{
    return a.key > b.key || (a.key == b.key && a.id < b.id);
}

static void swap(struct candidate *c, int32_t i, int32_t j)
{
    struct candidate t = c[i];
    c[i] = c[j];
    c[j] = t;
}

/* ---- top-k --------------------------------------------------------------------------------------------------- */

/* Restores the heap c[0..n) below i, worst on top. */
static void sift_down(struct candidate *c, int32_t n, int32_t i)
{
    for (int64_t child; (child = 2 * (int64_t)i + 1) < n; i = (int32_t)child) {
        if (child + 1 < n && is_better(c[child], c[child + 1]))
            child++;
        if (is_better(c[child], c[i]))
            return;
        swap(c, i, (int32_t)child);
    }
}

static struct candidate make_candidate(float logit, int32_t id)
{
    float finite = fminf(logit, FLT_MAX); /* infinity would turn differences into NaN */
    return (struct candidate){.logit = finite, .key = finite, .id = id};
}

int32_t candidates_collect(struct candidate *c, int32_t k, const float *logits, int32_t n_vocab)
{
    int32_t n = 0, i = 0;
    for (; i < n_vocab && n < k; i++)
        if (logits[i] > -INFINITY) /* NaN is not */
            c[n++] = make_candidate(logits[i], i);
    if (i == n_vocab)
        return n;
    for (int32_t root = n / 2; root-- > 0;)
        sift_down(c, n, root);
    for (; i < n_vocab; i++) /* ids ascend, so an equal logit is never better than one that is in */
        if (logits[i] > c[0].logit) {
            c[0] = make_candidate(logits[i], i);
            sift_down(c, n, 0);
        }
    return n;
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

static float max_logit(const struct candidate *c, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

double candidates_weigh(struct candidate *c, int32_t n, float temperature)
{
    float max = max_logit(c, n);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        c[i].weight = expf((c[i].logit - max) / temperature);
        sum += c[i].weight;
    }
    return sum;
}

int32_t candidates_draw(const struct candidate *c, int32_t n, double sum, struct random *random)
{
    double at = random_unit(random) * sum, upto = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        upto += c[i].weight;
        if (upto > at)
            return i;
        if (c[i].weight > 0)
            last = i;
    }
    return last; /* only when the product above rounded up to `sum` */
}

/* ---- the fewest of a weight ---------------------------------------------------------------------------------- */

/* Moves c[lo..hi) around its middle element, better ones before it; returns where that stands and, in
 * *before, the weight of those ahead. */
static int32_t partition(struct candidate *c, int32_t lo, int32_t hi, double *before)
{
    int32_t m = lo, last = hi - 1;
    double sum = 0;
    swap(c, lo + (last - lo) / 2, last);
    for (int32_t i = lo; i < last; i++)
        if (is_better(c[i], c[last])) {
            sum += c[i].weight;
            swap(c, i, m++);
        }
    swap(c, m, last);
    *before = sum;
    return m;
}

/* Moves the fewest best candidates that together weigh `target` to the front; returns how many they are. A
 * quickselect by weight: the nucleus is a set, so nothing is sorted. */
static int32_t select_weight(struct candidate *c, int32_t n, double target)
{
    int32_t lo = 0, hi = n; /* the nucleus ends in [lo, hi), and c[0..lo) weighs `inside` */
    double inside = 0;
    while (lo < hi) {
        double ahead;
        int32_t m = partition(c, lo, hi, &ahead);
        if (m > lo && inside + ahead >= target) {
            hi = m;
            continue;
        }
        inside += ahead + (double)c[m].weight;
        lo = m + 1;
        if (inside >= target)
            break;
    }
    return lo;
}

/* Bins of keys, best first, for a first cut of the nucleus. The last one holds whatever is further away. */
enum { N_BIN = 1024, BINS_PER_UNIT = 32 };

static int bin_of(float key, float max)
{
    float distance = (max - key) * BINS_PER_UNIT;
    return distance < N_BIN - 1 ? (int)distance : N_BIN - 1;
}

/* Moves the candidates c[from..n) of bins first..last to position `from` on; returns where they end. */
static int32_t gather_bins(struct candidate *c, int32_t from, int32_t n, float max, int first, int last)
{
    for (int32_t i = from; i < n; i++) {
        int bin = bin_of(c[i].key, max);
        if (bin >= first && bin <= last)
            swap(c, i, from++);
    }
    return from;
}

static float max_key(const struct candidate *c, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = c[i].key > max ? c[i].key : max;
    return max;
}

/* Whole bins are in or out of the nucleus but for the one in which it ends, and only there is anything
 * selected. */
int32_t candidates_keep_weight(struct candidate *c, int32_t n, double target)
{
    double weight[N_BIN] = {0}, inside = 0;
    float max = max_key(c, n);
    for (int32_t i = 0; i < n; i++)
        weight[bin_of(c[i].key, max)] += (double)c[i].weight;
    int end = 0;
    while (end < N_BIN - 1 && inside + weight[end] < target)
        inside += weight[end++];
    int32_t n_inside = gather_bins(c, 0, n, max, 0, end - 1);
    int32_t n_border = gather_bins(c, n_inside, n, max, end, end) - n_inside;
    return n_inside + select_weight(c + n_inside, n_border, target - inside);
}
