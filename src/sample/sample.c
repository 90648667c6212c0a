#include "sample/sample.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

/* A token that may still be drawn. */
struct candidate {
    float logit;
    float weight; /* exp((logit - the largest logit) / temperature): 1 for the likeliest */
    int32_t id;
};

struct sampler {
    struct sampler_params params;
    int32_t n_vocab;
    struct random random;
    struct candidate *candidates; /* [top_k] or [n_vocab] */
    float *penalised;             /* [n_vocab]; NULL without a penalty */
    int32_t *recent;              /* [repeat_last_n], a ring; NULL without a penalty */
    int n_recent, next_recent;
};

struct sampler_params sampler_default_params(void)
{
    return (struct sampler_params){.temperature = 0.8f,
                                   .top_k = 40,
                                   .top_p = 0.95f,
                                   .min_p = 0.05f,
                                   .repeat_penalty = 1.0f,
                                   .repeat_last_n = 64,
                                   .seed = 0};
}

/* Comparisons are written so that NaN fails them. */
static err_code check_params(const struct sampler_params *p, struct err *e)
{
    if (!(p->temperature >= 0 && p->temperature <= FLT_MAX))
        return err_set(e, ERR_USAGE, "the temperature is %g; it must be a number from 0 up", p->temperature);
    if (p->top_k < 0)
        return err_set(e, ERR_USAGE, "top-k is %d; it must be 0 (all tokens) or more", p->top_k);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return err_set(e, ERR_USAGE, "top-p is %g; it must be from 0 to 1 (all tokens)", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return err_set(e, ERR_USAGE, "min-p is %g; it must be from 0 (all tokens) to 1", p->min_p);
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= FLT_MAX))
        return err_set(e, ERR_USAGE, "the repetition penalty is %g; it must be more than 0 (1 is none)",
                       p->repeat_penalty);
    if (p->repeat_last_n < 0 || p->repeat_last_n > SAMPLER_MAX_LAST_N)
        return err_set(e, ERR_USAGE, "the repetition penalty looks back %d tokens; it must be from 0 to %d",
                       p->repeat_last_n, SAMPLER_MAX_LAST_N);
    return ERR_OK;
}

static bool has_penalty(const struct sampler_params *p)
{
    return p->repeat_penalty != 1 && p->repeat_last_n > 0;
}

err_code sampler_create(struct sampler **out, const struct sampler_params *params, int32_t n_vocab, struct err *e)
{
    *out = NULL;
    TRY(check_params(params, e));
    if (n_vocab < 1)
        return err_set(e, ERR_USAGE, "a sampler needs a vocabulary of at least one token, not %d", n_vocab);
    struct sampler *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a sampler");
    s->params = *params;
    s->n_vocab = n_vocab;
    if (s->params.top_k == 0 || s->params.top_k > n_vocab)
        s->params.top_k = n_vocab;
    bool random = params->temperature > 0, penalty = has_penalty(params), ok = true;
    size_t n = (size_t)n_vocab, n_candidates = (size_t)s->params.top_k, n_recent = (size_t)params->repeat_last_n;
    if (random)
        ok &= (s->candidates = mem_calloc(n_candidates, sizeof *s->candidates)) != NULL;
    if (penalty) {
        ok &= (s->penalised = mem_calloc(n, sizeof *s->penalised)) != NULL;
        ok &= (s->recent = mem_calloc(n_recent, sizeof *s->recent)) != NULL;
    }
    if (!ok) {
        sampler_close(&s);
        return err_nomem(e, n * (sizeof *s->candidates + sizeof *s->penalised), "a sampler");
    }
    sampler_reset(s);
    *out = s;
    return ERR_OK;
}

void sampler_close(struct sampler **s)
{
    if (!s || !*s)
        return;
    mem_free((*s)->candidates);
    mem_free((*s)->penalised);
    mem_free((*s)->recent);
    mem_free(*s);
    *s = NULL;
}

void sampler_reset(struct sampler *s)
{
    s->random = random_seed(s->params.seed);
    s->n_recent = s->next_recent = 0;
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (!s->recent || id < 0 || id >= s->n_vocab)
        return;
    s->recent[s->next_recent] = id;
    s->next_recent = (s->next_recent + 1) % s->params.repeat_last_n;
    if (s->n_recent < s->params.repeat_last_n)
        s->n_recent++;
}

/* The logits with the penalty on them. Each value comes from the original, so a repeated token pays once. */
static const float *penalise(struct sampler *s, const float *logits)
{
    if (s->n_recent == 0)
        return logits;
    memcpy(s->penalised, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int i = 0; i < s->n_recent; i++) {
        float x = logits[s->recent[i]], penalty = s->params.repeat_penalty;
        s->penalised[s->recent[i]] = x > 0 ? x / penalty : x * penalty;
    }
    return s->penalised;
}

static int32_t pick_greedy(const float *logits, int32_t n)
{
    int32_t best = 0;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) /* NaN is never greater */
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    return best;
}

/* A total order: no two candidates have the same id. */
static bool is_better(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void swap(struct candidate *c, int32_t i, int32_t j)
{
    struct candidate t = c[i];
    c[i] = c[j];
    c[j] = t;
}

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

/* The top_k best tokens that may be drawn, in no useful order; returns how many. */
static int32_t collect_top_k(struct sampler *s, const float *logits)
{
    struct candidate *c = s->candidates;
    int32_t n = 0, k = s->params.top_k, i = 0;
    for (; i < s->n_vocab && n < k; i++)
        if (logits[i] > -INFINITY) /* infinity would turn differences into NaN */
            c[n++] = (struct candidate){.logit = fminf(logits[i], FLT_MAX), .id = i};
    if (i == s->n_vocab)
        return n;
    for (int32_t root = n / 2; root-- > 0;)
        sift_down(c, n, root);
    for (; i < s->n_vocab; i++) /* ids ascend, so an equal logit is never better than one that is in */
        if (logits[i] > c[0].logit) {
            c[0] = (struct candidate){.logit = fminf(logits[i], FLT_MAX), .id = i};
            sift_down(c, n, 0);
        }
    return n;
}

static float max_logit(const struct candidate *c, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

/* Fills the weights at a temperature; returns their sum. */
static double weigh(struct candidate *c, int32_t n, float temperature)
{
    float max = max_logit(c, n);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        c[i].weight = expf((c[i].logit - max) / temperature);
        sum += c[i].weight;
    }
    return sum;
}

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
static int32_t select_nucleus(struct candidate *c, int32_t n, double target)
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

/* Bins of logits, best first, for a first cut of the nucleus. The last one holds whatever is further away. */
enum { N_BIN = 1024, BINS_PER_UNIT = 32 };

static int bin_of(float logit, float max)
{
    float distance = (max - logit) * BINS_PER_UNIT;
    return distance < N_BIN - 1 ? (int)distance : N_BIN - 1;
}

/* Moves the candidates c[from..n) of bins first..last to position `from` on; returns where they end. */
static int32_t gather_bins(struct candidate *c, int32_t from, int32_t n, float max, int first, int last)
{
    for (int32_t i = from; i < n; i++) {
        int bin = bin_of(c[i].logit, max);
        if (bin >= first && bin <= last)
            swap(c, i, from++);
    }
    return from;
}

/* Whole bins are in or out of the nucleus but for the one in which it ends, and only there is anything
 * selected. */
static int32_t keep_top_p(struct candidate *c, int32_t n, float top_p)
{
    double target = top_p * weigh(c, n, 1), weight[N_BIN] = {0}, inside = 0;
    float max = max_logit(c, n);
    for (int32_t i = 0; i < n; i++)
        weight[bin_of(c[i].logit, max)] += (double)c[i].weight;
    int end = 0;
    while (end < N_BIN - 1 && inside + weight[end] < target)
        inside += weight[end++];
    int32_t n_inside = gather_bins(c, 0, n, max, 0, end - 1);
    int32_t n_border = gather_bins(c, n_inside, n, max, end, end) - n_inside;
    return n_inside + select_nucleus(c + n_inside, n_border, target - inside);
}

static int32_t keep_min_p(struct candidate *c, int32_t n, float min_p)
{
    float cut = max_logit(c, n) + logf(min_p);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].logit >= cut)
            c[kept++] = c[i];
    return kept;
}

/* One of c[0..n), n >= 1, in proportion to its weight. */
static int32_t draw(const struct candidate *c, int32_t n, double sum, struct random *random)
{
    double at = random_unit(random) * sum, upto = 0;
    int32_t last = c[0].id;
    for (int32_t i = 0; i < n; i++) {
        upto += c[i].weight;
        if (upto > at)
            return c[i].id;
        if (c[i].weight > 0)
            last = c[i].id;
    }
    return last; /* only when the product above rounded up to `sum` */
}

int32_t sampler_pick(struct sampler *s, const float *logits)
{
    const struct sampler_params *p = &s->params;
    logits = penalise(s, logits);
    if (p->temperature == 0)
        return pick_greedy(logits, s->n_vocab);
    struct candidate *c = s->candidates;
    int32_t n = collect_top_k(s, logits);
    if (n == 0)
        return 0;
    if (p->top_p < 1)
        n = keep_top_p(c, n, p->top_p);
    if (p->min_p > 0)
        n = keep_min_p(c, n, p->min_p);
    assert(n > 0);
    double sum = weigh(c, n, p->temperature);
    return draw(c, n, sum, &s->random);
}
