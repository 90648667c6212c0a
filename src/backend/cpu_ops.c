/* Calls the function for an operation, again if it found no scratch memory. */
#include <assert.h>

#include "backend/cpu_counters_internal.h"
#include "backend/cpu_device_internal.h"
#include "backend/cpu_ops_internal.h"
#include "base/clock.h"

static cpu_op_fn *const op_fns[OP_N_KIND] = {
    [OP_EMBED] = cpu_op_embed,
    [OP_RMS_NORM] = cpu_op_rms_norm,
    [OP_LAYER_NORM] = cpu_op_layer_norm,
    [OP_MATMUL] = cpu_op_matmul,
    [OP_HEADS] = cpu_op_heads,
    [OP_ROPE_TABLE] = cpu_op_rope_table,
    [OP_ROPE] = cpu_op_rope,
    [OP_KV_STORE] = cpu_op_kv_store,
    [OP_INDEX] = cpu_op_index,
    [OP_ATTENTION] = cpu_op_attention,
    [OP_CONV] = cpu_op_conv,
    [OP_DELTA] = cpu_op_delta,
    [OP_SSM] = cpu_op_delta,
    [OP_ACT_MUL] = cpu_op_act_mul,
    [OP_ADD] = cpu_op_add,
    [OP_SCALE] = cpu_op_scale,
    [OP_SOFTCAP] = cpu_op_softcap,
    [OP_CLAMP] = cpu_op_clamp,
    [OP_SLICE] = cpu_op_slice,
    [OP_SCATTER] = cpu_op_scatter,
    [OP_ROUTE] = cpu_op_route,
    [OP_EXPERTS] = cpu_op_experts,
    [OP_COMBINE] = cpu_op_combine,
    [OP_COMPRESS] = cpu_op_compress,
    [OP_STREAMS_IN] = cpu_op_streams_in,
    [OP_STREAMS_OUT] = cpu_op_streams_out,
    [OP_STREAMS_MATCH] = cpu_op_streams_match,
    [OP_RESIDUALS] = cpu_op_residuals,
};

/* Scratch grows with the batch, and experts' slots may be closed to make room for it. This must not happen during an
 * operation: memory is reclaimed behind an operation that lacked scratch, and the operation is then run again. */
void cpu_enqueue(struct backend *b, const struct op *op)
{
    struct cpu *c = cpu_of(b);
    int64_t start = clock_ns();
    assert(op->kind < OP_N_KIND);
    do {
        c->missing_bytes = 0;
        op_fns[op->kind](c, op);
    } while (c->missing_bytes && mem_make_room(c->missing_bytes));
    if (c->missing_bytes && c->error.code == ERR_OK)
        err_set(&c->error, ERR_LIMIT, "the limit on memory leaves no room for %zu bytes of work space",
                c->missing_bytes);
    cpu_count(c, op, clock_ns() - start);
}

bool cpu_supports(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    const struct kernels *k = cpu_of(b)->kernels;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (s->weight[i].type && !k->matmul[s->weight[i].type->type])
            return false;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        if (s->slot_pool.type[i] && !k->matmul[s->slot_pool.type[i]->type])
            return false;
    if (op->kind == OP_ROPE)
        return op->rope.n_rot % 2 == 0 && op->in[ROPE_COS_SIN].ne[0] == op->rope.n_rot;
    return op->kind < OP_N_KIND;
}
