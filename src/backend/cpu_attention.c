/* Attention on the CPU: partial softmaxes over blocks of absolute positions, folded in ascending order
 * (docs/numerics.md), for a tile of tokens and all query heads of a KV head at a time, so that each block of the cache
 * is loaded once for all of them. */
#include "backend/cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

_Static_assert((int)ATTENTION_BLOCK == (int)KERNEL_ATTN_BLOCK, "rings hold whole blocks of the kernels");

enum { TILE = 8 }; /* tokens that share a block of the cache */

struct attention {
    struct cpu *c;
    const struct op *op;
    int64_t dk, dv, n_row, n_head, n_group, m, n_tile; /* n_group: query heads a KV head */
    float *work;                                       /* per thread */
    size_t work_elems;
};

/* A running softmax of one (token, head). */
struct running {
    float max, sum;
};

/* The first position that a token at `pos` sees. */
static int64_t first_position(const struct attention *a, int64_t pos)
{
    int64_t window = a->op->attention.window;
    if (window && a->op->attention.chunked)
        return pos / window * window;
    return window && pos >= window ? pos - window + 1 : 0;
}

/* A block of the cache, as the kernels take it. */
struct block {
    const char *k, *v;
    size_t k_bytes, v_bytes; /* of a row */
};

/* The block of a KV head that begins at position p0, its rows [from, to) at least: in the cache itself or, from Q8_0,
 * decoded into a thread's work space once for all queries of a task. */
static struct block get_block(const struct attention *a, int64_t head_kv, int64_t p0, int64_t from, int64_t to,
                              float *work)
{
    const struct tensor *k = &a->op->state[0], *v = &a->op->state[1];
    int64_t row0 = head_kv * a->n_row + p0 % a->n_row; /* a block never wraps */
    struct block b = {.k_bytes = elem_row_bytes(k->type, a->dk), .v_bytes = elem_row_bytes(v->type, a->dv)};
    b.k = (const char *)tensor_data(k) + (size_t)row0 * b.k_bytes;
    b.v = (const char *)tensor_data(v) + (size_t)row0 * b.v_bytes;
    if (k->type != ELEM_Q8_0)
        return b;
    bool keys_are_values = b.k == b.v;
    float *kf = work, *vf = keys_are_values ? work : work + KERNEL_ATTN_BLOCK * a->dk;
    a->c->kernels->q8_0_to_f32(kf + from * a->dk, b.k + (size_t)from * b.k_bytes, (to - from) * a->dk);
    if (!keys_are_values)
        a->c->kernels->q8_0_to_f32(vf + from * a->dv, b.v + (size_t)from * b.v_bytes, (to - from) * a->dv);
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

static void attention_task(void *arg, size_t task, int thread)
{
    const struct attention *a = arg;
    const struct kernels *kern = a->c->kernels;
    const struct op *op = a->op;
    int64_t head_kv = (int64_t)task / a->n_tile, t0 = (int64_t)task % a->n_tile * TILE;
    int64_t n_t = a->m - t0 < TILE ? a->m - t0 : TILE;
    const int32_t *pos = (const int32_t *)tensor_data(&op->in[1]) + t0;
    const float *q = tensor_data(&op->in[0]);
    float *out = tensor_data(&op->out[0]);
    const float *sinks = tensor_data(&op->vec[0]);
    bool half = op->state[0].type == ELEM_F16;

    float *partial = a->work + (size_t)thread * a->work_elems;
    float *acc = partial + a->dv, *decoded = acc + a->dv * TILE * a->n_group;
    struct running run[TILE * 64];
    assert(a->n_group <= 64);
    memset(acc, 0, (size_t)(n_t * a->n_group * a->dv) * sizeof *acc);
    int32_t last = pos[n_t - 1]; /* positions ascend */
    for (int64_t t = 0; t < n_t; t++) {
        assert(t == 0 || pos[t] > pos[t - 1]);
        for (int64_t g = 0; g < a->n_group; g++)
            run[t * a->n_group + g] = (struct running){-INFINITY, 0};
    }

    for (int64_t p0 = first_position(a, pos[0]) / KERNEL_ATTN_BLOCK * KERNEL_ATTN_BLOCK; p0 <= last;
         p0 += KERNEL_ATTN_BLOCK) {
        struct block b = get_block(a, head_kv, p0, first_row(a, pos[0], p0), end_row(last, p0), decoded);
        for (int64_t t = 0; t < n_t; t++) {
            int64_t from = first_row(a, pos[t], p0), n = end_row(pos[t], p0) - from;
            if (n <= 0)
                continue;
            const void *kt = b.k + (size_t)from * b.k_bytes, *vt = b.v + (size_t)from * b.v_bytes;
            for (int64_t g = 0; g < a->n_group; g++) {
                int64_t i = t * a->n_group + g;
                const float *qh = q + ((t0 + t) * a->n_head + head_kv * a->n_group + g) * a->dk;
                float max, sum;
                if (half)
                    kern->attn_block_f16(qh, kt, vt, a->dk, a->dv, n, op->attention.scale, 0, &max, &sum, partial);
                else
                    kern->attn_block_f32(qh, kt, vt, a->dk, a->dv, n, op->attention.scale, 0, &max, &sum, partial);
                kern->attn_merge(&run[i].max, &run[i].sum, acc + i * a->dv, max, sum, partial, a->dv);
            }
        }
    }
    for (int64_t t = 0; t < n_t; t++)
        for (int64_t g = 0; g < a->n_group; g++) {
            struct running *r = &run[t * a->n_group + g];
            float *o = acc + (t * a->n_group + g) * a->dv;
            if (sinks) { /* one more score, whose value is zero */
                memset(partial, 0, (size_t)a->dv * sizeof *partial);
                kern->attn_merge(&r->max, &r->sum, o, sinks[head_kv * a->n_group + g], 1, partial, a->dv);
            }
            float *y = out + ((t0 + t) * a->n_head + head_kv * a->n_group + g) * a->dv, inv = 1 / r->sum;
            for (int64_t i = 0; i < a->dv; i++)
                y[i] = o[i] * inv;
        }
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
    a.n_tile = (a.m + TILE - 1) / TILE;
    int64_t n_decoded = k->type == ELEM_Q8_0 ? KERNEL_ATTN_BLOCK * (a.dk + a.dv) : 0;
    int64_t n_work = a.dv * (TILE * a.n_group + 1) + n_decoded;
    a.work_elems = align64((size_t)n_work * sizeof(float)) / sizeof(float);
    a.work = cpu_scratch(c, SCRATCH_THREAD, a.work_elems * sizeof(float) * (size_t)pool_n_threads(c->pool));
    if (a.work)
        pool_run(c->pool, (size_t)(k->ne[2] * a.n_tile), attention_task, &a);
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
