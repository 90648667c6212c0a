/* A device that holds nothing: one handle stands for every buffer, weight and slot pool. */
#include <assert.h>
#include <string.h>

#include "backend/vtable.h"

struct buffer {
    char nothing;
};

struct weight {
    char nothing;
};

struct slot_pool {
    char nothing;
};

struct null_device {
    struct backend base;
    struct buffer buffer;
    struct weight weight;
    struct slot_pool slot_pool;
};

static struct null_device *null_of(struct backend *b)
{
    return (struct null_device *)b;
}

static err_code buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag, struct buffer **out,
                              struct err *e)
{
    *out = &null_of(b)->buffer;
    return ERR_OK;
}

static err_code buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part, enum mem_tag tag,
                               struct buffer **out, struct err *e)
{
    *out = &null_of(b)->buffer;
    return ERR_OK;
}

static bool commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    return true;
}

static void decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
}

static void buffer_close(struct backend *b, struct buffer *buf)
{
}

static void forget(struct backend *b, const struct tensor *t, const void *src)
{
}

static void copy(struct backend *b, const struct tensor *from, const struct tensor *to)
{
}

static void clear(struct backend *b, const struct tensor *t)
{
}

static err_code read_zeros(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    memset(dst, 0, tensor_bytes(t));
    return ERR_OK;
}

static err_code weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                            struct weight **out, struct err *e)
{
    *out = &null_of(b)->weight;
    return ERR_OK;
}

static void weight_close(struct backend *b, struct weight *w)
{
}

static err_code slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                 struct err *e)
{
    *out = &null_of(b)->slot_pool;
    return ERR_OK;
}

static void slot_pool_close(struct backend *b, struct slot_pool *slot_pool)
{
}

static size_t slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    return 0;
}

static err_code slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot, const struct slot_rows *rows,
                          struct err *e)
{
    return ERR_OK;
}

static bool supports_none(struct backend *b, const struct op *op)
{
    return false;
}

static void enqueue(struct backend *b, const struct op *op)
{
    assert(!"the null device runs operations");
}

static uint64_t fence(struct backend *b)
{
    return 0;
}

static err_code wait_none(struct backend *b, uint64_t fence_id, struct err *e)
{
    return ERR_OK;
}

static struct backend_counters counters(struct backend *b)
{
    return (struct backend_counters){0};
}

static void null_close(struct backend *b)
{
    mem_free(null_of(b));
}

err_code backend_null_open(struct backend **out, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_create = buffer_create,
        .buffer_reserve = buffer_reserve,
        .buffer_commit = commit,
        .buffer_decommit = decommit,
        .buffer_close = buffer_close,
        .write = forget,
        .copy = copy,
        .clear = clear,
        .read = read_zeros,
        .weight_load = weight_load,
        .weight_close = weight_close,
        .slot_pool_create = slot_pool_create,
        .slot_pool_close = slot_pool_close,
        .slot_pool_slot_bytes = slot_pool_slot_bytes,
        .slot_fill = slot_fill,
        .enqueue = enqueue,
        .supports = supports_none,
        .fence = fence,
        .wait = wait_none,
        .counters = counters,
        .close = null_close,
    };
    struct null_device *n = mem_calloc(1, sizeof *n);
    *out = NULL;
    if (!n)
        return err_nomem(e, sizeof *n, "the null device");
    n->base = (struct backend){.v = &vtable, .name = "null"};
    *out = &n->base;
    return ERR_OK;
}
