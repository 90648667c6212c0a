/* Recurrent layers: the causal convolution, the gated delta rule and state spaces. Tokens are processed one after the
 * other, so that results don't depend on how a text is divided into batches; channels, heads and value dimensions are
 * independent and run in parallel. A task takes its part of all runs in order, as a run may begin with the state that
 * another one has left. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"

/* Neighbouring rows of one text, and the pages of the states that they begin with and leave. */
struct run {
    int64_t row0, n;
    int32_t from, to; /* from: -1 for zeros */
};

/* Finds the run of an operation's rows that begins at row0; from and to are its inputs. */
static struct run run_at(const struct tensor *from, const struct tensor *to, int64_t row0)
{
    const int32_t *f = tensor_data(from), *t = tensor_data(to);
    struct run r = {.row0 = row0, .n = 1, .from = f[row0], .to = t[row0]};
    assert(r.to >= 0);
    while (row0 + r.n < to->ne[0] && t[row0 + r.n] == r.to)
        r.n++;
    return r;
}

struct conv_loop {
    struct cpu *c;
    const struct op *op;
    int64_t chunk; /* channels in a task */
};

/* Copies n_channel channels of the state that a run begins with, [n_past][n], to the page that it leaves its state
 * in. */
static float *begin_past(const struct paged *state, const struct run *r, int64_t c0, int64_t n_channel)
{
    int64_t n = state->page.ne[0], n_past = state->page.ne[1];
    float *past = (float *)(void *)paged_data(state, r->to, 0) + c0;
    const float *from = r->from < 0 ? NULL : (const float *)(void *)paged_data(state, r->from, 0) + c0;
    for (int64_t j = 0; j < n_past && from != past; j++)
        if (from)
            memcpy(past + j * n, from + j * n, (size_t)n_channel * sizeof *past);
        else
            memset(past + j * n, 0, (size_t)n_channel * sizeof *past);
    return past;
}

/* Convolves some channels of a run, then keeps their last inputs as the state. */
static void conv_run(const struct conv_loop *l, const struct run *r, int64_t c0, int64_t n_channel)
{
    const struct op *op = l->op;
    int64_t n = op->state[0].page.ne[0], n_past = op->state[0].page.ne[1];
    float *past = begin_past(&op->state[0], r, c0, n_channel), *out = tensor_row(&op->out[0], r->row0) + c0;
    const float *x = tensor_row(&op->in[CONV_X], r->row0) + c0, *taps[OP_CONV_MAX_TAP];
    const struct kernel_conv a = {
        .x = taps,
        .w = (const float *)tensor_data(&op->vec[CONV_TAPS]) + c0,
        .bias = op->vec[CONV_BIAS].buffer ? (const float *)tensor_data(&op->vec[CONV_BIAS]) + c0 : NULL,
        .ld_w = n,
        .n_tap = n_past + 1,
        .n = n_channel,
        .has_silu = op->conv.has_silu};
    assert(n_past < OP_CONV_MAX_TAP);
    for (int64_t t = 0; t < r->n; t++) {
        for (int64_t j = 0, row = t - n_past; j <= n_past; j++, row++) /* the oldest first */
            taps[j] = row < 0 ? past + (n_past + row) * n : x + row * n;
        l->c->kernels->conv(out + t * n, &a);
    }
    for (int64_t j = 0, row = r->n - n_past; j < n_past; j++, row++) /* ascending: rows to be moved later lie above */
        memcpy(past + j * n, row < 0 ? past + (n_past + row) * n : x + row * n, (size_t)n_channel * sizeof *past);
}

static void conv_task(void *arg, size_t task, int thread)
{
    const struct conv_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->in[CONV_X].ne[0], c0 = (int64_t)task * l->chunk, n_channel = n - c0 < l->chunk ? n - c0 : l->chunk;
    for (int64_t row = 0; row < op->in[CONV_X].ne[1];) {
        const struct run r = run_at(&op->in[CONV_FROM], &op->in[CONV_TO], row);
        conv_run(l, &r, c0, n_channel);
        row += r.n;
    }
}

void cpu_op_conv(struct cpu *c, const struct op *op)
{
    enum { TASKS_PER_THREAD = 4, MIN_CHANNELS = 256 };
    int64_t n = op->in[CONV_X].ne[0], n_task = (int64_t)pool_n_used(c->pool) * TASKS_PER_THREAD;
    struct conv_loop l = {c, op, (n + n_task - 1) / n_task};
    l.chunk = l.chunk < MIN_CHANNELS ? MIN_CHANNELS : (l.chunk + 15) / 16 * 16;
    pool_run(c->pool, (size_t)((n + l.chunk - 1) / l.chunk), conv_task, &l);
}

/* DELTA and SSM, which differ in how q, k and beta are prepared, and in the kernel. */
struct delta_loop {
    struct cpu *c;
    const struct op *op;
    int64_t dk, dv, n_head_k, n_head_v, m;
    int64_t n_decay; /* of a head: 1 or dk */
    float *qk;       /* q, then k: [2 * dk][M][n_head_k] */
    float *decay;    /* [n_decay][M][n_head_v] */
    float *beta;     /* [M][n_head_v] */
    bool is_space;   /* SSM */
};

/* Prepares q or k of one head and token: DELTA norms them to length 1, and scales q. */
static void prepare_qk(const struct delta_loop *d, const float *x, bool is_k, float *y)
{
    float root = 1 / sqrtf((float)d->dk), scale = is_k ? root : root * root;
    if (d->is_space) {
        memcpy(y, x, (size_t)d->dk * sizeof *y);
        return;
    }
    /* x / sqrt(sum + eps) = x / sqrt(mean + eps / n) / sqrt(n); the score's scale is 1 / sqrt(n) as well */
    d->c->kernels->rms_norm(y, x, NULL, d->dk, d->op->delta.eps / (float)d->dk);
    for (int64_t j = 0; j < d->dk; j++)
        y[j] = y[j] * scale;
}

/* Computes the decay of a head that has the same one at all rows. */
static void find_fixed_decay(const struct delta_loop *d, int64_t head, int64_t i)
{
    float *decay = d->decay + head * d->m + i, sum;
    *decay = ((const float *)tensor_data(&d->op->vec[DELTA_A]))[head];
    d->c->kernels->exp_sum(decay, decay, 0, 1, &sum);
    d->beta[head * d->m + i] = 1;
}

/* Computes the decays of a head at row i, and the beta of a state space, which is the softplus in its decay. */
static void find_decays(const struct delta_loop *d, int64_t head, int64_t i)
{
    enum { AT_ONCE = 64 };
    const struct kernels *kern = d->c->kernels;
    const float *alpha = tensor_row(&d->op->in[DELTA_ALPHA], i) + head * d->n_decay;
    const float *dt = (const float *)tensor_data(&d->op->vec[DELTA_DT]) + head * d->n_decay;
    float a = ((const float *)tensor_data(&d->op->vec[DELTA_A]))[head], min_log_decay = d->op->delta.min_log_decay, sum;
    float *decay = d->decay + (head * d->m + i) * d->n_decay, gate[AT_ONCE], by[AT_ONCE];
    for (int64_t j = 0, n; j < d->n_decay; j += n) {
        n = d->n_decay - j < AT_ONCE ? d->n_decay - j : AT_ONCE;
        for (int64_t x = 0; x < n; x++) {
            float step = alpha[j + x] + dt[j + x];
            gate[x] = min_log_decay < 0 ? a * step : step;
            by[x] = min_log_decay < 0 ? min_log_decay : d->is_space ? 1 : a;
        }
        kern->act_mul(min_log_decay < 0 ? KERNEL_SIGMOID : KERNEL_SOFTPLUS, 0, decay + j, gate, by, n);
    }
    if (d->is_space) {
        d->beta[head * d->m + i] = *decay;
        *decay *= a;
    }
    kern->exp_sum(decay, decay, 0, d->n_decay, &sum);
}

/* Prepares one token: q and k of each head, beta, and the decay if heads have only one. */
static void delta_prepare(void *arg, size_t t, int thread)
{
    const struct delta_loop *d = arg;
    const struct op *op = d->op;
    const struct kernels *kern = d->c->kernels;
    int64_t i = (int64_t)t;
    const float *x = (const float *)tensor_data(&op->in[DELTA_QKV]) + i * op->in[DELTA_QKV].ne[0];
    for (int64_t h = 0; h < 2 * d->n_head_k; h++) {
        bool is_k = h >= d->n_head_k;
        prepare_qk(d, x + h * d->dk, is_k, d->qk + ((h % d->n_head_k * d->m + i) * 2 + is_k) * d->dk);
    }
    const float *b = d->is_space ? NULL : (const float *)tensor_data(&op->in[DELTA_BETA]) + i * d->n_head_v;
    for (int64_t h = 0; h < d->n_head_v; h++) {
        float one = 1;
        if (!op->in[DELTA_ALPHA].buffer)
            find_fixed_decay(d, h, i);
        else if (d->n_decay == 1)
            find_decays(d, h, i);
        if (!d->is_space)
            kern->act_mul(KERNEL_SIGMOID, 0, &d->beta[h * d->m + i], &b[h], &one, 1);
    }
}

/* Computes the decays of one head and token, where a head has many. */
static void delta_decays(void *arg, size_t task, int thread)
{
    const struct delta_loop *d = arg;
    find_decays(d, (int64_t)task % d->n_head_v, (int64_t)task / d->n_head_v);
}

/* Copies value dimensions [v0, v1) of the state that a run begins with to the page that it leaves its state in. */
static float *begin_delta(const struct paged *state, const struct run *r, int64_t head, int64_t v0, int64_t v1)
{
    int64_t dk = state->page.ne[0];
    size_t n_bytes = (size_t)((v1 - v0) * dk) * sizeof(float);
    float *s = (float *)(void *)paged_data(state, r->to, head) + v0 * dk;
    if (r->from < 0)
        memset(s, 0, n_bytes);
    else if (r->from != r->to)
        memcpy(s, (float *)(void *)paged_data(state, r->from, head) + v0 * dk, n_bytes);
    return s;
}

/* The value dimensions of a task, and the tokens of a kernel's call, whose queries and keys fit into the caches. */
enum { DELTA_CHUNK = 32, DELTA_BLOCK = 32 };

/* Gathers n numbers, from element `at` on, of each of n_row rows of x. Kernels get values and results in this form, as
 * whole rows, with all heads, are so far apart that few fit into the caches. */
static void gather(const struct tensor *x, int64_t row, int64_t n_row, int64_t at, int64_t n, float *out)
{
    for (int64_t t = 0; t < n_row; t++)
        memcpy(out + t * n, tensor_row(x, row + t) + at, (size_t)n * sizeof *out);
}

/* The other way round. */
static void scatter(const float *from, const struct tensor *x, int64_t row, int64_t n_row, int64_t at, int64_t n)
{
    for (int64_t t = 0; t < n_row; t++)
        memcpy(tensor_row(x, row + t) + at, from + t * n, (size_t)n * sizeof *from);
}

/* Runs value dimensions [v0, v1) of a head through a run. */
static void delta_run(const struct delta_loop *d, const struct run *r, int64_t head, int64_t v0, int64_t v1)
{
    const struct op *op = d->op;
    int64_t head_k = op->delta.grouped ? head / (d->n_head_v / d->n_head_k) : head % d->n_head_k;
    int64_t at_v = 2 * d->n_head_k * d->dk + head * d->dv + v0, at_out = head * d->dv + v0, n_dim = v1 - v0;
    float *s = begin_delta(&op->state[0], r, head, v0, v1), vo[DELTA_BLOCK * DELTA_CHUNK];
    float skip = d->is_space ? ((const float *)tensor_data(&op->vec[SSM_SKIP]))[head] : 0;
    for (int64_t row = r->row0, end = r->row0 + r->n, n; row < end; row += n) {
        n = end - row < DELTA_BLOCK ? end - row : DELTA_BLOCK;
        gather(&op->in[DELTA_QKV], row, n, at_v, n_dim, vo);
        const float *qk = d->qk + (head_k * d->m + row) * 2 * d->dk;
        const struct kernel_recurrence a = {.n = n,
                                            .n_dim = n_dim,
                                            .dk = d->dk,
                                            .decay = d->decay + (head * d->m + row) * d->n_decay,
                                            .beta = d->beta + head * d->m + row,
                                            .q = qk,
                                            .k = qk + d->dk,
                                            .v = vo,
                                            .o = vo,
                                            .ld_decay = d->n_decay,
                                            .ld_beta = 1,
                                            .ld_qk = 2 * d->dk,
                                            .ld_v = n_dim,
                                            .decays_by_dim = d->n_decay > 1,
                                            .skip = skip};
        (d->is_space ? d->c->kernels->state_space : d->c->kernels->delta_rule)(s, &a);
        scatter(vo, &op->out[0], row, n, at_out, n_dim);
    }
}

static int64_t delta_n_chunk(const struct delta_loop *d)
{
    return (d->dv + DELTA_CHUNK - 1) / DELTA_CHUNK;
}

static void delta_task(void *arg, size_t task, int thread)
{
    const struct delta_loop *d = arg;
    const struct op *op = d->op;
    int64_t n_chunk = delta_n_chunk(d), head = (int64_t)task / n_chunk;
    int64_t v0 = (int64_t)task % n_chunk * DELTA_CHUNK, v1 = v0 + DELTA_CHUNK < d->dv ? v0 + DELTA_CHUNK : d->dv;
    assert(op->out[0].ne[0] == d->n_head_v * d->dv);
    for (int64_t row = 0; row < d->m && !pool_is_cancelled(d->c->pool);) {
        const struct run r = run_at(&op->in[DELTA_FROM], &op->in[DELTA_TO], row);
        delta_run(d, &r, head, v0, v1);
        row += r.n;
    }
}

/* Runs value dimensions [v0, v1) of a selective state space through a run, after computing their steps. */
static void scan_run(const struct delta_loop *d, const struct run *r, int64_t v0, int64_t v1)
{
    const struct op *op = d->op;
    const float *dt = (const float *)tensor_data(&op->vec[DELTA_DT]) + v0;
    float *s = begin_delta(&op->state[0], r, 0, v0, v1), vo[DELTA_BLOCK * DELTA_CHUNK];
    float step[DELTA_BLOCK * DELTA_CHUNK], one[DELTA_CHUNK];
    int64_t n_dim = v1 - v0;
    for (int64_t i = 0; i < n_dim; i++)
        one[i] = 1;
    for (int64_t row = r->row0, end = r->row0 + r->n, n; row < end; row += n) {
        n = end - row < DELTA_BLOCK ? end - row : DELTA_BLOCK;
        for (int64_t t = 0; t < n; t++) {
            d->c->kernels->add(step + t * n_dim, tensor_row(&op->in[DELTA_ALPHA], row + t) + v0, dt, n_dim);
            d->c->kernels->act_mul(KERNEL_SOFTPLUS, 0, step + t * n_dim, step + t * n_dim, one, n_dim);
        }
        gather(&op->in[DELTA_QKV], row, n, v0, n_dim, vo);
        const float *qk = tensor_row(&op->in[SSM_QK], row);
        const struct kernel_scan a = {.n = n,
                                      .n_dim = n_dim,
                                      .dk = d->dk,
                                      .a = (const float *)tensor_data(&op->vec[DELTA_A]) + v0 * d->dk,
                                      .skip = (const float *)tensor_data(&op->vec[SSM_SKIP]) + v0,
                                      .q = qk,
                                      .k = qk + d->dk,
                                      .step = step,
                                      .v = vo,
                                      .o = vo,
                                      .ld_qk = 2 * d->dk,
                                      .ld_v = n_dim};
        d->c->kernels->selective_scan(s, &a);
        scatter(vo, &op->out[0], row, n, v0, n_dim);
    }
}

static void scan_task(void *arg, size_t task, int thread)
{
    const struct delta_loop *d = arg;
    int64_t v0 = (int64_t)task * DELTA_CHUNK, v1 = v0 + DELTA_CHUNK < d->dv ? v0 + DELTA_CHUNK : d->dv;
    for (int64_t row = 0; row < d->m && !pool_is_cancelled(d->c->pool);) {
        const struct run r = run_at(&d->op->in[DELTA_FROM], &d->op->in[DELTA_TO], row);
        scan_run(d, &r, v0, v1);
        row += r.n;
    }
}

void cpu_op_delta(struct cpu *c, const struct op *op)
{
    const struct tensor *s = &op->state[0].page;
    struct delta_loop d = {.c = c,
                           .op = op,
                           .dk = s->ne[0],
                           .dv = s->ne[1],
                           .n_head_v = s->ne[2],
                           .n_head_k = op->delta.n_head_k,
                           .n_decay = op->in[DELTA_ALPHA].buffer ? op->in[DELTA_ALPHA].ne[0] / s->ne[2] : 1,
                           .m = op->in[DELTA_QKV].ne[1],
                           .is_space = op->kind == OP_SSM};
    if (d.is_space && op->in[SSM_QK].buffer) {
        pool_run(c->pool, (size_t)delta_n_chunk(&d), scan_task, &d);
        return;
    }
    size_t qk_bytes = align64((size_t)(2 * d.n_head_k * d.dk * d.m) * sizeof(float));
    size_t gate_bytes = align64((size_t)(d.n_head_v * d.m) * sizeof(float));
    size_t decay_bytes = align64((size_t)(d.n_head_v * d.n_decay * d.m) * sizeof(float));
    char *work = cpu_scratch(c, SCRATCH_HIDDEN, qk_bytes + decay_bytes + gate_bytes);
    if (!work)
        return;
    d.qk = (float *)work;
    d.decay = (float *)(work + qk_bytes);
    d.beta = (float *)(work + qk_bytes + decay_bytes);
    pool_run(c->pool, (size_t)d.m, delta_prepare, &d);
    if (d.n_decay > 1)
        pool_run(c->pool, (size_t)(d.m * d.n_head_v), delta_decays, &d);
    pool_run(c->pool, (size_t)(d.n_head_v * delta_n_chunk(&d)), delta_task, &d);
}
