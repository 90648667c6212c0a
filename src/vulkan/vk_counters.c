/* Counts the least work that operations consist of (struct op_counters), as the CPU device does. Products are counted
 * when they are enqueued. Work that depends on the contents of device memory (experts, positions, number of texts) is
 * counted by the shaders, in a buffer that is bound beside the codebooks (shaders/counters.glsl). */
#include "backend/vtable.h"
#include "vulkan/vk_internal.h"

enum { DWORDS = 4 }; /* of a counter */

err_code vk_counters_open(struct vk *v, struct err *e)
{
    struct vk_counters *c = &v->work;
    TRY(backend_buffer_create(&v->base, VK_MAX_COUNTER * DWORDS * sizeof(uint32_t), 1, MEM_SCRATCH, &c->buffer, e));
    vk_bind_piece(v, VK_BINDING_COUNTERS, &c->buffer->piece);
    return ERR_OK;
}

void vk_counters_close(struct vk *v)
{
    backend_buffer_close(&v->base, &v->work.buffer);
}

static bool is_same(const struct vk_unit *a, const struct vk_unit *b)
{
    return a->kind == b->kind && a->n_bytes == b->n_bytes && a->n_int8 == b->n_int8 && a->n_float == b->n_float;
}

/* Models have few shapes. If there are more than counters, the rest use the last counter, which is not evaluated. */
uint32_t vk_counter(struct vk *v, const struct vk_unit *unit)
{
    struct vk_counters *c = &v->work;
    uint32_t i = 0;
    while (i < c->n && !is_same(&c->units[i], unit))
        i++;
    if (i == c->n && i + 1 < VK_MAX_COUNTER)
        c->units[c->n++] = *unit;
    return i;
}

uint64_t vk_counter_address(struct vk *v, const struct vk_unit *unit)
{
    return vk_piece_address(&v->work.buffer->piece) + vk_counter(v, unit) * DWORDS * sizeof(uint32_t);
}

static uint64_t matrix_bytes(const struct quant_info *type, int64_t n_row, int64_t k)
{
    size_t row_bytes = 0;
    quant_row_bytes(type, (uint64_t)k, &row_bytes);
    return (uint64_t)n_row * row_bytes;
}

void vk_unit_add(const struct vk *v, struct vk_unit *to, const struct quant_info *type, int64_t n_row, int64_t k)
{
    to->n_bytes += matrix_bytes(type, n_row, k);
    *(vk_is_integer(v, type->type) ? &to->n_int8 : &to->n_float) += (uint64_t)(n_row * k);
}

static void add(struct vk *v, const struct vk_unit *unit, uint64_t n_work, uint64_t n_read)
{
    struct op_counters *t = &v->counters.op[unit->kind];
    t->n_bytes += n_read * unit->n_bytes;
    t->n_int8 += n_work * unit->n_int8;
    t->n_float += n_work * unit->n_float;
}

void vk_count_op(struct vk *v, const struct op *op)
{
    struct op_counters *t = &v->counters.op[op->kind];
    int64_t m = op->in[0].ne[1];
    struct vk_unit product = {.kind = op->kind};
    t->n++;
    for (int i = 0; op->kind != OP_EMBED && i < OP_MAX_OUT && op->weight[i]; i++)
        vk_unit_add(v, &product, op->weight[i]->type, op->weight[i]->n_row, op->weight[i]->k);
    add(v, &product, (uint64_t)m, 1);
    if (op->kind == OP_CONV)
        t->n_float += (uint64_t)(tensor_n_elem(&op->vec[CONV_TAPS]) * m);
    if (op->kind == OP_DELTA || op->kind == OP_SSM) /* s . k (SSM: s decay), s += k d, s . q */
        t->n_float += (uint64_t)(3 * tensor_n_elem(&op->state[0].page) * m);
}

static void collect(struct vk *v, const uint32_t *n, const struct vk_unit *unit)
{
    uint64_t n_work = n[0] + ((uint64_t)n[1] << 8), n_read = n[2] + ((uint64_t)n[3] << 8);
    add(v, unit, n_work, n_read);
    if (unit->kind == OP_EXPERTS) {
        v->counters.n_expert_rows += n_work;
        v->counters.n_experts += n_read;
    }
}

struct backend_counters vk_get_counters(struct backend *b)
{
    struct vk *v = vk_of(b);
    uint32_t n[VK_MAX_COUNTER * DWORDS];
    struct err e;
    vk_flush(v);
    const struct vulkan_counters recorded = v->recorded; /* reading the counters doesn't count itself */
    const struct tensor t = {v->work.buffer, 0, ELEM_I32, {(v->work.n ? v->work.n : 1) * DWORDS, 1, 1}};
    if (v->error.code == ERR_OK && vk_read(b, &t, n, &e) == ERR_OK) {
        for (uint32_t i = 0; i < v->work.n; i++)
            collect(v, n + i * DWORDS, &v->work.units[i]);
        vk_clear(b, &t);
        for (uint64_t i = 1; i < VK_N_COMMANDS; i++) /* all but those that are being recorded */
            vk_timing_count(v, v->queue.serial + i);
    }
    v->recorded = recorded;
    return v->counters;
}
