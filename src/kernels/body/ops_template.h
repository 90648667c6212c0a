/* All kernels but products, sixteen floats at a time. The scalar table (ref/ops_scalar.c) defines what each computes,
 * and gives the same bits. The including file has chosen v16_*.h and defines OPS_NAME(op), the kernels' names. */
#include <math.h>
#include <string.h>

#include "kernels/exp_consts.h"
#include "kernels/kernels_internal.h"
#include "quant/blocks.h"

static inline v16 exp16(v16 x)
{
    x = v16_max(v16_set1(EXP_MIN), x);
    x = v16_min(v16_set1(EXP_MAX), x);
    v16 shifted = v16_fma(x, v16_set1(EXP_LOG2E), v16_set1(EXP_ROUND)), n = v16_sub(shifted, v16_set1(EXP_ROUND));
    v16 r = v16_fma(n, v16_set1(-EXP_LN2_LO), v16_fma(n, v16_set1(-EXP_LN2_HI), x));
    v16 p = v16_fma(r, v16_set1(EXP_P4), v16_set1(EXP_P3));
    p = v16_fma(r, p, v16_set1(EXP_P2));
    p = v16_fma(r, p, v16_set1(EXP_P1));
    p = v16_fma(r, p, v16_set1(EXP_P0));
    p = v16_add(v16_fma(v16_mul(r, r), p, r), v16_set1(1.0f));
    return v16_scale2(p, shifted);
}

static inline v16 tanh16(v16 x)
{
    v16 mag = v16_abs(x), z = v16_mul(x, x), one = v16_set1(1.0f);
    v16 p = v16_fma(z, v16_set1(TANH_P4), v16_set1(TANH_P3));
    p = v16_fma(z, p, v16_set1(TANH_P2));
    p = v16_fma(z, p, v16_set1(TANH_P1));
    p = v16_fma(z, p, v16_set1(TANH_P0));
    v16 small = v16_fma(v16_mul(z, x), p, x);
    v16 large = v16_sub(one, v16_div(v16_set1(2.0f), v16_add(exp16(v16_add(mag, mag)), one)));
    return v16_if_less(mag, v16_set1(TANH_SMALL), small, v16_copysign(large, x));
}

static inline v16 softplus16(v16 x)
{
    v16 y = exp16(v16_sub(v16_set1(0.0f), v16_abs(x))), large = v16_set1(LOG1P_LARGE);
    v16 f = v16_if_less(large, y, v16_mul(v16_sub(y, v16_set1(1.0f)), v16_set1(0.5f)), y);
    v16 s = v16_div(f, v16_add(f, v16_set1(2.0f))), z = v16_mul(s, s), half = v16_mul(v16_mul(f, f), v16_set1(0.5f));
    v16 p = v16_fma(z, v16_set1(LOG1P_P3), v16_set1(LOG1P_P2));
    p = v16_fma(z, p, v16_set1(LOG1P_P1));
    p = v16_fma(z, p, v16_set1(LOG1P_P0));
    v16 l = v16_add(f, v16_fms(s, v16_add(half, v16_mul(z, p)), half));
    l = v16_if_less(large, y, v16_add(l, v16_set1(LOG1P_LN2)), l);
    return v16_add(v16_max(v16_set1(0.0f), x), l);
}

/* n values from p, 1 <= n; more than 16 count as 16 */
static inline v16 load_upto(const float *p, int64_t n)
{
    return n >= 16 ? v16_load(p) : v16_load_n(p, n);
}

static inline void store_upto(float *p, v16 a, int64_t n)
{
    if (n >= 16)
        v16_store(p, a);
    else
        v16_store_n(p, a, n);
}

/* ---- rounding activations ------------------------------------------------------------------------------------ */

KERNELS_ALWAYS_INLINE void quantize_block(const float *x, int n, int n_sum, int8_t *q, float *d, int16_t *sum,
                                          int16_t *parts, int16_t *first)
{
    v16 top = v16_abs(v16_load(x));
    for (int i = 16; i < n; i += 16)
        top = v16_max(v16_abs(v16_load(x + i)), top);
    float lane[16], max = 0;
    v16_store(lane, top);
    for (int i = 0; i < 16; i++)
        max = lane[i] > max ? lane[i] : max;
    float inverse = 127.0f / max;
    if (inverse == INFINITY)
        inverse = max = 0;
    *d = max / 127.0f;
    for (int i = 0; i < n; i += n_sum) {
        struct v16_sums s = {0, 0};
        for (int j = i; j < i + n_sum; j += 16) {
            v16 v = v16_mul(v16_load(x + j), v16_set1(inverse));
            v = v16_max(v16_min(v, v16_set1(127.0f)), v16_set1(-127.0f));
            struct v16_sums of_16 = v16_store_int8(q + j, v);
            if (first && j == i)
                first[i / n_sum] = (int16_t)of_16.all;
            s.all += of_16.all;
            s.upper += of_16.upper;
        }
        sum[i / n_sum] = (int16_t)s.all;
        parts[i / n_sum * 2] = (int16_t)(s.all - s.upper);
        parts[i / n_sum * 2 + 1] = (int16_t)s.upper;
    }
}

void OPS_NAME(quantize_int8_32)(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum)
{
    for (int64_t b = 0; b < k / 32; b++)
        quantize_block(x + 32 * b, 32, 32, q + 32 * b, d + b, sum + b, sum + k / 32 + 2 * b, sum + k / 32 * 3 + b);
}

void OPS_NAME(quantize_int8_256)(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum)
{
    for (int64_t b = 0; b < k / 256; b++)
        quantize_block(x + 256 * b, 256, 16, q + 256 * b, d + b, sum + 16 * b, sum + k / 16 + 32 * b, NULL);
}

/* ---- element by element -------------------------------------------------------------------------------------- */

void OPS_NAME(rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps)
{
    v16 lanes = v16_set1(0);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        lanes = v16_fma(v, v, lanes);
    }
    if (i < n) {
        v16 v = v16_load_n(x + i, n - i);
        lanes = v16_first(v16_fma(v, v, lanes), lanes, n - i);
    }
    v16 s = v16_set1(1.0f / sqrtf(v16_sum(lanes) / (float)n + eps));
    for (i = 0; i < n; i += 16) {
        v16 v = v16_mul(load_upto(x + i, n - i), s);
        store_upto(y + i, w ? v16_mul(v, load_upto(w + i, n - i)) : v, n - i);
    }
}

float OPS_NAME(norm_dot)(const float *x, const float *w, int64_t n, float eps)
{
    v16 squares = v16_set1(0), products = v16_set1(0);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        squares = v16_fma(v, v, squares);
        products = v16_fma(v, v16_load(w + i), products);
    }
    if (i < n) {
        v16 v = v16_load_n(x + i, n - i);
        squares = v16_first(v16_fma(v, v, squares), squares, n - i);
        products = v16_first(v16_fma(v, v16_load_n(w + i, n - i), products), products, n - i);
    }
    return v16_sum(products) * (1.0f / sqrtf(v16_sum(squares) / (float)n + eps));
}

/* Limits; in this order NaN stays NaN. */
KERNELS_ALWAYS_INLINE v16 at_most(float limit, v16 x)
{
    return v16_min(v16_set1(limit), x);
}

KERNELS_ALWAYS_INLINE v16 within(float limit, v16 x)
{
    return v16_max(v16_set1(-limit), at_most(limit, x));
}

KERNELS_ALWAYS_INLINE void act_mul(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up,
                                   int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        v16 x = load_upto(gate + i, n - i), u = load_upto(up + i, n - i), minus_log;
        if (fn == KERNEL_NO_ACT || fn == KERNEL_RELU) {
            x = fn == KERNEL_RELU ? v16_max(v16_set1(0.0f), x) : x;
            store_upto(y + i, v16_mul(x, u), n - i);
            continue;
        }
        if (fn == KERNEL_SOFTPLUS) {
            store_upto(y + i, v16_mul(softplus16(x), u), n - i);
            continue;
        }
        if (fn == KERNEL_SWIGLU_OAI) {
            x = at_most(OAI_LIMIT, x);
            u = v16_add(within(OAI_LIMIT, u), v16_set1(1.0f));
            minus_log = v16_mul(x, v16_set1(-OAI_ALPHA));
        } else if (fn == KERNEL_GELU) {
            minus_log = v16_mul(x, v16_fma(v16_mul(x, x), v16_set1(GELU_C1), v16_set1(GELU_C0)));
        } else {
            x = fn == KERNEL_SILU_CLAMPED ? at_most(limit, x) : x;
            minus_log = v16_mul(x, v16_set1(-1.0f));
        }
        if (fn == KERNEL_SIGMOID)
            x = v16_set1(1.0f);
        v16 act = v16_div(x, v16_add(v16_set1(1.0f), exp16(minus_log)));
        if (limit > 0) {
            act = fn == KERNEL_SILU ? at_most(limit, act) : act;
            u = within(limit, u);
        }
        store_upto(y + i, v16_mul(act, u), n - i);
    }
}

void OPS_NAME(act_mul)(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up, int64_t n)
{
    if (fn == KERNEL_GELU)
        act_mul(KERNEL_GELU, 0, y, gate, up, n);
    else if (fn == KERNEL_SWIGLU_OAI)
        act_mul(KERNEL_SWIGLU_OAI, 0, y, gate, up, n);
    else if (fn == KERNEL_SIGMOID)
        act_mul(KERNEL_SIGMOID, 0, y, gate, up, n);
    else if (fn == KERNEL_NO_ACT)
        act_mul(KERNEL_NO_ACT, 0, y, gate, up, n);
    else if (fn == KERNEL_RELU)
        act_mul(KERNEL_RELU, 0, y, gate, up, n);
    else if (fn == KERNEL_SOFTPLUS)
        act_mul(KERNEL_SOFTPLUS, 0, y, gate, up, n);
    else if (limit > 0 && fn == KERNEL_SILU_CLAMPED)
        act_mul(KERNEL_SILU_CLAMPED, limit, y, gate, up, n);
    else if (limit > 0)
        act_mul(KERNEL_SILU, limit, y, gate, up, n);
    else
        act_mul(KERNEL_SILU, 0, y, gate, up, n);
}

KERNELS_ALWAYS_INLINE v16 bend(float bound, v16 x)
{
    return v16_mul(v16_set1(bound), tanh16(v16_div(x, v16_set1(bound))));
}

void OPS_NAME(situ)(float bound, float up_bound, float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        v16 x = load_upto(gate + i, n - i), u = load_upto(up + i, n - i);
        v16 by = v16_add(v16_set1(1.0f), exp16(v16_mul(x, v16_set1(-1.0f))));
        u = up_bound > 0 ? bend(up_bound, u) : u;
        store_upto(y + i, v16_mul(v16_div(bend(bound, x), by), u), n - i);
    }
}

void OPS_NAME(conv)(float *y, const struct kernel_conv *a)
{
    const int64_t n = a->n;
    for (int64_t i = 0; i < n; i += 16) {
        v16 sum = a->bias ? load_upto(a->bias + i, n - i) : v16_set1(0.0f);
        for (int64_t j = 0; j < a->n_tap; j++)
            sum = v16_fma(load_upto(a->w + j * a->ld_w + i, n - i), load_upto(a->x[j] + i, n - i), sum);
        if (a->has_silu)
            sum = v16_div(sum, v16_add(v16_set1(1.0f), exp16(v16_mul(sum, v16_set1(-1.0f)))));
        store_upto(y + i, sum, n - i);
    }
}

/* What the delta rule needs of a token and the next one, and sums over the state for n_dim value dimensions, which are
 * computed side by side. */
struct delta {
    const float *k, *q, *next_k;
    v16 next_decay;
    const float *next_decays; /* one for each key dimension, where there are such */
    v16 d[DELTA_DIMS];        /* by which the state changes along k */
    v16 out[DELTA_DIMS];      /* what it has for q then */
    v16 known[DELTA_DIMS];    /* and, decayed, for next_k */
};

/* Up to 16 values, at i, of each dimension's dk values of state. */
KERNELS_ALWAYS_INLINE void delta_values(float *s, int64_t dk, int64_t i, int64_t n, int n_dim, bool by_dim,
                                        bool has_this, bool has_next, struct delta *x)
{
    v16 k = has_this ? load_upto(x->k + i, n) : v16_set1(0);
    v16 next_decay = by_dim && has_next ? load_upto(x->next_decays + i, n) : x->next_decay;
    KERNELS_UNROLL
    for (int c = 0; c < n_dim; c++) {
        v16 part = load_upto(s + c * dk + i, n);
        if (has_this) {
            part = v16_fma(k, x->d[c], part);
            x->out[c] = v16_fma(part, load_upto(x->q + i, n), x->out[c]);
        } else { /* prefetches the next dimensions, in the order in which they lie */
            __builtin_prefetch(s + n_dim * dk + i * n_dim + 16 * c);
        }
        if (has_next) {
            part = v16_mul(part, next_decay);
            x->known[c] = v16_fma(part, load_upto(x->next_k + i, n), x->known[c]);
        }
        store_upto(s + c * dk + i, part, n);
    }
}

/* Token t changes the state and the next one decays it, in one pass. */
KERNELS_ALWAYS_INLINE void delta_pass(float *s, const struct kernel_recurrence *a, int64_t t, int n_dim, bool by_dim,
                                      bool has_this, bool has_next, struct delta *out)
{
    const int64_t dk = a->dk;
    int64_t i = 0;
    struct delta x = *out;
    x.k = a->k + t * a->ld_qk;
    x.q = a->q + t * a->ld_qk;
    x.next_k = x.k + a->ld_qk;
    x.next_decays = a->decay + (t + 1) * a->ld_decay;
    x.next_decay = v16_set1(has_next && !by_dim ? *x.next_decays : 1.0f);
    KERNELS_UNROLL
    for (int c = 0; c < n_dim; c++)
        x.known[c] = x.out[c] = v16_set1(0.0f);
    for (; i + 16 <= dk; i += 16)
        delta_values(s, dk, i, 16, n_dim, by_dim, has_this, has_next, &x);
    if (i < dk)
        delta_values(s, dk, i, dk - i, n_dim, by_dim, has_this, has_next, &x);
    *out = x;
}

/* Takes value dimensions from `first` on, n_group times n_dim, constants as by_dim is: while the sums of one group are
 * added up, the next one goes on. */
KERNELS_ALWAYS_INLINE void delta_dims(float *s, const struct kernel_recurrence *a, int64_t first, int n_group,
                                      int n_dim, bool by_dim)
{
    struct delta x[DELTA_GROUPS];
    KERNELS_UNROLL
    for (int g = 0; g < n_group; g++)
        delta_pass(s + (first + g * n_dim) * a->dk, a, -1, n_dim, by_dim, false, true, &x[g]);
    for (int64_t t = 0; t < a->n; t++)
        KERNELS_UNROLL
    for (int g = 0; g < n_group; g++) {
        int64_t dim = first + g * n_dim;
        KERNELS_UNROLL
        for (int c = 0; c < n_dim; c++)
            x[g].d[c] = v16_set1((a->v[t * a->ld_v + dim + c] - v16_sum(x[g].known[c])) * a->beta[t * a->ld_beta]);
        if (t + 1 < a->n)
            delta_pass(s + dim * a->dk, a, t, n_dim, by_dim, true, true, &x[g]);
        else
            delta_pass(s + dim * a->dk, a, t, n_dim, by_dim, true, false, &x[g]);
        KERNELS_UNROLL
        for (int c = 0; c < n_dim; c++)
            a->o[t * a->ld_v + dim + c] = v16_sum(x[g].out[c]);
    }
}

KERNELS_ALWAYS_INLINE void delta_rule(float *s, const struct kernel_recurrence *a, bool by_dim)
{
    int64_t i = 0;
    for (; i + DELTA_GROUPS * DELTA_DIMS <= a->n_dim; i += DELTA_GROUPS * DELTA_DIMS)
        delta_dims(s, a, i, DELTA_GROUPS, DELTA_DIMS, by_dim);
    for (; i < a->n_dim; i++)
        delta_dims(s, a, i, 1, 1, by_dim);
}

void OPS_NAME(delta_rule)(float *s, const struct kernel_recurrence *a)
{
    if (a->decays_by_dim)
        delta_rule(s, a, true);
    else
        delta_rule(s, a, false);
}

/* Token t of n_dim value dimensions, a constant, whose chains run side by side. */
KERNELS_ALWAYS_INLINE void space_values(float *s, const struct kernel_recurrence *a, int64_t t, int64_t i, int64_t n,
                                        int n_dim, const v16 *d, v16 *out)
{
    v16 k = load_upto(a->k + t * a->ld_qk + i, n), q = load_upto(a->q + t * a->ld_qk + i, n);
    v16 decay = v16_set1(a->decay[t * a->ld_decay]);
    KERNELS_UNROLL
    for (int c = 0; c < n_dim; c++) {
        v16 part = v16_fma(k, d[c], v16_mul(load_upto(s + c * a->dk + i, n), decay));
        out[c] = v16_fma(part, q, out[c]);
        store_upto(s + c * a->dk + i, part, n);
    }
}

KERNELS_ALWAYS_INLINE void space_dims(float *s, const struct kernel_recurrence *a, int64_t first, int n_dim)
{
    float *mine = s + first * a->dk;
    for (int64_t t = 0; t < a->n; t++) {
        const float *v = a->v + t * a->ld_v + first;
        float *o = a->o + t * a->ld_v + first, beta = a->beta[t * a->ld_beta];
        v16 d[DELTA_DIMS], out[DELTA_DIMS];
        int64_t i = 0;
        KERNELS_UNROLL
        for (int c = 0; c < n_dim; c++) {
            d[c] = v16_set1(v[c] * beta);
            out[c] = v16_set1(0.0f);
        }
        for (; i + 16 <= a->dk; i += 16)
            space_values(mine, a, t, i, 16, n_dim, d, out);
        if (i < a->dk)
            space_values(mine, a, t, i, a->dk - i, n_dim, d, out);
        KERNELS_UNROLL
        for (int c = 0; c < n_dim; c++)
            o[c] = fmaf(a->skip, v[c], v16_sum(out[c]));
    }
}

void OPS_NAME(state_space)(float *s, const struct kernel_recurrence *a)
{
    int64_t i = 0;
    for (; i + DELTA_DIMS <= a->n_dim; i += DELTA_DIMS)
        space_dims(s, a, i, DELTA_DIMS);
    for (; i < a->n_dim; i++)
        space_dims(s, a, i, 1);
}

/* Elements [i, i + n) of the states of n_dim value dimensions, a constant, at token t. */
KERNELS_ALWAYS_INLINE void scan_values(float *s, const struct kernel_scan *a, int64_t t, int64_t first, int64_t i,
                                       int64_t n, int n_dim, v16 *out)
{
    v16 k = load_upto(a->k + t * a->ld_qk + i, n), q = load_upto(a->q + t * a->ld_qk + i, n);
    const float *step = a->step + t * a->ld_v + first, *v = a->v + t * a->ld_v + first;
    KERNELS_UNROLL
    for (int c = 0; c < n_dim; c++) {
        v16 decay = exp16(v16_mul(v16_set1(step[c]), load_upto(a->a + (first + c) * a->dk + i, n)));
        v16 part = v16_fma(k, v16_set1(v[c] * step[c]), v16_mul(load_upto(s + c * a->dk + i, n), decay));
        out[c] = v16_fma(part, q, out[c]);
        store_upto(s + c * a->dk + i, part, n);
    }
}

KERNELS_ALWAYS_INLINE void scan_dims(float *s, const struct kernel_scan *a, int64_t first, int n_dim)
{
    float *mine = s + first * a->dk;
    for (int64_t t = 0; t < a->n; t++) {
        const float *v = a->v + t * a->ld_v + first;
        float *o = a->o + t * a->ld_v + first;
        v16 out[DELTA_DIMS];
        int64_t i = 0;
        KERNELS_UNROLL
        for (int c = 0; c < n_dim; c++)
            out[c] = v16_set1(0.0f);
        for (; i + 16 <= a->dk; i += 16)
            scan_values(mine, a, t, first, i, 16, n_dim, out);
        if (i < a->dk)
            scan_values(mine, a, t, first, i, a->dk - i, n_dim, out);
        KERNELS_UNROLL
        for (int c = 0; c < n_dim; c++)
            o[c] = fmaf(a->skip[first + c], v[c], v16_sum(out[c]));
    }
}

void OPS_NAME(selective_scan)(float *s, const struct kernel_scan *a)
{
    int64_t i = 0;
    for (; i + DELTA_DIMS <= a->n_dim; i += DELTA_DIMS)
        scan_dims(s, a, i, DELTA_DIMS);
    for (; i < a->n_dim; i++)
        scan_dims(s, a, i, 1);
}

void OPS_NAME(add)(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        store_upto(y + i, v16_add(load_upto(a + i, n - i), load_upto(b + i, n - i)), n - i);
}

void OPS_NAME(fma_scalar)(float *y, const float *x, float a, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        store_upto(y + i, v16_fma(v16_set1(a), load_upto(x + i, n - i), load_upto(y + i, n - i)), n - i);
}

void OPS_NAME(exp_sum)(float *y, const float *x, float max, int64_t n, float *sum)
{
    v16 lanes = v16_set1(0), m = v16_set1(max);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 e = exp16(v16_sub(v16_load(x + i), m));
        v16_store(y + i, e);
        lanes = v16_add(lanes, e);
    }
    if (i < n) {
        v16 e = exp16(v16_sub(v16_load_n(x + i, n - i), m));
        v16_store_n(y + i, e, n - i);
        lanes = v16_first(v16_add(lanes, e), lanes, n - i);
    }
    *sum = v16_sum(lanes);
}

static inline void rope_normal(float *x, const float *cs, int64_t n_rot)
{
    for (int64_t i = 0; i < n_rot; i += 16)
        store_upto(x + i, v16_rotate_pairs(load_upto(x + i, n_rot - i), load_upto(cs + i, n_rot - i)), n_rot - i);
}

static inline void rope_neox(float *x, const float *cs, int64_t n_rot)
{
    int64_t half = n_rot / 2;
    for (int64_t i = 0; i < half; i += 16) {
        int64_t n = half - i;
        v16 c, s, a = load_upto(x + i, n), b = load_upto(x + half + i, n);
        v16_split_pairs(load_upto(cs + 2 * i, 2 * n), n > 8 ? load_upto(cs + 2 * i + 16, 2 * n - 16) : v16_set1(0), &c,
                        &s);
        store_upto(x + i, v16_fms(a, c, v16_mul(b, s)), n);
        store_upto(x + half + i, v16_fma(a, s, v16_mul(b, c)), n);
    }
}

void OPS_NAME(rope)(enum kernel_rope mode, float *x, const float *cs, int64_t n_rot)
{
    if (mode == KERNEL_ROPE_NORMAL)
        rope_normal(x, cs, n_rot);
    else
        rope_neox(x, cs, n_rot);
}

void OPS_NAME(f32_to_f16)(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store_f16(y + i, v16_load(x + i));
    if (i < n)
        v16_store_f16_n(y + i, v16_load_n(x + i, n - i), n - i);
}

void OPS_NAME(f16_to_f32)(float *y, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(y + i, v16_load_f16(x + i));
    if (i < n)
        v16_store_n(y + i, v16_load_f16_n(x + i, n - i), n - i);
}

void OPS_NAME(f32_to_q8_0)(void *y, const float *x, int64_t n)
{
    struct block_q8_0 *blocks = y;
    for (int64_t b = 0; b < n / 32; b++) {
        v16 lo = v16_load(x + 32 * b), hi = v16_load(x + 32 * b + 16), none = v16_set1(0);
        float lane[16], max = 0, zero = v16_sum(v16_fma(hi, none, v16_mul(lo, none)));
        v16_store(lane, v16_max(v16_abs(lo), v16_abs(hi)));
        for (int i = 0; i < 16; i++)
            max = lane[i] > max ? lane[i] : max;
        uint16_t half = quant_float_to_half(zero == 0 ? max / 127.0f : NAN);
        float d = quant_half_to_float(half);
        v16 inverse = v16_set1(d == 0 ? 0 : 1.0f / d), top = v16_set1(127.0f), bottom = v16_set1(-127.0f);
        memcpy(blocks[b].d, &half, sizeof half);
        v16_store_int8(blocks[b].qs, v16_max(v16_min(v16_mul(lo, inverse), top), bottom));
        v16_store_int8(blocks[b].qs + 16, v16_max(v16_min(v16_mul(hi, inverse), top), bottom));
    }
}

void OPS_NAME(q8_0_to_f32)(float *y, const void *x, int64_t n)
{
    const struct block_q8_0 *blocks = x;
    for (int64_t b = 0; b < n / 32; b++) {
        v16 d = v16_set1_f16(blocks[b].d);
        v16_store(y + 32 * b, v16_mul(d, v16_load_int8(blocks[b].qs)));
        v16_store(y + 32 * b + 16, v16_mul(d, v16_load_int8(blocks[b].qs + 16)));
    }
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

/* Rows of keys or of values, `stride` elements apart. */
struct attn_rows {
    const void *p;
    int64_t stride;
    bool half; /* their type, a constant */
};

KERNELS_ALWAYS_INLINE struct attn_rows attn_rows_at(struct attn_rows x, int64_t row, int64_t j)
{
    x.p = (const char *)x.p + (row * x.stride + j) * (x.half ? 2 : 4);
    return x;
}

/* Elements j and those behind it of a row. n >= 16: sixteen; else n and zeros. */
KERNELS_ALWAYS_INLINE v16 attn_load(struct attn_rows x, int64_t row, int64_t j, int64_t n)
{
    x = attn_rows_at(x, row, j);
    if (x.half)
        return n >= 16 ? v16_load_f16(x.p) : v16_load_f16_n(x.p, n);
    return load_upto(x.p, n);
}

/* The first n_col elements of n rows as floats, at `to` without gaps; n_col: a multiple of 16, or the rows' stride. */
KERNELS_ALWAYS_INLINE struct attn_rows attn_widen(float *to, struct attn_rows x, int64_t n, int64_t n_col)
{
    if (x.stride == n_col) { /* one after the other */
        for (int64_t i = 0; i < n * n_col; i += 16)
            store_upto(to + i, attn_load(x, 0, i, n * n_col - i), n * n_col - i);
    } else {
        for (int64_t i = 0; i < n; i++) {
            KERNELS_UNROLL
            for (int64_t j = 0; j < n_col; j += 16)
                v16_store(to + i * n_col + j, attn_load(x, i, j, 16));
        }
    }
    return (struct attn_rows){to, n_col, false};
}

/* Cache lines to prefetch at each step: keys while dot products are computed, values while values are summed, as memory
 * is too slow to bring both at once. */
struct attn_prefetch {
    const char *p, *end;
    int64_t n_line;
};

/* n_bytes at p spread over n_step steps. */
static struct attn_prefetch attn_prefetch(const void *p, int64_t n_bytes, int64_t n_step)
{
    const char *from = p;
    if (!p)
        return (struct attn_prefetch){0};
    return (struct attn_prefetch){from, from + n_bytes, (n_bytes + 64 * n_step - 1) / (64 * n_step)};
}

KERNELS_ALWAYS_INLINE void attn_prefetch_step(struct attn_prefetch *x)
{
    for (int64_t j = 0; j < x->n_line && x->p < x->end; j++, x->p += 64)
        __builtin_prefetch(x->p, 0, 2);
}

/* s[r * KERNEL_ATTN_BLOCK + i] = q[r] . k_i for n_q queries and n_row keys, both constants: as many chains at once. */
KERNELS_ALWAYS_INLINE void attn_dots(float *s, const float *const *q, struct attn_rows k, int64_t hd, int n_q,
                                     int n_row)
{
    v16 lanes[ATTN_ROWS * KERNEL_ATTN_QUERIES];
    int64_t j = 0;
    KERNELS_UNROLL
    for (int c = 0; c < n_q * n_row; c++)
        lanes[c] = v16_set1(0);
    for (; j + 16 <= hd; j += 16) {
        v16 x[KERNEL_ATTN_QUERIES];
        KERNELS_UNROLL
        for (int r = 0; r < n_q; r++)
            x[r] = v16_load(q[r] + j);
        KERNELS_UNROLL
        for (int i = 0; i < n_row; i++) {
            v16 row = attn_load(k, i, j, 16);
            KERNELS_UNROLL
            for (int r = 0; r < n_q; r++)
                lanes[i * n_q + r] = v16_fma(row, x[r], lanes[i * n_q + r]);
        }
    }
    if (j < hd) {
        KERNELS_UNROLL
        for (int c = 0; c < n_q * n_row; c++) {
            v16 x = v16_load_n(q[c % n_q] + j, hd - j), row = attn_load(k, c / n_q, j, hd - j);
            lanes[c] = v16_first(v16_fma(row, x, lanes[c]), lanes[c], hd - j);
        }
    }
    v16_sums(s, KERNEL_ATTN_BLOCK, lanes, n_q, n_row);
}

/* o[r * a->hd_v + j] = sum of s[r][i] v_i[j], i ascending, for j < 16 * vecs; n_q and vecs constants. A single vector
 * may be the rest of a row, of n_col. */
KERNELS_ALWAYS_INLINE void attn_mix(const struct kernel_attn *a, float *o, const float s[][KERNEL_ATTN_BLOCK],
                                    struct attn_rows v, int64_t n_col, int n_q, int vecs,
                                    struct attn_prefetch *prefetch)
{
    int64_t n = vecs == 1 && n_col < 16 ? n_col : 16;
    v16 acc[ATTN_MIXES * ATTN_VECS];
    KERNELS_UNROLL
    for (int c = 0; c < n_q * vecs; c++)
        acc[c] = v16_set1(0);
    for (int64_t i = 0; i < a->n; i++) {
        attn_prefetch_step(prefetch);
        KERNELS_UNROLL
        for (int c = 0; c < vecs; c++) {
            v16 row = attn_load(v, i, 16 * c, n);
            KERNELS_UNROLL
            for (int r = 0; r < n_q; r++)
                acc[c * n_q + r] = v16_fma(v16_set1(s[r][i]), row, acc[c * n_q + r]);
        }
    }
    KERNELS_UNROLL
    for (int c = 0; c < n_q * vecs; c++)
        store_upto(o + c % n_q * a->hd_v + 16 * (c / n_q), acc[c], n);
}

/* Turns scores into weights; their maximum and sum. */
static void attn_softmax(const struct kernel_attn *a, float *s, float *max, float *sum)
{
    v16 top = v16_set1(-INFINITY);
    for (int64_t i = 0; i < a->n; i += 16) {
        v16 x = v16_mul(v16_set1(a->scale), load_upto(s + i, a->n - i));
        if (a->softcap != 0)
            x = v16_mul(v16_set1(a->softcap), tanh16(v16_div(x, v16_set1(a->softcap))));
        store_upto(s + i, x, a->n - i);
        top = a->n - i < 16 ? v16_first(v16_max(x, top), top, a->n - i) : v16_max(x, top); /* skips NaN */
    }
    *max = v16_top(top);
    OPS_NAME(exp_sum)(s, s, *max, a->n, sum);
}

/* Of n queries, how many are taken together next: `most`, two or one; of four two, rather than three and one. */
static int attn_next(int n, int most)
{
    if (n >= most && !(most == 3 && n == 4))
        return most;
    return n >= 2 ? 2 : 1;
}

static int attn_calls(int n, int most)
{
    int n_call = 0;
    for (; n > 0; n_call++)
        n -= attn_next(n, most);
    return n_call;
}

/* The scores of all queries for n_row keys, n_row a constant: s[r][i]. */
KERNELS_ALWAYS_INLINE void attn_scores(const struct kernel_attn *a, float *s, struct attn_rows k, int n_row,
                                       struct attn_prefetch *keys)
{
    for (int r = 0, n; r < a->n_q; r += n, s += n * KERNEL_ATTN_BLOCK) {
        n = attn_next(a->n_q - r, ATTN_TILE);
        attn_prefetch_step(keys);
        if (n == ATTN_TILE)
            attn_dots(s, a->q + r, k, a->hd_k, ATTN_TILE, n_row);
        else if (n == 2)
            attn_dots(s, a->q + r, k, a->hd_k, 2, n_row);
        else
            attn_dots(s, a->q + r, k, a->hd_k, 1, n_row);
    }
}

/* The same for n keys, each of which stays in the first-level cache until it has been multiplied by all queries. */
KERNELS_ALWAYS_INLINE void attn_score_rows(const struct kernel_attn *a, float *s, struct attn_rows k, int64_t n,
                                           struct attn_prefetch *keys)
{
    int64_t i = 0;
    for (; i + ATTN_ROWS <= n; i += ATTN_ROWS)
        attn_scores(a, s + i, attn_rows_at(k, i, 0), ATTN_ROWS, keys);
    for (; i < n; i++)
        attn_scores(a, s + i, attn_rows_at(k, i, 0), 1, keys);
}

/* Floats of keys or values that are widened at a time, once for all queries, and how many of those it pays for. */
enum { ATTN_WIDE = KERNEL_ATTN_BLOCK * 16 * ATTN_VECS, ATTN_WIDE_FROM = 5 };

/* The weights of all queries. */
KERNELS_ALWAYS_INLINE void attn_weights(const struct kernel_attn *a, float s[][KERNEL_ATTN_BLOCK], float *wide,
                                        bool half)
{
    const struct attn_rows k = {a->k, a->hd_k, half};
    int64_t n_dots = (a->n / ATTN_ROWS + a->n % ATTN_ROWS) * attn_calls(a->n_q, ATTN_TILE);
    int64_t n_wide = ATTN_WIDE / a->hd_k / ATTN_ROWS * ATTN_ROWS;
    struct attn_prefetch keys = attn_prefetch(a->prefetch[0], a->prefetch_bytes[0], n_dots);
    if (!half || a->n_q < ATTN_WIDE_FROM || n_wide == 0) {
        attn_score_rows(a, s[0], k, a->n, &keys);
    } else {
        for (int64_t i = 0, n; i < a->n; i += n) {
            n = a->n - i < n_wide ? a->n - i : n_wide;
            attn_score_rows(a, s[0] + i, attn_widen(wide, attn_rows_at(k, i, 0), n, a->hd_k), n, &keys);
        }
    }
    for (int r = 0; r < a->n_q; r++)
        attn_softmax(a, s[r], &a->max[r], &a->sum[r]);
}

/* The sums of the values by these weights, for elements [j, j + 16 * vecs), which v begins with; vecs a constant. */
KERNELS_ALWAYS_INLINE void attn_part(const struct kernel_attn *a, const float s[][KERNEL_ATTN_BLOCK], int64_t j,
                                     struct attn_rows v, int vecs, struct attn_prefetch *values)
{
    for (int r = 0, n; r < a->n_q; r += n) {
        float *o = a->o + r * a->hd_v + j;
        n = attn_next(a->n_q - r, ATTN_MIXES);
        if (n == ATTN_MIXES)
            attn_mix(a, o, s + r, v, a->hd_v - j, ATTN_MIXES, vecs, values);
        else if (n == 2)
            attn_mix(a, o, s + r, v, a->hd_v - j, 2, vecs, values);
        else
            attn_mix(a, o, s + r, v, a->hd_v - j, 1, vecs, values);
    }
}

/* The same for all elements, in parts that stay in the first-level cache until they have been used for all queries. */
KERNELS_ALWAYS_INLINE void attn_values(const struct kernel_attn *a, const float s[][KERNEL_ATTN_BLOCK], float *wide,
                                       bool half)
{
    const struct attn_rows v = {a->v, a->hd_v, half};
    int64_t j = 0, width = 16 * ATTN_VECS, n_part = a->hd_v / width + (a->hd_v % width + 15) / 16;
    int64_t n_step = n_part * attn_calls(a->n_q, ATTN_MIXES) * a->n;
    struct attn_prefetch values = attn_prefetch(a->prefetch[1], a->prefetch_bytes[1], n_step);
    for (; j + width <= a->hd_v; j += width) {
        if (half && a->n_q >= ATTN_WIDE_FROM)
            attn_part(a, s, j, attn_widen(wide, attn_rows_at(v, 0, j), a->n, width), ATTN_VECS, &values);
        else
            attn_part(a, s, j, attn_rows_at(v, 0, j), ATTN_VECS, &values);
    }
    for (; j < a->hd_v; j += 16)
        attn_part(a, s, j, attn_rows_at(v, 0, j), 1, &values);
}

KERNELS_ALWAYS_INLINE void attn_block(const struct kernel_attn *a, bool half)
{
    float s[KERNEL_ATTN_QUERIES][KERNEL_ATTN_BLOCK];
    _Alignas(64) float wide[ATTN_WIDE];
    attn_weights(a, s, wide, half);
    attn_values(a, (const float(*)[KERNEL_ATTN_BLOCK])s, wide, half);
}

void OPS_NAME(attn_block_f16)(const struct kernel_attn *a)
{
    attn_block(a, true);
}

void OPS_NAME(attn_block_f32)(const struct kernel_attn *a)
{
    attn_block(a, false);
}

void OPS_NAME(attn_merge)(int n_q, float *max, float *sum, float *o, const float *max_b, const float *sum_b,
                          const float *o_b, int64_t hd_v)
{
    v16 m = load_upto(max, n_q), m_b = load_upto(max_b, n_q), top = v16_max(m_b, m);
    v16 a = exp16(v16_sub(m, top)), b = exp16(v16_sub(m_b, top));
    float a_of[16], b_of[16];
    v16_store(a_of, a);
    v16_store(b_of, b);
    store_upto(sum, v16_fma(b, load_upto(sum_b, n_q), v16_mul(a, load_upto(sum, n_q))), n_q);
    store_upto(max, top, n_q);
    for (int r = 0; r < n_q; r++, o += hd_v, o_b += hd_v) {
        a = v16_set1(a_of[r]);
        b = v16_set1(b_of[r]);
        for (int64_t j = 0; j < hd_v; j += 16) {
            v16 scaled = v16_mul(a, load_upto(o + j, hd_v - j));
            store_upto(o + j, v16_fma(b, load_upto(o_b + j, hd_v - j), scaled), hd_v - j);
        }
    }
}
