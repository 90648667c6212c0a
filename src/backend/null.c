/* The null device: its buffers, weights and slot pools consist of their shapes only. It counts how much memory the
 * device that it asks would hold, and how much work operations would be. */
#include <stdio.h>
#include <string.h>

#include "backend/vtable.h"

struct buffer {
    size_t n_bytes, n_held;
    enum mem_tag tag;
};

struct weight {
    struct weight_desc d;
    size_t n_held;
};

struct slot_pool {
    struct slot_pool_desc d;
};

struct null_device {
    struct backend base;
    struct backend *asked;        /* borrowed; NULL: no device is asked */
    struct err error;             /* the first one since the last report */
    size_t held_bytes[MEM_N_TAG]; /* bytes that the asked device would hold, without slots and scratch */
    struct backend_counters counters;
};

static struct null_device *null_of(struct backend *b)
{
    return (struct null_device *)b;
}

/* ---- memory, weights, slots ------------------------------------------------------------------------------------ */

static err_code buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag, struct buffer **out,
                              struct err *e)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out)
        return err_nomem(e, sizeof **out, "a buffer");
    **out = (struct buffer){.n_bytes = n_bytes, .n_held = mem_length(n_bytes), .tag = tag};
    null_of(b)->held_bytes[tag] += (*out)->n_held;
    return ERR_OK;
}

static size_t buffer_bytes(struct backend *b, const struct buffer *buf)
{
    return buf->n_bytes;
}

static err_code buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part, enum mem_tag tag,
                               struct buffer **out, struct err *e)
{
    TRY(buffer_create(b, n_bytes, n_part, tag, out, e));
    null_of(b)->held_bytes[tag] -= (*out)->n_held;
    (*out)->n_held = 0;
    return ERR_OK;
}

static bool commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    buf->n_held += n_bytes;
    null_of(b)->held_bytes[buf->tag] += n_bytes;
    return true;
}

static void decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    buf->n_held -= n_bytes;
    null_of(b)->held_bytes[buf->tag] -= n_bytes;
}

static void buffer_close(struct backend *b, struct buffer *buf)
{
    null_of(b)->held_bytes[buf->tag] -= buf->n_held;
    mem_free(buf);
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
    TRY(backend_report(&null_of(b)->error, e));
    memset(dst, 0, tensor_bytes(t));
    return ERR_OK;
}

static err_code weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                            struct weight **out, struct err *e)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out)
        return err_nomem(e, sizeof **out, d->name);
    **out = (struct weight){.d = *d, .n_held = null_of(b)->asked ? backend_weight_bytes(null_of(b)->asked, d) : 0};
    null_of(b)->held_bytes[MEM_WEIGHTS] += (*out)->n_held;
    return ERR_OK;
}

static struct weight_shape weight_shape(struct backend *b, const struct weight *w)
{
    return (struct weight_shape){w->d.type, w->d.k, w->d.n_row};
}

static void weight_close(struct backend *b, struct weight *w)
{
    null_of(b)->held_bytes[MEM_WEIGHTS] -= w->n_held;
    mem_free(w);
}

static err_code slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                 struct err *e)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out)
        return err_nomem(e, sizeof **out, "a slot pool");
    (*out)->d = *d;
    return ERR_OK;
}

static struct slot_pool_desc slot_pool_shape(struct backend *b, const struct slot_pool *slot_pool)
{
    return slot_pool->d;
}

static void slot_pool_close(struct backend *b, struct slot_pool *slot_pool)
{
    mem_free(slot_pool);
}

static size_t slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    return 0;
}

static bool slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    return true;
}

static void slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
}

static err_code slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot, const struct slot_rows *rows,
                          struct err *e)
{
    return ERR_OK;
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* A sentence that is being put together. */
struct sentence {
    char text[ERR_TEXT_BYTES];
    size_t n;
};

static void say(struct sentence *s, const char *before, const char *what, const char *type)
{
    int n = snprintf(s->text + s->n, sizeof s->text - s->n, "%s%s%s%s%s", before, what, type ? " (" : "",
                     type ? type : "", type ? ")" : "");
    s->n = s->n + (size_t)n < sizeof s->text ? s->n + (size_t)n : sizeof s->text - 1;
}

static void say_shape(struct sentence *s, const char *before, const struct tensor *t)
{
    static const char *const types[] = {
        [ELEM_F32] = "F32", [ELEM_F16] = "F16", [ELEM_I32] = "I32", [ELEM_Q8_0] = "Q8_0"};
    char text[96];
    snprintf(text, sizeof text, "%s [%lld x %lld x %lld]", types[t->type], (long long)t->ne[0], (long long)t->ne[1],
             (long long)t->ne[2]);
    say(s, before, text, NULL);
}

/* Describes an operation with the names of its weights in the model's file. */
static void describe(const struct op *op, struct sentence *s)
{
    const char *before = " with ";
    say(s, op_name(op->kind), "", NULL);
    say_shape(s, " of ", &op->in[0]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->weight[i]) {
            say(s, before, op->weight[i]->d.name, op->weight[i]->d.type->name);
            before = ", ";
        }
    for (int i = 0; op->slot_pool && i < EXPERT_N_MATRIX; i++) {
        const char *name = op->experts.tensors ? op->experts.tensors[i] : NULL;
        say(s, before, name ? name : "experts", op->slot_pool->d.type[i]->name);
        before = ", ";
    }
    for (int i = 0; i < 2; i++)
        if (op->state[i].page.buffer) {
            say_shape(s, before, &op->state[i].page);
            before = ", ";
        }
}

/* Counts the products with weights, each of which is read once. Experts and state are not counted, as their work
 * depends on the contents of tensors. */
static void count(struct null_device *n, const struct op *op)
{
    struct op_counters *t = &n->counters.op[op->kind];
    t->n++;
    for (int i = 0; op->kind != OP_EMBED && i < OP_MAX_OUT && op->weight[i]; i++) {
        const struct weight_desc *d = &op->weight[i]->d;
        size_t row_bytes = 0;
        quant_row_bytes(d->type, (uint64_t)d->k, &row_bytes);
        t->n_bytes += (uint64_t)d->n_row * row_bytes;
        n->counters.n_product[d->type->type] += (uint64_t)(d->n_row * d->k * op->in[0].ne[1]);
    }
}

static void enqueue(struct backend *b, const struct op *op)
{
    struct null_device *n = null_of(b);
    count(n, op);
    const struct op_shapes shapes = op_shapes(b, op);
    if (!n->asked || n->error.code != ERR_OK || n->asked->v->supports(n->asked, op, &shapes))
        return;
    struct sentence s = {0};
    describe(op, &s);
    err_set(&n->error, ERR_UNSUPPORTED, "the device %s does not run %s", backend_name(n->asked), s.text);
}

static bool supports_all(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    return true;
}

static uint64_t fence(struct backend *b)
{
    return 0;
}

static err_code wait_none(struct backend *b, uint64_t fence_id, struct err *e)
{
    return backend_report(&null_of(b)->error, e);
}

static struct backend_counters counters(struct backend *b)
{
    return null_of(b)->counters;
}

static size_t held_bytes(struct backend *b, enum mem_tag tag)
{
    return null_of(b)->asked ? null_of(b)->held_bytes[tag] : 0;
}

static void null_close(struct backend *b)
{
    mem_free(null_of(b));
}

err_code backend_asking_open(struct backend **out, struct backend *asked, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_bytes = buffer_bytes,
        .weight_shape = weight_shape,
        .slot_pool_shape = slot_pool_shape,
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
        .slot_open = slot_open,
        .slot_close = slot_close,
        .slot_fill = slot_fill,
        .enqueue = enqueue,
        .supports = supports_all,
        .fence = fence,
        .wait = wait_none,
        .counters = counters,
        .held_bytes = held_bytes,
        .close = null_close,
    };
    struct null_device *n = mem_calloc(1, sizeof *n);
    *out = NULL;
    if (!n)
        return err_nomem(e, sizeof *n, "the null device");
    *n = (struct null_device){.base = {.v = &vtable, .name = "null"}, .asked = asked};
    *out = &n->base;
    return ERR_OK;
}

err_code backend_null_open(struct backend **out, struct err *e)
{
    return backend_asking_open(out, NULL, e);
}
