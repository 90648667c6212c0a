#include "planner/receipts.h"

#include <math.h>
#include <string.h>

/* Receipts that are nearer than this in `at` are at the same place. */
static const double same_place = 0.02;
/* A receipt counts half as much as one that is so much younger, and not at all after so many times that. */
static const double half_life_s = 60 * 86400.0, n_lives = 4;
/* A receipt counts half as much as one whose run is so much nearer: 1 / sharpness, in doublings of threads or texts. */
static const double sharpness = 2;
static const int64_t small_ctx = 1024;
/* A larger share of what drives were measured to do is no measurement. */
static const double most_share = 10;
/* Half of the band, as a share of the forecast: of one receipt; the least and the most of several; what is added for
 * another model, for another machine, and for so far from what was measured as a quarter of the regime. */
static const double band_of_one = 0.12, band_least = 0.06, band_most = 0.20, band_foreign_most = 0.35;
static const double band_other_model = 0.04, band_other_machine = 0.06, band_outside = 0.08, outside_unit = 0.25;

struct selection {
    const struct receipt *list;
    size_t n;
    const struct calibration_query *q;
    bool same_machine, same_model; /* others don't count */
    int64_t newest_s;
};

/* ---- who counts -------------------------------------------------------------------------------------------------- */

static bool is_machine(const struct receipt *r, const struct calibration_query *q)
{
    return q->machine && !strcmp(r->machine, q->machine);
}

static bool is_model(const struct receipt *r, const struct calibration_query *q)
{
    return q->fingerprint && r->fingerprint == q->fingerprint;
}

/* Where experts are read: a token's seconds beyond what computing takes; not above 0: none were seen. */
static double seconds_of_reads(const struct receipt *r, const struct calibration_query *q)
{
    return 1 / r->measured[q->of] - 1 / (r->compute[q->of] * q->compute_share);
}

/* The share that a run of the query's regime with a ceiling realised of it; 0: it says nothing. */
static double share_of(const struct receipt *r, const struct calibration_query *q)
{
    if (q->regime != REGIME_STREAM)
        return receipt_share(r, q->of);
    if (!(r->compute[q->of] > 0) || !(r->read[q->of] > 0))
        return 0;
    if (!(q->compute_share > 0))
        return r->measured[q->of] * (1 / r->compute[q->of] + 1 / r->read[q->of]);
    double s = seconds_of_reads(r, q);
    return s > 0 ? 1 / (r->read[q->of] * s) : 0;
}

/* Has something to say about the query, and no more than can be. */
static bool is_usable(const struct receipt *r, const struct calibration_query *q)
{
    double share = receipt_share(r, q->of), told = share_of(r, q);
    return r->regime == q->regime && share > 0 && share <= 1 && told > 0 && told < most_share;
}

/* The drives' share is the same all over the regime. */
static double place_of(const struct receipt *r, const struct calibration_query *q)
{
    return q->regime == REGIME_STREAM ? q->at : r->at;
}

/* How many doublings two counts are apart; 0: one is not known. */
static double doublings(int64_t a, int64_t b)
{
    return a > 0 && b > 0 ? fabs(log2((double)a / (double)b)) : 0;
}

/* How unlike a receipt's run is to what is asked for. Small contexts cost nothing, and long prompts come in pieces. */
static double distance(const struct receipt *r, const struct calibration_query *q)
{
    double threads = doublings(r->n_threads, q->n_threads);
    if (q->of == SPEED_PREFILL)
        return threads + doublings(r->n_prompt, q->n_tok) / 2;
    return threads + doublings(r->n_texts, q->n_texts) + doublings(r->n_ctx + small_ctx, q->n_tok + small_ctx) / 2;
}

/* 0: it does not count. */
static double weight_of(const struct selection *s, const struct receipt *r)
{
    const struct calibration_query *q = s->q;
    double age = (double)(s->newest_s - r->time_s) / half_life_s;
    if (!is_usable(r, q) || (s->same_machine && !is_machine(r, q)) || (s->same_model && !is_model(r, q)) ||
        age > n_lives)
        return 0;
    double told = q->regime == REGIME_STREAM && q->compute_share > 0 ? seconds_of_reads(r, q) * r->measured[q->of] : 1;
    return told * exp2(-age - sharpness * distance(r, q)); /* runs that hardly read say little of drives */
}

/* Own machine and own model, as far as there are such. */
static struct selection select_receipts(const struct receipt *list, size_t n, const struct calibration_query *q)
{
    struct selection s = {.list = list, .n = n, .q = q};
    bool both = false, machine = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_usable(&list[i], q))
            continue;
        machine = machine || is_machine(&list[i], q);
        both = both || (is_machine(&list[i], q) && is_model(&list[i], q));
    }
    s.same_machine = machine;
    s.same_model = both;
    for (size_t i = 0; i < n; i++) /* age is counted from the newest of those that count */
        if (is_usable(&list[i], q) && (!machine || is_machine(&list[i], q)) && (!both || is_model(&list[i], q)))
            s.newest_s = list[i].time_s > s.newest_s ? list[i].time_s : s.newest_s;
    return s;
}

/* ---- a place in the regime --------------------------------------------------------------------------------------- */

/* What receipts at one place say. */
struct stand {
    double at, share, spread; /* the weighted mean, and the standard deviation */
    int n;
};

/* The nearest place that counts at or below (direction -1), or above (1), the query's; n 0: there is none. */
static struct stand find_stand(const struct selection *s, int direction)
{
    struct stand out = {0};
    double best = INFINITY, sum = 0, sum_share = 0, sum_square = 0;
    for (size_t i = 0; i < s->n; i++) {
        double d = (place_of(&s->list[i], s->q) - s->q->at) * direction, far = d < 0 && d > -same_place ? 0 : d;
        if (weight_of(s, &s->list[i]) > 0 && far >= 0 && far < best) {
            best = far;
            out.at = place_of(&s->list[i], s->q);
        }
    }
    for (size_t i = 0; i < s->n; i++) {
        double w = weight_of(s, &s->list[i]), share = share_of(&s->list[i], s->q);
        if (w <= 0 || best == INFINITY || fabs(place_of(&s->list[i], s->q) - out.at) > same_place)
            continue;
        out.n++;
        sum += w;
        sum_share += w * share;
        sum_square += w * share * share;
    }
    if (out.n == 0)
        return out;
    out.share = sum_share / sum;
    out.spread = sqrt(fmax(0, sum_square / sum - out.share * out.share));
    return out;
}

/* Between two places in proportion. */
static struct stand between(const struct stand *a, const struct stand *b, double at)
{
    double t = fabs(b->at - a->at) > same_place ? (at - a->at) / (b->at - a->at) : 0;
    bool is_one = fabs(b->at - a->at) <= same_place;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return (struct stand){.at = at,
                          .share = a->share + t * (b->share - a->share),
                          .spread = fmax(a->spread, b->spread),
                          .n = is_one ? a->n : a->n + b->n};
}

/* ---- the band ---------------------------------------------------------------------------------------------------- */

static double half_band(const struct selection *s, const struct stand *x, double distance)
{
    double half = x->n == 1 ? band_of_one : fmax(band_least, 2 * x->spread / x->share);
    bool is_foreign = !s->same_machine;
    half += (s->same_model ? 0 : band_other_model) + (is_foreign ? band_other_machine : 0);
    half += band_outside * fmin(1, distance / outside_unit);
    return fmin(half, is_foreign ? band_foreign_most : band_most);
}

bool receipts_calibrate(const struct receipt *list, size_t n, const struct calibration_query *q,
                        struct calibration *out)
{
    struct selection s = select_receipts(list, n, q);
    struct stand below = find_stand(&s, -1), above = find_stand(&s, 1);
    *out = (struct calibration){0};
    for (size_t i = 0; i < n; i++)
        out->n_above += list[i].regime == q->regime && receipt_share(&list[i], q->of) > 1;
    if (below.n == 0 && above.n == 0)
        return false;
    struct stand x = below.n == 0 ? above : above.n == 0 ? below : between(&below, &above, q->at);
    double distance = fabs(x.at - q->at);
    distance = distance > same_place ? distance : 0;
    double half = half_band(&s, &x, distance);
    out->share = x.share;
    out->low = x.share * (1 - half);
    out->high = q->regime == REGIME_STREAM ? x.share * (1 + half) : fmin(1, x.share * (1 + half));
    out->n_used = x.n;
    out->is_outside = distance > 0 || !s.same_machine || !s.same_model;
    return true;
}
