/* Counts the bytes and multiply-adds that operations need, from which rooflines are computed (docs/benchmarks.md). Work
 * that is small compared to products (norms, activations, sums) is not counted. */
#include "backend/cpu_counters_internal.h"

static bool goes_to_tiles(const struct cpu *c, enum quant_type type, int64_t m)
{
    return c->kernels->peak_tiles && c->tuning.tiles_from[type] && m >= c->tuning.tiles_from[type];
}

void cpu_count_product(struct cpu *c, enum op_kind kind, const struct quant_info *type, int64_t n_row, int64_t k,
                       int64_t n_read, int64_t m)
{
    struct op_counters *t = &c->counters.op[kind];
    size_t row_bytes = 0;
    quant_row_bytes(type, (uint64_t)k, &row_bytes);
    t->n_bytes += (uint64_t)(n_read * n_row) * row_bytes;
    *(kernels_act(c->kernels, type) == QUANT_ACT_FLOAT ? &t->n_float
      : goes_to_tiles(c, type->type, m)                ? &t->n_tile
                                                       : &t->n_int8) += (uint64_t)(n_row * k * m);
}

static void count_weights(struct cpu *c, const struct op *op, int64_t m)
{
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++)
        cpu_count_product(c, op->kind, op->weight[i]->type, op->weight[i]->n_row, op->weight[i]->k, 1, m);
}

/* How many positions a token sees: all up to its own, a window, or as many as are chosen; and entries of a compressed
 * cache, if there is one, of which some may be chosen instead. Chosen blocks include the token's own. */
static int64_t n_visible(const struct op *op, int32_t pos)
{
    int64_t ratio = op->attention.ratio,
            n_chosen = op->in[ATTENTION_CHOSEN].buffer ? op->in[ATTENTION_CHOSEN].ne[0] : 0;
    int64_t block = op->attention.chosen_block;
    if (block)
        n_chosen = (n_chosen / op->state[ATTENTION_K].page.ne[2] - 1) * block + pos % block + 1;
    int64_t most = n_chosen && !ratio ? n_chosen : op->attention.window, n = most && pos >= most ? most : pos + 1;
    int64_t n_entry = ratio ? (pos + 1) / ratio : 0;
    return n + (n_chosen && n_entry > n_chosen ? n_chosen : n_entry);
}

/* Counts INDEX. Tokens that see no more positions than `all` need no scores. Each text's keys are read once. */
static void count_index(struct op_counters *t, const struct op *op)
{
    const struct tensor *k = &op->state[0].page;
    const int32_t *pos = tensor_data(&op->in[INDEX_POS]), *table = tensor_data(&op->in[INDEX_TABLE]);
    int64_t n_seen = 0, n_read = 0, m = op->in[INDEX_Q].ne[1], ratio = op->index.ratio > 1 ? op->index.ratio : 1;
    int64_t all =
        op->index.block ? op->out[0].ne[0] / (op->in[INDEX_Q].ne[0] / k->ne[0]) * op->index.block : op->out[0].ne[0];
    for (int64_t i = 0; i < m; i++) {
        int64_t n = (pos[i] + 1) / ratio;
        n = n > all ? n : 0;
        n_seen += n;
        n_read += i + 1 == m || table[i + 1] != table[i] ? n : 0;
    }
    t->n_bytes += (uint64_t)n_read * elem_row_bytes(k->type, k->ne[0]);
    t->n_float += (uint64_t)(n_seen * op->in[INDEX_Q].ne[0]);
}

/* Counts ATTENTION. Each text's cache is read once. */
static void count_attention(struct op_counters *t, const struct op *op)
{
    const struct tensor *k = &op->state[ATTENTION_K].page, *v = &op->state[ATTENTION_V].page;
    const int32_t *pos = tensor_data(&op->in[ATTENTION_POS]), *table = tensor_data(&op->in[ATTENTION_TABLE]);
    int64_t m = op->in[ATTENTION_Q].ne[1], n_seen = 0, n_read = 0;
    for (int64_t i = 0; i < m; i++) {
        bool is_first = i == 0 || table[i] != table[i - 1];
        n_seen += n_visible(op, pos[i]);
        bool is_entry = op->attention.ratio && (pos[i] + 1) % op->attention.ratio == 0;
        n_read += is_first ? n_visible(op, pos[i]) : 1 + is_entry;
    }
    size_t row_bytes = elem_row_bytes(k->type, k->ne[0]);
    row_bytes += cpu_attention_is_latent(op) ? 0 : elem_row_bytes(v->type, v->ne[0]);
    t->n_bytes += (uint64_t)(n_read * k->ne[2]) * row_bytes;
    t->n_float += (uint64_t)(n_seen * op->attention.n_head * (k->ne[0] + v->ne[0]));
}

/* Counts DELTA and SSM. The state of each run is read and written, with three multiply-adds for each element and token:
 * s . k (SSM: s decay), s += k d, s . q. */
static void count_delta(struct op_counters *t, const struct op *op)
{
    const int32_t *to = tensor_data(&op->in[DELTA_TO]);
    int64_t m = op->in[DELTA_QKV].ne[1], n_run = 1;
    for (int64_t i = 1; i < m; i++)
        n_run += to[i] != to[i - 1];
    t->n_bytes += 2 * (uint64_t)n_run * tensor_bytes(&op->state[0].page);
    t->n_float += (uint64_t)(3 * tensor_n_elem(&op->state[0].page) * m);
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
    case OP_INDEX: count_index(t, op); break;
    case OP_ATTENTION: count_attention(t, op); break;
    case OP_CONV: t->n_float += (uint64_t)(tensor_n_elem(&op->vec[CONV_TAPS]) * m); break;
    case OP_DELTA:
    case OP_SSM: count_delta(t, op); break;
    default: break;
    }
}
