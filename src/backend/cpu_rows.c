/* Operations that take each row by itself: embeddings, norms, rope, activations, sums. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "backend/cpu_rows_internal.h"

void cpu_run_rows(struct cpu *c, const struct op *op, int64_t n, bool in_parallel, pool_fn *fn)
{
    struct cpu_row_loop l = {c, op};
    if (in_parallel)
        pool_run(c->pool, (size_t)n, fn, &l);
    else
        for (int64_t i = 0; i < n; i++)
            fn(&l, (size_t)i, 0);
}

/* Runs fn for each row of the first output, ne[1] of them. cost: what an element costs, as a multiple of a sum. */
static void run_out_rows(struct cpu *c, const struct op *op, int64_t cost, pool_fn *fn)
{
    cpu_run_rows(c, op, op->out[0].ne[1], tensor_n_elem(&op->out[0]) * cost > CPU_SERIAL_ELEMS, fn);
}

static void embed_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct weight *w = l->op->weight[0];
    int32_t id = ((const int32_t *)tensor_data(&l->op->in[0]))[t];
    assert(id >= 0 && id < w->n_row);
    size_t row_bytes = 0;
    quant_row_bytes(w->type, (uint64_t)w->k, &row_bytes);
    float *out = tensor_row(&l->op->out[0], (int64_t)t);
    if (w->layout == LAYOUT_ROWS) {
        w->type->decode((const char *)w->data + (size_t)id * row_bytes, out, w->k);
    } else {
        char *row = (char *)l->c->scratch[SCRATCH_THREAD].p + (size_t)thread * align64(row_bytes);
        const struct layout_matrix m = {w->layout, w->type, (uint64_t)w->n_row, (uint64_t)w->k};
        layout_unpack(&m, row, w->data, (uint64_t)id, 1);
        w->type->decode(row, out, w->k);
    }
    for (int64_t i = 0; i < w->k; i++)
        out[i] = out[i] * l->op->scale;
}

void cpu_op_embed(struct cpu *c, const struct op *op)
{
    size_t row_bytes = 0;
    quant_row_bytes(op->weight[0]->type, (uint64_t)op->weight[0]->k, &row_bytes);
    if (cpu_scratch(c, SCRATCH_THREAD, align64(row_bytes) * (size_t)pool_n_threads(c->pool)))
        cpu_run_rows(c, op, op->in[0].ne[0], tensor_n_elem(&op->out[0]) > CPU_SERIAL_ELEMS, embed_row);
}

static void rms_norm_row(void *arg, size_t i, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->norm.n, off = (int64_t)i * n;
    const float *w = tensor_data(&op->vec[NORM_W]), *bias = tensor_data(&op->vec[NORM_BIAS]);
    float *y = (float *)tensor_data(&op->out[0]) + off;
    l->c->kernels->rms_norm(y, (const float *)tensor_data(&op->in[0]) + off, w ? w + off % op->vec[NORM_W].ne[0] : NULL,
                            n, op->norm.eps);
    if (bias)
        l->c->kernels->add(y, y, bias, n);
}

void cpu_op_rms_norm(struct cpu *c, const struct op *op)
{
    int64_t n_elem = tensor_n_elem(&op->out[0]);
    cpu_run_rows(c, op, n_elem / op->norm.n, n_elem > CPU_SERIAL_ELEMS, rms_norm_row);
}

/* The mean is added up in double, ascending. */
static void layer_norm_row(void *arg, size_t i, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->in[0].ne[0];
    const float *x = tensor_row(&op->in[0], (int64_t)i), *w = tensor_data(&op->vec[NORM_W]),
                *bias = tensor_data(&op->vec[NORM_BIAS]);
    float *y = tensor_row(&op->out[0], (int64_t)i);
    double sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += (double)x[j];
    float mean = (float)(sum / (double)n);
    for (int64_t j = 0; j < n; j++)
        y[j] = x[j] - mean;
    l->c->kernels->rms_norm(y, y, w, n, op->norm.eps);
    if (bias)
        l->c->kernels->add(y, y, bias, n);
}

void cpu_op_layer_norm(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 1, layer_norm_row);
}

static void rope_table_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n_rot = op->out[0].ne[0];
    int32_t pos = ((const int32_t *)tensor_data(&op->in[0]))[t];
    const float *divisor = tensor_data(&op->vec[0]);
    float *cs = tensor_row(&op->out[0], (int64_t)t);
    const struct rope_angles *a = &op->rope_table;
    double magnitude = a->magnitude;
    if (a->temperature != 0)
        magnitude *= 1 + a->temperature * log((double)((pos + a->temperature_shift) / a->temperature_span) + 1);
    for (int64_t i = 0; i < n_rot / 2; i++) {
        double freq = pow(a->freq_base, -2.0 * (double)i / (double)n_rot), scale = a->freq_scale;
        if (a->yarn) {
            double ramp = ((double)i - a->yarn_low) / fmax(0.001, (double)a->yarn_high - a->yarn_low);
            ramp = fmin(1, fmax(0, ramp));
            scale = scale * ramp + (1 - ramp);
        }
        double angle = pos * freq * scale / (divisor ? divisor[i] : 1);
        cs[2 * i] = (float)(cos(angle) * magnitude);
        cs[2 * i + 1] = (float)(sin(a->is_inverse ? -angle : angle) * magnitude);
    }
}

void cpu_op_rope_table(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 16, rope_table_row); /* a power, a cosine or a sine */
}

static void rope_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    float *x = tensor_row(&op->out[0], (int64_t)t);
    const float *cs = (const float *)tensor_data(&op->in[ROPE_COS_SIN]) + (int64_t)t * op->rope.n_rot;
    enum kernel_rope mode = op->rope.mode == ROPE_NEOX ? KERNEL_ROPE_NEOX : KERNEL_ROPE_NORMAL;
    for (int64_t i = 0; i < op->out[0].ne[0]; i += op->rope.head_dim)
        l->c->kernels->rope(mode, x + i + op->rope.off, cs, op->rope.n_rot);
}

void cpu_op_rope(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 1, rope_row);
}

static void act_mul_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const float *gate = tensor_row(&op->in[ACT_MUL_GATE], (int64_t)t),
                *up = tensor_row(&op->in[ACT_MUL_UP], (int64_t)t), one = 1;
    float *y = tensor_row(&op->out[0], (int64_t)t);
    int64_t n_gate = op->in[ACT_MUL_GATE].ne[0], n = op->out[0].ne[0] / n_gate;
    if (n == 1) {
        cpu_act_mul(l->c->kernels, op->act, op->act_limit, op->act_up_limit, y, gate, up, n_gate);
        return;
    }
    for (int64_t i = 0; i < n_gate; i++) {
        float by;
        cpu_act_mul(l->c->kernels, op->act, 0, 0, &by, &gate[i], &one, 1);
        for (int64_t j = i * n; j < (i + 1) * n; j++)
            y[j] = by * up[j];
    }
}

void cpu_op_act_mul(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 4, act_mul_row); /* an exp */
}

static void add_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t i = (int64_t)t;
    l->c->kernels->add(tensor_row(&op->out[0], i), tensor_row(&op->in[0], i), tensor_row(&op->in[1], i),
                       op->out[0].ne[0]);
}

void cpu_op_add(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 1, add_row);
}

static void scale_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->out[0].ne[0];
    const float *x = tensor_row(&op->in[0], (int64_t)t), *factor = tensor_data(&op->vec[0]);
    float *y = tensor_row(&op->out[0], (int64_t)t), scale = factor ? op->scale * *factor : op->scale;
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale;
}

void cpu_op_scale(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 1, scale_row);
}

/* c tanh(x / c) = 2 c / (1 + exp(-2 x / c)) - c */
static void softcap_row(void *arg, size_t t, int thread)
{
    enum { PIECE = 256 };
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    float ones[PIECE], y[PIECE], cap = op->scale;
    int64_t n = op->out[0].ne[0];
    const float *x = tensor_row(&op->in[0], (int64_t)t);
    float *out = tensor_row(&op->out[0], (int64_t)t);
    for (int i = 0; i < PIECE; i++)
        ones[i] = 1;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        for (int64_t j = 0; j < m; j++)
            y[j] = x[i + j] * (2 / cap);
        l->c->kernels->act_mul(KERNEL_SIGMOID, 0, y, y, ones, m);
        for (int64_t j = 0; j < m; j++)
            out[i + j] = y[j] * (2 * cap) - cap;
    }
}

void cpu_op_softcap(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 4, softcap_row); /* an exp */
}

static void clamp_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const float *x = tensor_row(&op->in[0], (int64_t)t), limit = op->scale;
    float *y = tensor_row(&op->out[0], (int64_t)t);
    for (int64_t i = 0; i < op->out[0].ne[0]; i++)
        y[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

void cpu_op_clamp(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 1, clamp_row);
}

static void slice_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const int32_t *rows = tensor_data(&op->in[SLICE_ROWS]);
    int64_t k = op->out[0].ne[0], row = rows ? rows[t] : (int64_t)t;
    assert(op->slice_off + k <= op->in[SLICE_X].ne[0] && row < op->in[SLICE_X].ne[1]);
    memcpy(tensor_row(&op->out[0], (int64_t)t), tensor_row(&op->in[SLICE_X], row) + op->slice_off,
           (size_t)k * sizeof(float));
}

void cpu_op_slice(struct cpu *c, const struct op *op)
{
    run_out_rows(c, op, 1, slice_row);
}

static void scatter_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t row = ((const int32_t *)tensor_data(&op->in[SCATTER_ROWS]))[t];
    assert(row >= 0 && row < op->out[0].ne[1]);
    memcpy(tensor_row(&op->out[0], row), tensor_row(&op->in[SCATTER_X], (int64_t)t),
           elem_row_bytes(ELEM_F32, op->in[SCATTER_X].ne[0]));
}

void cpu_op_scatter(struct cpu *c, const struct op *op)
{
    cpu_run_rows(c, op, op->in[SCATTER_X].ne[1], tensor_n_elem(&op->in[SCATTER_X]) > CPU_SERIAL_ELEMS, scatter_row);
}
