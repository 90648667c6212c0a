/* Counts the bytes and multiply-adds that operations need: the arithmetic behind roofs (docs/benchmarks.md). Work that
 * is small beside the products (norms, activations, sums) counts as none. */
#include "backend/cpu_counters_internal.h"

void cpu_count_product(struct cpu *c, enum op_kind kind, const struct quant_info *type, int64_t n_row, int64_t k,
                       int64_t n_read, int64_t m)
{
    struct op_counters *t = &c->counters.op[kind];
    size_t row_bytes = 0;
    quant_row_bytes(type, (uint64_t)k, &row_bytes);
    t->n_bytes += (uint64_t)(n_read * n_row) * row_bytes;
    *(c->kernels->act[type->type] == QUANT_ACT_FLOAT ? &t->n_float : &t->n_int8) += (uint64_t)(n_row * k * m);
}

static void count_weights(struct cpu *c, const struct op *op, int64_t m)
{
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++)
        cpu_count_product(c, op->kind, op->weight[i]->type, op->weight[i]->n_row, op->weight[i]->k, 1, m);
}

static void count_attention(struct op_counters *t, const struct op *op)
{
    const struct tensor *k = &op->state[0], *v = &op->state[1];
    const int32_t *pos = tensor_data(&op->in[1]);
    int64_t m = op->in[0].ne[1], window = op->attention.window, n_seen = 0;
    for (int64_t i = 0; i < m; i++)
        n_seen += window && pos[i] >= window ? window : pos[i] + 1;
    int64_t first = window && pos[0] >= window ? pos[0] - window + 1 : 0, n_pos = pos[m - 1] + 1 - first;
    size_t row_bytes = elem_row_bytes(k->type, k->ne[0]);
    row_bytes += cpu_attention_is_latent(op) ? 0 : elem_row_bytes(v->type, v->ne[0]);
    t->n_bytes += (uint64_t)(n_pos * k->ne[2]) * row_bytes;
    t->n_float += (uint64_t)(n_seen * op->attention.n_head * (k->ne[0] + v->ne[0]));
}

void cpu_count(struct cpu *c, const struct op *op, int64_t n_ns)
{
    struct op_counters *t = &c->counters.op[op->kind];
    int64_t m = op->in[0].ne[1];
    t->n++;
    t->n_ns += (uint64_t)n_ns;
    switch (op->kind) {
    case OP_MATMUL:
    case OP_HEADS:
    case OP_ROUTE: count_weights(c, op, m); break;
    case OP_ATTENTION: count_attention(t, op); break;
    case OP_CONV: t->n_float += (uint64_t)(tensor_n_elem(&op->vec[0]) * m); break;
    case OP_DELTA: /* the state is read and written; three multiply-adds an element: s . k, s += k d, s . q */
        t->n_bytes += 2 * tensor_bytes(&op->state[0]);
        t->n_float += (uint64_t)(3 * tensor_n_elem(&op->state[0]) * m);
        break;
    default: break;
    }
}
