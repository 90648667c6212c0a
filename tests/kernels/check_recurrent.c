/* The kernels of recurrent layers: each table against the scalar one to the bit, the scalar one against the reference
 * (in double) within bounds. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { MAX_TAP = 4, MAX_N = 128, MAX_DK = 128, MAX_TOKEN = 12, LD_BETA = 3, MAX_DIM = 19, LD_V = 23 };

static const int n_list[] = {1, 7, 16, 17, 64, 128};

#define N_OF(list) ((int)(sizeof(list) / sizeof *(list)))

static const float untouched = 12345.0f;

static float *floats(const struct guard *g)
{
    return (float *)(void *)g->p;
}

/* ---- convolution --------------------------------------------------------------------------------------------- */

/* A sum of n_tap products errs by a rounding of its parts each; silu hardly stretches that (its slope is below 1.1). */
static void compare_conv(struct check *c, const struct kernel_conv *a, const float *got)
{
    float exact[MAX_N];
    kernels_reference()->conv(exact, a);
    for (int64_t i = 0; i < a->n; i++) {
        double size = a->bias ? fabs((double)a->bias[i]) : 0, want = (double)exact[i];
        for (int64_t j = 0; j < a->n_tap; j++)
            size += fabs((double)a->w[j * a->ld_w + i] * (double)a->x[j][i]);
        double bound = 0x1p-24 * (1.1 * (double)a->n_tap * size + 10 * fabs(want)) + 10 * 0x1p-149;
        /* once exp overflows, the quotient is 0 rather than a number about 1e-37 */
        bool vanished = a->has_silu && got[i] == 0 && fabs(want) < 1e-35 && size > 80;
        expect(c, vanished || fabs((double)got[i] - want) <= bound,
               "conv scalar n=%ld taps=%ld silu=%d bias=%d: element %ld is %a, expected %a", (long)a->n, (long)a->n_tap,
               a->has_silu, a->bias != NULL, (long)i, (double)got[i], want);
    }
}

static void check_conv(struct check *c, int64_t n_tap, int64_t n, int kind, bool has_bias, bool has_silu)
{
    int64_t ld_w = n + 3, n_w = (n_tap - 1) * ld_w + n; /* of wider rows */
    struct guard w = guard_alloc((size_t)n_w * 4), bias = guard_alloc((size_t)n * 4), x[MAX_TAP];
    const float *rows[MAX_TAP];
    float want[MAX_N];
    random_floats(&c->rng, floats(&w), n_w, 0);
    random_floats(&c->rng, floats(&bias), n, 0);
    for (int64_t j = 0; j < n_tap; j++) {
        x[j] = guard_alloc((size_t)n * 4);
        random_floats(&c->rng, floats(&x[j]), n, kind);
        rows[j] = floats(&x[j]);
    }
    const struct kernel_conv a = {.x = rows,
                                  .w = floats(&w),
                                  .bias = has_bias ? floats(&bias) : NULL,
                                  .ld_w = ld_w,
                                  .n_tap = n_tap,
                                  .n = n,
                                  .has_silu = has_silu};
    for (int i = 0; i < c->n_table; i++) {
        struct guard y = guard_alloc((size_t)n * 4);
        for (int64_t j = 0; j < n; j++)
            floats(&y)[j] = untouched;
        c->tables[i]->conv(floats(&y), &a);
        if (i == 0)
            memcpy(want, y.p, y.n_bytes);
        expect(c, same_floats(floats(&y), want, n) && guard_intact(&y),
               "conv %s n=%ld taps=%ld kind=%d silu=%d bias=%d", c->tables[i]->name, (long)n, (long)n_tap, kind,
               has_silu, has_bias);
        guard_free(&y);
    }
    compare_conv(c, &a, want);
    guard_free(&w);
    guard_free(&bias);
    for (int64_t j = 0; j < n_tap; j++)
        guard_free(&x[j]);
}

/* ---- the delta rule and state spaces ----------------------------------------------------------------------------- */

enum rule { DELTA_RULE, DELTA_RULE_BY_DIM, STATE_SPACE, N_RULE };

static const char *const rule_names[N_RULE] = {"delta_rule", "delta_rule_by_dim", "state_space"};

/* Inputs of a case; every array ends at a guard page right after its last element. */
struct rule_case {
    struct guard start, q, k, v, decay, beta;
    struct kernel_recurrence a;
    enum rule rule;
};

/* What a table makes of it: the state and the outputs. */
struct rule_result {
    float s[MAX_DIM * MAX_DK], o[MAX_TOKEN * MAX_DIM];
};

static float *make_unit(float *x, int64_t n, double length)
{
    double sum = 1e-30;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * length / sqrt(sum));
    return x;
}

/* kind 0: as in a model; others: start and values extreme. */
static struct rule_case rule_open(struct check *c, enum rule rule, int64_t n, int64_t n_dim, int64_t dk, int kind)
{
    int64_t ld_qk = 2 * dk + 3, n_beta = (n - 1) * LD_BETA + 1;
    int64_t n_decay = rule == DELTA_RULE_BY_DIM ? dk : 1, ld_decay = n_decay + 4,
            n_decays = (n - 1) * ld_decay + n_decay;
    size_t qk_bytes = (size_t)((n - 1) * ld_qk + dk) * 4;
    struct rule_case d = {.start = guard_alloc((size_t)(n_dim * dk) * 4),
                          .q = guard_alloc(qk_bytes),
                          .k = guard_alloc(qk_bytes),
                          .v = guard_alloc((size_t)((n - 1) * LD_V + n_dim) * 4),
                          .decay = guard_alloc((size_t)n_decays * 4),
                          .beta = guard_alloc((size_t)n_beta * 4),
                          .rule = rule};
    random_floats(&c->rng, floats(&d.start), n_dim * dk, kind);
    random_floats(&c->rng, floats(&d.v), (n - 1) * LD_V + n_dim, kind);
    random_floats(&c->rng, floats(&d.q), (n - 1) * ld_qk + dk, 0);
    random_floats(&c->rng, floats(&d.k), (n - 1) * ld_qk + dk, 0);
    for (int64_t t = 0; t < n; t++) {
        make_unit(floats(&d.q) + t * ld_qk, dk, 1 / sqrt((double)dk));
        make_unit(floats(&d.k) + t * ld_qk, dk, 1);
    }
    for (int64_t i = 0; i < n_decays; i++)
        floats(&d.decay)[i] = (float)random_unit(&c->rng);
    for (int64_t i = 0; i < n_beta; i++)
        floats(&d.beta)[i] = (float)random_unit(&c->rng);
    d.a = (struct kernel_recurrence){.n = n,
                                     .n_dim = n_dim,
                                     .dk = dk,
                                     .decay = floats(&d.decay),
                                     .beta = floats(&d.beta),
                                     .q = floats(&d.q),
                                     .k = floats(&d.k),
                                     .v = floats(&d.v),
                                     .ld_decay = ld_decay,
                                     .ld_beta = LD_BETA,
                                     .ld_qk = ld_qk,
                                     .ld_v = LD_V,
                                     .decays_by_dim = rule == DELTA_RULE_BY_DIM,
                                     .skip = rule == STATE_SPACE ? 0.7f : NAN}; /* which the delta rule doesn't read */
    return d;
}

static void rule_close(struct rule_case *d)
{
    struct guard *all[] = {&d->start, &d->q, &d->k, &d->v, &d->decay, &d->beta};
    for (int i = 0; i < N_OF(all); i++)
        guard_free(all[i]);
}

/* Tokens [from, to) of a case. */
static void rule_part(const struct kernels *t, enum rule rule, const struct kernel_recurrence *a, int64_t from,
                      int64_t to, float *s, const float *v, float *o)
{
    struct kernel_recurrence part = *a;
    part.n = to - from;
    part.decay += from * a->ld_decay;
    part.beta += from * a->ld_beta;
    part.q += from * a->ld_qk;
    part.k += from * a->ld_qk;
    part.v = v + from * a->ld_v;
    part.o = o + from * a->ld_v;
    (rule == STATE_SPACE ? t->state_space : t->delta_rule)(s, &part);
}

/* In two calls, the second from token `split` on (0: in one), with o in place of v or apart. False: it wrote where it
 * must not. */
static bool rule_run(const struct kernels *t, const struct rule_case *d, int64_t split, bool alias,
                     struct rule_result *r)
{
    int64_t n = d->a.n, n_dim = d->a.n_dim;
    struct guard s = guard_alloc(d->start.n_bytes), o = guard_alloc(d->v.n_bytes);
    memcpy(s.p, d->start.p, s.n_bytes);
    memcpy(o.p, d->v.p, o.n_bytes);
    for (int64_t i = 0; i < (n - 1) * LD_V + n_dim; i++)
        if (!alias || i % LD_V >= n_dim)
            floats(&o)[i] = untouched;
    const float *v = alias ? floats(&o) : d->a.v;
    if (split)
        rule_part(t, d->rule, &d->a, 0, split, floats(&s), v, floats(&o));
    rule_part(t, d->rule, &d->a, split, n, floats(&s), v, floats(&o));
    memcpy(r->s, s.p, s.n_bytes);
    bool ok = guard_intact(&s) && guard_intact(&o);
    for (int64_t i = 0; i < (n - 1) * LD_V + n_dim; i++)
        if (i % LD_V >= n_dim)
            ok = ok && floats(&o)[i] == untouched;
        else
            r->o[i / LD_V * n_dim + i % LD_V] = floats(&o)[i];
    guard_free(&s);
    guard_free(&o);
    return ok;
}

static double length(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* k has length 1, beta and decay are at most 1: what a token does to the state never stretches an earlier error, so the
 * tokens' errors, each some roundings of the state and of v, add up. */
static void compare_rule(struct check *c, const struct rule_case *d, const struct rule_result *got, int64_t dim)
{
    struct kernel_recurrence a = d->a;
    float s[MAX_DK], o[MAX_TOKEN * LD_V];
    memcpy(s, floats(&d->start) + dim * a.dk, sizeof *s * (size_t)a.dk);
    double bound = 0, size = length(s, a.dk), roundings = (double)a.dk / 16 + 14;
    a.n_dim = 1;
    for (int64_t t = 0; t < a.n; t++) {
        rule_part(kernels_reference(), d->rule, &a, t, t + 1, s, a.v + dim, o);
        size = fmax(size, length(s, a.dk)) + fabs((double)a.v[t * LD_V + dim]);
        bound += roundings * (size * 0x1p-24 + 0x1p-149);
        float have = got->o[t * d->a.n_dim + dim], want = o[t * LD_V];
        expect(c,
               fabs((double)have - (double)want) <= 2 * bound * length(a.q + t * a.ld_qk, a.dk) + roundings * 0x1p-149,
               "%s scalar n=%ld dim %ld dk=%ld: token %ld is %a, expected %a", rule_names[d->rule], (long)a.n,
               (long)dim, (long)a.dk, (long)t, (double)have, (double)want);
    }
    double err = 0;
    for (int64_t i = 0; i < a.dk; i++)
        err = larger(err, fabs((double)got->s[dim * a.dk + i] - (double)s[i]));
    expect(c, err <= bound, "%s scalar n=%ld dim %ld dk=%ld: the state errs by %g, at most %g", rule_names[d->rule],
           (long)a.n, (long)dim, (long)a.dk, err, bound);
}

static void check_rule(struct check *c, enum rule rule, int64_t n, int64_t n_dim, int64_t dk, int kind)
{
    struct rule_case d = rule_open(c, rule, n, n_dim, dk, kind);
    struct rule_result want = {0};
    for (int i = 0; i < c->n_table; i++)
        for (int64_t split = 0; split < n; split++)
            for (int alias = 0; alias < 2; alias++) {
                struct rule_result got = {0};
                bool kept = rule_run(c->tables[i], &d, split, alias, &got);
                if (i == 0 && split == 0 && !alias)
                    want = got;
                expect(c, kept && same_floats(got.s, want.s, n_dim * dk) && same_floats(got.o, want.o, n * n_dim),
                       "%s %s n=%ld dims=%ld dk=%ld kind=%d split=%ld alias=%d", rule_names[rule], c->tables[i]->name,
                       (long)n, (long)n_dim, (long)dk, kind, (long)split, alias);
            }
    for (int64_t i = 0; i < n_dim; i++)
        compare_rule(c, &d, &want, i);
    rule_close(&d);
}

/* ---- selective state spaces -------------------------------------------------------------------------------------- */

/* Inputs of a case; every array ends at a guard page right after its last element. */
struct scan_case {
    struct guard start, rate, skip, q, k, step, v;
    struct kernel_scan a;
};

static struct scan_case scan_open(struct check *c, int64_t n, int64_t n_dim, int64_t dk, int kind)
{
    int64_t ld_qk = 2 * dk + 3, n_qk = (n - 1) * ld_qk + dk, n_v = (n - 1) * LD_V + n_dim;
    struct scan_case d = {.start = guard_alloc((size_t)(n_dim * dk) * 4),
                          .rate = guard_alloc((size_t)(n_dim * dk) * 4),
                          .skip = guard_alloc((size_t)n_dim * 4),
                          .q = guard_alloc((size_t)n_qk * 4),
                          .k = guard_alloc((size_t)n_qk * 4),
                          .step = guard_alloc((size_t)n_v * 4),
                          .v = guard_alloc((size_t)n_v * 4)};
    random_floats(&c->rng, floats(&d.start), n_dim * dk, kind);
    random_floats(&c->rng, floats(&d.v), n_v, kind);
    random_floats(&c->rng, floats(&d.skip), n_dim, 0);
    random_floats(&c->rng, floats(&d.q), n_qk, 0);
    random_floats(&c->rng, floats(&d.k), n_qk, 0);
    for (int64_t i = 0; i < n_dim * dk; i++)
        floats(&d.rate)[i] = -(float)random_unit(&c->rng) * (float)(1 << i % 7);
    for (int64_t i = 0; i < n_v; i++)
        floats(&d.step)[i] = (float)random_unit(&c->rng);
    for (int64_t t = 0; t < n; t++) {
        make_unit(floats(&d.q) + t * ld_qk, dk, 1);
        make_unit(floats(&d.k) + t * ld_qk, dk, 1);
    }
    d.a = (struct kernel_scan){.n = n,
                               .n_dim = n_dim,
                               .dk = dk,
                               .a = floats(&d.rate),
                               .skip = floats(&d.skip),
                               .q = floats(&d.q),
                               .k = floats(&d.k),
                               .step = floats(&d.step),
                               .v = floats(&d.v),
                               .ld_qk = ld_qk,
                               .ld_v = LD_V};
    return d;
}

static void scan_close(struct scan_case *d)
{
    struct guard *all[] = {&d->start, &d->rate, &d->skip, &d->q, &d->k, &d->step, &d->v};
    for (int i = 0; i < N_OF(all); i++)
        guard_free(all[i]);
}

/* As rule_run. */
static bool scan_run(const struct kernels *t, const struct scan_case *d, int64_t split, bool alias,
                     struct rule_result *r)
{
    int64_t n = d->a.n, n_dim = d->a.n_dim, n_v = (n - 1) * LD_V + n_dim;
    struct guard s = guard_alloc(d->start.n_bytes), o = guard_alloc(d->v.n_bytes);
    struct kernel_scan first = d->a, rest = d->a;
    memcpy(s.p, d->start.p, s.n_bytes);
    memcpy(o.p, d->v.p, o.n_bytes);
    for (int64_t i = 0; i < n_v; i++)
        if (!alias || i % LD_V >= n_dim)
            floats(&o)[i] = untouched;
    first.v = rest.v = alias ? floats(&o) : d->a.v;
    first.o = rest.o = floats(&o);
    first.n = split;
    rest.n -= split;
    rest.q += split * rest.ld_qk;
    rest.k += split * rest.ld_qk;
    rest.step += split * LD_V;
    rest.v += split * LD_V;
    rest.o += split * LD_V;
    if (split)
        t->selective_scan(floats(&s), &first);
    t->selective_scan(floats(&s), &rest);
    memcpy(r->s, s.p, s.n_bytes);
    bool ok = guard_intact(&s) && guard_intact(&o);
    for (int64_t i = 0; i < n_v; i++)
        if (i % LD_V >= n_dim)
            ok = ok && floats(&o)[i] == untouched;
        else
            r->o[i / LD_V * n_dim + i % LD_V] = floats(&o)[i];
    guard_free(&s);
    guard_free(&o);
    return ok;
}

/* q and k have length 1, and steps and decays are at most 1: as of the delta rule, errors add up. */
static void compare_scan(struct check *c, const struct scan_case *d, const struct rule_result *got)
{
    struct rule_result want = {0};
    int64_t n = d->a.n, n_dim = d->a.n_dim, dk = d->a.dk;
    scan_run(kernels_reference(), d, 0, false, &want);
    for (int64_t dim = 0; dim < n_dim; dim++) {
        double size = length(floats(&d->start) + dim * dk, dk), bound = 0, roundings = (double)dk / 16 + 14;
        for (int64_t t = 0; t < n; t++) {
            double v = fabs((double)d->a.v[t * LD_V + dim]);
            size += v;
            bound += roundings * (size * 0x1p-24 + 0x1p-149);
            double skipped = v * fabs((double)d->a.skip[dim]) * 0x1p-23;
            float have = got->o[t * n_dim + dim], exact = want.o[t * n_dim + dim];
            expect(c, fabs((double)have - (double)exact) <= 2 * bound + skipped,
                   "selective_scan scalar n=%ld dim %ld dk=%ld: token %ld is %a, expected %a", (long)n, (long)dim,
                   (long)dk, (long)t, (double)have, (double)exact);
        }
        double err = 0;
        for (int64_t i = 0; i < dk; i++)
            err = larger(err, fabs((double)got->s[dim * dk + i] - (double)want.s[dim * dk + i]));
        expect(c, err <= 2 * bound, "selective_scan scalar n=%ld dim %ld dk=%ld: the state errs by %g, at most %g",
               (long)n, (long)dim, (long)dk, err, 2 * bound);
    }
}

static void check_scan(struct check *c, int64_t n, int64_t n_dim, int64_t dk, int kind)
{
    struct scan_case d = scan_open(c, n, n_dim, dk, kind);
    struct rule_result want = {0};
    for (int i = 0; i < c->n_table; i++)
        for (int64_t split = 0; split < n; split++)
            for (int alias = 0; alias < 2; alias++) {
                struct rule_result got = {0};
                bool kept = scan_run(c->tables[i], &d, split, alias, &got);
                if (i == 0 && split == 0 && !alias)
                    want = got;
                expect(c, kept && same_floats(got.s, want.s, n_dim * dk) && same_floats(got.o, want.o, n * n_dim),
                       "selective_scan %s n=%ld dims=%ld dk=%ld kind=%d split=%ld alias=%d", c->tables[i]->name,
                       (long)n, (long)n_dim, (long)dk, kind, (long)split, alias);
            }
    compare_scan(c, &d, &want);
    scan_close(&d);
}

void check_recurrent(struct check *c)
{
    static const int tokens[] = {1, 2, 5, MAX_TOKEN}, dims[] = {1, MAX_DIM};
    group_begin(c);
    for (int64_t n_tap = 2; n_tap <= MAX_TAP; n_tap++)
        for (int i = 0; i < N_OF(n_list); i++)
            for (int kind = 0; kind < 12; kind++)
                for (int how = 0; how < 4; how++)
                    check_conv(c, n_tap, n_list[i], kind, how & 1, how & 2);
    group_end(c, "conv");
    for (int rule = 0; rule < N_RULE; rule++) {
        group_begin(c);
        for (int t = 0; t < N_OF(tokens); t++)
            for (int i = 0; i < N_OF(n_list); i++)
                for (int kind = 0; kind < 6; kind++)
                    for (int j = 0; j < N_OF(dims); j++)
                        check_rule(c, (enum rule)rule, tokens[t], dims[j], n_list[i], kind);
        group_end(c, rule_names[rule]);
    }
    group_begin(c);
    for (int t = 0; t < N_OF(tokens); t++)
        for (int i = 0; i < N_OF(n_list); i++)
            for (int kind = 0; kind < 6; kind++)
                for (int j = 0; j < N_OF(dims); j++)
                    check_scan(c, tokens[t], dims[j], n_list[i], kind);
    group_end(c, "selective_scan");
}
