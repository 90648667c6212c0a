/* Operations: enqueues and records them, and provides what all of them need. */
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

/* The access is to a layer's part of all pages, which has the same place in each page of a reserved buffer. */
void vk_state(struct vk_touched *x, const struct paged *s, bool is_write)
{
    struct vk_access a = vk_access_buffer(s->page.buffer, is_write);
    if (s->page.buffer->unit_bytes) {
        a.from += s->page.off_bytes;
        a.end = a.from + (size_t)s->page.ne[2] * s->part_bytes;
    }
    touch(x, a);
}

struct vk_spread vk_spread(const struct vk *v, int64_t n)
{
    enum { FEW = 1024 }; /* few in y means many in z, so that long dispatches can be divided into many parts */
    int64_t y = n <= v->limits.n_workgroup_y ? n : FEW;
    return (struct vk_spread){(uint32_t)y, vk_groups(n, y)};
}

/* Growing a buffer waits for the device. Sizes are rounded up to whole pages, so that this is rare. */
struct buffer *vk_scratch(struct vk *v, enum vk_scratch which, size_t n_bytes)
{
    struct err e = {0};
    struct buffer **buf = &v->scratch[which];
    if (*buf && (*buf)->n_bytes >= n_bytes)
        return *buf;
    assert(!v->is_flushing);
    backend_buffer_close(&v->base, buf);
    n_bytes = (n_bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
    if (backend_buffer_create(&v->base, n_bytes, 1, MEM_SCRATCH, buf, &e) != ERR_OK && v->error.code == ERR_OK)
        v->error = e;
    return *buf;
}

/* Writes the changed entries of the tables of addresses that an operation uses. */
static void flush_tables_of(struct vk *v, const struct op *op)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->weight[i])
            vk_table_flush(v, op->weight[i]->table);
    for (int i = 0; i < OP_MAX_STATE; i++)
        if (op->state[i].page.buffer && op->state[i].page.buffer->table)
            vk_table_flush(v, op->state[i].page.buffer->table);
    if (op->slot_pool)
        vk_table_flush(v, op->slot_pool->table);
}

static void flush_tables(struct vk *v, const struct op *ops, int n)
{
    for (int i = 0; i < n; i++)
        flush_tables_of(v, &ops[i]);
}

/* Records pending operations until at most `keep` are left. Recording may wait for the queue, which calls this function
 * again; the inner call returns at once. It takes no memory that would have to be reclaimed. */
static void run_pending(struct vk *v, int keep)
{
    int first = 0;
    if (v->is_flushing)
        return;
    v->is_flushing = true;
    flush_tables(v, v->pending, v->n_pending);
    for (int n; v->n_pending - first > keep; first += n) {
        v->running = v->pending[first].kind;
        n = v->error.code == ERR_OK ? vk_run_first(v, v->pending + first, v->n_pending - first) : 1;
    }
    if (v->error.code != ERR_OK) /* the product that was to compute the norm may not have been recorded */
        v->norm = (struct vk_norm){0};
    v->n_pending -= first;
    memmove(v->pending, v->pending + first, (size_t)v->n_pending * sizeof *v->pending);
    v->is_flushing = false;
}

void vk_flush(struct vk *v)
{
    run_pending(v, 0);
}

/* The functions that take the scratch memory of operations. */
static vk_op_fn *const scratch[OP_N_KIND] = {[OP_MATMUL] = vk_scratch_matmul,
                                             [OP_INDEX] = vk_scratch_index,
                                             [OP_ATTENTION] = vk_scratch_attention,
                                             [OP_ROUTE] = vk_scratch_route,
                                             [OP_EXPERTS] = vk_scratch_experts};

/* Operations are recorded later, when it is known which ones behind them can share their dispatch. Their scratch memory
 * is taken now, as slots may have to be closed for it: the slots of an operation's own experts are pinned until it has
 * been enqueued, and pending operations are recorded before a slot is closed (vk_slot_close). */
void vk_enqueue(struct backend *b, const struct op *op)
{
    enum { MOST_TOGETHER = 8 };
    struct vk *v = vk_of(b);
    if (v->error.code != ERR_OK || (op->kind != OP_KV_STORE && tensor_n_elem(&op->out[0]) == 0))
        return;
    if (scratch[op->kind])
        scratch[op->kind](v, op);
    if (v->error.code != ERR_OK)
        return;
    vk_count_op(v, op);
    v->pending[v->n_pending++] = *op;
    if (v->n_pending == VK_MAX_PENDING)
        run_pending(v, MOST_TOGETHER);
}

static bool has_shaders(const struct vk *v, const struct op_shapes *s)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (s->weight[i].type && !vk_type_supported(v, s->weight[i].type))
            return false;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        if (s->slot_pool.type[i] && !vk_type_supported(v, s->slot_pool.type[i]))
            return false;
    return true;
}

bool vk_supports(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    enum { MAX_EXPERT = 1024, MAX_GROUP = 256 };
    enum { ROUTE_BYTES = 10 << 10 }; /* that a router's product shares, beside three numbers for each expert */
    const struct vk *v = vk_of(b);
    const struct weight_shape *w = &s->weight[0];
    if (!has_shaders(v, s))
        return false;
    switch (op->kind) {
    case OP_INDEX: return vk_index_fits(v, op);
    case OP_ATTENTION: return vk_attention_fits(v, op);
    case OP_DELTA:
    case OP_SSM: return vk_delta_fits(v, op);
    case OP_ROPE: return vk_head_fits(v, op->rope.head_dim);
    case OP_KV_STORE: return vk_head_fits(v, op->state[0].page.ne[0]);
    case OP_ROUTE:
        return w->n_row <= MAX_EXPERT && op->route.n_group <= MAX_GROUP && w->n_row <= vk_part_rows(v, w->type, w->k) &&
               ROUTE_BYTES + (uint64_t)w->n_row * 3 * sizeof(float) <= v->limits.shared_bytes;
    case OP_EXPERTS: return op->in[EXPERTS_SLOTS].ne[0] <= MAX_EXPERT;
    case OP_HEADS: return !w->type || w->n_row <= vk_part_rows(v, w->type, w->k);
    default: return op->kind < OP_N_KIND;
    }
}
