/* Everything but the products, in plain C: the definition (docs/numerics.md) that every other table must
 * match. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "kernels/exp_consts.h"
#include "kernels/kernels_internal.h"
#include "kernels/ref/kv_floats.h"
#include "quant/blocks.h"
#include "quant/quant_decode.h"

static float power_of_two(uint32_t n)
{
    uint32_t bits = (n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The comparisons are written as the vector instructions do them, so that a NaN comes out as a NaN. */
static float exp_scalar(float x)
{
    x = EXP_MIN > x ? EXP_MIN : x;
    x = EXP_MAX < x ? EXP_MAX : x;
    float shifted = fmaf(x, EXP_LOG2E, EXP_ROUND), n = shifted - EXP_ROUND;
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    float p = fmaf(r, EXP_P4, EXP_P3);
    p = fmaf(r, p, EXP_P2);
    p = fmaf(r, p, EXP_P1);
    p = fmaf(r, p, EXP_P0);
    p = fmaf(r * r, p, r) + 1.0f;
    int32_t bits, round_bits;
    float round = EXP_ROUND;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&round_bits, &round, sizeof round_bits);
    int32_t e = (int32_t)((uint32_t)bits - (uint32_t)round_bits), half = e >> 1;
    return p * power_of_two((uint32_t)half) * power_of_two((uint32_t)e - (uint32_t)half);
}

static float tanh_scalar(float x)
{
    float mag = fabsf(x), z = x * x;
    float p = fmaf(z, TANH_P4, TANH_P3);
    p = fmaf(z, p, TANH_P2);
    p = fmaf(z, p, TANH_P1);
    p = fmaf(z, p, TANH_P0);
    float small = fmaf(z * x, p, x);
    float large = copysignf(1.0f - 2.0f / (exp_scalar(mag + mag) + 1.0f), x);
    return mag < TANH_SMALL ? small : large;
}

static float softplus_scalar(float x)
{
    float y = exp_scalar(-fabsf(x));
    bool is_large = LOG1P_LARGE < y;
    float f = is_large ? (y - 1.0f) * 0.5f : y, s = f / (f + 2.0f), z = s * s, half = f * f * 0.5f;
    float p = fmaf(z, LOG1P_P3, LOG1P_P2);
    p = fmaf(z, p, LOG1P_P1);
    p = fmaf(z, p, LOG1P_P0);
    float l = f + fmaf(s, half + z * p, -half);
    return (0.0f > x ? 0.0f : x) + (is_large ? l + LOG1P_LN2 : l);
}

static float lane_tree(float lane[16])
{
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

/* Blocks so small that 127 / max overflows count as zeros. */
static void quantize_block(const float *x, int n, int n_sum, int8_t *q, float *d, int16_t *sum, int16_t *parts,
                           int16_t *first)
{
    float max = 0;
    for (int i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    float inverse = 127.0f / max;
    if (inverse == INFINITY)
        inverse = max = 0;
    *d = max / 127.0f;
    memset(sum, 0, (size_t)(n / n_sum) * sizeof *sum);
    memset(parts, 0, (size_t)(n / n_sum) * 2 * sizeof *parts);
    for (int i = 0; i < n; i++) {
        float v = x[i] * inverse;
        v = v < 127.0f ? v : 127.0f;
        v = v > -127.0f ? v : -127.0f;
        q[i] = (int8_t)(v + ROUND_MAGIC - ROUND_MAGIC);
        sum[i / n_sum] = (int16_t)(sum[i / n_sum] + q[i]);
        int16_t *part = parts + i / n_sum * 2 + i % 4 / 2;
        *part = (int16_t)(*part + q[i]);
        if (first && i % n_sum == 15)
            first[i / n_sum] = sum[i / n_sum];
    }
}

void quantize_int8_32_scalar(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum)
{
    for (int64_t b = 0; b < k / 32; b++)
        quantize_block(x + 32 * b, 32, 32, q + 32 * b, d + b, sum + b, sum + k / 32 + 2 * b, sum + k / 32 * 3 + b);
}

void quantize_int8_256_scalar(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum)
{
    for (int64_t b = 0; b < k / 256; b++)
        quantize_block(x + 256 * b, 256, 16, q + 256 * b, d + b, sum + 16 * b, sum + k / 16 + 32 * b, NULL);
}

void rms_norm_scalar(float *y, const float *x, const float *w, int64_t n, float eps)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    float s = 1.0f / sqrtf(lane_tree(lane) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = w ? x[i] * s * w[i] : x[i] * s;
}

float norm_dot_scalar(const float *x, const float *w, int64_t n, float eps)
{
    float squares[16] = {0}, products[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        squares[i % 16] = fmaf(x[i], x[i], squares[i % 16]);
        products[i % 16] = fmaf(x[i], w[i], products[i % 16]);
    }
    return lane_tree(products) * (1.0f / sqrtf(lane_tree(squares) / (float)n + eps));
}

/* Limits, written so that NaN stays NaN. */
static float at_most(float limit, float x)
{
    return x > limit ? limit : x;
}

static float within(float limit, float x)
{
    return x < -limit ? -limit : at_most(limit, x);
}

void act_mul_scalar(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up, int64_t n)
{
    if (fn == KERNEL_SWIGLU_OAI) {
        for (int64_t i = 0; i < n; i++) {
            float x = at_most(OAI_LIMIT, gate[i]);
            y[i] = x / (1.0f + exp_scalar(x * -OAI_ALPHA)) * (within(OAI_LIMIT, up[i]) + 1.0f);
        }
        return;
    }
    if (fn == KERNEL_SOFTPLUS) {
        for (int64_t i = 0; i < n; i++)
            y[i] = softplus_scalar(gate[i]) * up[i];
        return;
    }
    if (fn == KERNEL_NO_ACT || fn == KERNEL_RELU) {
        for (int64_t i = 0; i < n; i++)
            y[i] = (fn == KERNEL_RELU && gate[i] < 0 ? 0 : gate[i]) * up[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        bool clamps_first = limit > 0 && fn == KERNEL_SILU_CLAMPED;
        float x = clamps_first ? at_most(limit, gate[i]) : gate[i],
              minus_log = fn == KERNEL_GELU ? x * fmaf(x * x, GELU_C1, GELU_C0) : -x;
        float act = (fn == KERNEL_SIGMOID ? 1.0f : x) / (1.0f + exp_scalar(minus_log));
        y[i] = limit > 0 ? (clamps_first ? act : at_most(limit, act)) * within(limit, up[i]) : act * up[i];
    }
}

void situ_scalar(float bound, float up_bound, float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x = gate[i], u = up_bound > 0 ? up_bound * tanh_scalar(up[i] / up_bound) : up[i];
        y[i] = bound * tanh_scalar(x / bound) / (1.0f + exp_scalar(-x)) * u;
    }
}

void conv_scalar(float *y, const struct kernel_conv *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        float sum = a->bias ? a->bias[i] : 0;
        for (int64_t j = 0; j < a->n_tap; j++)
            sum = fmaf(a->w[j * a->ld_w + i], a->x[j][i], sum);
        y[i] = a->has_silu ? sum / (1.0f + exp_scalar(-sum)) : sum;
    }
}

static void delta_dim(float *s, const struct kernel_recurrence *a, int64_t dim)
{
    for (int64_t t = 0; t < a->n; t++) {
        const float *k = a->k + t * a->ld_qk, *q = a->q + t * a->ld_qk, *decay = a->decay + t * a->ld_decay;
        float known[16] = {0}, out[16] = {0};
        for (int64_t i = 0; i < a->dk; i++) {
            s[i] = s[i] * decay[a->decays_by_dim ? i : 0];
            known[i % 16] = fmaf(s[i], k[i], known[i % 16]);
        }
        float d = (a->v[t * a->ld_v + dim] - lane_tree(known)) * a->beta[t * a->ld_beta];
        for (int64_t i = 0; i < a->dk; i++) {
            s[i] = fmaf(k[i], d, s[i]);
            out[i % 16] = fmaf(s[i], q[i], out[i % 16]);
        }
        a->o[t * a->ld_v + dim] = lane_tree(out);
    }
}

void delta_rule_scalar(float *s, const struct kernel_recurrence *a)
{
    for (int64_t i = 0; i < a->n_dim; i++)
        delta_dim(s + i * a->dk, a, i);
}

static void space_dim(float *s, const struct kernel_recurrence *a, int64_t dim)
{
    for (int64_t t = 0; t < a->n; t++) {
        const float *k = a->k + t * a->ld_qk, *q = a->q + t * a->ld_qk;
        float out[16] = {0}, v = a->v[t * a->ld_v + dim], d = v * a->beta[t * a->ld_beta];
        for (int64_t i = 0; i < a->dk; i++) {
            s[i] = fmaf(k[i], d, s[i] * a->decay[t * a->ld_decay]);
            out[i % 16] = fmaf(s[i], q[i], out[i % 16]);
        }
        a->o[t * a->ld_v + dim] = fmaf(a->skip, v, lane_tree(out));
    }
}

void state_space_scalar(float *s, const struct kernel_recurrence *a)
{
    for (int64_t i = 0; i < a->n_dim; i++)
        space_dim(s + i * a->dk, a, i);
}

static void scan_dim(float *s, const struct kernel_scan *a, int64_t dim)
{
    const float *rate = a->a + dim * a->dk;
    for (int64_t t = 0; t < a->n; t++) {
        const float *k = a->k + t * a->ld_qk, *q = a->q + t * a->ld_qk;
        float out[16] = {0}, v = a->v[t * a->ld_v + dim], step = a->step[t * a->ld_v + dim], d = v * step;
        for (int64_t i = 0; i < a->dk; i++) {
            s[i] = fmaf(k[i], d, s[i] * exp_scalar(step * rate[i]));
            out[i % 16] = fmaf(s[i], q[i], out[i % 16]);
        }
        a->o[t * a->ld_v + dim] = fmaf(a->skip[dim], v, lane_tree(out));
    }
}

void selective_scan_scalar(float *s, const struct kernel_scan *a)
{
    for (int64_t i = 0; i < a->n_dim; i++)
        scan_dim(s + i * a->dk, a, i);
}

void add_scalar(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

void fma_scalar_scalar(float *y, const float *x, float a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

void exp_sum_scalar(float *y, const float *x, float max, int64_t n, float *sum)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        y[i] = exp_scalar(x[i] - max);
        lane[i % 16] += y[i];
    }
    *sum = lane_tree(lane);
}

void rope_scalar(enum kernel_rope mode, float *x, const float *cs, int64_t n_rot)
{
    int64_t step = mode == KERNEL_ROPE_NORMAL ? 2 : 1, apart = mode == KERNEL_ROPE_NORMAL ? 1 : n_rot / 2;
    for (int64_t i = 0; i < n_rot / 2; i++) {
        float *pa = x + i * step, *pb = pa + apart;
        float a = *pa, b = *pb, c = cs[2 * i], s = cs[2 * i + 1];
        *pa = fmaf(a, c, -(b * s));
        *pb = fmaf(a, s, b * c);
    }
}

void f32_to_f16_scalar(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = quant_float_to_half(x[i]);
}

void f16_to_f32_scalar(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = decode_half(x[i]);
}

void f32_to_q8_0_scalar(void *y, const float *x, int64_t n)
{
    struct block_q8_0 *blocks = y;
    for (int64_t b = 0; b < n / 32; b++, x += 32) {
        float max = 0, zero = 0;
        for (int i = 0; i < 32; i++) {
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
            zero = fmaf(x[i], 0.0f, zero);
        }
        uint16_t half = quant_float_to_half(zero == 0 ? max / 127.0f : NAN);
        float d = quant_half_to_float(half), inverse = d == 0 ? 0 : 1.0f / d;
        memcpy(blocks[b].d, &half, sizeof half);
        for (int i = 0; i < 32; i++) {
            float v = x[i] * inverse;
            v = v < 127.0f ? v : 127.0f;
            v = v > -127.0f ? v : -127.0f;
            blocks[b].qs[i] = (int8_t)(v + ROUND_MAGIC - ROUND_MAGIC);
        }
    }
}

void q8_0_to_f32_scalar(float *y, const void *x, int64_t n)
{
    quant_info(QUANT_Q8_0)->decode(x, y, n);
}

KERNELS_ALWAYS_INLINE void attn_query(const struct kernel_attn *a, int query, bool half)
{
    const float *q = a->q[query];
    float *o = a->o + query * a->hd_v;
    float s[KERNEL_ATTN_BLOCK], room[KV_PIECE], max = -INFINITY;
    for (int64_t i = 0; i < a->n; i++) {
        float lane[16] = {0};
        for (int64_t j0 = 0; j0 < a->hd_k; j0 += KV_PIECE) {
            int64_t n = min_i64(a->hd_k - j0, KV_PIECE);
            const float *k = kv_floats(a->k, i * a->hd_k + j0, n, half, room);
            for (int64_t j = 0; j < n; j++)
                lane[j % 16] = fmaf(k[j], q[j0 + j], lane[j % 16]);
        }
        s[i] = a->scale * lane_tree(lane);
        if (a->softcap != 0)
            s[i] = a->softcap * tanh_scalar(s[i] / a->softcap);
        max = s[i] > max ? s[i] : max;
    }
    a->max[query] = max;
    exp_sum_scalar(s, s, max, a->n, &a->sum[query]);
    memset(o, 0, (size_t)a->hd_v * sizeof *o);
    for (int64_t i = 0; i < a->n; i++) {
        for (int64_t j0 = 0; j0 < a->hd_v; j0 += KV_PIECE) {
            int64_t n = min_i64(a->hd_v - j0, KV_PIECE);
            const float *v = kv_floats(a->v, i * a->hd_v + j0, n, half, room);
            for (int64_t j = 0; j < n; j++)
                o[j0 + j] = fmaf(s[i], v[j], o[j0 + j]);
        }
    }
}

static void attn_queries(const struct kernel_attn *a, bool half)
{
    for (int i = 0; i < a->n_q; i++)
        attn_query(a, i, half);
}

void attn_block_f16_scalar(const struct kernel_attn *a)
{
    attn_queries(a, true);
}

void attn_block_f32_scalar(const struct kernel_attn *a)
{
    attn_queries(a, false);
}

void attn_merge_scalar(int n_q, float *max, float *sum, float *o, const float *max_b, const float *sum_b,
                       const float *o_b, int64_t hd_v)
{
    for (int r = 0; r < n_q; r++) {
        float m = max_b[r] > max[r] ? max_b[r] : max[r], a = exp_scalar(max[r] - m), b = exp_scalar(max_b[r] - m);
        for (int64_t j = r * hd_v; j < (r + 1) * hd_v; j++)
            o[j] = fmaf(b, o_b[j], a * o[j]);
        sum[r] = fmaf(b, sum_b[r], a * sum[r]);
        max[r] = m;
    }
}
