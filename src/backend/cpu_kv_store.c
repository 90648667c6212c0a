/* Writes keys or values of tokens into their cache. */
#include <assert.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "backend/cpu_rows_internal.h"

static void store_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    const struct tensor *cache = &op->state[0].page;
    int64_t dim = cache->ne[0], n_head = cache->ne[2];
    const int32_t *table = tensor_data(&op->in[KV_STORE_TABLE]), *pages = tensor_data(&op->in[KV_STORE_PAGES]);
    int32_t pos = ((const int32_t *)tensor_data(&op->in[KV_STORE_POS]))[t];
    int32_t page = pages[table[t] + pos / ATTENTION_BLOCK];
    assert(pos >= 0 && page >= 0);
    const float *x = (const float *)tensor_data(&op->in[KV_STORE_X]) + (int64_t)t * n_head * dim;
    size_t row_bytes = elem_row_bytes(cache->type, dim);
    for (int64_t h = 0; h < n_head; h++) {
        char *row = paged_data(&op->state[0], page, h) + (size_t)(pos % ATTENTION_BLOCK) * row_bytes;
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
    enum { MIN_PARALLEL_TOKENS = 9 };
    int64_t m = op->in[KV_STORE_X].ne[1];
    cpu_run_rows(c, op, m, m >= MIN_PARALLEL_TOKENS, store_row);
}
