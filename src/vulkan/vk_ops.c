/* Operations: which function records each, and what all of them need. */
#include "vulkan/vk_ops.h"

#include <assert.h>
#include <string.h>

uint64_t vk_buffer_address(const struct buffer *buf)
{
    assert(!buf->unit_bytes);
    return vk_piece_address(&buf->piece);
}

uint64_t vk_address(const struct tensor *t)
{
    return t->buffer ? vk_buffer_address(t->buffer) + t->off_bytes : 0;
}

struct vk_paged vk_paged_push(const struct paged *s)
{
    const struct buffer *buf = s->page.buffer;
    assert(!buf->unit_bytes || s->page_bytes == buf->unit_bytes);
    return (struct vk_paged){.base = buf->unit_bytes ? s->page.off_bytes : vk_address(&s->page),
                             .table = buf->unit_bytes ? vk_piece_address(&buf->table->piece) : 0,
                             .page_bytes = (uint32_t)s->page_bytes,
                             .part_bytes = (uint32_t)s->part_bytes};
}

static void touch(struct vk_touched *x, struct vk_access a)
{
    assert(x->n < (int)(sizeof x->access / sizeof *x->access));
    x->access[x->n++] = a;
}

void vk_reads(struct vk_touched *x, const struct tensor *t)
{
    if (t->buffer)
        touch(x, vk_access_tensor(t, false));
}

void vk_writes(struct vk_touched *x, const struct tensor *t)
{
    if (t->buffer)
        touch(x, vk_access_tensor(t, true));
}

void vk_whole(struct vk_touched *x, const struct buffer *buf, bool is_write)
{
    touch(x, vk_access_buffer(buf, is_write));
}

/* A layer has the same place in all pages of a reserved buffer. */
void vk_state(struct vk_touched *x, const struct paged *s, bool is_write)
{
    struct vk_access a = vk_access_buffer(s->page.buffer, is_write);
    if (s->page.buffer->unit_bytes) {
        a.from += s->page.off_bytes;
        a.end = a.from + (size_t)s->page.ne[2] * s->part_bytes;
    }
    touch(x, a);
}

struct buffer *vk_scratch(struct vk *v, enum vk_scratch which, size_t n_bytes)
{
    struct err e = {0};
    struct buffer **buf = &v->scratch[which];
    if (*buf && (*buf)->n_bytes >= n_bytes)
        return *buf;
    backend_buffer_close(&v->base, buf);
    if (backend_buffer_create(&v->base, n_bytes, 1, MEM_SCRATCH, buf, &e) != ERR_OK && v->error.code == ERR_OK)
        v->error = e;
    return *buf;
}

static vk_op_fn *const functions[OP_N_KIND] = {
    [OP_EMBED] = vk_op_embed,       [OP_RMS_NORM] = vk_op_rms_norm,     [OP_MATMUL] = vk_op_matmul,
    [OP_HEADS] = vk_op_heads,       [OP_ROPE_TABLE] = vk_op_rope_table, [OP_ROPE] = vk_op_rope,
    [OP_KV_STORE] = vk_op_kv_store, [OP_ATTENTION] = vk_op_attention,   [OP_CONV] = vk_op_conv,
    [OP_DELTA] = vk_op_delta,       [OP_ACT_MUL] = vk_op_act_mul,       [OP_ADD] = vk_op_add,
    [OP_SCALE] = vk_op_scale,       [OP_SOFTCAP] = vk_op_softcap,       [OP_SLICE] = vk_op_slice,
    [OP_SCATTER] = vk_op_scatter,   [OP_ROUTE] = vk_op_route,           [OP_EXPERTS] = vk_op_experts,
    [OP_COMBINE] = vk_op_combine,
};

/* What is written to tables of addresses before an operation may use them. */
static void flush_tables(struct vk *v, const struct op *op)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->weight[i])
            vk_table_flush(v, op->weight[i]->table);
    for (int i = 0; i < 2; i++)
        if (op->state[i].page.buffer && op->state[i].page.buffer->table)
            vk_table_flush(v, op->state[i].page.buffer->table);
    if (op->slot_pool)
        vk_table_flush(v, op->slot_pool->table);
}

static void run(struct vk *v, const struct op *op)
{
    flush_tables(v, op);
    functions[op->kind](v, op);
}

void vk_flush(struct vk *v)
{
    if (!v->has_held)
        return;
    v->has_held = false; /* first, as what runs may wait for the queue */
    if (v->error.code == ERR_OK)
        run(v, &v->held);
}

/* An operation that may go together with the next one is held back until that is known. */
void vk_enqueue(struct backend *b, const struct op *op)
{
    struct vk *v = vk_of(b);
    if (v->error.code != ERR_OK || (op->kind != OP_KV_STORE && tensor_n_elem(&op->out[0]) == 0))
        return;
    v->counters.op[op->kind].n++;
    if (v->has_held && vk_run_pair(v, &v->held, op)) {
        v->has_held = false;
        return;
    }
    vk_flush(v);
    v->has_held = vk_may_begin(op);
    if (v->has_held)
        v->held = *op;
    else
        run(v, op);
}

static bool has_shaders(const struct op_shapes *s)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (s->weight[i].type && !vk_type_supported(s->weight[i].type))
            return false;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        if (s->slot_pool.type[i] && !vk_type_supported(s->slot_pool.type[i]))
            return false;
    return true;
}

bool vk_supports(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    enum { MAX_EXPERT = 1024, MAX_GROUP = 256 };
    const struct vk *v = vk_of(b);
    const struct weight_shape *w = &s->weight[0];
    if (!has_shaders(s))
        return false;
    switch (op->kind) {
    case OP_ATTENTION: return vk_attention_fits(v, op);
    case OP_DELTA: return vk_delta_fits(v, op);
    case OP_ROUTE: return w->n_row <= MAX_EXPERT && op->route.n_group <= MAX_GROUP;
    case OP_EXPERTS: return op->in[2].ne[0] <= MAX_EXPERT;
    case OP_HEADS: return !w->type || w->n_row <= vk_part_rows(v, w->type, w->k);
    default: return op->kind < OP_N_KIND;
    }
}
