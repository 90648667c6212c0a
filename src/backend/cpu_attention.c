/* Attention on the CPU: partial softmaxes over blocks of absolute positions, folded in ascending order into one for
 * each span of them, and those into the whole (docs/numerics.md); for a tile of tokens and query heads of one KV head
 * at a time, so that each block of the cache is loaded once for all of them. Where one token would leave threads
 * without work, as KV heads are few, they take a span each. */
#include "backend/cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert((int)ATTENTION_BLOCK == (int)KERNEL_ATTN_BLOCK, "rings hold whole blocks of the kernels");
_Static_assert((int)ATTENTION_SPAN % (int)KERNEL_ATTN_BLOCK == 0, "spans are whole blocks");

/* Queries of a task, and the most heads among them: a KV head that serves many (all, in latent attention) is shared
 * out. A token whose tasks are fewer than a thread's TASKS_PER_THREAD has one for each span. */
enum { TASK_QUERIES = 64, TASK_HEADS = 16, TASKS_PER_THREAD = 4 };

/* Running softmaxes of some queries. */
struct softmax {
    float *max, *sum; /* [n] */
    float *acc;       /* [n][dv] */
};

struct attention {
    struct cpu *c;
    const struct op *op;
    int64_t dk, dv, n_row, n_head, n_group, m; /* n_group: query heads a KV head */
    int64_t n_share, n_tile, tile_tokens;      /* shares of a group of heads, tiles of tokens */
    int64_t n_span;                            /* that are tasks of their own; 1: a task takes all of its queries' */
    float *work;                               /* per thread */
    size_t work_elems;
    atomic_int *n_left; /* [n_head_kv * n_share] spans that are not done */
    float *spans;       /* [n_head_kv * n_share][n_span] softmaxes */
    size_t softmax_elems;
};

/* A task: tokens [t0, t0 + n_t) and query heads [head, head + n_head) of one KV head, tokens first, and the queries'
 * softmaxes. */
struct queries {
    int64_t head_kv, t0, n_t, head, n_head;
    const int32_t *pos;  /* [n_t] */
    struct softmax span; /* over the span at hand */
    struct softmax all;  /* over the spans before it */
    float *partial;      /* [KERNEL_ATTN_QUERIES][dv] */
    float *decoded;      /* a block of keys and values */
};

static int64_t n_query(const struct queries *x)
{
    return x->n_t * x->n_head;
}

/* Elements of the softmaxes of n queries, and where they lie. */
static size_t softmax_elems(int64_t n, int64_t dv)
{
    return align64((size_t)(n * (dv + 2)) * sizeof(float)) / sizeof(float);
}

static struct softmax softmax_at(float *p, int64_t n, int64_t dv)
{
    return (struct softmax){.acc = p, .max = p + n * dv, .sum = p + n * (dv + 1)};
}

static void softmax_clear(const struct softmax *s, int64_t n, int64_t dv)
{
    for (int64_t i = 0; i < n; i++)
        s->max[i] = -INFINITY;
    memset(s->sum, 0, (size_t)n * sizeof *s->sum);
    memset(s->acc, 0, (size_t)(n * dv) * sizeof *s->acc);
}

/* The first position that a token at `pos` sees. */
static int64_t first_position(const struct attention *a, int64_t pos)
{
    int64_t window = a->op->attention.window;
    if (window && a->op->attention.chunked)
        return pos / window * window;
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Where the first block begins that a task's queries see. */
static int64_t first_block(const struct attention *a, const struct queries *x)
{
    return first_position(a, x->pos[0]) / KERNEL_ATTN_BLOCK * KERNEL_ATTN_BLOCK;
}

/* A block of the cache, as the kernels take it. */
struct block {
    const char *k, *v;
    size_t k_bytes, v_bytes; /* of a row */
};

/* The block of a KV head that begins at position p0. */
static struct block get_block(const struct attention *a, int64_t head_kv, int64_t p0)
{
    const struct tensor *k = &a->op->state[0], *v = &a->op->state[1];
    size_t row0 = (size_t)(head_kv * a->n_row + p0 % a->n_row); /* a block never wraps */
    struct block b = {.k_bytes = elem_row_bytes(k->type, a->dk), .v_bytes = elem_row_bytes(v->type, a->dv)};
    b.k = (const char *)tensor_data(k) + row0 * b.k_bytes;
    b.v = (const char *)tensor_data(v) + row0 * b.v_bytes;
    return b;
}

/* Rows [from, to) of a block of Q8_0, decoded into a thread's work space once for all queries of a task. */
static struct block decode_block(const struct attention *a, const struct block *b, int64_t from, int64_t to,
                                 float *work)
{
    bool keys_are_values = b->k == b->v;
    float *kf = work, *vf = keys_are_values ? work : work + KERNEL_ATTN_BLOCK * a->dk;
    a->c->kernels->q8_0_to_f32(kf + from * a->dk, b->k + (size_t)from * b->k_bytes, (to - from) * a->dk);
    if (!keys_are_values)
        a->c->kernels->q8_0_to_f32(vf + from * a->dv, b->v + (size_t)from * b->v_bytes, (to - from) * a->dv);
    return (struct block){(const char *)kf, (const char *)vf, (size_t)a->dk * sizeof *kf, (size_t)a->dv * sizeof *vf};
}

/* Of the block that begins at position p0, the first row that a token at `pos` sees, and where its last one ends. */
static int64_t first_row(const struct attention *a, int64_t pos, int64_t p0)
{
    int64_t from = first_position(a, pos) - p0;
    return from > 0 ? from : 0;
}

static int64_t end_row(int64_t pos, int64_t p0)
{
    return pos + 1 - p0 < KERNEL_ATTN_BLOCK ? pos + 1 - p0 : KERNEL_ATTN_BLOCK;
}

/* Rows [from, from + n) of a block, for queries [first, first + n_q) of the task; `next`: the block that follows, NULL
 * if it was asked for. */
static void fold_block(const struct attention *a, struct queries *x, const struct block *b, int64_t from, int64_t n,
                       int64_t first, int64_t n_q, const struct block *next)
{
    const struct kernels *kern = a->c->kernels;
    const struct op *op = a->op;
    const float *q = tensor_data(&op->in[0]), *rows[KERNEL_ATTN_QUERIES];
    float max[KERNEL_ATTN_QUERIES], sum[KERNEL_ATTN_QUERIES];
    for (int64_t i = 0; i < n_q; i++) {
        int64_t t = x->t0 + (first + i) / x->n_head, head = x->head + (first + i) % x->n_head;
        rows[i] = q + (t * a->n_head + head) * a->dk;
    }
    struct kernel_attn call = {.q = rows,
                               .n_q = (int)n_q,
                               .k = b->k + (size_t)from * b->k_bytes,
                               .v = b->v + (size_t)from * b->v_bytes,
                               .hd_k = a->dk,
                               .hd_v = a->dv,
                               .n = n,
                               .scale = op->attention.scale,
                               .max = max,
                               .sum = sum,
                               .o = x->partial};
    if (next) {
        call.ahead[0] = next->k;
        call.ahead_bytes[0] = KERNEL_ATTN_BLOCK * (int64_t)next->k_bytes;
        call.ahead[1] = next->v;
        call.ahead_bytes[1] = KERNEL_ATTN_BLOCK * (int64_t)next->v_bytes;
    }
    (op->state[0].type == ELEM_F16 ? kern->attn_block_f16 : kern->attn_block_f32)(&call);
    kern->attn_merge((int)n_q, x->span.max + first, x->span.sum + first, x->span.acc + first * a->dv, max, sum,
                     x->partial, a->dv);
}

/* The block that follows: the task's, or what the next task will begin with. */
static bool next_block(const struct attention *a, const struct queries *x, int64_t p0, struct block *next)
{
    bool is_last = p0 + KERNEL_ATTN_BLOCK > x->pos[x->n_t - 1];
    if (is_last && (a->n_tile > 1 || a->n_share > 1 || x->head_kv + 1 == a->op->state[0].ne[2]))
        return false;
    *next =
        is_last ? get_block(a, x->head_kv + 1, first_block(a, x)) : get_block(a, x->head_kv, p0 + KERNEL_ATTN_BLOCK);
    return true;
}

/* The block that begins at position p0, for all queries of the task: those that see the same rows go together. */
static void visit_block(const struct attention *a, struct queries *x, int64_t p0)
{
    int64_t last = x->pos[x->n_t - 1];
    struct block b = get_block(a, x->head_kv, p0), next;
    const struct block *ahead = next_block(a, x, p0, &next) ? &next : NULL;
    if (a->op->state[0].type == ELEM_Q8_0)
        b = decode_block(a, &b, first_row(a, x->pos[0], p0), end_row(last, p0), x->decoded);
    for (int64_t t = 0; t < x->n_t;) {
        int64_t from = first_row(a, x->pos[t], p0), end = end_row(x->pos[t], p0), t_end = t + 1;
        while (t_end < x->n_t && first_row(a, x->pos[t_end], p0) == from && end_row(x->pos[t_end], p0) == end)
            t_end++;
        for (int64_t i = t * x->n_head; end > from && i < t_end * x->n_head; i += KERNEL_ATTN_QUERIES) {
            int64_t rest = t_end * x->n_head - i;
            fold_block(a, x, &b, from, end - from, i, rest < KERNEL_ATTN_QUERIES ? rest : KERNEL_ATTN_QUERIES, ahead);
            ahead = NULL;
        }
        t = t_end;
    }
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The spans that a task's queries see. */
static int64_t first_span(const struct attention *a, const struct queries *x)
{
    return first_position(a, x->pos[0]) / ATTENTION_SPAN;
}

static int64_t last_span(const struct queries *x)
{
    return x->pos[x->n_t - 1] / ATTENTION_SPAN;
}

static void visit_span(const struct attention *a, struct queries *x, int64_t span)
{
    int64_t end = min_i64((span + 1) * ATTENTION_SPAN, x->pos[x->n_t - 1] + 1);
    softmax_clear(&x->span, n_query(x), a->dv);
    for (int64_t p0 = max_i64(span * ATTENTION_SPAN, first_block(a, x)); p0 < end; p0 += KERNEL_ATTN_BLOCK)
        visit_block(a, x, p0);
}

/* Folds a span into those before it, of the queries that see some of it; a query's first is what the others are folded
 * into. */
static void add_span(const struct attention *a, const struct queries *x, const struct softmax *span)
{
    for (int64_t i = 0; i < n_query(x); i++) {
        float *acc = x->all.acc + i * a->dv, *span_acc = span->acc + i * a->dv;
        if (span->sum[i] == 0)
            continue;
        if (x->all.sum[i] != 0) {
            a->c->kernels->attn_merge(1, &x->all.max[i], &x->all.sum[i], acc, &span->max[i], &span->sum[i], span_acc,
                                      a->dv);
            continue;
        }
        x->all.max[i] = span->max[i];
        x->all.sum[i] = span->sum[i];
        memcpy(acc, span_acc, (size_t)a->dv * sizeof *acc);
    }
}

/* The queries' results, and before that their sinks: one more score, whose value is zero. */
static void finish(const struct attention *a, struct queries *x)
{
    const float *sinks = tensor_data(&a->op->vec[0]), one = 1;
    for (int64_t i = 0; i < n_query(x); i++) {
        int64_t t = x->t0 + i / x->n_head, head = x->head + i % x->n_head;
        float *o = x->all.acc + i * a->dv;
        float *y = (float *)tensor_data(&a->op->out[0]) + (t * a->n_head + head) * a->dv;
        if (sinks) {
            memset(x->partial, 0, (size_t)a->dv * sizeof *x->partial);
            a->c->kernels->attn_merge(1, &x->all.max[i], &x->all.sum[i], o, &sinks[head], &one, x->partial, a->dv);
        }
        float inv = 1 / x->all.sum[i];
        for (int64_t j = 0; j < a->dv; j++)
            y[j] = o[j] * inv;
    }
}

static struct softmax stored_span(const struct attention *a, const struct queries *x, int64_t share, int64_t i)
{
    return softmax_at(a->spans + (size_t)(share * a->n_span + i) * a->softmax_elems, n_query(x), a->dv);
}

/* One span of a token's; who has done the last one folds them all. */
static void one_span(const struct attention *a, struct queries *x, int64_t share, int64_t i)
{
    x->span = stored_span(a, x, share, i);
    visit_span(a, x, first_span(a, x) + i);
    if (atomic_fetch_sub(&a->n_left[share], 1) > 1)
        return;
    x->all = stored_span(a, x, share, 0);
    for (int64_t j = 1; j < a->n_span; j++) {
        const struct softmax span = stored_span(a, x, share, j);
        add_span(a, x, &span);
    }
    finish(a, x);
}

static void all_spans(const struct attention *a, struct queries *x)
{
    const struct softmax work = x->span;
    x->span = x->all;
    visit_span(a, x, first_span(a, x));
    x->span = work;
    for (int64_t s = first_span(a, x) + 1; s <= last_span(x); s++) {
        visit_span(a, x, s);
        add_span(a, x, &x->span);
    }
    finish(a, x);
}

static void attention_task(void *arg, size_t task, int thread)
{
    const struct attention *a = arg;
    int64_t span = (int64_t)task % a->n_span, queries = (int64_t)task / a->n_span;
    int64_t share = queries / a->n_tile, tile = queries % a->n_tile;
    int64_t first_head = share % a->n_share * TASK_HEADS;
    struct queries x = {.head_kv = share / a->n_share, .t0 = tile * a->tile_tokens};
    x.n_t = min_i64(a->m - x.t0, a->tile_tokens);
    x.head = x.head_kv * a->n_group + first_head;
    x.n_head = min_i64(a->n_group - first_head, TASK_HEADS);
    x.pos = (const int32_t *)tensor_data(&a->op->in[1]) + x.t0;
    for (int64_t t = 1; t < x.n_t; t++)
        assert(x.pos[t] > x.pos[t - 1]);
    float *work = a->work + (size_t)thread * a->work_elems;
    size_t softmax = softmax_elems(TASK_QUERIES, a->dv);
    x.span = softmax_at(work, n_query(&x), a->dv);
    x.all = softmax_at(work + softmax, n_query(&x), a->dv);
    x.partial = work + 2 * softmax;
    x.decoded = x.partial + KERNEL_ATTN_QUERIES * a->dv;
    if (a->n_span > 1)
        one_span(a, &x, share, span);
    else
        all_spans(a, &x);
}

/* Shares a single token's spans out where there are too few tasks without. There is room for as many as the cache
 * holds, so that a token allocates no more than the one before. False: out of memory, which the device reports. */
static bool share_spans(struct attention *a, int64_t n_task)
{
    int n_thread = pool_n_used(a->c->pool);
    a->n_span = 1;
    if (a->m > 1 || n_thread == 1 || n_task >= TASKS_PER_THREAD * n_thread)
        return true;
    const struct queries x = {.n_t = 1, .pos = tensor_data(&a->op->in[1])};
    assert(x.pos);
    size_t left_bytes = align64((size_t)n_task * sizeof *a->n_left);
    int64_t most = a->n_row / ATTENTION_SPAN + 2;
    a->n_span = last_span(&x) - first_span(a, &x) + 1;
    a->softmax_elems = softmax_elems(min_i64(a->n_group, TASK_HEADS), a->dv);
    assert(a->n_span <= most);
    char *p = cpu_scratch(a->c, SCRATCH_SPANS, left_bytes + (size_t)(n_task * most) * a->softmax_elems * sizeof(float));
    if (!p)
        return false;
    a->n_left = (atomic_int *)p;
    a->spans = (float *)(p + left_bytes);
    for (int64_t i = 0; i < n_task; i++)
        atomic_init(&a->n_left[i], (int)a->n_span);
    return true;
}

void cpu_op_attention(struct cpu *c, const struct op *op)
{
    const struct tensor *k = &op->state[0], *v = &op->state[1];
    struct attention a = {.c = c,
                          .op = op,
                          .dk = k->ne[0],
                          .dv = v->ne[0],
                          .n_row = k->ne[1],
                          .n_head = op->attention.n_head,
                          .n_group = op->attention.n_head / k->ne[2],
                          .m = op->in[0].ne[1]};
    int64_t window = op->attention.window;
    assert(op->attention.n_pos <= a.n_row ||
           (a.n_row % KERNEL_ATTN_BLOCK == 0 && window && window + a.m - 1 <= a.n_row));
    a.n_share = (a.n_group + TASK_HEADS - 1) / TASK_HEADS;
    a.tile_tokens = TASK_QUERIES / min_i64(a.n_group, TASK_HEADS);
    a.n_tile = (a.m + a.tile_tokens - 1) / a.tile_tokens;
    int64_t n_decoded = k->type == ELEM_Q8_0 ? KERNEL_ATTN_BLOCK * (a.dk + a.dv) : 0;
    int64_t n_work = 2 * (int64_t)softmax_elems(TASK_QUERIES, a.dv) + a.dv * KERNEL_ATTN_QUERIES + n_decoded;
    int64_t n_task = k->ne[2] * a.n_share * a.n_tile;
    a.work_elems = align64((size_t)n_work * sizeof(float)) / sizeof(float);
    a.work = cpu_scratch(c, SCRATCH_THREAD, a.work_elems * sizeof(float) * (size_t)pool_n_threads(c->pool));
    if (a.work && share_spans(&a, n_task))
        pool_run(c->pool, (size_t)(n_task * a.n_span), attention_task, &a);
}

struct store_loop {
    struct cpu *c;
    const struct op *op;
};

static void store_row(void *arg, size_t t, int thread)
{
    const struct store_loop *l = arg;
    const struct tensor *cache = &l->op->state[0];
    int64_t dim = cache->ne[0], n_row = cache->ne[1], n_head = cache->ne[2];
    int32_t pos = ((const int32_t *)tensor_data(&l->op->in[1]))[t];
    assert(pos >= 0);
    const float *x = (const float *)tensor_data(&l->op->in[0]) + (int64_t)t * n_head * dim;
    size_t row_bytes = elem_row_bytes(cache->type, dim);
    for (int64_t h = 0; h < n_head; h++) {
        char *row = (char *)tensor_data(cache) + (size_t)(h * n_row + pos % n_row) * row_bytes;
        if (cache->type == ELEM_Q8_0)
            l->c->kernels->f32_to_q8_0(row, x + h * dim, dim);
        else if (cache->type == ELEM_F16)
            l->c->kernels->f32_to_f16((uint16_t *)(void *)row, x + h * dim, dim);
        else
            memcpy(row, x + h * dim, row_bytes);
    }
}

void cpu_op_kv_store(struct cpu *c, const struct op *op)
{
    struct store_loop l = {c, op};
    int64_t m = op->in[0].ne[1];
    if (m > 8)
        pool_run(c->pool, (size_t)m, store_row, &l);
    else
        for (int64_t t = 0; t < m; t++)
            store_row(&l, (size_t)t, 0);
}
