/* Recurrent layers: the causal convolution and the gated delta rule. Tokens are taken one after the other, so chunks
 * don't change a bit; channels, heads and value dimensions are independent and run in parallel. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"

struct conv_loop {
    struct cpu *c;
    const struct op *op;
    int64_t chunk; /* channels in a task */
};

/* Convolves some channels of all tokens, then keeps their last inputs as the state. */
static void conv_task(void *arg, size_t task, int thread)
{
    const struct conv_loop *l = arg;
    const struct tensor *state = &l->op->state[0];
    int64_t n = state->ne[0], n_past = state->ne[1], m = l->op->in[0].ne[1], c0 = (int64_t)task * l->chunk;
    int64_t n_channel = n - c0 < l->chunk ? n - c0 : l->chunk;
    float *past = (float *)tensor_data(state) + c0, *out = (float *)tensor_data(&l->op->out[0]) + c0;
    const float *x = (const float *)tensor_data(&l->op->in[0]) + c0, *taps[OP_CONV_MAX_TAP];
    assert(n_past < OP_CONV_MAX_TAP);
    for (int64_t t = 0; t < m; t++) {
        for (int64_t j = 0, row = t - n_past; j <= n_past; j++, row++) /* the oldest first */
            taps[j] = row < 0 ? past + (n_past + row) * n : x + row * n;
        l->c->kernels->conv_silu(out + t * n, taps, (const float *)tensor_data(&l->op->vec[0]) + c0, n, n_past + 1,
                                 n_channel);
    }
    for (int64_t j = 0, row = m - n_past; j < n_past; j++, row++) /* ascending: rows to be moved later lie above */
        memcpy(past + j * n, row < 0 ? past + (n_past + row) * n : x + row * n, (size_t)n_channel * sizeof *past);
}

void cpu_op_conv(struct cpu *c, const struct op *op)
{
    enum { TASKS_PER_THREAD = 4, MIN_CHANNELS = 256 };
    int64_t n = op->state[0].ne[0], n_task = (int64_t)pool_n_used(c->pool) * TASKS_PER_THREAD;
    struct conv_loop l = {c, op, (n + n_task - 1) / n_task};
    l.chunk = l.chunk < MIN_CHANNELS ? MIN_CHANNELS : (l.chunk + 15) / 16 * 16;
    pool_run(c->pool, (size_t)((n + l.chunk - 1) / l.chunk), conv_task, &l);
}

struct delta_loop {
    struct cpu *c;
    const struct op *op;
    int64_t dk, dv, n_head_k, n_head_v, m;
    int64_t chunk;       /* value dimensions in a task */
    float *qk;           /* q, then k, of length 1: [2 * dk][M][n_head_k] */
    float *decay, *beta; /* [M][n_head_v] */
};

/* Prepares one token: q and k of each head to length 1 (q also scaled), the gates to decay and beta. */
static void delta_prepare(void *arg, size_t t, int thread)
{
    const struct delta_loop *d = arg;
    const struct op *op = d->op;
    const struct kernels *kern = d->c->kernels;
    int64_t i = (int64_t)t;
    const float *x = (const float *)tensor_data(&op->in[0]) + i * op->in[0].ne[0];
    float root = 1 / sqrtf((float)d->dk);
    for (int64_t h = 0; h < 2 * d->n_head_k; h++) {
        bool is_k = h >= d->n_head_k;
        /* x / sqrt(sum + eps) = x / sqrt(mean + eps / n) / sqrt(n); the score's scale is 1 / sqrt(n) as well */
        float *y = d->qk + ((h % d->n_head_k * d->m + i) * 2 + is_k) * d->dk, scale = is_k ? root : root * root;
        kern->rms_norm(y, x + h * d->dk, NULL, d->dk, op->delta.eps / (float)d->dk);
        for (int64_t j = 0; j < d->dk; j++)
            y[j] = y[j] * scale;
    }
    const float *alpha = (const float *)tensor_data(&op->in[1]) + i * d->n_head_v;
    const float *b = (const float *)tensor_data(&op->in[2]) + i * d->n_head_v;
    const float *dt = tensor_data(&op->vec[0]), *a = tensor_data(&op->vec[1]);
    for (int64_t h = 0; h < d->n_head_v; h++) {
        float s = alpha[h] + dt[h], one = 1, sum;
        float softplus = s > 20 ? s : (float)log1p(exp((double)s));
        float log_decay = softplus * a[h];
        kern->exp_sum(&d->decay[h * d->m + i], &log_decay, 0, 1, &sum);
        kern->act_mul(KERNEL_SIGMOID, &d->beta[h * d->m + i], &b[h], &one, 1);
    }
}

static void delta_task(void *arg, size_t task, int thread)
{
    const struct delta_loop *d = arg;
    const struct op *op = d->op;
    int64_t n_chunk = (d->dv + d->chunk - 1) / d->chunk, head = (int64_t)task / n_chunk;
    int64_t v0 = (int64_t)task % n_chunk * d->chunk, v1 = v0 + d->chunk < d->dv ? v0 + d->chunk : d->dv;
    int64_t head_k = op->delta.grouped ? head / (d->n_head_v / d->n_head_k) : head % d->n_head_k;
    int64_t n_qk = 2 * d->n_head_k * d->dk, n_mixed = op->in[0].ne[0], n_out = op->out[0].ne[0];
    assert(n_out == d->n_head_v * d->dv);
    float *state = (float *)tensor_data(&op->state[0]) + head * d->dv * d->dk;
    float *out = (float *)tensor_data(&op->out[0]) + head * d->dv;
    const float *v = (const float *)tensor_data(&op->in[0]) + n_qk + head * d->dv;
    for (int64_t t = 0; t < d->m; t++) /* o has v's stride in the kernel, so v is copied to o's place first */
        memcpy(out + t * n_out + v0, v + t * n_mixed + v0, (size_t)(v1 - v0) * sizeof *out);
    const float *qk = d->qk + head_k * d->m * 2 * d->dk;
    const struct kernel_delta a = {.n = d->m,
                                   .n_dim = v1 - v0,
                                   .dk = d->dk,
                                   .decay = d->decay + head * d->m,
                                   .beta = d->beta + head * d->m,
                                   .q = qk,
                                   .k = qk + d->dk,
                                   .v = out + v0,
                                   .o = out + v0,
                                   .ld_gate = 1,
                                   .ld_qk = 2 * d->dk,
                                   .ld_v = n_out};
    d->c->kernels->delta_rule(state + v0 * d->dk, &a);
}

void cpu_op_delta(struct cpu *c, const struct op *op)
{
    const struct tensor *s = &op->state[0];
    struct delta_loop d = {.c = c,
                           .op = op,
                           .dk = s->ne[0],
                           .dv = s->ne[1],
                           .n_head_v = s->ne[2],
                           .n_head_k = op->delta.n_head_k,
                           .m = op->in[0].ne[1],
                           .chunk = 32};
    size_t qk_bytes = align64((size_t)(2 * d.n_head_k * d.dk * d.m) * sizeof(float));
    size_t gate_bytes = align64((size_t)(d.n_head_v * d.m) * sizeof(float));
    char *work = cpu_scratch(c, SCRATCH_HIDDEN, qk_bytes + 2 * gate_bytes);
    if (!work)
        return;
    d.qk = (float *)work;
    d.decay = (float *)(work + qk_bytes);
    d.beta = (float *)(work + qk_bytes + gate_bytes);
    pool_run(c->pool, (size_t)d.m, delta_prepare, &d);
    pool_run(c->pool, (size_t)(d.n_head_v * ((d.dv + d.chunk - 1) / d.chunk)), delta_task, &d);
}
