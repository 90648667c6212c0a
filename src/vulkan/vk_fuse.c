/* Pairs of operations that one dispatch computes. What is computed, and its bits, are those of the two. */
#include "vulkan/vk_ops.h"

static bool is_same(const struct tensor *a, const struct tensor *b)
{
    return a->buffer == b->buffer && a->off_bytes == b->off_bytes && a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] &&
           a->ne[2] == b->ne[2];
}

static bool overlap(const struct tensor *a, const struct tensor *b)
{
    return a->buffer && a->buffer == b->buffer && a->off_bytes < b->off_bytes + tensor_bytes(b) &&
           b->off_bytes < a->off_bytes + tensor_bytes(a);
}

bool vk_may_begin(const struct op *op)
{
    switch (op->kind) {
    case OP_MATMUL: return !op->weight[1] && op->weight[0]->n_part == 1;
    case OP_COMBINE: return true;
    case OP_RMS_NORM: return is_same(&op->in[0], &op->out[0]) && op->out[0].ne[2] == 1;
    default: return false;
    }
}

/* ADD of the first one's output to something else. Threads of the pair may run while others still read the first one's
 * inputs: the sum must not be written there. */
static bool find_sum(const struct op *first, const struct op *add, struct vk_sum *sum)
{
    const struct tensor *out = &first->out[0];
    int which = is_same(&add->in[1], out) ? 1 : 0;
    if (add->kind != OP_ADD || !is_same(&add->in[which], out) || overlap(&add->in[1 - which], out))
        return false;
    if (overlap(&add->out[0], out) && !is_same(&add->out[0], out))
        return false;
    for (int i = 0; i < OP_MAX_IN; i++)
        if (overlap(&first->in[i], &add->out[0]))
            return false;
    *sum = (struct vk_sum){add->in[1 - which], add->out[0]};
    return true;
}

static bool is_norm_rope(const struct vk *v, const struct op *norm, const struct op *rope)
{
    enum { SUM_BYTES = 256 };
    return norm->kind == OP_RMS_NORM && rope->kind == OP_ROPE && is_same(&norm->out[0], &rope->in[0]) &&
           rope->rope.head_dim == norm->norm.n && !overlap(&rope->in[1], &norm->out[0]) &&
           (size_t)norm->norm.n * sizeof(float) + SUM_BYTES <= v->limits.shared_bytes;
}

bool vk_run_pair(struct vk *v, const struct op *first, const struct op *second)
{
    struct vk_sum sum;
    if (is_norm_rope(v, first, second)) {
        vk_norm_rope(v, first, second);
        return true;
    }
    if (first->kind == OP_RMS_NORM || !find_sum(first, second, &sum))
        return false;
    (first->kind == OP_MATMUL ? vk_matmul_add : vk_combine)(v, first, &sum);
    return true;
}
