/* The kernels of recurrent layers: each table against the scalar one to the bit, the scalar one against the reference
 * (in double) within bounds. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { MAX_TAP = 4, MAX_N = 128, MAX_DK = 128, MAX_TOKEN = 12, LD_GATE = 3, MAX_DIM = 19, LD_V = 23 };

static const int n_list[] = {1, 7, 16, 17, 64, 128};

#define N_OF(list) ((int)(sizeof(list) / sizeof *(list)))

static const float untouched = 12345.0f;

static float *floats(const struct guard *g)
{
    return (float *)(void *)g->p;
}

/* ---- convolution --------------------------------------------------------------------------------------------- */

/* A sum of n_tap products errs by a rounding of its parts each; silu hardly stretches that (its slope is below 1.1). */
static void compare_conv(struct check *c, const float *const *x, const float *w, int64_t ld_w, int64_t n_tap, int64_t n,
                         const float *got)
{
    float exact[MAX_N];
    kernels_reference()->conv_silu(exact, x, w, ld_w, n_tap, n);
    for (int64_t i = 0; i < n; i++) {
        double size = 0, want = (double)exact[i];
        for (int64_t j = 0; j < n_tap; j++)
            size += fabs((double)w[j * ld_w + i] * (double)x[j][i]);
        double bound = 0x1p-24 * (1.1 * (double)n_tap * size + 10 * fabs(want)) + 10 * 0x1p-149;
        /* once exp overflows, the quotient is 0 rather than a number about 1e-37 */
        bool vanished = got[i] == 0 && fabs(want) < 1e-35 && size > 80;
        expect(c, vanished || fabs((double)got[i] - want) <= bound,
               "conv_silu scalar n=%ld taps=%ld: element %ld is %a, expected %a", (long)n, (long)n_tap, (long)i,
               (double)got[i], want);
    }
}

static void check_conv(struct check *c, int64_t n_tap, int64_t n, int kind)
{
    int64_t ld_w = n + 3, n_w = (n_tap - 1) * ld_w + n; /* of wider rows */
    struct guard w = guard_alloc((size_t)n_w * 4), x[MAX_TAP];
    const float *rows[MAX_TAP];
    float want[MAX_N];
    random_floats(&c->rng, floats(&w), n_w, 0);
    for (int64_t j = 0; j < n_tap; j++) {
        x[j] = guard_alloc((size_t)n * 4);
        random_floats(&c->rng, floats(&x[j]), n, kind);
        rows[j] = floats(&x[j]);
    }
    for (int i = 0; i < c->n_table; i++) {
        struct guard y = guard_alloc((size_t)n * 4);
        for (int64_t j = 0; j < n; j++)
            floats(&y)[j] = untouched;
        c->tables[i]->conv_silu(floats(&y), rows, floats(&w), ld_w, n_tap, n);
        if (i == 0)
            memcpy(want, y.p, y.n_bytes);
        expect(c, same_floats(floats(&y), want, n) && guard_intact(&y), "conv_silu %s n=%ld taps=%ld kind=%d",
               c->tables[i]->name, (long)n, (long)n_tap, kind);
        guard_free(&y);
    }
    compare_conv(c, rows, floats(&w), ld_w, n_tap, n, want);
    guard_free(&w);
    for (int64_t j = 0; j < n_tap; j++)
        guard_free(&x[j]);
}

/* ---- the delta rule ------------------------------------------------------------------------------------------ */

/* Inputs of a case; every array ends at a guard page right after its last element. */
struct delta_case {
    struct guard start, q, k, v, decay, beta;
    struct kernel_delta a;
};

/* What a table makes of it: the state and the outputs. */
struct delta_result {
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
static struct delta_case delta_open(struct check *c, int64_t n, int64_t n_dim, int64_t dk, int kind)
{
    int64_t ld_qk = 2 * dk + 3, n_gate = (n - 1) * LD_GATE + 1;
    size_t qk_bytes = (size_t)((n - 1) * ld_qk + dk) * 4;
    struct delta_case d = {.start = guard_alloc((size_t)(n_dim * dk) * 4),
                           .q = guard_alloc(qk_bytes),
                           .k = guard_alloc(qk_bytes),
                           .v = guard_alloc((size_t)((n - 1) * LD_V + n_dim) * 4),
                           .decay = guard_alloc((size_t)n_gate * 4),
                           .beta = guard_alloc((size_t)n_gate * 4)};
    random_floats(&c->rng, floats(&d.start), n_dim * dk, kind);
    random_floats(&c->rng, floats(&d.v), (n - 1) * LD_V + n_dim, kind);
    random_floats(&c->rng, floats(&d.q), (n - 1) * ld_qk + dk, 0);
    random_floats(&c->rng, floats(&d.k), (n - 1) * ld_qk + dk, 0);
    for (int64_t t = 0; t < n; t++) {
        make_unit(floats(&d.q) + t * ld_qk, dk, 1 / sqrt((double)dk));
        make_unit(floats(&d.k) + t * ld_qk, dk, 1);
    }
    for (int64_t i = 0; i < n_gate; i++) {
        floats(&d.decay)[i] = (float)random_unit(&c->rng);
        floats(&d.beta)[i] = (float)random_unit(&c->rng);
    }
    d.a = (struct kernel_delta){.n = n,
                                .n_dim = n_dim,
                                .dk = dk,
                                .decay = floats(&d.decay),
                                .beta = floats(&d.beta),
                                .q = floats(&d.q),
                                .k = floats(&d.k),
                                .v = floats(&d.v),
                                .ld_gate = LD_GATE,
                                .ld_qk = ld_qk,
                                .ld_v = LD_V};
    return d;
}

static void delta_close(struct delta_case *d)
{
    struct guard *all[] = {&d->start, &d->q, &d->k, &d->v, &d->decay, &d->beta};
    for (int i = 0; i < N_OF(all); i++)
        guard_free(all[i]);
}

/* Tokens [from, to) of a case. */
static void delta_part(const struct kernels *t, const struct kernel_delta *a, int64_t from, int64_t to, float *s,
                       const float *v, float *o)
{
    struct kernel_delta part = *a;
    part.n = to - from;
    part.decay += from * a->ld_gate;
    part.beta += from * a->ld_gate;
    part.q += from * a->ld_qk;
    part.k += from * a->ld_qk;
    part.v = v + from * a->ld_v;
    part.o = o + from * a->ld_v;
    t->delta_rule(s, &part);
}

/* In two calls, the second from token `split` on (0: in one), with o in place of v or apart. False: it wrote where it
 * must not. */
static bool delta_run(const struct kernels *t, const struct delta_case *d, int64_t split, bool alias,
                      struct delta_result *r)
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
        delta_part(t, &d->a, 0, split, floats(&s), v, floats(&o));
    delta_part(t, &d->a, split, n, floats(&s), v, floats(&o));
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
static void compare_delta(struct check *c, const struct delta_case *d, const struct delta_result *got, int64_t dim)
{
    struct kernel_delta a = d->a;
    float s[MAX_DK], o[MAX_TOKEN * LD_V];
    memcpy(s, floats(&d->start) + dim * a.dk, sizeof *s * (size_t)a.dk);
    double bound = 0, size = length(s, a.dk), roundings = (double)a.dk / 16 + 14;
    a.n_dim = 1;
    for (int64_t t = 0; t < a.n; t++) {
        delta_part(kernels_reference(), &a, t, t + 1, s, a.v + dim, o);
        size = fmax(size, length(s, a.dk)) + fabs((double)a.v[t * LD_V + dim]);
        bound += roundings * (size * 0x1p-24 + 0x1p-149);
        float have = got->o[t * d->a.n_dim + dim], want = o[t * LD_V];
        expect(c,
               fabs((double)have - (double)want) <= 2 * bound * length(a.q + t * a.ld_qk, a.dk) + roundings * 0x1p-149,
               "delta_rule scalar n=%ld dim %ld dk=%ld: token %ld is %a, expected %a", (long)a.n, (long)dim, (long)a.dk,
               (long)t, (double)have, (double)want);
    }
    double err = 0;
    for (int64_t i = 0; i < a.dk; i++)
        err = larger(err, fabs((double)got->s[dim * a.dk + i] - (double)s[i]));
    expect(c, err <= bound, "delta_rule scalar n=%ld dim %ld dk=%ld: the state errs by %g, at most %g", (long)a.n,
           (long)dim, (long)a.dk, err, bound);
}

static void check_delta(struct check *c, int64_t n, int64_t n_dim, int64_t dk, int kind)
{
    struct delta_case d = delta_open(c, n, n_dim, dk, kind);
    struct delta_result want = {0};
    for (int i = 0; i < c->n_table; i++)
        for (int64_t split = 0; split < n; split++)
            for (int alias = 0; alias < 2; alias++) {
                struct delta_result got = {0};
                bool kept = delta_run(c->tables[i], &d, split, alias, &got);
                if (i == 0 && split == 0 && !alias)
                    want = got;
                expect(c, kept && same_floats(got.s, want.s, n_dim * dk) && same_floats(got.o, want.o, n * n_dim),
                       "delta_rule %s n=%ld dims=%ld dk=%ld kind=%d split=%ld alias=%d", c->tables[i]->name, (long)n,
                       (long)n_dim, (long)dk, kind, (long)split, alias);
            }
    for (int64_t i = 0; i < n_dim; i++)
        compare_delta(c, &d, &want, i);
    delta_close(&d);
}

void check_recurrent(struct check *c)
{
    static const int tokens[] = {1, 2, 5, MAX_TOKEN}, dims[] = {1, MAX_DIM};
    group_begin(c);
    for (int64_t n_tap = 2; n_tap <= MAX_TAP; n_tap++)
        for (int i = 0; i < N_OF(n_list); i++)
            for (int kind = 0; kind < 12; kind++)
                check_conv(c, n_tap, n_list[i], kind);
    group_end(c, "conv_silu");
    group_begin(c);
    for (int t = 0; t < N_OF(tokens); t++)
        for (int i = 0; i < N_OF(n_list); i++)
            for (int kind = 0; kind < 6; kind++)
                for (int j = 0; j < N_OF(dims); j++)
                    check_delta(c, tokens[t], dims[j], n_list[i], kind);
    group_end(c, "delta_rule");
}
