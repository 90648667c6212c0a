/* HEADS, a matrix for each head: moves the queries of latent attention into the latent space, and its results out of
 * it. */
#include <assert.h>
#include <string.h>

#include "backend/cpu_act_internal.h"
#include "backend/cpu_ops_internal.h"

enum { TILE_TOKENS = 32 };

struct heads_loop {
    const struct cpu *c;
    const struct op *op;
    enum quant_act kind;
    char *work; /* a tile of rounded activations for each thread */
    size_t work_bytes;
};

static void copy_head(void *arg, size_t head, int thread)
{
    const struct heads_loop *l = arg;
    const struct op *op = l->op;
    int64_t in_off = (int64_t)head * op->heads.in_dim + op->heads.in_off;
    int64_t out_off = (int64_t)head * op->heads.out_dim + op->heads.out_off;
    for (int64_t t = 0; t < op->in[0].ne[1]; t++)
        memcpy(tensor_row(&op->out[0], t) + out_off, tensor_row(&op->in[0], t) + in_off,
               (size_t)op->heads.n_out * sizeof(float));
}

static void multiply_head(void *arg, size_t head, int thread)
{
    const struct heads_loop *l = arg;
    const struct op *op = l->op;
    const struct weight *w = op->weight[0];
    int64_t m = op->in[0].ne[1], k = op->heads.n_in;
    int64_t in_off = (int64_t)head * op->heads.in_dim + op->heads.in_off;
    int64_t out_off = (int64_t)head * op->heads.out_dim + op->heads.out_off;
    const struct cpu_act tile = cpu_act_at(l->work + (size_t)thread * l->work_bytes, l->kind, TILE_TOKENS, k);
    const struct kernel_act act = cpu_act_rows(&tile, 0);
    size_t matrix_bytes = w->n_bytes / (size_t)op->heads.n_head;
    for (int64_t t0 = 0; t0 < m; t0 += TILE_TOKENS) {
        int64_t n = m - t0 < TILE_TOKENS ? m - t0 : TILE_TOKENS;
        for (int64_t t = 0; t < n; t++)
            cpu_act_round_row(&tile, l->c->kernels, t, tensor_row(&op->in[0], t0 + t) + in_off);
        const struct kernel_matmul a = {.w = (const char *)w->data + head * matrix_bytes,
                                        .k = k,
                                        .n_row = op->heads.n_out,
                                        .row1 = op->heads.n_out,
                                        .x = &act,
                                        .m = n,
                                        .y = tensor_row(&op->out[0], t0) + out_off,
                                        .ldy = op->out[0].ne[0],
                                        .how = cpu_how(l->c, w->type, n)};
        l->c->kernels->matmul[w->type->type](&a);
    }
}

void cpu_op_heads(struct cpu *c, const struct op *op)
{
    const struct weight *w = op->weight[0];
    struct heads_loop l = {.c = c, .op = op};
    if (!w) {
        pool_run(c->pool, (size_t)op->heads.n_head, copy_head, &l);
        return;
    }
    assert(w->k == op->heads.n_in && w->n_row % (LAYOUT_R16_ROWS * op->heads.n_head) == 0);
    l.kind = kernels_act(c->kernels, w->type);
    l.work_bytes = cpu_act_bytes(l.kind, TILE_TOKENS, w->k);
    l.work = cpu_scratch(c, SCRATCH_THREAD, l.work_bytes * (size_t)pool_n_threads(c->pool));
    if (!l.work)
        return;
    pool_run(c->pool, (size_t)op->heads.n_head, multiply_head, &l);
}
