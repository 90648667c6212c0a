#include "model/layer_blocks.h"

void block_norm(const struct pass *p, const struct tensor *x, const struct tensor *w, int64_t n,
                const struct tensor *out)
{
    backend_enqueue(
        p->b,
        &(struct op){
            .kind = OP_RMS_NORM, .in = {*x}, .out = {*out}, .vec = {*w}, .norm = {.n = n, .eps = p->m->norm_eps}});
}

void block_scale(const struct pass *p, const struct tensor *x, float number, const struct tensor *factor)
{
    struct op op = {.kind = OP_SCALE, .in = {*x}, .out = {*x}, .scale = number};
    if (factor)
        op.vec[0] = *factor;
    backend_enqueue(p->b, &op);
}

void block_add(const struct pass *p, const struct tensor *x, const struct tensor *y, const struct tensor *out)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_ADD, .in = {*x, *y}, .out = {*out}});
}

void block_add_branch(const struct pass *p, const struct tensor *y, const struct tensor *out)
{
    if (p->m->residual_scale != 1)
        block_scale(p, y, p->m->residual_scale, NULL);
    block_add(p, &p->x, y, out);
}
