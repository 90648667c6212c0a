/* A matrix for each head, on the CPU: what latent attention goes in and out by. */
#include "backend/cpu_internal.h"

#include <assert.h>
#include <string.h>

enum { TILE_TOKENS = 32 };

struct heads {
    struct cpu *c;
    const struct op *op;
    const struct weight *w; /* NULL: heads are copied */
    int64_t m, k, n_row;    /* in and out of a head */
    enum quant_act kind;
    char *work;
    size_t work_bytes; /* per thread */
};

/* A tile of a head's inputs, dense and rounded, in a thread's work space. */
static struct kernel_act gather_head(const struct heads *h, const float *x, int64_t ld, int64_t n, char *work)
{
    const struct kernels *kern = h->c->kernels;
    int64_t k = h->k, n_scale = kernel_act_n_scale(h->kind, k), n_sum = kernel_act_n_sum(h->kind, k);
    float *f32 = (float *)work;
    for (int64_t t = 0; t < n; t++)
        memcpy(f32 + t * k, x + t * ld, (size_t)k * sizeof *f32);
    if (h->kind == QUANT_ACT_FLOAT)
        return (struct kernel_act){.kind = h->kind, .k = k, .f32 = f32};
    int8_t *q = (int8_t *)(work + align64((size_t)(TILE_TOKENS * k) * sizeof(float)));
    float *d = (float *)(q + align64((size_t)(TILE_TOKENS * k)));
    int16_t *sum = (int16_t *)((char *)d + align64((size_t)(TILE_TOKENS * n_scale) * sizeof(float)));
    for (int64_t t = 0; t < n; t++)
        (h->kind == QUANT_ACT_INT8_32 ? kern->quantize_int8_32 : kern->quantize_int8_256)(
            f32 + t * k, k, q + t * k, d + t * n_scale, sum + t * n_sum);
    return (struct kernel_act){.kind = h->kind, .k = k, .q = q, .d = d, .sum = sum};
}

static void heads_task(void *arg, size_t head, int thread)
{
    const struct heads *h = arg;
    const struct op *op = h->op;
    int64_t ld_in = op->in[0].ne[0], ld_out = op->out[0].ne[0], i = (int64_t)head;
    const float *x = (const float *)tensor_data(&op->in[0]) + i * op->heads.in_dim + op->heads.in_off;
    float *y = (float *)tensor_data(&op->out[0]) + i * op->heads.out_dim + op->heads.out_off;
    for (int64_t t = 0; t < h->m && !h->w; t++)
        memcpy(y + t * ld_out, x + t * ld_in, (size_t)h->n_row * sizeof *y);
    if (!h->w)
        return;
    size_t matrix_bytes = h->w->n_bytes / (size_t)op->heads.n_head;
    for (int64_t t = 0; t < h->m; t += TILE_TOKENS) {
        int64_t n = h->m - t < TILE_TOKENS ? h->m - t : TILE_TOKENS;
        struct kernel_act act = gather_head(h, x + t * ld_in, ld_in, n, h->work + (size_t)thread * h->work_bytes);
        const struct kernel_matmul a = {.w = (const char *)h->w->data + head * matrix_bytes,
                                        .k = h->k,
                                        .n_row = h->n_row,
                                        .row1 = h->n_row,
                                        .x = &act,
                                        .m = n,
                                        .y = y + t * ld_out,
                                        .ldy = ld_out};
        h->c->kernels->matmul[h->w->type->type](&a);
    }
}

static void observe_heads(struct cpu *c, const struct op *op)
{
    int64_t n_head = op->heads.n_head, ld = op->in[0].ne[0];
    const float *x = (const float *)tensor_data(&op->in[0]) + op->heads.in_off;
    for (int64_t i = 0; i < n_head; i++)
        c->observer(c->observer_user, &(struct observed){.tensor = op->weight[0]->observed,
                                                         .n_matrix = n_head,
                                                         .matrix = i,
                                                         .x = x + i * op->heads.in_dim,
                                                         .k = op->heads.n_in,
                                                         .n_row = op->in[0].ne[1],
                                                         .stride = ld,
                                                         .scale = 1});
}

void cpu_op_heads(struct cpu *c, const struct op *op)
{
    struct heads h = {
        .c = c, .op = op, .w = op->weight[0], .m = op->in[0].ne[1], .k = op->heads.n_in, .n_row = op->heads.n_out};
    if (h.w) {
        assert(h.w->k == h.k && h.w->n_row % (LAYOUT_R16_ROWS * op->heads.n_head) == 0);
        h.kind = c->kernels->act[h.w->type->type];
        h.work_bytes = align64((size_t)(TILE_TOKENS * h.k) * sizeof(float)) + align64((size_t)(TILE_TOKENS * h.k)) +
                       2 * align64((size_t)(TILE_TOKENS * h.k)); /* scales and sums are fewer than quants */
        h.work = cpu_scratch(c, SCRATCH_THREAD, h.work_bytes * (size_t)pool_n_threads(c->pool));
        if (!h.work)
            return;
    }
    pool_run(c->pool, (size_t)op->heads.n_head, heads_task, &h);
    if (c->observer && h.w && h.w->observed)
        observe_heads(c, op);
}
