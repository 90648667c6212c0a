/* The weighted sum of a token's experts, and the shared expert. */
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "backend/cpu_rows_internal.h"

static void combine_row(void *arg, size_t t, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct kernels *kern = l->c->kernels;
    const struct op *op = l->op;
    int64_t n = op->out[0].ne[0], k = op->in[COMBINE_Y].ne[1], i = (int64_t)t;
    const float *y = (const float *)tensor_data(&op->in[COMBINE_Y]) + i * k * n;
    const float *w = tensor_data(&op->in[COMBINE_WEIGHTS]);
    const float *shared = tensor_data(&op->in[COMBINE_SHARED]),
                *shared_gate = tensor_data(&op->in[COMBINE_SHARED_GATE]);
    float *out = tensor_row(&op->out[0], i);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t r = 0; r < k; r++)
        kern->fma_scalar(out, y + r * n, w ? w[i * k + r] : 1, n);
    if (!shared)
        return;
    if (shared_gate) {
        float e, sum, minus = -shared_gate[i];
        kern->exp_sum(&e, &minus, 0, 1, &sum);
        kern->fma_scalar(out, shared + i * n, 1 / (1 + e), n);
    } else {
        kern->add(out, out, shared + i * n, n);
    }
}

void cpu_op_combine(struct cpu *c, const struct op *op)
{
    enum { MIN_PARALLEL_TOKENS = 5 };
    int64_t m = op->out[0].ne[1];
    cpu_run_rows(c, op, m, m >= MIN_PARALLEL_TOKENS, combine_row);
}
