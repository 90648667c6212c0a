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
    size_t elem = elem_bytes(op->state[0].type);
    const char *k = (const char *)tensor_data(&op->state[0]) + (size_t)(head_kv * a->n_row * a->dk) * elem;
    const char *v = (const char *)tensor_data(&op->state[1]) + (size_t)(head_kv * a->n_row * a->dv) * elem;

    float *partial = a->work + (size_t)thread * a->work_elems;
    float *acc = partial + a->dv;
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
        int64_t row0 = p0 % a->n_row; /* a block never wraps */
        const void *kb = k + (size_t)(row0 * a->dk) * elem, *vb = v + (size_t)(row0 * a->dv) * elem;
        for (int64_t t = 0; t < n_t; t++) {
            /* of the block, the positions that the token sees */
            int64_t from = first_position(a, pos[t]) - p0, to = pos[t] + 1 - p0;
            from = from > 0 ? from : 0;
            int64_t n = (to < KERNEL_ATTN_BLOCK ? to : KERNEL_ATTN_BLOCK) - from;
            if (n <= 0)
                continue;
            const void *kt = (const char *)kb + (size_t)(from * a->dk) * elem;
            const void *vt = (const char *)vb + (size_t)(from * a->dv) * elem;
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
    a.work_elems = align64((size_t)(a.dv * (TILE * a.n_group + 1)) * sizeof(float)) / sizeof(float);
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
    for (int64_t h = 0; h < n_head; h++) {
        int64_t off = (h * n_row + pos % n_row) * dim;
        if (cache->type == ELEM_F16)
            l->c->kernels->f32_to_f16((uint16_t *)tensor_data(cache) + off, x + h * dim, dim);
        else
            memcpy((float *)tensor_data(cache) + off, x + h * dim, (size_t)dim * sizeof(float));
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
