#include "planner/receipts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

/* A receipt's weight halves each half_life_s; after n_lives half-lives it does not count any more. */
static const double half_life_s = 60 * 86400.0, n_lives = 4;
/* A receipt's weight halves with each 1 / sharpness doublings by which its threads or texts differ from those asked
 * for. */
static const double sharpness = 2;
static const int64_t small_ctx = 1024;
/* The weight of a receipt without parts also halves with each half_at by which its place in the regime differs. */
static const double half_at = 0.05;
/* A receipt of the same model has own_model_weight times the weight of another model's. */
static const double own_model_weight = 4;
/* A device with less than the share `minor` of the forecast's time need not be covered by receipts. Another one is
 * covered if it took at least `seen` times that share in some run. */
static const double minor = 0.1, seen = 0.1;
/* `pull` is the weight, in the least squares, of the parts' difference from the common factor. A part takes at least
 * `least_factor` of the common factor, since reads may overlap with computing. */
static const double pull = 0.002, least_factor = 0.05;
/* Half of the band's width, as a share of the forecast. band_of_one: with one receipt; it is divided by the square root
 * of their number. band_least, band_most, band_foreign_most: bounds, the last one for another machine. The others are
 * added for another model, for another machine, and for each outside_unit by which a part's share of the run is outside
 * of what was measured. */
static const double band_of_one = 0.12, band_least = 0.06, band_most = 0.20, band_foreign_most = 0.35;
static const double band_other_model = 0.04, band_other_machine = 0.06, band_outside = 0.08, outside_unit = 0.25;

/* Parts that one device computes. */
enum device { DEVICE_LAYERS, DEVICE_BESIDE, DEVICE_DRIVES, DEVICE_N };
static const enum device device_of[PART_N] = {
    [PART_BESIDE] = DEVICE_BESIDE, [PART_READS] = DEVICE_DRIVES}; /* all others: DEVICE_LAYERS */

/* Which receipts count. */
struct selection {
    const struct receipt *list;
    size_t n;
    const struct calibration_query *q;
    bool same_machine, same_model; /* only those of the same machine, or of the same model */
    uint64_t without;              /* not those of the model with this fingerprint; 0: no model is left out */
    int64_t newest_s;
};

/* The parts' shares of a time. */
struct shares {
    double part[PART_N];
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

static bool has_parts(const struct receipt *r, enum speed_of of)
{
    for (int i = 0; i < PART_N; i++)
        if (r->part[of][i] > 0)
            return true;
    return false;
}

/* Whether the layers run on the same kind of device in both regimes. */
static bool is_akin(enum regime a, enum regime b)
{
    bool cpu_a = a == REGIME_RAM || a == REGIME_STREAM, cpu_b = b == REGIME_RAM || b == REGIME_STREAM;
    return a == b || (cpu_a == cpu_b && a != REGIME_RANKS && b != REGIME_RANKS);
}

/* Whether a receipt says something about the query, and is not above its own ceiling. */
static bool is_usable(const struct receipt *r, const struct calibration_query *q)
{
    double share = receipt_share(r, q->of);
    bool is_kind = has_parts(r, q->of) ? is_akin(r->regime, q->regime) : r->regime == q->regime;
    return is_kind && share > 0 && share <= 1;
}

static bool is_selected(const struct selection *s, const struct receipt *r)
{
    return is_usable(r, s->q) && (!s->same_machine || is_machine(r, s->q)) && (!s->same_model || is_model(r, s->q)) &&
           (!s->without || r->fingerprint != s->without) && (double)(s->newest_s - r->time_s) <= n_lives * half_life_s;
}

/* How many doublings two counts are apart; 0: one is not known. */
static double doublings(int64_t a, int64_t b)
{
    return a > 0 && b > 0 ? fabs(log2((double)a / (double)b)) : 0;
}

/* How much a receipt's run differs from the query, in doublings. Small contexts cost nothing, and long prompts are
 * computed in pieces. */
static double distance(const struct receipt *r, const struct calibration_query *q)
{
    double threads = doublings(r->n_threads, q->n_threads);
    if (q->of == SPEED_PREFILL)
        return threads + doublings(r->n_prompt, q->n_tok) / 2;
    return threads + doublings(r->n_texts, q->n_texts) + doublings(r->n_ctx + small_ctx, q->n_tok + small_ctx) / 2;
}

/* The weight of a receipt; 0: it does not count. */
static double weight_of(const struct selection *s, const struct receipt *r)
{
    if (!is_selected(s, r))
        return 0;
    double age = (double)(s->newest_s - r->time_s) / half_life_s;
    double far = has_parts(r, s->q->of) ? 0 : fabs(r->at - s->q->at) / half_at;
    return exp2(-age - sharpness * distance(r, s->q) - far) * (is_model(r, s->q) ? own_model_weight : 1);
}

/* Ages are counted from the newest receipt that is selected. */
static struct selection select_receipts(const struct receipt *list, size_t n, const struct calibration_query *q,
                                        bool same_machine, bool same_model)
{
    struct selection s = {.list = list, .n = n, .q = q, .same_machine = same_machine, .same_model = same_model};
    int64_t newest_s = 0;
    s.newest_s = INT64_MIN / 2;
    for (size_t i = 0; i < n; i++)
        newest_s = is_selected(&s, &list[i]) && list[i].time_s > newest_s ? list[i].time_s : newest_s;
    s.newest_s = newest_s;
    return s;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static struct shares shares_of(const double part_s[PART_N])
{
    struct shares x = {0};
    double sum = 0;
    for (int i = 0; i < PART_N; i++)
        sum += part_s[i];
    for (int i = 0; i < PART_N; i++)
        x.part[i] = sum > 0 ? part_s[i] / sum : 0;
    return x;
}

/* The shares of a receipt's parts. A receipt without parts is taken to have those of the query. */
static struct shares shares_of_receipt(const struct receipt *r, const struct calibration_query *q)
{
    double part_s[PART_N];
    if (!has_parts(r, q->of))
        return shares_of(q->time.part_s);
    for (int i = 0; i < PART_N; i++)
        part_s[i] = r->part[q->of][i] > 0 ? 1 / r->part[q->of][i] : 0;
    return shares_of(part_s);
}

static double sum_of(const double part_s[PART_N])
{
    double sum = 0;
    for (int i = 0; i < PART_N; i++)
        sum += part_s[i];
    return sum;
}

/* The least times of the parts of a receipt's run, as shares of the time that it took. */
static struct shares of_measured(const struct receipt *r, const struct calibration_query *q)
{
    struct shares x = shares_of_receipt(r, q);
    double sum = 0;
    if (has_parts(r, q->of))
        for (int i = 0; i < PART_N; i++)
            sum += r->part[q->of][i] > 0 ? r->measured[q->of] / r->part[q->of][i] : 0;
    else
        sum = receipt_share(r, q->of) * sum_of(q->time.part_s) / q->time.least_s;
    for (int i = 0; i < PART_N; i++)
        x.part[i] *= sum;
    return x;
}

static void add_devices(const struct shares *x, double of[DEVICE_N])
{
    for (int i = 0; i < PART_N; i++)
        of[device_of[i]] += x->part[i];
}

/* Whether the receipts cover each device that takes much of the query's time. */
static bool is_covered(const struct selection *s)
{
    const struct shares asked = shares_of(s->q->time.part_s);
    double wanted[DEVICE_N] = {0}, most[DEVICE_N] = {0};
    add_devices(&asked, wanted);
    for (size_t i = 0; i < s->n; i++) {
        double of[DEVICE_N] = {0};
        const struct shares x = shares_of_receipt(&s->list[i], s->q);
        if (!is_selected(s, &s->list[i]))
            continue;
        add_devices(&x, of);
        for (int d = 0; d < DEVICE_N; d++) /* one without parts covers all of them */
            most[d] = fmax(most[d], has_parts(&s->list[i], s->q->of) ? of[d] : 1);
    }
    for (int d = 0; d < DEVICE_N; d++)
        if (wanted[d] >= minor && most[d] < seen * wanted[d])
            return false;
    return fmax(most[DEVICE_LAYERS], fmax(most[DEVICE_BESIDE], most[DEVICE_DRIVES])) > 0;
}

/* ---- least squares ----------------------------------------------------------------------------------------------- */

/* By which factor each part is slower than its ceiling, and the error of the receipts' times with these factors. */
struct fit {
    double factor[PART_N];
    double error; /* the standard deviation, as a share of the time */
    int n;
};

/* The normal equations for minimising sum w (sum_p y_p g_p - 1)^2. g_p are the parts' shares of a time that is forecast
 * with the common factor, and y_p the factors by which the parts differ from it. */
struct equations {
    double a[PART_N][PART_N], b[PART_N], sum;
};

/* The factor that is common to all parts. */
static double common_factor(const struct selection *s)
{
    double sum = 0, square = 0;
    for (size_t i = 0; i < s->n; i++) {
        double w = weight_of(s, &s->list[i]);
        const struct shares x = of_measured(&s->list[i], s->q);
        double whole = sum_of(x.part);
        sum += w * whole;
        square += w * whole * whole;
    }
    return square > 0 ? sum / square : 0;
}

static struct equations gather(const struct selection *s, double common)
{
    struct equations m = {0};
    for (size_t i = 0; i < s->n; i++) {
        double w = weight_of(s, &s->list[i]);
        const struct shares x = of_measured(&s->list[i], s->q);
        m.sum += w;
        for (int p = 0; p < PART_N; p++) {
            m.b[p] += w * common * x.part[p];
            for (int k = 0; k < PART_N; k++)
                m.a[p][k] += w * common * x.part[p] * common * x.part[k];
        }
    }
    return m;
}

/* Solves the equations by Gauss-Seidel with a lower bound for each factor; the matrix is positive definite. */
static void solve(const struct equations *m, double y[PART_N])
{
    enum { N_ROUND = 500 };
    double own = pull * m->sum;
    for (int i = 0; i < PART_N; i++)
        y[i] = 1;
    for (int round = 0; round < N_ROUND; round++)
        for (int i = 0; i < PART_N; i++) {
            double rest = m->b[i] + own;
            for (int k = 0; k < PART_N; k++)
                rest -= k == i ? 0 : m->a[i][k] * y[k];
            y[i] = fmax(least_factor, rest / (m->a[i][i] + own));
        }
}

/* Weighted sums of squared errors. */
struct errors {
    double sum, square;
    int n;
};

/* Adds the errors of the times that the factors give for the receipts of one model (fingerprint 0: of all). */
static void add_errors(const struct selection *s, const double factor[PART_N], uint64_t fingerprint, struct errors *to)
{
    for (size_t i = 0; i < s->n; i++) {
        double w = fingerprint && s->list[i].fingerprint != fingerprint ? 0 : weight_of(s, &s->list[i]), told = 0;
        const struct shares x = of_measured(&s->list[i], s->q);
        for (int p = 0; p < PART_N; p++)
            told += factor[p] * x.part[p];
        to->n += w > 0;
        to->sum += w;
        to->square += w * (told - 1) * (told - 1);
    }
}

static double error_of(const struct errors *e)
{
    return e->sum > 0 ? sqrt(e->square / e->sum) : 0;
}

static void find_factors(const struct selection *s, double factor[PART_N])
{
    double common = common_factor(s), y[PART_N];
    const struct equations m = gather(s, common);
    solve(&m, y);
    for (int i = 0; i < PART_N; i++)
        factor[i] = common * y[i];
}

static struct fit fit_parts(const struct selection *s)
{
    struct fit f = {0};
    struct errors e = {0};
    find_factors(s, f.factor);
    add_errors(s, f.factor, 0, &e);
    f.n = e.n;
    f.error = error_of(&e);
    return f;
}

/* Lists the models of the receipts, at most n, the newest first. Returns their number. */
static int list_models(const struct selection *s, uint64_t *models, int n)
{
    int n_model = 0;
    for (size_t i = s->n; i-- > 0 && n_model < n;) {
        bool is_new = s->list[i].fingerprint != 0 && is_selected(s, &s->list[i]);
        for (int k = 0; k < n_model && is_new; k++)
            is_new = models[k] != s->list[i].fingerprint;
        if (is_new)
            models[n_model++] = s->list[i].fingerprint;
    }
    return n_model;
}

/* The error of forecasting each model from the receipts of the others (cross-validation); 0: there is only one model.
 */
static double error_across_models(const struct selection *s)
{
    enum { MOST = 8 };
    uint64_t models[MOST];
    struct errors e = {0};
    int n = list_models(s, models, MOST);
    for (int i = 0; i < n && n > 1; i++) {
        struct selection others = *s;
        double factor[PART_N];
        others.without = models[i];
        find_factors(&others, factor);
        add_errors(s, factor, models[i], &e);
    }
    return error_of(&e);
}

/* ---- the band ---------------------------------------------------------------------------------------------------- */

/* How far the share of a part in the query's time is outside the range of the receipts; the largest over all parts. */
static double how_far(const struct selection *s)
{
    const struct shares asked = shares_of(s->q->time.part_s);
    double far = 0;
    for (int p = 0; p < PART_N; p++) {
        double least = 1, most = 0;
        for (size_t i = 0; i < s->n; i++) {
            const struct shares x = shares_of_receipt(&s->list[i], s->q);
            if (!is_selected(s, &s->list[i]))
                continue;
            least = fmin(least, x.part[p]);
            most = fmax(most, x.part[p]);
        }
        far = fmax(far, fmax(asked.part[p] - most, least - asked.part[p]));
    }
    return far;
}

/* How far the query's place in the regime is outside the range of the receipts without parts; 0: there are none. */
static double how_far_in_regime(const struct selection *s)
{
    double below = INFINITY, above = INFINITY;
    for (size_t i = 0; i < s->n; i++) {
        double d = s->list[i].at - s->q->at;
        if (!is_selected(s, &s->list[i]) || has_parts(&s->list[i], s->q->of))
            continue;
        if (d <= 0)
            below = fmin(below, -d);
        if (d >= 0)
            above = fmin(above, d);
    }
    if (below < INFINITY && above < INFINITY)
        return 0;
    return below < INFINITY ? below : above < INFINITY ? above : 0;
}

static double half_band(const struct selection *s, const struct fit *f, double far)
{
    double across = s->same_model ? 0 : error_across_models(s);
    double half = fmax(band_of_one / sqrt(f->n), fmax(band_least, 2 * f->error));
    if (!s->same_model)
        half = fmax(half + band_other_model, 2 * across);
    half += s->same_machine ? 0 : band_other_machine;
    half += band_outside * fmin(1, far / outside_unit);
    return fmin(half, s->same_machine ? band_most : band_foreign_most);
}

/* The rate that was measured beside a run, divided by that of the machine's file; 0: not known, or too old to count. */
static double rate_beside(const struct receipt *r, const struct machine *m, enum machine_rate rate, int64_t newest_s)
{
    double told = machine_rate_of(m, rate, (int)r->n_threads);
    bool is_old = (double)(newest_s - r->time_s) > n_lives * half_life_s;
    return told > 0 && !is_old && !strcmp(r->machine, m->name) ? r->rates[rate] / told : 0;
}

/* The median over the newest receipts, which are the last in the list, with n_threads threads (0: any number). */
static double median_rate(const struct receipt *list, size_t n_receipt, const struct machine *m, enum machine_rate rate,
                          int n_threads, int *n)
{
    enum { MOST = 64 };
    double factors[MOST] = {1};
    *n = 0;
    for (size_t i = n_receipt; i-- > 0 && *n + 1 < MOST;) {
        double factor = rate_beside(&list[i], m, rate, list[n_receipt - 1].time_s);
        if (factor > 0 && (n_threads == 0 || list[i].n_threads == n_threads))
            factors[++*n] = factor;
    }
    qsort(factors, (size_t)*n + 1, sizeof *factors, compare_doubles);
    return (factors[*n / 2] + factors[(*n + 1) / 2]) / 2;
}

double receipts_rate_factor(const struct receipt *list, size_t n_receipt, const struct machine *m,
                            enum machine_rate rate, int n_threads, int *n)
{
    double factor = median_rate(list, n_receipt, m, rate, n_threads, n);
    return *n ? factor : median_rate(list, n_receipt, m, rate, 0, n);
}

/* Selects the receipts of this machine and model, or of this machine, or all: the first selection that covers the
 * query. */
static bool choose(const struct receipt *list, size_t n, const struct calibration_query *q, struct selection *out)
{
    for (int i = 0; i < 3; i++) {
        *out = select_receipts(list, n, q, i < 2, i < 1);
        if (is_covered(out))
            return true;
    }
    return false;
}

bool receipts_calibrate(const struct receipt *list, size_t n, const struct calibration_query *q,
                        struct calibration *out)
{
    enum { UNNOTICED = 50 };
    struct selection s;
    double forecast_s = 0;
    *out = (struct calibration){0};
    for (size_t i = 0; i < n; i++)
        out->n_above += list[i].regime == q->regime && receipt_share(&list[i], q->of) > 1;
    if (!(q->time.least_s > 0) || !choose(list, n, q, &s))
        return false;
    const struct fit f = fit_parts(&s);
    for (int i = 0; i < PART_N; i++)
        forecast_s += f.factor[i] * q->time.part_s[i];
    double far = fmax(how_far(&s), how_far_in_regime(&s));
    far = far > 1.0 / UNNOTICED ? far : 0;
    double half = half_band(&s, &f, far);
    out->share = fmin(1, q->time.least_s / forecast_s);
    out->low = out->share * (1 - half);
    out->high = fmin(1, out->share * (1 + half));
    out->n_used = f.n;
    out->is_outside = far > 0 || !s.same_machine || !s.same_model;
    return true;
}
