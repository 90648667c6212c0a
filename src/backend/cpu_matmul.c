/* Products. Matrices with the same input share its rounding and the loop over their rows. */
#include "backend/cpu_matmul_internal.h"

#include <assert.h>

#include "backend/cpu_act_internal.h"
#include "backend/cpu_ops_internal.h"
#include "base/minmax.h"
#include "base/topology.h"

int64_t cpu_chunk_rows(const struct cpu *c, int64_t n_row, int64_t k, int64_t m)
{
    /* A product of one token takes as long as reading its weights, and each task begins with waiting for memory, so
     * tasks are large. Tasks of many tokens have a limited number of multiply-adds, as threads wait for the last one to
     * end. Kernels of a matrix unit prepare each panel of the activations before vectors and tiles work side by side,
     * which pays only in larger tasks. */
    enum { TASKS_PER_THREAD = 8, MIN_ROWS = 64, MIN_WEIGHTS = 1 << 15, LEAST_TILES = 8 };
    int64_t most_products = c->kernels->peak_tiles && m >= LEAST_TILES ? 1 << 27 : 1 << 23;
    int64_t n_task = (int64_t)pool_n_used(c->pool) * TASKS_PER_THREAD;
    int64_t rows = (n_row + n_task - 1) / n_task;
    int64_t least = m == 1 ? (MIN_WEIGHTS + k - 1) / k : MIN_ROWS,
            most = m == 1 ? (c->tuning.task_weights + k - 1) / k : most_products / k / m;
    rows = max_i64(min_i64(rows, most), least);
    return (rows + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
}

/* Rows [row0, row1) of a product's matrix, which lie on one memory node and are divided into tasks. */
struct matmul_run {
    int product;
    int64_t row0, row1;
    size_t first_task;
};

struct matmul_loop {
    const struct cpu *c;
    const struct cpu_product *products;
    struct kernel_act x[QUANT_N_ACT]; /* the activations in each kind that the matrices take */
    int64_t m, chunk_rows;
    int n_run;
    struct matmul_run runs[OP_MAX_OUT * TOPOLOGY_MAX_NODE]; /* the first node's of all products, then the next one's */
};

static void matmul_chunk(void *arg, size_t task, int thread)
{
    const struct matmul_loop *l = arg;
    const struct matmul_run *run = &l->runs[l->n_run - 1];
    if (pool_is_cancelled(l->c->pool))
        return;
    while (task < run->first_task)
        run--;
    const struct cpu_product *p = &l->products[run->product];
    const struct weight *w = p->w;
    int64_t row0 = run->row0 + (int64_t)(task - run->first_task) * l->chunk_rows;
    int64_t row1 = row0 + l->chunk_rows < run->row1 ? row0 + l->chunk_rows : run->row1;
    const struct kernel_matmul a = {.w = w->data,
                                    .k = w->k,
                                    .n_row = w->n_row,
                                    .row0 = row0,
                                    .row1 = row1,
                                    .x = &l->x[kernels_act(l->c->kernels, w->type)],
                                    .m = l->m,
                                    .y = p->y,
                                    .ldy = w->n_row,
                                    .how = cpu_how(l->c, w->type, l->m)};
    l->c->kernels->matmul[w->type->type](&a);
    for (int64_t t = 0; p->bias && t < l->m; t++) {
        float *y = p->y + t * w->n_row + row0;
        l->c->kernels->add(y, y, p->bias + row0, row1 - row0);
    }
}

/* Divides the rows of n products into tasks and runs them. */
static void run_matmul(struct cpu *c, struct matmul_loop *l, int n)
{
    size_t first[TOPOLOGY_MAX_NODE + 1], n_task = 0;
    int n_node = pool_n_node(c->pool);
    l->n_run = 0;
    for (int node = 0; node < n_node; node++) {
        first[node] = n_task;
        for (int i = 0; i < n; i++) {
            int64_t n_row = l->products[i].w->n_row;
            struct matmul_run *run = &l->runs[l->n_run++];
            *run = (struct matmul_run){i, cpu_node_row(c, node, n_row), cpu_node_row(c, node + 1, n_row), n_task};
            n_task += (size_t)((run->row1 - run->row0 + l->chunk_rows - 1) / l->chunk_rows);
        }
    }
    first[n_node] = n_task;
    pool_run_nodes(c->pool, first, matmul_chunk, l);
}

bool cpu_matmul(struct cpu *c, const struct cpu_product *products, int n, const float *x, int64_t m)
{
    struct matmul_loop l; /* not zeroed, as mostly few of its runs are used */
    bool ready[QUANT_N_ACT] = {false};
    int64_t n_row = 0, k = products[0].w->k;
    l.c = c;
    l.products = products;
    l.m = m;
    for (int i = 0; i < n; i++) {
        enum quant_act kind = kernels_act(c->kernels, products[i].w->type);
        if (!ready[kind] && !cpu_act_round(c, SCRATCH_ACT + kind, kind, x, m, k, &l.x[kind]))
            return false;
        ready[kind] = true;
        n_row += products[i].w->n_row;
    }
    l.chunk_rows = cpu_chunk_rows(c, n_row, k, m);
    run_matmul(c, &l, n);
    return true;
}

void cpu_op_matmul(struct cpu *c, const struct op *op)
{
    struct cpu_product products[OP_MAX_OUT];
    int n = 0;
    for (; n < OP_MAX_OUT && op->weight[n]; n++)
        products[n] = (struct cpu_product){op->weight[n], tensor_data(&op->vec[n]), tensor_data(&op->out[n])};
    assert(n > 0);
    cpu_matmul(c, products, n, tensor_data(&op->in[0]), op->in[0].ne[1]);
}
