/* The exact engine's kernels: weights decoded by quant/, activations as they are, sums in double, libm's
 * functions. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "kernels/kernels_internal.h"
#include "kernels/ref/kv_floats.h"
#include "quant/blocks.h"

enum { TOKENS = 16 }; /* tokens that share one decoding of a block */

static void matmul_reference(const struct kernel_matmul *a, const struct quant_info *q)
{
    int64_t chunk = q->block_len == 1 ? QUANT_SUPER : q->block_len;
    size_t row_bytes = (size_t)(a->k / q->block_len) * (size_t)q->block_bytes + (size_t)q->head_bytes;
    for (int64_t t0 = 0; t0 < a->m; t0 += TOKENS) {
        int64_t n_tok = a->m - t0 < TOKENS ? a->m - t0 : TOKENS;
        for (int64_t r = a->row0; r < a->row1; r++) {
            const uint8_t *w = (const uint8_t *)a->w + (size_t)r * row_bytes;
            double sum[TOKENS] = {0};
            for (int64_t i = 0; i < a->k; i += chunk) {
                float block[QUANT_SUPER];
                int64_t n = a->k - i < chunk ? a->k - i : chunk;
                if (q->block_len == 1)
                    q->decode(w + i * q->block_bytes, block, n);
                else
                    quant_decode_block(q, w, i / chunk, block);
                for (int64_t t = 0; t < n_tok; t++) {
                    const float *x = a->x->f32 + (t0 + t) * a->k + i;
                    for (int64_t j = 0; j < n; j++)
                        sum[t] += (double)block[j] * (double)x[j];
                }
            }
            for (int64_t t = 0; t < n_tok; t++)
                a->y[(t0 + t) * a->ldy + r] = (float)sum[t];
        }
    }
}

#define QUANT(name, id, block_len, block_bytes, decoder, act)                                                          \
    void matmul_##decoder##_reference(const struct kernel_matmul *a)                                                   \
    {                                                                                                                  \
        matmul_reference(a, quant_info(id));                                                                           \
    }
#include "quant/quant_types.def"
#undef QUANT

void quantize_int8_32_reference(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum)
{
    quantize_int8_32_scalar(x, k, q, d, sum);
}

void quantize_int8_256_reference(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum)
{
    quantize_int8_256_scalar(x, k, q, d, sum);
}

void rms_norm_reference(float *y, const float *x, const float *w, int64_t n, float eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double s = 1 / sqrt(sum / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * s * (w ? (double)w[i] : 1));
}

float norm_dot_reference(const float *x, const float *w, int64_t n, float eps)
{
    double squares = 0, products = 0;
    for (int64_t i = 0; i < n; i++) {
        squares += (double)x[i] * (double)x[i];
        products += (double)x[i] * (double)w[i];
    }
    return (float)(products / sqrt(squares / (double)n + (double)eps));
}

static double at_most(double limit, double x)
{
    return x > limit ? limit : x;
}

static double within(double limit, double x)
{
    return x < -limit ? -limit : at_most(limit, x);
}

void act_mul_reference(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up, int64_t n)
{
    const double sqrt_2_over_pi = 0.79788456080286535588;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)gate[i];
        if (fn == KERNEL_SWIGLU_OAI) {
            x = at_most(7, x);
            y[i] = (float)(x / (1 + exp(-1.702 * x)) * (within(7, (double)up[i]) + 1));
            continue;
        }
        if (fn == KERNEL_NO_ACT || fn == KERNEL_RELU) {
            y[i] = (float)((fn == KERNEL_RELU && x < 0 ? 0 : x) * (double)up[i]);
            continue;
        }
        if (fn == KERNEL_SOFTPLUS) {
            y[i] = (float)((fmax(x, 0) + log1p(exp(-fabs(x)))) * (double)up[i]);
            continue;
        }
        bool clamps_first = limit > 0 && fn == KERNEL_SILU_CLAMPED;
        x = clamps_first ? at_most((double)limit, x) : x;
        /* 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), which doesn't cancel */
        double minus_log = fn == KERNEL_GELU ? -2 * sqrt_2_over_pi * (x + 0.044715 * x * x * x) : -x;
        double v = (fn == KERNEL_SIGMOID ? 1 : x) / (1 + exp(minus_log));
        double u = (double)up[i], most = (double)limit;
        y[i] = (float)(limit > 0 ? (clamps_first ? v : at_most(most, v)) * within(most, u) : v * u);
    }
}

void situ_reference(float bound, float up_bound, float *y, const float *gate, const float *up, int64_t n)
{
    double b = (double)bound, b_up = (double)up_bound;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)gate[i], u = (double)up[i];
        y[i] = (float)(b * tanh(x / b) / (1 + exp(-x)) * (b_up > 0 ? b_up * tanh(u / b_up) : u));
    }
}

void conv_reference(float *y, const struct kernel_conv *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        double sum = a->bias ? (double)a->bias[i] : 0;
        for (int64_t j = 0; j < a->n_tap; j++)
            sum += (double)a->w[j * a->ld_w + i] * (double)a->x[j][i];
        y[i] = (float)(a->has_silu ? sum / (1 + exp(-sum)) : sum);
    }
}

static void delta_dim(float *s, const struct kernel_recurrence *a, int64_t dim)
{
    for (int64_t t = 0; t < a->n; t++) {
        const float *k = a->k + t * a->ld_qk, *q = a->q + t * a->ld_qk;
        const float *decay = a->decay + t * a->ld_decay;
        double known = 0, out = 0;
        for (int64_t i = 0; i < a->dk; i++)
            known += (double)s[i] * (double)decay[a->decays_by_dim ? i : 0] * (double)k[i];
        double d = ((double)a->v[t * a->ld_v + dim] - known) * (double)a->beta[t * a->ld_beta];
        for (int64_t i = 0; i < a->dk; i++) {
            s[i] = (float)((double)s[i] * (double)decay[a->decays_by_dim ? i : 0] + (double)k[i] * d);
            out += (double)s[i] * (double)q[i];
        }
        a->o[t * a->ld_v + dim] = (float)out;
    }
}

void delta_rule_reference(float *s, const struct kernel_recurrence *a)
{
    for (int64_t i = 0; i < a->n_dim; i++)
        delta_dim(s + i * a->dk, a, i);
}

static void space_dim(float *s, const struct kernel_recurrence *a, int64_t dim)
{
    for (int64_t t = 0; t < a->n; t++) {
        const float *k = a->k + t * a->ld_qk, *q = a->q + t * a->ld_qk;
        double decay = (double)a->decay[t * a->ld_decay], v = (double)a->v[t * a->ld_v + dim];
        double d = v * (double)a->beta[t * a->ld_beta], out = (double)a->skip * v;
        for (int64_t i = 0; i < a->dk; i++) {
            s[i] = (float)((double)s[i] * decay + (double)k[i] * d);
            out += (double)s[i] * (double)q[i];
        }
        a->o[t * a->ld_v + dim] = (float)out;
    }
}

void state_space_reference(float *s, const struct kernel_recurrence *a)
{
    for (int64_t i = 0; i < a->n_dim; i++)
        space_dim(s + i * a->dk, a, i);
}

static void scan_dim(float *s, const struct kernel_scan *a, int64_t dim)
{
    for (int64_t t = 0; t < a->n; t++) {
        const float *k = a->k + t * a->ld_qk, *q = a->q + t * a->ld_qk;
        double step = (double)a->step[t * a->ld_v + dim], v = (double)a->v[t * a->ld_v + dim];
        double out = (double)a->skip[dim] * v;
        for (int64_t i = 0; i < a->dk; i++) {
            double decay = exp(step * (double)a->a[dim * a->dk + i]);
            s[i] = (float)((double)s[i] * decay + (double)k[i] * v * step);
            out += (double)s[i] * (double)q[i];
        }
        a->o[t * a->ld_v + dim] = (float)out;
    }
}

void selective_scan_reference(float *s, const struct kernel_scan *a)
{
    for (int64_t i = 0; i < a->n_dim; i++)
        scan_dim(s + i * a->dk, a, i);
}

void add_reference(float *y, const float *a, const float *b, int64_t n)
{
    add_scalar(y, a, b, n);
}

void fma_scalar_reference(float *y, const float *x, float a, int64_t n)
{
    fma_scalar_scalar(y, x, a, n);
}

void exp_sum_reference(float *y, const float *x, float max, int64_t n, float *sum)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = exp((double)x[i] - (double)max);
        total += e;
        y[i] = (float)e;
    }
    *sum = (float)total;
}

void rope_reference(enum kernel_rope mode, float *x, const float *cs, int64_t n_rot)
{
    rope_scalar(mode, x, cs, n_rot);
}

void f32_to_f16_reference(uint16_t *y, const float *x, int64_t n)
{
    f32_to_f16_scalar(y, x, n);
}

void f16_to_f32_reference(float *y, const uint16_t *x, int64_t n)
{
    f16_to_f32_scalar(y, x, n);
}

void f32_to_q8_0_reference(void *y, const float *x, int64_t n)
{
    f32_to_q8_0_scalar(y, x, n);
}

void q8_0_to_f32_reference(float *y, const void *x, int64_t n)
{
    q8_0_to_f32_scalar(y, x, n);
}

static void attn_query(const struct kernel_attn *a, int query, bool half)
{
    const float *q = a->q[query];
    float *o = a->o + query * a->hd_v;
    double s[KERNEL_ATTN_BLOCK], top = -INFINITY, total = 0;
    float room[KV_PIECE];
    for (int64_t i = 0; i < a->n; i++) {
        double dot = 0;
        for (int64_t j0 = 0; j0 < a->hd_k; j0 += KV_PIECE) {
            int64_t n = min_i64(a->hd_k - j0, KV_PIECE);
            const float *k = kv_floats(a->k, i * a->hd_k + j0, n, half, room);
            for (int64_t j = 0; j < n; j++)
                dot += (double)k[j] * (double)q[j0 + j];
        }
        s[i] = (double)a->scale * dot;
        if (a->softcap != 0)
            s[i] = (double)a->softcap * tanh(s[i] / (double)a->softcap);
        top = fmax(top, s[i]);
    }
    a->max[query] = (float)top; /* the weights are relative to what is returned */
    for (int64_t i = 0; i < a->n; i++) {
        s[i] = exp(s[i] - (double)a->max[query]);
        total += s[i];
    }
    a->sum[query] = (float)total;
    for (int64_t j0 = 0; j0 < a->hd_v; j0 += KV_PIECE) {
        int64_t n = min_i64(a->hd_v - j0, KV_PIECE);
        double out[KV_PIECE] = {0};
        for (int64_t i = 0; i < a->n; i++) {
            const float *v = kv_floats(a->v, i * a->hd_v + j0, n, half, room);
            for (int64_t j = 0; j < n; j++)
                out[j] += s[i] * (double)v[j];
        }
        for (int64_t j = 0; j < n; j++)
            o[j0 + j] = (float)out[j];
    }
}

static void attn_queries(const struct kernel_attn *a, bool half)
{
    for (int i = 0; i < a->n_q; i++)
        attn_query(a, i, half);
}

void attn_block_f16_reference(const struct kernel_attn *a)
{
    attn_queries(a, true);
}

void attn_block_f32_reference(const struct kernel_attn *a)
{
    attn_queries(a, false);
}

void attn_merge_reference(int n_q, float *max, float *sum, float *o, const float *max_b, const float *sum_b,
                          const float *o_b, int64_t hd_v)
{
    for (int r = 0; r < n_q; r++) {
        double m = fmax((double)max[r], (double)max_b[r]), a = exp((double)max[r] - m), b = exp((double)max_b[r] - m);
        for (int64_t j = r * hd_v; j < (r + 1) * hd_v; j++)
            o[j] = (float)(a * (double)o[j] + b * (double)o_b[j]);
        sum[r] = (float)(a * (double)sum[r] + b * (double)sum_b[r]);
        max[r] = (float)m;
    }
}
