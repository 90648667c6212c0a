#include "backend/backend.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/vtable.h"

err_code backend_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag, struct buffer **out,
                               struct err *e)
{
    *out = NULL;
    return b->v->buffer_create(b, n_bytes, n_part, tag, out, e);
}

int backend_n_node(struct backend *b)
{
    return b->v->n_node ? b->v->n_node(b) : 1;
}

err_code backend_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part, enum mem_tag tag,
                                struct buffer **out, struct err *e)
{
    *out = NULL;
    return b->v->buffer_reserve(b, n_bytes, unit_bytes, n_part, tag, out, e);
}

bool backend_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    return b->v->buffer_commit(b, buf, off_bytes, n_bytes);
}

void backend_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    b->v->buffer_decommit(b, buf, off_bytes, n_bytes);
}

void backend_buffer_close(struct backend *b, struct buffer **buf)
{
    if (*buf)
        b->v->buffer_close(b, *buf);
    *buf = NULL;
}

err_code backend_tensor_create(struct backend *b, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                               enum mem_tag tag, struct tensor *out, struct err *e)
{
    *out = (struct tensor){.type = type, .ne = {ne0, ne1, ne2}};
    size_t n_bytes;
    if (!mem_mul(elem_row_bytes(type, ne0), (size_t)ne1, &n_bytes) || !mem_mul(n_bytes, (size_t)ne2, &n_bytes))
        return err_nomem(e, SIZE_MAX, "a tensor");
    return backend_buffer_create(b, n_bytes, ne2, tag, &out->buffer, e);
}

void backend_write(struct backend *b, const struct tensor *t, const void *src)
{
    b->v->write(b, t, src);
}

void backend_copy(struct backend *b, const struct tensor *from, const struct tensor *to)
{
    assert(tensor_bytes(from) == tensor_bytes(to));
    b->v->copy(b, from, to);
}

void backend_clear(struct backend *b, const struct tensor *t)
{
    b->v->clear(b, t);
}

err_code backend_read(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    TRY(observe_report(b, e));
    return b->v->read(b, t, dst, e);
}

err_code backend_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                             struct weight **out, struct err *e)
{
    *out = NULL;
    return b->v->weight_load(b, d, src, out, e);
}

void backend_weight_close(struct backend *b, struct weight **w)
{
    if (*w)
        b->v->weight_close(b, *w);
    *w = NULL;
}

size_t backend_weight_bytes(struct backend *b, const struct weight_desc *d)
{
    size_t row_bytes = 0;
    if (b->v->weight_bytes)
        return b->v->weight_bytes(b, d);
    quant_row_bytes(d->type, (uint64_t)d->k, &row_bytes);
    return row_bytes * (size_t)d->n_row;
}

int64_t slot_n_hidden(const struct slot_pool_desc *d)
{
    return d->is_ungated ? 2 * d->n_ff : d->n_ff;
}

int64_t slot_matrix_k(const struct slot_pool_desc *d, enum expert_matrix matrix)
{
    return matrix == EXPERT_DOWN ? slot_n_hidden(d) : d->n_embd;
}

int64_t slot_matrix_rows(const struct slot_pool_desc *d, enum expert_matrix matrix)
{
    return matrix == EXPERT_DOWN ? d->n_embd : d->n_ff;
}

bool slot_same_shape(const struct slot_pool_desc *a, const struct slot_pool_desc *b)
{
    return memcmp(a->type, b->type, sizeof a->type) == 0 && a->n_embd == b->n_embd && a->n_ff == b->n_ff &&
           a->is_ungated == b->is_ungated;
}

err_code backend_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                  struct err *e)
{
    *out = NULL;
    return b->v->slot_pool_create(b, d, out, e);
}

void backend_slot_pool_close(struct backend *b, struct slot_pool **slot_pool)
{
    if (*slot_pool)
        b->v->slot_pool_close(b, *slot_pool);
    *slot_pool = NULL;
}

size_t backend_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    return b->v->slot_pool_slot_bytes(b, d);
}

bool backend_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    return b->v->slot_open(b, slot_pool, slot);
}

void backend_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    if (b->v->slot_touch)
        b->v->slot_touch(b, slot_pool, slot);
}

void backend_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    b->v->slot_close(b, slot_pool, slot);
}

bool backend_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out)
{
    return b->v->slot_pool_image && b->v->slot_pool_image(b, d, out);
}

void *backend_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                        bool is_packed)
{
    return b->v->slot_room ? b->v->slot_room(b, slot_pool, slot, matrix, is_packed) : NULL;
}

void backend_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                        const void *bytes, bool is_packed)
{
    b->v->slot_adopt(b, slot_pool, slot, matrix, bytes, is_packed);
}

err_code backend_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot, const struct slot_rows *rows,
                           struct err *e)
{
    return b->v->slot_fill(b, slot_pool, slot, rows, e);
}

const void *backend_slot_bytes(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                               bool *is_packed)
{
    return b->v->slot_bytes ? b->v->slot_bytes(b, slot_pool, slot, matrix, is_packed) : NULL;
}

uint64_t backend_upload_fence(struct backend *b)
{
    return b->v->upload_fence ? b->v->upload_fence(b) : 0;
}

err_code backend_upload_poll(struct backend *b, uint64_t fence, bool wait, bool *is_passed, struct err *e)
{
    *is_passed = fence == 0;
    return *is_passed ? ERR_OK : b->v->upload_poll(b, fence, wait, is_passed, e);
}

void backend_enqueue(struct backend *b, const struct op *op)
{
    struct err e;
    if (op_check(b, op, &e) != ERR_OK) {
        fprintf(stderr, "moebius: a bug: %s\n", e.text);
        abort();
    }
    assert(backend_supports(b, op));
    if (b->observing)
        observe_enqueue(b, op);
    else
        b->v->enqueue(b, op);
    if (b->between)
        b->between(b->between_user);
}

void backend_set_between(struct backend *b, void (*fn)(void *user), void *user)
{
    b->between = fn;
    b->between_user = user;
}

struct op_shapes op_shapes(struct backend *b, const struct op *op)
{
    struct op_shapes s = {0};
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->weight[i])
            s.weight[i] = b->v->weight_shape(b, op->weight[i]);
    if (op->slot_pool)
        s.slot_pool = b->v->slot_pool_shape(b, op->slot_pool);
    return s;
}

bool backend_supports(struct backend *b, const struct op *op)
{
    const struct op_shapes s = op_shapes(b, op);
    return b->v->supports(b, op, &s);
}

err_code backend_report(struct err *pending, struct err *e)
{
    if (pending->code == ERR_OK)
        return ERR_OK;
    err_code code = err_set(e, pending->code, "%s", pending->text);
    *pending = (struct err){0};
    return code;
}

uint64_t backend_fence(struct backend *b)
{
    return b->v->fence(b);
}

void backend_start(struct backend *b)
{
    if (b->v->start)
        b->v->start(b);
}

err_code backend_wait(struct backend *b, uint64_t fence, struct err *e)
{
    TRY(observe_report(b, e));
    return b->v->wait(b, fence, e);
}

void backend_trim(struct backend *b)
{
    if (b->v->trim)
        b->v->trim(b);
}

struct backend_counters backend_counters(struct backend *b)
{
    return b->v->counters(b);
}

uint64_t backend_op_ns(struct backend *b, enum op_kind kind)
{
    return b->v->op_ns ? b->v->op_ns(b, kind) : b->v->counters(b).op[kind].n_ns;
}

size_t backend_held_bytes(struct backend *b, enum mem_tag tag)
{
    return b->v->held_bytes ? b->v->held_bytes(b, tag) : 0;
}

size_t backend_own_bytes(struct backend *b)
{
    return b->v->own_bytes ? b->v->own_bytes(b) : 0;
}

size_t backend_room_bytes(struct backend *b)
{
    return b->v->room_bytes ? b->v->room_bytes(b) : mem_room_bytes();
}

bool backend_make_room(struct backend *b, size_t n_bytes)
{
    return b->v->make_room ? b->v->make_room(b, n_bytes) : mem_make_room(n_bytes);
}

void backend_set_reclaim(struct backend *b, mem_reclaim_fn *reclaim, void *user)
{
    if (b->v->set_reclaim)
        b->v->set_reclaim(b, reclaim, user);
}

const char *backend_name(struct backend *b)
{
    return b->name;
}

void backend_close(struct backend **b)
{
    if (*b)
        (*b)->v->close(*b);
    *b = NULL;
}
