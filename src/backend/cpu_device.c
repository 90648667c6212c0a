/* The CPU device. Operations run when they are enqueued, each as one or a few parallel loops of the pool, so that
 * fences have always been passed. */
#include <assert.h>
#include <string.h>

#include "backend/cpu_device_internal.h"
#include "base/topology.h"

/* Binds each part to the memory node of the threads that get it in a loop over the parts. A buffer with fewer parts
 * than nodes is interleaved over all nodes. */
static void place_buffer(struct cpu *c, struct buffer *buf, int64_t n_part)
{
    int n_node = pool_n_node(c->pool);
    struct topology *t = pool_topology(c->pool);
    if (n_part < n_node) {
        topology_interleave_memory(t, buf->base, buf->n_bytes);
        return;
    }
    size_t n = (size_t)n_part, part_bytes = buf->n_bytes / n;
    for (int i = 0; i < n_node; i++) {
        size_t from = pool_node_first(c->pool, i, n), end = pool_node_first(c->pool, i + 1, n);
        topology_bind_memory(t, buf->base + from * part_bytes, (end - from) * part_bytes, i);
    }
}

/* Creates a copy of *d, which has no memory yet. */
static err_code open_buffer(struct backend *b, const struct buffer *d, int64_t n_part, struct buffer **out,
                            struct err *e)
{
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    if (!buf)
        return err_nomem(e, sizeof *buf, "a buffer");
    *buf = *d;
    buf->base = d->is_reserved ? mem_reserve(d->n_bytes) : cpu_map(cpu_of(b), d->n_bytes, d->tag);
    if (!buf->base) {
        mem_free(buf);
        return err_nomem(e, d->n_bytes, mem_tag_name(d->tag));
    }
    place_buffer(cpu_of(b), buf, n_part);
    *out = buf;
    return ERR_OK;
}

static size_t cpu_buffer_bytes(struct backend *b, const struct buffer *buf)
{
    return buf->n_bytes;
}

static err_code cpu_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                  struct buffer **out, struct err *e)
{
    return open_buffer(b, &(struct buffer){.n_bytes = n_bytes ? n_bytes : 1, .tag = tag}, n_part, out, e);
}

static int cpu_n_node(struct backend *b)
{
    return pool_n_node(cpu_of(b)->pool);
}

static err_code cpu_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part,
                                   enum mem_tag tag, struct buffer **out, struct err *e)
{
    return open_buffer(b, &(struct buffer){.n_bytes = n_bytes, .tag = tag, .is_reserved = true}, n_part, out, e);
}

static bool cpu_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    assert(buf->is_reserved && off_bytes % mem_page_bytes() == 0 && off_bytes + n_bytes <= buf->n_bytes);
    if (!cpu_commit(cpu_of(b), n_bytes, buf->tag))
        return false;
    buf->n_committed += n_bytes;
    return true;
}

static void cpu_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    assert(off_bytes % mem_page_bytes() == 0 && n_bytes <= buf->n_committed);
    cpu_decommit(cpu_of(b), buf->base + off_bytes, n_bytes, buf->tag);
    buf->n_committed -= n_bytes;
}

static void cpu_buffer_close(struct backend *b, struct buffer *buf)
{
    if (buf->is_reserved)
        cpu_unreserve(cpu_of(b), buf->base, buf->n_bytes, buf->n_committed, buf->tag);
    else
        cpu_unmap(cpu_of(b), buf->base, buf->n_bytes, buf->tag);
    mem_free(buf);
}

static void cpu_write(struct backend *b, const struct tensor *t, const void *src)
{
    assert(t->off_bytes + tensor_bytes(t) <= t->buffer->n_bytes);
    memcpy(tensor_data(t), src, tensor_bytes(t));
}

static void cpu_copy(struct backend *b, const struct tensor *from, const struct tensor *to)
{
    memcpy(tensor_data(to), tensor_data(from), tensor_bytes(from));
}

static void cpu_clear(struct backend *b, const struct tensor *t)
{
    memset(tensor_data(t), 0, tensor_bytes(t));
}

static err_code cpu_read(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    TRY(backend_report(&cpu_of(b)->error, e));
    memcpy(dst, tensor_data(t), tensor_bytes(t));
    return ERR_OK;
}

/* ---- queue, life ---------------------------------------------------------------------------------------------- */

static uint64_t cpu_fence(struct backend *b)
{
    return ++cpu_of(b)->n_fence;
}

static err_code cpu_wait(struct backend *b, uint64_t fence, struct err *e)
{
    assert(fence <= cpu_of(b)->n_fence);
    return backend_report(&cpu_of(b)->error, e);
}

static void cpu_trim(struct backend *b)
{
    cpu_scratch_release(cpu_of(b));
}

static struct backend_counters cpu_counters(struct backend *b)
{
    return cpu_of(b)->counters;
}

static void cpu_close(struct backend *b)
{
    cpu_trim(b);
    mem_free(cpu_of(b));
}

err_code backend_cpu_open(struct backend **out, struct pool *pool, const struct kernels *kernels, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_bytes = cpu_buffer_bytes,
        .weight_shape = cpu_weight_shape,
        .slot_pool_shape = cpu_slot_pool_shape,
        .buffer_create = cpu_buffer_create,
        .n_node = cpu_n_node,
        .buffer_reserve = cpu_buffer_reserve,
        .buffer_commit = cpu_buffer_commit,
        .buffer_decommit = cpu_buffer_decommit,
        .buffer_close = cpu_buffer_close,
        .write = cpu_write,
        .copy = cpu_copy,
        .clear = cpu_clear,
        .read = cpu_read,
        .weight_load = cpu_weight_load,
        .weight_close = cpu_weight_close,
        .weight_bytes = cpu_weight_bytes,
        .slot_pool_create = cpu_slot_pool_create,
        .slot_pool_close = cpu_slot_pool_close,
        .slot_pool_slot_bytes = cpu_slot_pool_slot_bytes,
        .slot_open = cpu_slot_open,
        .slot_touch = cpu_slot_touch,
        .slot_close = cpu_slot_close,
        .slot_pool_image = cpu_slot_pool_image,
        .slot_room = cpu_slot_room,
        .slot_adopt = cpu_slot_adopt,
        .slot_fill = cpu_slot_fill,
        .slot_bytes = cpu_slot_bytes,
        .enqueue = cpu_enqueue,
        .supports = cpu_supports,
        .fence = cpu_fence,
        .wait = cpu_wait,
        .trim = cpu_trim,
        .counters = cpu_counters,
        .held_bytes = cpu_held_bytes,
        .close = cpu_close,
    };
    *out = NULL;
    struct cpu *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "the CPU device");
    *c = (struct cpu){.base = {.v = &vtable, .name = kernels->name},
                      .pool = pool,
                      .kernels = kernels,
                      .tuning = cpu_tuning_default()};
    *out = &c->base;
    return ERR_OK;
}
