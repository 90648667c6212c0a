/* The router: logits of all experts, then each token's choice (route.h). */
#include "backend/cpu_matmul_internal.h"
#include "backend/cpu_ops_internal.h"
#include "backend/route.h"

struct route_loop {
    const struct kernels *kernels;
    const struct op *op;
    float *logits, *choice; /* [n_expert][M] */
    int64_t n_expert, k;
};

static void route_row(void *arg, size_t t, int thread)
{
    const struct route_loop *l = arg;
    int64_t i = (int64_t)t;
    float *scores = tensor_data(&l->op->out[ROUTE_SCORES]);
    const int32_t *table = tensor_data(&l->op->vec[ROUTE_TOKEN_EXPERTS]),
                  *tokens = tensor_data(&l->op->in[ROUTE_TOKENS]);
    const struct route_token token = {.op = l->op,
                                      .bias = tensor_data(&l->op->vec[ROUTE_CHOICE_BIAS]),
                                      .expert_scale = tensor_data(&l->op->vec[ROUTE_EXPERT_SCALE]),
                                      .n = l->n_expert,
                                      .k = l->k,
                                      .logits = l->logits + i * l->n_expert,
                                      .choice = l->choice + i * l->n_expert,
                                      .given = table ? table + tokens[i] * l->k : NULL,
                                      .ids = (int32_t *)tensor_data(&l->op->out[ROUTE_IDS]) + i * l->k,
                                      .weights = (float *)tensor_data(&l->op->out[ROUTE_WEIGHTS]) + i * l->k,
                                      .scores = scores ? scores + i * l->n_expert : NULL};
    route_choose(l->kernels, &token);
}

void cpu_op_route(struct cpu *c, const struct op *op)
{
    const struct weight *w = op->weight[0];
    int64_t m = op->in[ROUTE_X].ne[1];
    struct route_loop l = {.kernels = c->kernels, .op = op, .n_expert = w->n_row, .k = op->out[ROUTE_IDS].ne[0]};
    l.logits = cpu_scratch(c, SCRATCH_LOGITS, (size_t)(2 * m * w->n_row) * sizeof *l.logits);
    if (!l.logits)
        return;
    l.choice = l.logits + m * w->n_row;
    const struct cpu_product product = {w, tensor_data(&op->vec[ROUTE_BIAS]), l.logits};
    if (!cpu_matmul(c, &product, 1, tensor_data(&op->in[ROUTE_X]), m))
        return;
    if (m == 1)
        route_row(&l, 0, 0);
    else
        pool_run(c->pool, (size_t)m, route_row, &l);
}
