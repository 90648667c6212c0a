/* Models with several residual streams. Hyper-connections (arXiv 2512.24880): the streams are weighted and added up in
 * front of a block and mixed behind it, with weights that depend on the token. STREAMS_MATCH prepares embeddings of
 * n-grams for being added to them. Attention over residuals: those of earlier layers and the current one are added up
 * with softmax weights. */
#include <math.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "backend/cpu_rows_internal.h"

/* x = sigmoid(x * scale + base) */
static void weigh(const struct kernels *kern, float *x, float scale, const float *base, int64_t n)
{
    static const float ones[OP_MAX_STREAM] = {1, 1, 1, 1};
    for (int64_t i = 0; i < n; i++)
        x[i] = fmaf(x[i], scale, base[i]);
    kern->act_mul(KERNEL_SIGMOID, 0, x, x, ones, n);
}

/* Divides the n elements of x, which are `step` apart, by their sum and eps. */
static void normalize(float *x, int64_t step, int64_t n, float eps)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i * step];
    sum += eps;
    for (int64_t i = 0; i < n; i++)
        x[i * step] = x[i * step] / sum;
}

/* Computes the weights [n][n] with which n streams are mixed; row j holds the weights of stream j in the new streams.
 * After a softmax of each row, Sinkhorn's algorithm makes columns and rows add up to 1, columns last. */
static void balance(const struct kernels *kern, const struct op *op, float *x, float scale, const float *base,
                    int64_t n)
{
    float eps = op->streams.eps, sum;
    for (float *row = x; row < x + n * n; row += n, base += n) {
        float max = -INFINITY;
        for (int64_t i = 0; i < n; i++) {
            row[i] = fmaf(row[i], scale, base[i]);
            max = row[i] > max ? row[i] : max;
        }
        kern->exp_sum(row, row, max, n, &sum);
        for (int64_t i = 0; i < n; i++)
            row[i] = row[i] / sum + eps;
    }
    for (int64_t k = 0; k < op->streams.n_iteration; k++) {
        for (int64_t i = 0; k > 0 && i < n; i++)
            normalize(x + i * n, 1, n, eps);
        for (int64_t i = 0; i < n; i++)
            normalize(x + i, n, n, eps);
    }
}

static void streams_in_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const struct kernels *kern = l->c->kernels;
    const float *scale = tensor_data(&op->vec[STREAMS_IN_SCALE]), *base = tensor_data(&op->vec[STREAMS_IN_BASE]);
    const float *x = tensor_row(&op->in[STREAMS_IN_X], (int64_t)t);
    float *mix = tensor_row(&op->in[STREAMS_IN_MIX], (int64_t)t), *y = tensor_row(&op->out[STREAMS_IN_Y], (int64_t)t);
    int64_t n = op->out[STREAMS_IN_Y].ne[0], n_stream = op->in[STREAMS_IN_X].ne[0] / n,
            n_mix = op->in[STREAMS_IN_MIX].ne[0];
    bool mixes = n_mix > 2 * n_stream;
    weigh(kern, mix, scale[0], base, n_stream);
    for (int64_t i = 0; i < n_stream; i++)
        mix[i] += op->streams.eps;
    if (n_mix > n_stream)
        weigh(kern, mix + n_stream, scale[1], base + n_stream, n_stream);
    for (int64_t i = n_stream; i < n_mix && i < 2 * n_stream; i++) {
        mix[i] *= op->streams.magnitude;
        mix[i] += mixes ? 0 : op->streams.eps;
    }
    if (mixes)
        balance(kern, op, mix + 2 * n_stream, scale[2], base + 2 * n_stream, n_stream);
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < n_stream; i++)
        kern->fma_scalar(y, x + i * n, mix[i], n);
}

enum { PIECE = 256 }; /* elements that are processed at a time, so that they stay in the first-level cache */

/* The same where streams are gated element by element, or are just averaged. */
static void streams_gated_row(void *arg, size_t t, int thread)
{
    static const float zeros[OP_MAX_STREAM] = {0};
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const struct kernels *kern = l->c->kernels;
    const float *x = tensor_row(&op->in[STREAMS_IN_X], (int64_t)t);
    const float *gate = op->in[STREAMS_IN_GATE].buffer ? tensor_row(&op->in[STREAMS_IN_GATE], (int64_t)t) : NULL;
    float *y = tensor_row(&op->out[STREAMS_IN_Y], (int64_t)t), gated[PIECE];
    int64_t n = op->out[STREAMS_IN_Y].ne[0], n_stream = op->in[STREAMS_IN_X].ne[0] / n;
    float share = 1 / (float)n_stream;
    if (op->in[STREAMS_IN_MIX].buffer) {
        float *mix = tensor_row(&op->in[STREAMS_IN_MIX], (int64_t)t);
        weigh(kern, mix, share, zeros, n_stream);
        for (int64_t i = 0; i < n_stream; i++)
            mix[i] *= op->streams.magnitude;
    }
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t some = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < n_stream; i++) {
            if (gate)
                kern->act_mul(KERNEL_SIGMOID, 0, gated, gate + i * n + at, x + i * n + at, some);
            kern->fma_scalar(y + at, gate ? gated : x + i * n + at, share, some);
        }
    }
}

void cpu_op_streams_in(struct cpu *c, const struct op *op)
{
    cpu_run_rows(c, op, op->in[STREAMS_IN_X].ne[1], tensor_n_elem(&op->in[STREAMS_IN_X]) > CPU_SERIAL_ELEMS,
                 op->in[STREAMS_IN_MIX].buffer && !op->in[STREAMS_IN_GATE].buffer ? streams_in_row : streams_gated_row);
}

static void streams_out_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const struct kernels *kern = l->c->kernels;
    const float *y = tensor_row(&op->in[STREAMS_OUT_Y], (int64_t)t);
    float *x = tensor_row(&op->out[0], (int64_t)t), old[OP_MAX_STREAM][PIECE];
    int64_t n = op->in[STREAMS_OUT_Y].ne[0], n_stream = op->out[0].ne[0] / n;
    const float *mix = tensor_row(&op->in[STREAMS_OUT_MIX], (int64_t)t),
                *by_y = op->in[STREAMS_OUT_MIX].ne[0] > n_stream ? mix + n_stream : mix, *by_x = by_y + n_stream;
    bool mixes = op->in[STREAMS_OUT_MIX].ne[0] > 2 * n_stream;
    for (int64_t i = 0; !mixes && i < n_stream; i++)
        kern->fma_scalar(x + i * n, y, by_y[i], n);
    if (!mixes)
        return;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t some = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < n_stream; i++) {
            memcpy(old[i], x + i * n + at, (size_t)some * sizeof **old);
            memset(x + i * n + at, 0, (size_t)some * sizeof *x);
        }
        for (int64_t i = 0; i < n_stream; i++) {
            kern->fma_scalar(x + i * n + at, y + at, by_y[i], some);
            for (int64_t j = 0; j < n_stream; j++)
                kern->fma_scalar(x + i * n + at, old[j], by_x[j * n_stream + i], some);
        }
    }
}

void cpu_op_streams_out(struct cpu *c, const struct op *op)
{
    cpu_run_rows(c, op, op->in[STREAMS_OUT_Y].ne[1], tensor_n_elem(&op->out[0]) > CPU_SERIAL_ELEMS, streams_out_row);
}

/* The dot product of n elements: 16 partial sums, added up in a tree. */
static float dot(const float *a, const float *b, int64_t n)
{
    enum { LANES = 16 };
    float sum[LANES] = {0};
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t j = 0; j < LANES && i + j < n; j++)
            sum[j] += a[i + j] * b[i + j];
    for (int64_t width = LANES / 2; width > 0; width /= 2)
        for (int64_t j = 0; j < width; j++)
            sum[j] += sum[j + width];
    return sum[0];
}

static void streams_match_row(void *arg, size_t t, int thread)
{
    static const float ones[OP_MAX_STREAM] = {1, 1, 1, 1};
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const float *key = tensor_row(&op->in[STREAMS_MATCH_KEY], (int64_t)t),
                *query = tensor_row(&op->in[STREAMS_MATCH_QUERY], (int64_t)t);
    const float *value = tensor_row(&op->in[STREAMS_MATCH_VALUE], (int64_t)t);
    float *y = tensor_row(&op->out[0], (int64_t)t), by[OP_MAX_STREAM] = {0};
    int64_t n = op->in[STREAMS_MATCH_VALUE].ne[0], n_stream = op->in[STREAMS_MATCH_KEY].ne[0] / n;
    for (int64_t i = 0; i < n_stream; i++) {
        float s = dot(key + i * n, query + i * n, n) / sqrtf((float)n), size = fabsf(s);
        by[i] = copysignf(sqrtf(size > 1e-6f ? size : 1e-6f), s);
    }
    l->c->kernels->act_mul(KERNEL_SIGMOID, 0, by, by, ones, n_stream);
    memset(y, 0, (size_t)(n_stream * n) * sizeof *y);
    for (int64_t i = 0; i < n_stream; i++)
        l->c->kernels->fma_scalar(y + i * n, value, by[i], n);
}

void cpu_op_streams_match(struct cpu *c, const struct op *op)
{
    cpu_run_rows(c, op, op->in[STREAMS_MATCH_KEY].ne[1], tensor_n_elem(&op->in[STREAMS_MATCH_KEY]) > CPU_SERIAL_ELEMS,
                 streams_match_row);
}

/* All weights are computed before the first element is written, as out may be x. */
static void residuals_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const struct kernels *kern = l->c->kernels;
    const float *x = tensor_row(&op->in[RESIDUALS_X], (int64_t)t),
                *bank = tensor_row(&op->in[RESIDUALS_BANK], (int64_t)t);
    const float *w = tensor_data(&op->vec[0]);
    float *out = tensor_row(&op->out[0], (int64_t)t), by[OP_MAX_BANK + 1] = {0}, sum[PIECE], max = -INFINITY, all;
    int64_t n = op->in[RESIDUALS_X].ne[0], n_banked = op->residuals.n_banked;
    for (int64_t r = 0; r <= n_banked; r++) {
        by[r] = kern->norm_dot(r < n_banked ? bank + r * n : x, w, n, op->residuals.eps);
        max = by[r] > max ? by[r] : max;
    }
    kern->exp_sum(by, by, max, n_banked + 1, &all);
    for (int64_t r = 0; r <= n_banked; r++)
        by[r] = by[r] / all;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t some = n - at < PIECE ? n - at : PIECE;
        memset(sum, 0, sizeof sum);
        for (int64_t r = 0; r <= n_banked; r++)
            kern->fma_scalar(sum, (r < n_banked ? bank + r * n : x) + at, by[r], some);
        memcpy(out + at, sum, (size_t)some * sizeof *sum);
    }
}

void cpu_op_residuals(struct cpu *c, const struct op *op)
{
    cpu_run_rows(c, op, op->in[RESIDUALS_X].ne[1], tensor_n_elem(&op->in[RESIDUALS_BANK]) > CPU_SERIAL_ELEMS,
                 residuals_row);
}
