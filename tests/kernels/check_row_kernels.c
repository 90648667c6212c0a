/* Everything but the products: each table against the scalar one to the bit, the scalar one against the
 * reference (in double) within bounds. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { MAX_N = 640 };

static const int n_list[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 128, 640};

#define N_OF(list) ((int)(sizeof(list) / sizeof *(list)))

/* |a - b| within `ulps` of b's rounding unit, or within the smallest normal number's. */
static bool near(double a, double b, double ulps)
{
    if (isinf(b) || isinf(a))
        return a == b || (fabs(b) > 3.4e38 && a == copysign(INFINITY, b));
    return fabs(a - b) <= ulps * (fabs(b) * 0x1p-24 + 0x1p-149);
}

static void check_quantize(struct check *c, int64_t k, int64_t len, int kind)
{
    float x[1536];
    int8_t want[1536];
    float want_d[48];
    int16_t want_sum[3 * 96]; /* or 4 * 48 */
    int64_t n_block = k / len, n_sum = len == 32 ? n_block : k / 16, sum_len = k / n_sum, n_array = len == 32 ? 4 : 3;
    random_floats(&c->rng, x, k, kind);
    if (kind == 6)
        x[0] = 1e30f;
    struct guard gx = guard_alloc((size_t)k * 4);
    memcpy(gx.p, x, gx.n_bytes);
    for (int i = 0; i < c->n_table; i++) {
        struct guard q = guard_alloc((size_t)k), d = guard_alloc((size_t)n_block * 4),
                     sum = guard_alloc((size_t)(n_sum * n_array) * sizeof(int16_t));
        (len == 32 ? c->tables[i]->quantize_int8_32 : c->tables[i]->quantize_int8_256)(
            (const float *)(void *)gx.p, k, (int8_t *)q.p, (float *)(void *)d.p, (int16_t *)(void *)sum.p);
        if (i == 0) {
            memcpy(want, q.p, q.n_bytes);
            memcpy(want_d, d.p, d.n_bytes);
            memcpy(want_sum, sum.p, sum.n_bytes);
        }
        bool same =
            !memcmp(want, q.p, q.n_bytes) && !memcmp(want_d, d.p, d.n_bytes) && !memcmp(want_sum, sum.p, sum.n_bytes);
        bool intact = guard_intact(&q) && guard_intact(&d) && guard_intact(&sum);
        expect(c, same && intact, "quantize_int8_%d %s k=%ld kind=%d", (int)len, c->tables[i]->name, (long)k, kind);
        guard_free(&q);
        guard_free(&d);
        guard_free(&sum);
    }
    guard_free(&gx);
    bool close = true;
    for (int64_t i = 0; i < k; i++) {
        double d = (double)want_d[i / len], err = fabs((double)x[i] - d * want[i]);
        close = close && err <= d * 0.50001 + 1e-36 && want[i] != -128;
    }
    expect(c, close, "quantize_int8_%d k=%ld kind=%d: more than half a step off", (int)len, (long)k, kind);
    bool sums = true;
    for (int64_t j = 0; j < n_sum; j++) {
        int total = 0, upper = 0, first = 0;
        for (int64_t i = j * sum_len; i < (j + 1) * sum_len; i++) {
            total += want[i];
            upper += i % 4 >= 2 ? want[i] : 0;
            first += i % 32 < 16 ? want[i] : 0;
        }
        sums = sums && total == want_sum[j] && total - upper == want_sum[n_sum + 2 * j] &&
               upper == want_sum[n_sum + 2 * j + 1] && (len != 32 || first == want_sum[3 * n_sum + j]);
    }
    expect(c, sums, "quantize_int8_%d k=%ld kind=%d: sums", (int)len, (long)k, kind);
}

/* One elementwise kernel, by name, so that all share the loop over tables, guards and aliasing. */
enum op {
    RMS_NORM,
    RMS_NORM_BARE,
    NORM_DOT,
    SILU,
    SILU_LIMITED,
    SILU_CLAMPED,
    GELU,
    SIGMOID,
    SWIGLU_OAI,
    NO_ACT,
    RELU,
    SOFTPLUS,
    SITU,
    SITU_BARE,
    ADD,
    FMA_SCALAR,
    EXP_SUM,
    ROPE_NORMAL,
    ROPE_NEOX,
    N_OP
};

static const char *const op_names[N_OP] = {"rms_norm",
                                           "rms_norm without weights",
                                           "norm_dot",
                                           "silu",
                                           "silu within a limit",
                                           "silu of what a limit leaves",
                                           "gelu",
                                           "sigmoid",
                                           "swiglu_oai",
                                           "no act",
                                           "relu",
                                           "softplus",
                                           "situ",
                                           "situ with up as it is",
                                           "add",
                                           "fma_scalar",
                                           "exp_sum",
                                           "rope normal",
                                           "rope neox"};

/* y: in and out; returns the sum of exp_sum and norm_dot. */
static float op_run(const struct kernels *t, enum op op, float *y, const float *a, const float *b, int64_t n)
{
    float sum = 0;
    switch (op) {
    case RMS_NORM: t->rms_norm(y, a, b, n, 1e-5f); break;
    case RMS_NORM_BARE: t->rms_norm(y, a, NULL, n, 1e-5f); break;
    case NORM_DOT: sum = t->norm_dot(a, b, n, 1e-5f); break;
    case SILU: t->act_mul(KERNEL_SILU, 0, y, a, b, n); break;
    case SILU_LIMITED: t->act_mul(KERNEL_SILU, 0.75f, y, a, b, n); break;
    case SILU_CLAMPED: t->act_mul(KERNEL_SILU_CLAMPED, 0.75f, y, a, b, n); break;
    case GELU: t->act_mul(KERNEL_GELU, 0, y, a, b, n); break;
    case SIGMOID: t->act_mul(KERNEL_SIGMOID, 0, y, a, b, n); break;
    case SWIGLU_OAI: t->act_mul(KERNEL_SWIGLU_OAI, 0, y, a, b, n); break;
    case NO_ACT: t->act_mul(KERNEL_NO_ACT, 0, y, a, b, n); break;
    case RELU: t->act_mul(KERNEL_RELU, 0, y, a, b, n); break;
    case SOFTPLUS: t->act_mul(KERNEL_SOFTPLUS, 0, y, a, b, n); break;
    case SITU: t->situ(2, 1.5f, y, a, b, n); break;
    case SITU_BARE: t->situ(2, 0, y, a, b, n); break;
    case ADD: t->add(y, a, b, n); break;
    case FMA_SCALAR: t->fma_scalar(y, a, 0.37f, n); break;
    case EXP_SUM: t->exp_sum(y, a, 3.0f, n, &sum); break;
    case ROPE_NORMAL: t->rope(KERNEL_ROPE_NORMAL, y, b, n); break;
    case ROPE_NEOX: t->rope(KERNEL_ROPE_NEOX, y, b, n); break;
    default: break;
    }
    return sum;
}

/* Roundings that an element of input x may err by. A rounding of exp's argument counts as many times as the
 * argument is large. */
static double op_bound(enum op op, double x, int64_t n)
{
    switch (op) {
    case RMS_NORM:
    case RMS_NORM_BARE: return (double)n / 16 + 12;
    case SILU:
    case SILU_LIMITED:
    case SILU_CLAMPED:
    case SIGMOID: return 10;
    case SOFTPLUS: return 3;
    case SITU:
    case SITU_BARE: return 16;
    case SWIGLU_OAI: return 12 + 2 * fabs(x);
    case GELU: return 10 + 5 * fabs(x * (1.6 + 0.072 * x * x));
    case EXP_SUM: return 4 + fabs(x - 3);
    default: return 1.01;
    }
}

static bool is_act(enum op op)
{
    return op == SILU || op == SILU_LIMITED || op == SILU_CLAMPED || op == GELU || op == SIGMOID || op == SWIGLU_OAI ||
           op == SITU || op == SITU_BARE;
}

/* How far norm_dot may be off: as far as roundings of as many numbers of the same sizes. */
static double dot_bound(const float *x, const float *w, int64_t n)
{
    float sizes[2][MAX_N];
    for (int64_t i = 0; i < n; i++) {
        sizes[0][i] = fabsf(x[i]);
        sizes[1][i] = fabsf(w[i]);
    }
    double all = (double)kernels_reference()->norm_dot(sizes[0], sizes[1], n, 1e-5f);
    return ((double)n / 16 + 20) * 0x1p-24 * all + 1e-38;
}

static void check_op(struct check *c, enum op op, int64_t n, int kind)
{
    bool rope = op == ROPE_NORMAL || op == ROPE_NEOX, alias = kind % 2 && op != FMA_SCALAR && op != NORM_DOT && !rope;
    float want[MAX_N], exact[MAX_N], want_sum = 0, exact_sum;
    if (rope && n % 2)
        return;
    struct guard a = guard_alloc((size_t)n * 4), b = guard_alloc((size_t)n * 4);
    float *pa = (float *)(void *)a.p, *pb = (float *)(void *)b.p, start[MAX_N];
    random_floats(&c->rng, pa, n, kind);
    random_floats(&c->rng, pb, n, 0);
    for (int64_t i = 0; op == SWIGLU_OAI && i < n; i++)
        pb[i] = pb[i] * 6; /* beyond both limits as well */
    random_floats(&c->rng, start, n, rope ? kind : 0);
    memcpy(exact, start, (size_t)n * 4);
    exact_sum = op_run(kernels_reference(), op, exact, pa, pb, n);
    for (int i = 0; i < c->n_table; i++) {
        struct guard y = guard_alloc((size_t)n * 4);
        float *py = (float *)(void *)y.p;
        memcpy(py, alias ? pa : start, (size_t)n * 4);
        float sum = op_run(c->tables[i], op, py, alias ? py : pa, pb, n);
        if (i == 0) {
            memcpy(want, py, (size_t)n * 4);
            want_sum = sum;
        }
        expect(c, same_floats(py, want, n) && same_float(sum, want_sum) && guard_intact(&y), "%s %s n=%ld kind=%d",
               op_names[op], c->tables[i]->name, (long)n, kind);
        guard_free(&y);
    }
    bool close = op != EXP_SUM || near((double)want_sum, (double)exact_sum, (double)n / 16 + 20);
    if (op == NORM_DOT)
        close = fabs((double)want_sum - (double)exact_sum) <= dot_bound(pa, pb, n);
    int64_t worst = 0;
    for (int64_t i = 0; i < n && close; i++) {
        /* once exp overflows, the quotient is 0 rather than a number about 1e-37 */
        bool vanished = is_act(op) && want[i] == 0 && fabsf(exact[i]) < 1e-35f * (fabsf(pb[i]) + (op == SWIGLU_OAI));
        if (!rope && op != FMA_SCALAR && !vanished &&
            !near((double)want[i], (double)exact[i], op_bound(op, (double)pa[i], n))) {
            close = false;
            worst = i;
        }
    }
    expect(c, close, "%s scalar n=%ld kind=%d: element %ld is %a, expected %a (of %a)", op_names[op], (long)n, kind,
           (long)worst, (double)want[worst], (double)exact[worst], (double)pa[worst]);
    guard_free(&a);
    guard_free(&b);
}

/* A rotation by known angles, in double; the reference table's rope is the scalar one. */
static void check_rope_exact(struct check *c, enum kernel_rope mode)
{
    enum { N = 128 };
    float x[N], y[N], cs[N];
    for (int i = 0; i < N; i++)
        x[i] = y[i] = random_normal(&c->rng);
    for (int i = 0; i < N / 2; i++) {
        cs[2 * i] = (float)cos(0.1 * i);
        cs[2 * i + 1] = (float)sin(0.1 * i);
    }
    c->tables[0]->rope(mode, y, cs, N);
    bool ok = true;
    for (int i = 0; i < N / 2; i++) {
        int ia = mode == KERNEL_ROPE_NORMAL ? 2 * i : i, ib = mode == KERNEL_ROPE_NORMAL ? 2 * i + 1 : i + N / 2;
        double a = (double)x[ia], b = (double)x[ib], co = (double)cs[2 * i], si = (double)cs[2 * i + 1];
        double bound = (fabs(a) + fabs(b)) * 0x1p-23;
        ok = ok && fabs((double)y[ia] - (a * co - b * si)) <= bound && fabs((double)y[ib] - (a * si + b * co)) <= bound;
    }
    expect(c, ok, "rope scalar mode %d", mode);
}

/* Activations whose factors have a limit, and what it leaves alone, by the formula; more numbers than a vector has.
 * limit: 0 where the activation has its own. */
static void check_limited(struct check *c, enum kernel_act_fn fn, float limit)
{
    static const float gates[] = {2, 3, 3.4f, 6.5f, 7, 7.5f, 1e30f, -1.3f, -7.5f, -20, 0, NAN};
    static const float ups[] = {2.9f, 3, 4, 6.5f, 7, 9, 1e30f, -1, -2.9f, -3, -6.5f, -7, -9};
    enum { N = (int)(sizeof gates / sizeof *gates) * (int)(sizeof ups / sizeof *ups) };
    bool is_oai = fn == KERNEL_SWIGLU_OAI;
    double most = is_oai ? 7 : (double)limit, bound = is_oai ? 16 : 10;
    float gate[N], up[N], y[N];
    for (int i = 0; i < N; i++) {
        gate[i] = gates[i / N_OF(ups)];
        up[i] = ups[i % N_OF(ups)];
    }
    for (int t = 0; t <= c->n_table; t++) {
        const struct kernels *table = t < c->n_table ? c->tables[t] : kernels_reference();
        table->act_mul(fn, limit, y, gate, up, N);
        for (int i = 0; i < N; i++) {
            double g = (double)gate[i], u = fmax(-most, fmin((double)up[i], most)), want;
            if (is_oai) {
                g = g > most ? most : g;
                want = g / (1 + exp(-1.702 * g)) * (u + 1);
            } else {
                bool clamps_first = fn == KERNEL_SILU_CLAMPED;
                g = clamps_first && g > most ? most : g;
                want = g / (1 + exp(-g));
                want = (!clamps_first && want > most ? most : want) * u;
            }
            expect(c, isnan(g) ? isnan(y[i]) : near((double)y[i], want, bound + (is_oai ? 2 * fabs(g) : 0)),
                   "activation %d within a limit, %s of %g, %g is %a, expected %a", (int)fn, table->name,
                   (double)gate[i], (double)up[i], (double)y[i], want);
        }
    }
}

/* exp over its whole range and the neighbourhood of its ends. */
static void check_exp(struct check *c)
{
    double worst = 0;
    bool same = true;
    for (int i = 0; i < 200000; i++) {
        float x = (float)(-104.5 + 194.0 * random_unit(&c->rng)), want, y, sum;
        c->tables[0]->exp_sum(&want, &x, 0, 1, &sum);
        for (int t = 1; t < c->n_table; t++) {
            c->tables[t]->exp_sum(&y, &x, 0, 1, &sum);
            same = same && same_float(y, want);
        }
        double exact = exp((double)x), ulp = fmax(ldexp(1, ilogb(exact) - 23), 0x1p-149);
        if (exact < 3.4028235e38)
            worst = larger(worst, fabs((double)want - exact) / ulp);
    }
    expect(c, worst <= 2, "exp errs by %.3f ulp", worst);
    expect(c, same, "exp differs between tables");
    static const float ends[][2] = {{-INFINITY, 0}, {-1000, 0}, {0, 1}, {1000, INFINITY}, {INFINITY, INFINITY}};
    for (int t = 0; t < c->n_table; t++) {
        float y, sum, nan_in = NAN;
        for (int i = 0; i < N_OF(ends); i++) {
            c->tables[t]->exp_sum(&y, &ends[i][0], 0, 1, &sum);
            expect(c, y == ends[i][1] && sum == y, "%s exp(%g) = %g", c->tables[t]->name, (double)ends[i][0],
                   (double)y);
        }
        c->tables[t]->exp_sum(&y, &nan_in, 0, 1, &sum);
        expect(c, isnan(y), "%s exp(NaN) = %g", c->tables[t]->name, (double)y);
    }
}

static void check_halves(struct check *c)
{
    enum { N = 65536 + 5 };
    static uint16_t halves[N], back[N];
    static float floats[N], wide[N];
    for (int i = 0; i < N; i++) {
        uint32_t bits = random_u32(&c->rng);
        halves[i] = (uint16_t)i;
        memcpy(&floats[i], &bits, 4);
        if (i % 2)
            floats[i] = ldexpf(random_normal(&c->rng), (int)(bits % 48) - 30); /* near and below half's range */
    }
    for (int t = 0; t < c->n_table; t++)
        for (int n = N - 17; n <= N; n++) {
            c->tables[t]->f16_to_f32(wide, halves, n);
            c->tables[t]->f32_to_f16(back, floats, n);
            bool ok = true;
            for (int i = n > N - 17 ? N - 40 : 0; i < n; i++)
                ok = ok && same_float(wide[i], quant_half_to_float(halves[i])) &&
                     back[i] == quant_float_to_half(floats[i]);
            expect(c, ok, "half conversions %s n=%d", c->tables[t]->name, n);
        }
}

/* One row to Q8_0 and back: every table the same bits, each element within half a step of its block's scale, and NaN
 * and infinity come back as NaN. */
static void check_q8_0(struct check *c, int64_t n, int kind, int64_t nan_at)
{
    float x[MAX_N], want[MAX_N] = {0};
    char want_blocks[MAX_N / 32 * 34];
    random_floats(&c->rng, x, n, kind);
    if (nan_at >= 0)
        x[nan_at] = kind % 2 ? NAN : INFINITY;
    struct guard gx = guard_alloc((size_t)n * 4);
    memcpy(gx.p, x, gx.n_bytes);
    for (int i = 0; i < c->n_table; i++) {
        struct guard q = guard_alloc((size_t)n / 32 * 34), y = guard_alloc((size_t)n * 4);
        c->tables[i]->f32_to_q8_0(q.p, (const float *)(void *)gx.p, n);
        c->tables[i]->q8_0_to_f32((float *)(void *)y.p, q.p, n);
        if (i == 0) {
            memcpy(want_blocks, q.p, q.n_bytes);
            memcpy(want, y.p, y.n_bytes);
        }
        bool same = !memcmp(want_blocks, q.p, q.n_bytes) && same_floats(want, (const float *)(void *)y.p, n);
        expect(c, same && guard_intact(&q) && guard_intact(&y), "q8_0 %s n=%ld kind=%d", c->tables[i]->name, (long)n,
               kind);
        guard_free(&q);
        guard_free(&y);
    }
    guard_free(&gx);
    for (int64_t b = 0; b < n; b += 32) {
        double max = 0;
        for (int64_t i = b; i < b + 32; i++)
            max = larger(max, fabs((double)x[i]));
        /* half a step and, for the largest, what rounding the scale to a half takes off; below, halves end */
        double bound = max / 127 * 0.5001 + max * 0x1p-11 + 127 * 0x1p-25, worst = 0;
        bool lost = max / 127 > 65519, spoilt = nan_at >= b && nan_at < b + 32;
        for (int64_t i = b; i < b + 32; i++)
            worst = isnan(want[i]) ? INFINITY : larger(worst, fabs((double)want[i] - (double)x[i]));
        expect(c, lost || spoilt ? isnan(want[b]) && isnan(want[b + 31]) : worst <= bound,
               "q8_0 n=%ld kind=%d: block %ld is %g off, at most %g", (long)n, kind, (long)b / 32, worst, bound);
    }
}

void check_row_kernels(struct check *c)
{
    group_begin(c);
    for (int kind = 0; kind < 7; kind++)
        for (int i = 0; i < 3; i++) {
            static const int blocks[] = {1, 3, 6};
            check_quantize(c, 32 * blocks[i], 32, kind);
            check_quantize(c, 256 * blocks[i], 256, kind);
        }
    group_end(c, "rounding activations");
    for (int op = 0; op < N_OP; op++) {
        group_begin(c);
        for (int i = 0; i < N_OF(n_list); i++)
            for (int kind = 0; kind < 12; kind++)
                check_op(c, (enum op)op, n_list[i], kind);
        if (op == ROPE_NORMAL || op == ROPE_NEOX)
            check_rope_exact(c, op == ROPE_NORMAL ? KERNEL_ROPE_NORMAL : KERNEL_ROPE_NEOX);
        if (op == SWIGLU_OAI)
            check_limited(c, KERNEL_SWIGLU_OAI, 0);
        if (op == SILU_LIMITED)
            check_limited(c, KERNEL_SILU, 3);
        if (op == SILU_CLAMPED)
            check_limited(c, KERNEL_SILU_CLAMPED, 3);
        group_end(c, op_names[op]);
    }
    group_begin(c);
    check_exp(c);
    group_end(c, "exp");
    group_begin(c);
    for (int kind = 0; kind < 12; kind++)
        for (int i = 1; i <= 20; i++)
            check_q8_0(c, 32 * i, kind, i % 5 ? -1 : 16 * i + kind);
    group_end(c, "q8_0 rows");
    group_begin(c);
    check_halves(c);
    group_end(c, "half conversions");
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

enum { MAX_HD = 576 };

struct attn_case {
    int64_t hd_k, hd_v, n;
    float scale, softcap, spread; /* spread: size of q */
    bool half;
};

/* n_q queries at q; out: their maxima and sums. */
static void attn_run(const struct kernels *t, const struct attn_case *a, const float *q, const void *k, const void *v,
                     int n_q, float out[][2], float *o)
{
    const float *queries[KERNEL_ATTN_QUERIES];
    float max[KERNEL_ATTN_QUERIES], sum[KERNEL_ATTN_QUERIES];
    for (int i = 0; i < n_q; i++)
        queries[i] = q + i * a->hd_k;
    const struct kernel_attn call = {queries, n_q, k, v, a->hd_k, a->hd_v, a->n, a->scale, a->softcap, max, sum, o};
    (a->half ? t->attn_block_f16 : t->attn_block_f32)(&call);
    for (int i = 0; i < n_q; i++) {
        out[i][0] = max[i];
        out[i][1] = sum[i];
    }
}

static double kv(const void *p, int64_t i, bool half)
{
    return (double)(half ? quant_half_to_float(((const uint16_t *)p)[i]) : ((const float *)p)[i]);
}

/* Bound: a score errs by (chain length) roundings of its magnitude, a weight by as much relative to itself.
 */
static void attn_compare(struct check *c, const struct attn_case *a, const float *q, const void *k, const void *v,
                         const float out[2], const float *o)
{
    float exact[2], exact_o[MAX_HD], s[KERNEL_ATTN_BLOCK];
    double mag = 0;
    attn_run(kernels_reference(), a, q, k, v, 1, &exact, exact_o);
    for (int64_t i = 0; i < a->n; i++) {
        double dot = 0, m = 0;
        for (int64_t j = 0; j < a->hd_k; j++) {
            dot += (double)q[j] * kv(k, i * a->hd_k + j, a->half);
            m += fabs((double)q[j] * kv(k, i * a->hd_k + j, a->half));
        }
        s[i] = (float)((double)a->scale * dot);
        if (a->softcap != 0)
            s[i] = a->softcap * tanhf(s[i] / a->softcap);
        mag = fmax(mag, m * (double)a->scale);
    }
    double err = ((double)a->hd_k / 16 + 8) * 0x1p-24 * mag + (double)a->softcap * 0x1p-21;
    bool ok = fabs((double)out[0] - (double)exact[0]) <= err + fabs((double)exact[0]) * 0x1p-23;
    err = 2 * err + ((double)a->n + 12) * 0x1p-24;
    ok = ok && fabs((double)out[1] - (double)exact[1]) <= err * (double)exact[1];
    for (int64_t j = 0; j < a->hd_v; j++) {
        double m = 0;
        for (int64_t i = 0; i < a->n; i++)
            m += exp((double)s[i] - (double)exact[0]) * fabs(kv(v, i * a->hd_v + j, a->half));
        ok = ok && fabs((double)o[j] - (double)exact_o[j]) <= err * m * 1.01 + 1e-40;
    }
    expect(c, ok, "attn_block scalar hd_k=%ld hd_v=%ld n=%ld softcap=%g half=%d", (long)a->hd_k, (long)a->hd_v,
           (long)a->n, (double)a->softcap, a->half);
}

static void random_kv(struct check *c, struct guard *g, int64_t n, bool half)
{
    *g = guard_alloc((size_t)n * (half ? 2 : 4));
    for (int64_t i = 0; i < n; i++) {
        float f = random_normal(&c->rng);
        uint16_t h = quant_float_to_half(f);
        memcpy(g->p + (size_t)i * (half ? 2 : 4), half ? (void *)&h : (void *)&f, half ? 2 : 4);
    }
}

/* Each table alone and with all queries at once gives the bits of the first. */
static void check_attn_case(struct check *c, const struct attn_case *a)
{
    enum { N = KERNEL_ATTN_QUERIES };
    struct guard q = guard_alloc((size_t)(N * a->hd_k) * 4), k, v;
    float *pq = (float *)(void *)q.p, want[N][2], want_o[N * MAX_HD];
    random_kv(c, &k, a->n * a->hd_k, a->half);
    random_kv(c, &v, a->n * a->hd_v, a->half);
    for (int64_t j = 0; j < N * a->hd_k; j++)
        pq[j] = random_normal(&c->rng) * a->spread;
    for (int i = 0; i < N; i++)
        attn_run(c->tables[0], a, pq + i * a->hd_k, k.p, v.p, 1, &want[i], want_o + i * a->hd_v);
    for (int i = 0; i < c->n_table; i++)
        for (int n_q = 1; n_q <= N; n_q++) {
            struct guard o = guard_alloc((size_t)(n_q * a->hd_v) * 4);
            float *po = (float *)(void *)o.p, out[N][2];
            attn_run(c->tables[i], a, pq, k.p, v.p, n_q, out, po);
            expect(c,
                   same_floats(out[0], want[0], 2 * n_q) && same_floats(po, want_o, n_q * a->hd_v) && guard_intact(&o),
                   "attn_block %s hd_k=%ld hd_v=%ld n=%ld n_q=%d softcap=%g half=%d", c->tables[i]->name, (long)a->hd_k,
                   (long)a->hd_v, (long)a->n, n_q, (double)a->softcap, a->half);
            guard_free(&o);
        }
    attn_compare(c, a, pq, k.p, v.p, want[0], want_o);
    guard_free(&q);
    guard_free(&k);
    guard_free(&v);
}

/* Folding two partials equals the softmax over both; the first goes into an empty one. */
static void check_merge(struct check *c, int n_q, int64_t hd)
{
    enum { N = KERNEL_ATTN_QUERIES };
    float o[2][N * MAX_HD], max[2][N], sum[2][N], want[N * MAX_HD], want_max[N], want_sum[N];
    for (int b = 0; b < 2; b++) {
        for (int r = 0; r < n_q; r++) {
            max[b][r] = 3 * random_normal(&c->rng);
            sum[b][r] = 1 + (float)random_unit(&c->rng);
        }
        for (int64_t j = 0; j < n_q * hd; j++)
            o[b][j] = random_normal(&c->rng);
    }
    for (int i = 0; i <= c->n_table; i++) {
        const struct kernels *t = i < c->n_table ? c->tables[i] : kernels_reference();
        struct guard g = guard_alloc((size_t)(n_q * hd) * 4), top = guard_alloc((size_t)n_q * 4);
        struct guard total = guard_alloc((size_t)n_q * 4);
        float *acc = (float *)(void *)g.p, *m = (float *)(void *)top.p, *s = (float *)(void *)total.p;
        memset(acc, 0, g.n_bytes);
        memset(s, 0, total.n_bytes);
        for (int r = 0; r < n_q; r++)
            m[r] = -INFINITY;
        t->attn_merge(n_q, m, s, acc, max[0], sum[0], o[0], hd);
        expect(c, same_floats(m, max[0], n_q) && same_floats(s, sum[0], n_q) && same_floats(acc, o[0], n_q * hd),
               "attn_merge %s into nothing n_q=%d hd=%ld", t->name, n_q, (long)hd);
        t->attn_merge(n_q, m, s, acc, max[1], sum[1], o[1], hd);
        if (i == 0) {
            memcpy(want, acc, g.n_bytes);
            memcpy(want_max, m, top.n_bytes);
            memcpy(want_sum, s, total.n_bytes);
        }
        bool ok = guard_intact(&g) && guard_intact(&top) && guard_intact(&total);
        if (i < c->n_table)
            ok = ok && same_floats(acc, want, n_q * hd) && same_floats(m, want_max, n_q) &&
                 same_floats(s, want_sum, n_q);
        for (int64_t j = 0; i == c->n_table && j < n_q * hd; j++)
            ok = ok && fabs((double)acc[j] - (double)want[j]) <=
                           8 * 0x1p-24 * (fabs((double)o[0][j]) + fabs((double)o[1][j]));
        for (int r = 0; r < n_q; r++)
            ok = ok && near((double)s[r], (double)want_sum[r], 8);
        expect(c, ok, "attn_merge %s n_q=%d hd=%ld", t->name, n_q, (long)hd);
        guard_free(&g);
        guard_free(&top);
        guard_free(&total);
    }
}

void check_attention(struct check *c)
{
    static const int hds[][2] = {{16, 16}, {64, 64}, {80, 80}, {96, 100}, {128, 128}, {192, 128}, {576, 512}, {7, 3}};
    static const int ns[] = {1, 3, 4, 5, 16, 17, 63, 64};
    group_begin(c);
    for (int h = 0; h < N_OF(hds); h++)
        for (int i = 0; i < N_OF(ns); i++)
            for (int kind = 0; kind < 8; kind++) {
                struct attn_case a = {.hd_k = hds[h][0],
                                      .hd_v = hds[h][1],
                                      .n = ns[i],
                                      .scale = 1 / sqrtf((float)hds[h][0]),
                                      .softcap = kind & 1 ? 5.0f : 0,
                                      .spread = kind & 4 ? 6.0f : 1.0f,
                                      .half = kind & 2};
                check_attn_case(c, &a);
            }
    for (int h = 0; h < N_OF(hds); h++)
        for (int n_q = 1; n_q <= KERNEL_ATTN_QUERIES; n_q++)
            check_merge(c, n_q, hds[h][1]);
    group_end(c, "attention");
}
