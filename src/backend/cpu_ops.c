/* The CPU device's products and row-wise operations. */
#include "backend/cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"

/* Below this many elements a parallel loop costs more than it saves. */
enum { SERIAL_ELEMS = 16384 };

/* ---- rounded activations ------------------------------------------------------------------------------------- */

/* A single token's take turns among places: where caches are far apart, who writes to lines that another core has just
 * read waits for them. */
enum { ACT_PLACES = 32 };

bool cpu_place_act(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t m, int64_t k,
                   struct cpu_act_rows *r, struct kernel_act *out)
{
    *r = (struct cpu_act_rows){.kernels = c->kernels,
                               .kind = kind,
                               .k = k,
                               .n_scale = kernel_act_n_scale(kind, k),
                               .n_sum = kernel_act_n_sum(kind, k),
                               .x = x};
    *out = (struct kernel_act){.kind = kind, .k = k, .f32 = x};
    if (kind == QUANT_ACT_FLOAT)
        return true;
    size_t q_bytes = align64((size_t)(m * k)), d_bytes = align64((size_t)(m * r->n_scale) * sizeof *r->d);
    size_t n_bytes = q_bytes + d_bytes + align64((size_t)(m * r->n_sum) * sizeof *r->sum);
    size_t n_place = m == 1 ? ACT_PLACES : 1;
    char *p = cpu_scratch(c, id, n_place * n_bytes);
    if (!p)
        return false;
    p += c->n_placed++ % n_place * n_bytes;
    r->q = (int8_t *)p;
    r->d = (float *)(p + q_bytes);
    r->sum = (int16_t *)(p + q_bytes + d_bytes);
    *out = (struct kernel_act){.kind = kind, .k = k, .q = r->q, .d = r->d, .sum = r->sum};
    return true;
}

void cpu_round_row(const struct cpu_act_rows *r, int64_t row)
{
    if (r->kind != QUANT_ACT_FLOAT)
        (r->kind == QUANT_ACT_INT8_32 ? r->kernels->quantize_int8_32 : r->kernels->quantize_int8_256)(
            r->x + row * r->k, r->k, r->q + row * r->k, r->d + row * r->n_scale, r->sum + row * r->n_sum);
}

static void round_task(void *arg, size_t row, int thread)
{
    cpu_round_row(arg, (int64_t)row);
}

bool cpu_round_act(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t m, int64_t k,
                   struct kernel_act *out)
{
    struct cpu_act_rows r;
    if (!cpu_place_act(c, id, kind, x, m, k, &r, out))
        return false;
    if (m * k > SERIAL_ELEMS && kind != QUANT_ACT_FLOAT)
        pool_run(c->pool, (size_t)m, round_task, &r);
    else
        for (int64_t i = 0; i < m; i++)
            cpu_round_row(&r, i);
    return true;
}

struct kernel_act cpu_act_row(const struct kernel_act *a, int64_t m)
{
    struct kernel_act r = *a;
    if (a->kind == QUANT_ACT_FLOAT) {
        r.f32 += m * a->k;
    } else {
        r.q += m * a->k;
        r.d += m * kernel_act_n_scale(a->kind, a->k);
        r.sum += m * kernel_act_n_sum(a->kind, a->k);
    }
    return r;
}

/* ---- products ------------------------------------------------------------------------------------------------ */

int64_t cpu_chunk_rows(const struct cpu *c, int64_t n_row, int64_t k, int64_t m)
{
    /* the rows that one token meets cost what they weigh: spans of MAX_WEIGHTS last about 10 us, and each begins by
     * waiting for the memory that the one before asked for */
    enum { TASKS_PER_THREAD = 8, MIN_ROWS = 64, MIN_WEIGHTS = 1 << 15, MAX_WEIGHTS = 1 << 19 };
    int64_t n_task = (int64_t)pool_n_used(c->pool) * TASKS_PER_THREAD;
    int64_t rows = (n_row + n_task - 1) / n_task;
    int64_t least = m == 1 ? (MIN_WEIGHTS + k - 1) / k : MIN_ROWS, most = m == 1 ? (MAX_WEIGHTS + k - 1) / k : rows;
    rows = rows < most ? rows : most;
    rows = rows > least ? rows : least;
    return (rows + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
}

int64_t cpu_node_row(const struct cpu *c, int node, int64_t n_row)
{
    int64_t n_group = (n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS;
    int64_t row = (int64_t)pool_node_first(c->pool, node, (size_t)n_group) * LAYOUT_R16_ROWS;
    return row < n_row ? row : n_row;
}

struct matmul_loop {
    const struct kernels *kernels;
    struct {
        const struct weight *w;
        struct kernel_act *x;
        float *y;
        const float *bias;
    } part[OP_MAX_OUT];
    int64_t m, chunk_rows;
    /* rows [row0, row1) of a part, cut into chunks: the first node's of all parts, then the next one's */
    int n_run;
    struct {
        int part;
        int64_t row0, row1;
        size_t first_task;
    } run[OP_MAX_OUT * TOPOLOGY_MAX_NODE];
};

static void matmul_chunk(void *arg, size_t task, int thread)
{
    const struct matmul_loop *l = arg;
    int run = l->n_run - 1;
    while (task < l->run[run].first_task)
        run--;
    int i = l->run[run].part;
    const struct weight *w = l->part[i].w;
    int64_t row0 = l->run[run].row0 + (int64_t)(task - l->run[run].first_task) * l->chunk_rows;
    int64_t row1 = row0 + l->chunk_rows < l->run[run].row1 ? row0 + l->chunk_rows : l->run[run].row1;
    float *y = l->part[i].y;
    const struct kernel_matmul a = {.w = w->data,
                                    .k = w->k,
                                    .n_row = w->n_row,
                                    .row0 = row0,
                                    .row1 = row1,
                                    .x = l->part[i].x,
                                    .m = l->m,
                                    .y = y,
                                    .ldy = w->n_row};
    l->kernels->matmul[w->type->type](&a);
    if (l->part[i].bias)
        for (int64_t t = 0; t < l->m; t++) {
            float *row = y + t * w->n_row + row0;
            l->kernels->add(row, row, l->part[i].bias + row0, row1 - row0);
        }
}

/* Cuts the parts' rows into tasks and runs them. */
static void run_matmul(struct cpu *c, struct matmul_loop *l, int n_weight)
{
    size_t first[TOPOLOGY_MAX_NODE + 1], n_task = 0;
    int n_node = pool_n_node(c->pool);
    l->n_run = 0;
    for (int node = 0; node < n_node; node++) {
        first[node] = n_task;
        for (int i = 0; i < n_weight; i++) {
            int64_t n_row = l->part[i].w->n_row;
            int64_t row0 = cpu_node_row(c, node, n_row), row1 = cpu_node_row(c, node + 1, n_row);
            l->run[l->n_run].part = i;
            l->run[l->n_run].row0 = row0;
            l->run[l->n_run].row1 = row1;
            l->run[l->n_run++].first_task = n_task;
            n_task += (size_t)((row1 - row0 + l->chunk_rows - 1) / l->chunk_rows);
        }
    }
    first[n_node] = n_task;
    pool_run_nodes(c->pool, first, matmul_chunk, l);
}

bool cpu_matmul(struct cpu *c, int n_weight, struct weight *const *w, const float *x, int64_t m, float *const *y,
                const float *const *bias)
{
    struct matmul_loop l; /* its runs are many, and mostly few are used */
    struct kernel_act act[QUANT_N_ACT];
    bool ready[QUANT_N_ACT] = {false};
    int64_t n_row = 0;
    assert(n_weight >= 1 && w[0]);
    l.kernels = c->kernels;
    l.m = m;
    for (int i = 0; i < n_weight; i++) {
        enum quant_act kind = c->kernels->act[w[i]->type->type];
        if (!ready[kind] && !cpu_round_act(c, SCRATCH_ACT + kind, kind, x, m, w[i]->k, &act[kind]))
            return false;
        ready[kind] = true;
        l.part[i].w = w[i];
        l.part[i].x = &act[kind];
        l.part[i].y = y[i];
        l.part[i].bias = bias ? bias[i] : NULL;
        n_row += w[i]->n_row;
    }
    l.chunk_rows = cpu_chunk_rows(c, n_row, w[0]->k, m);
    run_matmul(c, &l, n_weight);
    return true;
}

static void observe_matmul(struct cpu *c, const struct weight *w, const struct tensor *x)
{
    if (w->observed)
        c->observer(c->observer_user, &(struct observed){.tensor = w->observed,
                                                         .n_matrix = 1,
                                                         .x = tensor_data(x),
                                                         .k = w->k,
                                                         .n_row = x->ne[1],
                                                         .stride = w->k,
                                                         .scale = 1});
}

static void op_matmul(struct cpu *c, const struct op *op)
{
    float *y[OP_MAX_OUT] = {0};
    const float *bias[OP_MAX_OUT] = {0};
    int n = 0;
    for (; n < OP_MAX_OUT && op->weight[n]; n++) {
        y[n] = tensor_data(&op->out[n]);
        bias[n] = tensor_data(&op->vec[n]);
    }
    bool done = cpu_matmul(c, n, op->weight, tensor_data(&op->in[0]), op->in[0].ne[1], y, bias);
    for (int i = 0; i < n && done && c->observer; i++)
        observe_matmul(c, op->weight[i], &op->in[0]);
}

/* ---- row-wise ------------------------------------------------------------------------------------------------ */

struct row_loop {
    struct cpu *c;
    const struct op *op;
};

/* Runs fn for each of n rows: in parallel when there is work for it. */
static void run_rows(struct cpu *c, const struct op *op, int64_t n, int64_t n_elem, pool_fn *fn)
{
    struct row_loop l = {c, op};
    if (n_elem > SERIAL_ELEMS) {
        pool_run(c->pool, (size_t)n, fn, &l);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        fn(&l, (size_t)i, 0);
}

static void embed_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct weight *w = l->op->weight[0];
    int32_t id = ((const int32_t *)tensor_data(&l->op->in[0]))[t];
    assert(id >= 0 && id < w->n_row);
    size_t row_bytes = 0;
    quant_row_bytes(w->type, (uint64_t)w->k, &row_bytes);
    float *out = (float *)tensor_data(&l->op->out[0]) + (int64_t)t * w->k;
    if (w->layout == LAYOUT_ROWS) {
        w->type->decode((const char *)w->data + (size_t)id * row_bytes, out, w->k);
    } else {
        char *row = (char *)l->c->scratch[SCRATCH_THREAD].p + (size_t)thread * align64(row_bytes);
        layout_unpack(w->layout, w->type, row, w->data, (uint64_t)id, 1, (uint64_t)w->k);
        w->type->decode(row, out, w->k);
    }
    for (int64_t i = 0; i < w->k; i++)
        out[i] = out[i] * l->op->scale;
}

static void scale_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->out[0].ne[0], off = (int64_t)t * n;
    const float *x = (const float *)tensor_data(&op->in[0]) + off, *factor = tensor_data(&op->vec[0]);
    float *y = (float *)tensor_data(&op->out[0]) + off, scale = factor ? op->scale * *factor : op->scale;
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale;
}

/* c tanh(x / c) = 2 c / (1 + exp(-2 x / c)) - c */
static void softcap_row(void *arg, size_t t, int thread)
{
    enum { PIECE = 256 };
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    float ones[PIECE], y[PIECE], cap = op->scale;
    int64_t n = op->out[0].ne[0];
    const float *x = (const float *)tensor_data(&op->in[0]) + (int64_t)t * n;
    float *out = (float *)tensor_data(&op->out[0]) + (int64_t)t * n;
    for (int i = 0; i < PIECE; i++)
        ones[i] = 1;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        for (int64_t j = 0; j < m; j++)
            y[j] = x[i + j] * (2 / cap);
        l->c->kernels->act_mul(KERNEL_SIGMOID, y, y, ones, m);
        for (int64_t j = 0; j < m; j++)
            out[i + j] = y[j] * (2 * cap) - cap;
    }
}

static void slice_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    int64_t k = op->out[0].ne[0], n = op->in[0].ne[0], i = (int64_t)t;
    assert(op->slice_off + k <= n);
    memcpy((float *)tensor_data(&op->out[0]) + i * k, (const float *)tensor_data(&op->in[0]) + i * n + op->slice_off,
           (size_t)k * sizeof(float));
}

static void op_embed(struct cpu *c, const struct op *op)
{
    size_t row_bytes = 0;
    quant_row_bytes(op->weight[0]->type, (uint64_t)op->weight[0]->k, &row_bytes);
    if (cpu_scratch(c, SCRATCH_THREAD, align64(row_bytes) * (size_t)pool_n_threads(c->pool)))
        run_rows(c, op, op->in[0].ne[0], tensor_n_elem(&op->out[0]), embed_row);
}

static void norm_row(void *arg, size_t i, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->norm.n, off = (int64_t)i * n;
    l->c->kernels->rms_norm((float *)tensor_data(&op->out[0]) + off, (const float *)tensor_data(&op->in[0]) + off,
                            tensor_data(&op->vec[0]), n, op->norm.eps);
}

static void rope_table_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n_rot = op->out[0].ne[0];
    int32_t pos = ((const int32_t *)tensor_data(&op->in[0]))[t];
    const float *divisor = tensor_data(&op->vec[0]);
    float *cs = (float *)tensor_data(&op->out[0]) + (int64_t)t * n_rot;
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
        cs[2 * i + 1] = (float)(sin(angle) * magnitude);
    }
}

static void rope_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    float *x = (float *)tensor_data(&op->out[0]) + (int64_t)t * op->out[0].ne[0];
    const float *cs = (const float *)tensor_data(&op->in[1]) + (int64_t)t * op->rope.n_rot;
    enum kernel_rope mode = op->rope.mode == ROPE_NEOX ? KERNEL_ROPE_NEOX : KERNEL_ROPE_NORMAL;
    for (int64_t i = 0; i < op->out[0].ne[0]; i += op->rope.head_dim)
        l->c->kernels->rope(mode, x + i, cs, op->rope.n_rot);
}

static void act_mul_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->out[0].ne[0], off = (int64_t)t * n;
    l->c->kernels->act_mul(cpu_act_fn(op->act), (float *)tensor_data(&op->out[0]) + off,
                           (const float *)tensor_data(&op->in[0]) + off, (const float *)tensor_data(&op->in[1]) + off,
                           n);
}

static void add_row(void *arg, size_t t, int thread)
{
    const struct row_loop *l = arg;
    const struct op *op = l->op;
    int64_t n = op->out[0].ne[0], off = (int64_t)t * n;
    l->c->kernels->add((float *)tensor_data(&op->out[0]) + off, (const float *)tensor_data(&op->in[0]) + off,
                       (const float *)tensor_data(&op->in[1]) + off, n);
}

/* ---- the queue ----------------------------------------------------------------------------------------------- */

static void run_op(struct cpu *c, const struct op *op)
{
    int64_t n_elem = op->out[0].buffer ? tensor_n_elem(&op->out[0]) : 0, m = op->out[0].ne[1];
    switch (op->kind) {
    case OP_EMBED: op_embed(c, op); break;
    case OP_RMS_NORM: run_rows(c, op, n_elem / op->norm.n, n_elem, norm_row); break;
    case OP_MATMUL: op_matmul(c, op); break;
    case OP_HEADS: cpu_op_heads(c, op); break;
    case OP_ROPE_TABLE: run_rows(c, op, m, n_elem * 16, rope_table_row); break; /* sines cost */
    case OP_ROPE: run_rows(c, op, m, n_elem, rope_row); break;
    case OP_KV_STORE: cpu_op_kv_store(c, op); break;
    case OP_ATTENTION: cpu_op_attention(c, op); break;
    case OP_CONV: cpu_op_conv(c, op); break;
    case OP_DELTA: cpu_op_delta(c, op); break;
    case OP_ACT_MUL: run_rows(c, op, m, n_elem * 4, act_mul_row); break; /* an exp an element */
    case OP_ADD: run_rows(c, op, m, n_elem, add_row); break;
    case OP_SCALE: run_rows(c, op, m, n_elem, scale_row); break;
    case OP_SOFTCAP: run_rows(c, op, m, n_elem * 4, softcap_row); break;
    case OP_SLICE: run_rows(c, op, m, n_elem, slice_row); break;
    case OP_ROUTE: cpu_op_route(c, op); break;
    case OP_EXPERTS: cpu_op_experts(c, op); break;
    case OP_COMBINE: cpu_op_combine(c, op); break;
    case OP_N_KIND: assert(false);
    }
}

/* Scratch grows with the batch, and what gives way for it may be the slots of experts: so memory is reclaimed between
 * operations only, and an operation that lacked scratch runs once more. */
void cpu_enqueue(struct backend *b, const struct op *op)
{
    struct cpu *c = cpu_of(b);
    int64_t start = clock_ns();
    do {
        c->missing_bytes = 0;
        run_op(c, op);
    } while (c->missing_bytes && mem_make_room(c->missing_bytes));
    if (c->missing_bytes && c->error.code == ERR_OK)
        err_set(&c->error, ERR_LIMIT, "the limit on memory leaves no room for %zu bytes of work space",
                c->missing_bytes);
    cpu_count(c, op, clock_ns() - start);
}

bool cpu_supports(struct backend *b, const struct op *op)
{
    const struct kernels *k = cpu_of(b)->kernels;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->weight[i] && !k->matmul[op->weight[i]->type->type])
            return false;
    if (op->kind == OP_ROPE)
        return op->rope.n_rot % 2 == 0 && op->in[1].ne[0] == op->rope.n_rot;
    return op->kind < OP_N_KIND;
}
