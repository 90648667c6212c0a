/* Decides which consecutive operations share a dispatch. The results are the same as if each had a dispatch of its own:
 * every operation writes all that it would write. As the threads of a dispatch run in any order, no memory may be
 * written that other threads may still have to read. */
#include "vulkan/vk_ops.h"

bool vk_is_same(const struct tensor *a, const struct tensor *b)
{
    return a->buffer == b->buffer && a->off_bytes == b->off_bytes && a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] &&
           a->ne[2] == b->ne[2];
}

bool vk_overlap(const struct tensor *a, const struct tensor *b)
{
    return a->buffer && a->buffer == b->buffer && a->off_bytes < b->off_bytes + tensor_bytes(b) &&
           b->off_bytes < a->off_bytes + tensor_bytes(a);
}

/* Operation i of n, if it is of this kind; else NULL. */
static struct op *at_kind(struct op *ops, int n, int i, enum op_kind kind)
{
    return i < n && ops[i].kind == kind ? &ops[i] : NULL;
}

/* ---- what can follow an operation in its dispatch ---------------------------------------------------------------- */

const struct tensor *vk_other_term(const struct op *add, const struct tensor *sum)
{
    return &add->in[vk_is_same(&add->in[1], sum) ? 0 : 1];
}

static bool reads_any(const struct op *op, const struct tensor *t)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        if (vk_overlap(&op->in[i], t))
            return true;
    return false;
}

/* Operation i, if it is an ADD of the result of `last` to something else, and the sum doesn't overwrite what `first` or
 * `last` reads. Else NULL. */
static const struct op *find_add(struct op *ops, int n, int i, const struct op *first, const struct op *last)
{
    const struct tensor *out = &last->out[0];
    const struct op *add = at_kind(ops, n, i, OP_ADD);
    if (!add || !(vk_is_same(&add->in[0], out) || vk_is_same(&add->in[1], out)) ||
        vk_overlap(vk_other_term(add, out), out) || (vk_overlap(&add->out[0], out) && !vk_is_same(&add->out[0], out)))
        return NULL;
    return reads_any(first, &add->out[0]) || reads_any(last, &add->out[0]) ? NULL : add;
}

/* Operation i, if it is an ACT_MUL without a limit that multiplies the result of `op` by a gate in place. Else NULL. */
static const struct op *find_gate(struct op *ops, int n, int i, const struct op *op)
{
    const struct op *act = at_kind(ops, n, i, OP_ACT_MUL);
    return act && act->act_limit == 0 && act->in[ACT_MUL_GATE].ne[0] == act->in[ACT_MUL_UP].ne[0] &&
                   vk_is_same(&act->in[ACT_MUL_UP], &op->out[0]) && vk_is_same(&act->out[0], &op->out[0]) &&
                   !vk_overlap(&act->in[ACT_MUL_GATE], &op->out[0])
               ? act
               : NULL;
}

/* Whether two matrices of one product stand side by side, row by row. */
static bool is_pair(const struct op *op, const struct op *act)
{
    const struct weight *a = op->weight[0], *b = op->weight[1];
    return b && a->type == b->type && a->n_row == b->n_row && a->n_part == 1 && b->n_part == 1 &&
           vk_is_same(&act->in[ACT_MUL_GATE], &op->out[0]) && vk_is_same(&act->in[ACT_MUL_UP], &op->out[1]) &&
           vk_is_same(&act->out[0], &op->out[0]);
}

static int run_matmul(struct vk *v, struct op *ops, int n)
{
    const struct op *op = ops, *act = at_kind(ops, n, 1, OP_ACT_MUL), *then = NULL;
    const struct vk_norm *norm = vk_norm_of(v, op);
    if (act && is_pair(op, act))
        then = act;
    else if (!op->weight[1] && op->weight[0]->n_part == 1)
        then = find_add(ops, n, 1, op, op);
    if (then && norm && vk_overlap(&then->out[0], &norm->x))
        then = NULL;
    vk_matmul(v, op, then);
    return then ? 2 : 1;
}

/* EXPERTS, COMBINE and ADD. Where hidden rows are asked for, EXPERTS has a dispatch of its own. */
static int run_experts(struct vk *v, struct op *ops, int n)
{
    const struct op *op = ops, *combine = at_kind(ops, n, 1, OP_COMBINE), *add = NULL;
    const struct tensor *y = &op->out[EXPERTS_Y];
    bool is_sum = combine && !op->out[EXPERTS_HIDDEN].buffer && vk_is_same(&combine->in[COMBINE_Y], y) &&
                  !vk_overlap(&combine->out[0], y) && !vk_overlap(&combine->out[0], &op->in[EXPERTS_IDS]) &&
                  !vk_overlap(&combine->out[0], &op->in[EXPERTS_SLOTS]);
    for (int i = COMBINE_WEIGHTS; i <= COMBINE_SHARED_GATE && is_sum; i++)
        is_sum = !vk_overlap(&combine->in[i], y) && !vk_overlap(&combine->in[i], &combine->out[0]);
    if (is_sum)
        add = find_add(ops, n, 2, op, combine);
    vk_experts(v, op, is_sum ? combine : NULL, add);
    return 1 + is_sum + (add != NULL);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

static bool is_in_place(const struct op *norm)
{
    return vk_is_same(&norm->in[0], &norm->out[0]) && norm->out[0].ne[2] == 1;
}

/* Finds RMS_NORM and ROPE of the same heads, or one of the two. Returns how many operations these are. */
static int find_heads(const struct vk *v, struct op *ops, int n, struct vk_heads *h)
{
    *h = (struct vk_heads){0};
    if (n > 0 && ops[0].kind == OP_RMS_NORM && is_in_place(&ops[0]) && vk_norm_is_shared(&ops[0]) &&
        !ops[0].vec[NORM_BIAS].buffer && vk_head_fits(v, ops[0].norm.n))
        *h = (struct vk_heads){ops[0].out[0], ops[0].norm.n, &ops[0], NULL};
    int i = h->norm != NULL;
    const struct op *rope = at_kind(ops, n, i, OP_ROPE);
    if (!rope || vk_overlap(&rope->in[ROPE_COS_SIN], &rope->in[ROPE_X]))
        return i;
    if (!h->norm)
        *h = (struct vk_heads){rope->in[ROPE_X], rope->rope.head_dim, NULL, NULL};
    if (!vk_is_same(&h->x, &rope->in[ROPE_X]) || h->dim != rope->rope.head_dim)
        return i;
    h->rope = rope;
    return i + 1;
}

/* Operation i, if it stores such heads. */
static const struct op *find_store(struct op *ops, int n, int i, const struct vk_heads *h)
{
    const struct op *store = at_kind(ops, n, i, OP_KV_STORE);
    return store && vk_is_same(&store->in[KV_STORE_X], &h->x) && store->state[0].page.ne[0] == h->dim ? store : NULL;
}

/* Whether q and k can share a dispatch, in which their parameters must be the same. */
static bool go_together(const struct vk_heads *q, const struct vk_heads *k)
{
    return q->dim == k->dim && q->x.ne[1] == k->x.ne[1] && !vk_overlap(&q->x, &k->x) &&
           (!q->norm || !k->norm || q->norm->norm.eps == k->norm->norm.eps) &&
           (!q->rope || !k->rope ||
            (q->rope->rope.mode == k->rope->rope.mode && q->rope->rope.n_rot == k->rope->rope.n_rot &&
             q->rope->rope.off == k->rope->rope.off));
}

/* Operation i, if it stores v where `x` stores k. */
static const struct op *find_store_v(struct op *ops, int n, int i, const struct vk_qkv *x)
{
    const struct op *store = at_kind(ops, n, i, OP_KV_STORE);
    bool ok = store && !vk_overlap(&store->in[KV_STORE_X], &x->k.x) && !vk_overlap(&store->in[KV_STORE_X], &x->q.x);
    for (int j = KV_STORE_POS; j <= KV_STORE_PAGES && ok; j++)
        ok = vk_is_same(&store->in[j], &x->store_k->in[j]);
    return ok ? store : NULL;
}

/* Records operations that norm, rotate and store heads. Returns how many; 0: the first operation is none of these. */
static int run_qkv(struct vk *v, struct op *ops, int n)
{
    struct vk_qkv x = {0};
    int n_q = find_heads(v, ops, n, &x.q), used = n_q;
    if (n_q)
        used += find_heads(v, ops + n_q, n - n_q, &x.k);
    if (used > n_q && go_together(&x.q, &x.k))
        x.store_k = find_store(ops, n, used, &x.k);
    if (!x.store_k && ops[0].kind == OP_KV_STORE)
        x.q = (struct vk_heads){ops[0].in[KV_STORE_X], ops[0].state[0].page.ne[0], NULL, NULL};
    if (!x.store_k) {
        x.store_k = find_store(ops, n, n_q, &x.q);
        x.k = x.store_k ? x.q : (struct vk_heads){0};
        x.q = x.store_k ? (struct vk_heads){0} : x.q;
        used = n_q;
    }
    if (!x.store_k && !x.q.rope)
        return 0;
    used += x.store_k != NULL;
    x.store_v = x.store_k ? find_store_v(ops, n, used, &x) : NULL;
    vk_qkv(v, &x);
    return used + (x.store_v != NULL);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

/* Leaves the norm of a single row to the product that reads it next. False: that is not possible. */
static bool leave_norm(struct vk *v, const struct op *op, const struct op *next)
{
    const struct tensor *out = &op->out[0];
    if ((next->kind != OP_MATMUL && next->kind != OP_ROUTE) || !vk_is_same(&next->in[0], out) ||
        op->norm.n != out->ne[0] || op->vec[NORM_BIAS].buffer || out->ne[1] != 1 || out->ne[2] != 1 ||
        vk_overlap(&op->in[0], out))
        return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (vk_overlap(&next->out[i], out))
            return false;
    v->norm = (struct vk_norm){op->in[0], op->vec[NORM_W], *out, op->norm.eps, true, 0};
    if (vk_norm_of(v, next))
        return true;
    v->norm = (struct vk_norm){0};
    return false;
}

static int run_norm(struct vk *v, struct op *ops, int n)
{
    int used = run_qkv(v, ops, n);
    if (used || (n > 1 && leave_norm(v, ops, &ops[1])))
        return used ? used : 1;
    const struct op *gate = find_gate(ops, n, 1, ops);
    vk_rms_norm(v, ops, gate);
    return gate ? 2 : 1;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static vk_op_fn *const functions[OP_N_KIND] = {
    [OP_EMBED] = vk_op_embed,
    [OP_HEADS] = vk_op_heads,
    [OP_ROPE_TABLE] = vk_op_rope_table,
    [OP_LAYER_NORM] = vk_op_layer_norm,
    [OP_INDEX] = vk_op_index,
    [OP_CONV] = vk_op_conv,
    [OP_DELTA] = vk_op_delta,
    [OP_SSM] = vk_op_delta,
    [OP_ACT_MUL] = vk_op_act_mul,
    [OP_ADD] = vk_op_add,
    [OP_SCALE] = vk_op_scale,
    [OP_SOFTCAP] = vk_op_softcap,
    [OP_CLAMP] = vk_op_clamp,
    [OP_SLICE] = vk_op_slice,
    [OP_SCATTER] = vk_op_scatter,
    [OP_STREAMS_IN] = vk_op_streams_in,
    [OP_STREAMS_OUT] = vk_op_streams_out,
    [OP_STREAMS_MATCH] = vk_op_streams_match,
    [OP_RESIDUALS] = vk_op_residuals,
    [OP_COMPRESS] = vk_op_compress,
};

/* ROUTE, which may take the last small matrix of the product behind it into its dispatch. */
static int run_route(struct vk *v, struct op *ops, int n)
{
    struct op *matmul = at_kind(ops, n, 1, OP_MATMUL);
    bool joins = matmul && vk_may_join_router(v, ops, matmul) && !vk_overlap(&matmul->out[2], &v->norm.x);
    vk_route(v, ops, joins ? matmul : NULL);
    if (joins)
        matmul->weight[2] = NULL;
    return 1;
}

int vk_run_first(struct vk *v, struct op *ops, int n)
{
    const struct op *then;
    switch (ops->kind) {
    case OP_MATMUL: return run_matmul(v, ops, n);
    case OP_EXPERTS: return run_experts(v, ops, n);
    case OP_RMS_NORM: return run_norm(v, ops, n);
    case OP_ROPE:
    case OP_KV_STORE: return run_qkv(v, ops, n);
    case OP_ROUTE: return run_route(v, ops, n);
    case OP_ATTENTION:
        then = ops->in[ATTENTION_CHOSEN].buffer ? NULL : find_gate(ops, n, 1, ops);
        vk_attention(v, ops, then);
        return then ? 2 : 1;
    case OP_COMBINE:
        then = find_add(ops, n, 1, ops, ops);
        vk_combine(v, ops, then);
        return then ? 2 : 1;
    default: functions[ops->kind](v, ops); return 1;
    }
}
