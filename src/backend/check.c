/* The checking device: runs every operation on two devices and compares the outputs. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/vtable.h"

struct buffer {
    struct buffer *side[2];
    size_t n_bytes;
};

struct weight {
    struct weight *side[2];
    struct weight_desc d;
};

struct slot_pool {
    struct slot_pool *side[2];
    struct slot_pool_desc d;
};

struct check {
    struct backend base;
    struct backend *side[2]; /* primary, secondary */
    uint64_t n_op;
    struct err error;
    char *host[2]; /* staging for comparisons */
    size_t host_bytes;
};

static struct check *check_of(struct backend *b)
{
    return (struct check *)b;
}

static struct tensor tensor_side(const struct tensor *t, int side)
{
    struct tensor r = *t;
    if (t->buffer)
        r.buffer = t->buffer->side[side];
    return r;
}

static size_t check_buffer_bytes(struct backend *b, const struct buffer *buf)
{
    return buf->n_bytes;
}

static struct weight_shape check_weight_shape(struct backend *b, const struct weight *w)
{
    return (struct weight_shape){w->d.type, w->d.k, w->d.n_row, w->d.is_observed ? w->d.name : NULL};
}

static struct slot_pool_desc check_slot_pool_shape(struct backend *b, const struct slot_pool *slot_pool)
{
    return slot_pool->d;
}

static void check_buffer_close(struct backend *b, struct buffer *buf)
{
    for (int i = 0; i < 2; i++)
        backend_buffer_close(check_of(b)->side[i], &buf->side[i]);
    mem_free(buf);
}

/* Creates a buffer on each side; unit_bytes: of a reserved one, else 0. */
static err_code create_both(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part, enum mem_tag tag,
                            struct buffer **out, struct err *e)
{
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    if (!buf)
        return err_nomem(e, sizeof *buf, "a buffer");
    buf->n_bytes = n_bytes;
    for (int i = 0; i < 2; i++) {
        struct backend *side = check_of(b)->side[i];
        err_code code = unit_bytes ? backend_buffer_reserve(side, n_bytes, unit_bytes, n_part, tag, &buf->side[i], e)
                                   : backend_buffer_create(side, n_bytes, n_part, tag, &buf->side[i], e);
        if (code != ERR_OK) {
            check_buffer_close(b, buf);
            return code;
        }
    }
    *out = buf;
    return ERR_OK;
}

static err_code check_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                    struct buffer **out, struct err *e)
{
    return create_both(b, n_bytes, 0, n_part, tag, out, e);
}

static err_code check_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part,
                                     enum mem_tag tag, struct buffer **out, struct err *e)
{
    return create_both(b, n_bytes, unit_bytes, n_part, tag, out, e);
}

static int check_n_node(struct backend *b)
{
    return backend_n_node(check_of(b)->side[0]);
}

static void check_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    for (int i = 0; i < 2; i++)
        backend_buffer_decommit(check_of(b)->side[i], buf->side[i], off_bytes, n_bytes);
}

static bool check_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    if (!backend_buffer_commit(check_of(b)->side[0], buf->side[0], off_bytes, n_bytes))
        return false;
    bool ok = backend_buffer_commit(check_of(b)->side[1], buf->side[1], off_bytes, n_bytes);
    if (!ok)
        backend_buffer_decommit(check_of(b)->side[0], buf->side[0], off_bytes, n_bytes);
    return ok;
}

static void check_copy(struct backend *b, const struct tensor *from, const struct tensor *to)
{
    for (int i = 0; i < 2; i++) {
        struct tensor f = tensor_side(from, i), t = tensor_side(to, i);
        backend_copy(check_of(b)->side[i], &f, &t);
    }
}

static void check_write(struct backend *b, const struct tensor *t, const void *src)
{
    for (int i = 0; i < 2; i++) {
        struct tensor s = tensor_side(t, i);
        backend_write(check_of(b)->side[i], &s, src);
    }
}

static void check_clear(struct backend *b, const struct tensor *t)
{
    for (int i = 0; i < 2; i++) {
        struct tensor s = tensor_side(t, i);
        backend_clear(check_of(b)->side[i], &s);
    }
}

static err_code check_read(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    TRY(backend_report(&check_of(b)->error, e));
    struct tensor s = tensor_side(t, 0);
    return backend_read(check_of(b)->side[0], &s, dst, e);
}

static void check_weight_close(struct backend *b, struct weight *w)
{
    for (int i = 0; i < 2; i++)
        backend_weight_close(check_of(b)->side[i], &w->side[i]);
    mem_free(w);
}

static err_code check_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                                  struct weight **out, struct err *e)
{
    struct weight *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, d->name);
    w->d = *d;
    for (int i = 0; i < 2; i++) {
        err_code code = backend_weight_load(check_of(b)->side[i], d, src, &w->side[i], e);
        if (code != ERR_OK) {
            check_weight_close(b, w);
            return code;
        }
    }
    *out = w;
    return ERR_OK;
}

static void check_slot_pool_close(struct backend *b, struct slot_pool *slot_pool)
{
    for (int i = 0; i < 2; i++)
        backend_slot_pool_close(check_of(b)->side[i], &slot_pool->side[i]);
    mem_free(slot_pool);
}

static err_code check_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                       struct err *e)
{
    struct slot_pool *slot_pool = mem_calloc(1, sizeof *slot_pool);
    if (!slot_pool)
        return err_nomem(e, sizeof *slot_pool, "a slot pool");
    slot_pool->d = *d;
    for (int i = 0; i < 2; i++) {
        err_code code = backend_slot_pool_create(check_of(b)->side[i], d, &slot_pool->side[i], e);
        if (code != ERR_OK) {
            check_slot_pool_close(b, slot_pool);
            return code;
        }
    }
    *out = slot_pool;
    return ERR_OK;
}

static size_t check_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    return backend_slot_pool_slot_bytes(check_of(b)->side[0], d);
}

static void check_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    for (int i = 0; i < 2; i++)
        backend_slot_close(check_of(b)->side[i], slot_pool->side[i], slot);
}

static bool check_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    if (!backend_slot_open(check_of(b)->side[0], slot_pool->side[0], slot))
        return false;
    bool ok = backend_slot_open(check_of(b)->side[1], slot_pool->side[1], slot);
    if (!ok)
        backend_slot_close(check_of(b)->side[0], slot_pool->side[0], slot);
    return ok;
}

static err_code check_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot,
                                const struct slot_rows *rows, struct err *e)
{
    for (int i = 0; i < 2; i++) {
        struct backend *side = check_of(b)->side[i];
        bool is_passed;
        TRY(backend_slot_fill(side, slot_pool->side[i], slot, rows, e));
        TRY(backend_upload_poll(side, backend_upload_fence(side), true, &is_passed, e));
    }
    return ERR_OK;
}

/* ---- comparing ----------------------------------------------------------------------------------------------- */

/* How far apart two devices' results may be, as a share of a row's length (L2 norm). Rounding errors grow with the root
 * of the number of terms; where activations are rounded to int8, one device may round and the other not. */
static double tolerance(const struct op *op)
{
    double terms = 1;
    bool rounded = false;
    switch (op->kind) {
    case OP_HEADS:
    case OP_MATMUL:
    case OP_ROUTE:
        terms = (double)op->in[0].ne[0];
        for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++)
            rounded |= op->weight[i]->d.type->act != QUANT_ACT_FLOAT;
        break;
    case OP_EXPERTS:
        terms = (double)(op->slot_pool->d.n_embd + slot_n_hidden(&op->slot_pool->d));
        for (int i = 0; i < EXPERT_N_MATRIX; i++)
            rounded |= op->slot_pool->d.type[i]->act != QUANT_ACT_FLOAT;
        break;
    case OP_ROPE_TABLE: terms = 64; break;
    case OP_COMPRESS: terms = 64 * (double)tensor_n_elem(&op->vec[0]); break; /* each has an exp's error */
    case OP_DELTA:
    case OP_SSM: terms = 4096; break; /* errors of the state add up over the text */
    case OP_ATTENTION:                /* each term has an exp's error */
        terms = 64 * (double)(op->in[ATTENTION_PAGES].ne[0] * ATTENTION_BLOCK);
        break;
    default: terms = (double)op->out[0].ne[0]; break;
    }
    return rounded ? 0.02 + 0.002 * sqrt(terms) : 1e-5 + 2e-6 * sqrt(terms);
}

static bool host_reserve(struct check *c, size_t n_bytes)
{
    if (c->host_bytes >= n_bytes)
        return true;
    for (int i = 0; i < 2; i++) {
        char *p = mem_resize(c->host[i], n_bytes, 1);
        if (!p) {
            err_nomem(&c->error, n_bytes, "comparing results");
            return false;
        }
        c->host[i] = p;
    }
    c->host_bytes = n_bytes;
    return true;
}

/* Copies a tensor from primary to secondary. */
static void mirror(struct check *c, const struct tensor *t)
{
    if (!t->buffer || !host_reserve(c, tensor_bytes(t)))
        return;
    struct tensor a = tensor_side(t, 0), b = tensor_side(t, 1);
    if (backend_read(c->side[0], &a, c->host[0], &c->error) == ERR_OK)
        backend_write(c->side[1], &b, c->host[0]);
}

static void differ(struct check *c, const struct op *op, int64_t row, double off, double bound)
{
    const struct tensor *x = &op->in[0], *y = &op->out[0];
    const char *name = op->weight[0] ? op->weight[0]->d.name : "";
    err_set(&c->error, ERR_CHECK,
            "operation %llu, %s%s%s: [%lld x %lld] to [%lld x %lld x %lld]: row %lld on %s and %s is %.3g of its "
            "length apart, allowed is %.3g",
            (unsigned long long)c->n_op, op_name(op->kind), *name ? " " : "", name, (long long)x->ne[0],
            (long long)x->ne[1], (long long)y->ne[0], (long long)y->ne[1], (long long)y->ne[2], (long long)row,
            backend_name(c->side[0]), backend_name(c->side[1]), off, bound);
}

/* Compares one float output row by row. */
static void compare(struct check *c, const struct op *op, const struct tensor *t)
{
    if (!t->buffer || t->type != ELEM_F32 || c->error.code != ERR_OK || !host_reserve(c, tensor_bytes(t)))
        return;
    for (int i = 0; i < 2; i++) {
        struct tensor s = tensor_side(t, i);
        if (backend_read(c->side[i], &s, c->host[i], &c->error) != ERR_OK)
            return;
    }
    const float *a = (const float *)c->host[0], *b = (const float *)c->host[1];
    double bound = tolerance(op), all = 0;
    int64_t n = t->ne[0], n_row = n ? tensor_n_elem(t) / n : 0;
    for (int64_t i = 0; i < n * n_row; i++)
        all += isnan(b[i]) ? 0 : (double)b[i] * b[i];
    double floor = 1e-6 * sqrt(all / (double)n_row) + 1e-30; /* for rows that are noise alone */
    for (int64_t r = 0; r < n_row; r++) {
        double diff = 0, size = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) {
            if (isnan(a[i]) && isnan(b[i]))
                continue;
            diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            size += (double)b[i] * b[i];
        }
        double off = sqrt(diff) / (sqrt(size) + floor);
        if (!(off <= bound)) {
            differ(c, op, r, off, bound);
            return;
        }
    }
}

static void check_enqueue(struct backend *b, const struct op *op)
{
    struct check *c = check_of(b);
    if (c->error.code != ERR_OK)
        return;
    c->n_op++;
    for (int i = 0; i < OP_MAX_IN; i++)
        mirror(c, &op->in[i]);
    if (op->kind == OP_EXPERTS || op->kind == OP_HEADS ||
        op->kind == OP_SCATTER) /* these write a part of their output */
        for (int i = 0; i < OP_MAX_OUT; i++)
            mirror(c, &op->out[i]);
    for (int s = 0; s < 2; s++) {
        struct op o = *op;
        for (int i = 0; i < OP_MAX_IN; i++)
            o.in[i] = tensor_side(&op->in[i], s);
        for (int i = 0; i < OP_MAX_OUT; i++) {
            o.out[i] = tensor_side(&op->out[i], s);
            o.vec[i] = tensor_side(&op->vec[i], s);
            o.weight[i] = op->weight[i] ? op->weight[i]->side[s] : NULL;
        }
        for (int i = 0; i < OP_MAX_STATE; i++)
            o.state[i].page = tensor_side(&op->state[i].page, s);
        o.slot_pool = op->slot_pool ? op->slot_pool->side[s] : NULL;
        backend_enqueue(c->side[s], &o);
    }
    /* a router's ids, which are integers, are not compared: of two experts as good within the bound, either may come
     * first */
    for (int i = 0; i < OP_MAX_OUT; i++)
        compare(c, op, &op->out[i]);
}

static bool check_supports(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    struct backend *const *side = check_of(b)->side;
    return side[0]->v->supports(side[0], op, s) && side[1]->v->supports(side[1], op, s);
}

static uint64_t check_fence(struct backend *b)
{
    backend_fence(check_of(b)->side[1]);
    return backend_fence(check_of(b)->side[0]);
}

static err_code check_wait(struct backend *b, uint64_t fence, struct err *e)
{
    TRY(backend_report(&check_of(b)->error, e));
    return backend_wait(check_of(b)->side[0], fence, e);
}

static void check_trim(struct backend *b)
{
    for (int i = 0; i < 2; i++)
        backend_trim(check_of(b)->side[i]);
}

static struct backend_counters check_counters(struct backend *b)
{
    return backend_counters(check_of(b)->side[0]);
}

static uint64_t check_op_ns(struct backend *b, enum op_kind kind)
{
    return backend_op_ns(check_of(b)->side[0], kind);
}

static size_t check_held_bytes(struct backend *b, enum mem_tag tag)
{
    return backend_held_bytes(check_of(b)->side[0], tag) + backend_held_bytes(check_of(b)->side[1], tag);
}

/* The second device works in the host's memory. */
static size_t check_own_bytes(struct backend *b)
{
    return backend_own_bytes(check_of(b)->side[0]);
}

static size_t check_room_bytes(struct backend *b)
{
    size_t first = backend_room_bytes(check_of(b)->side[0]), second = backend_room_bytes(check_of(b)->side[1]);
    return first < second ? first : second;
}

static bool check_make_room(struct backend *b, size_t n_bytes)
{
    return backend_make_room(check_of(b)->side[0], n_bytes) && backend_make_room(check_of(b)->side[1], n_bytes);
}

static void check_set_reclaim(struct backend *b, mem_reclaim_fn *reclaim, void *user)
{
    backend_set_reclaim(check_of(b)->side[0], reclaim, user);
}

static void check_close(struct backend *b)
{
    struct check *c = check_of(b);
    for (int i = 0; i < 2; i++) {
        backend_close(&c->side[i]);
        mem_free(c->host[i]);
    }
    mem_free(c);
}

err_code backend_check_open(struct backend **out, struct backend *primary, struct backend *secondary, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_bytes = check_buffer_bytes,
        .weight_shape = check_weight_shape,
        .slot_pool_shape = check_slot_pool_shape,
        .buffer_create = check_buffer_create,
        .n_node = check_n_node,
        .buffer_reserve = check_buffer_reserve,
        .buffer_commit = check_buffer_commit,
        .buffer_decommit = check_buffer_decommit,
        .buffer_close = check_buffer_close,
        .write = check_write,
        .copy = check_copy,
        .clear = check_clear,
        .read = check_read,
        .weight_load = check_weight_load,
        .weight_close = check_weight_close,
        .slot_pool_create = check_slot_pool_create,
        .slot_pool_close = check_slot_pool_close,
        .slot_pool_slot_bytes = check_slot_pool_slot_bytes,
        .slot_open = check_slot_open,
        .slot_close = check_slot_close,
        .slot_fill = check_slot_fill,
        .enqueue = check_enqueue,
        .supports = check_supports,
        .fence = check_fence,
        .wait = check_wait,
        .trim = check_trim,
        .counters = check_counters,
        .op_ns = check_op_ns,
        .held_bytes = check_held_bytes,
        .own_bytes = check_own_bytes,
        .room_bytes = check_room_bytes,
        .make_room = check_make_room,
        .set_reclaim = check_set_reclaim,
        .close = check_close,
    };
    *out = NULL;
    struct check *c = mem_calloc(1, sizeof *c);
    if (!c) {
        backend_close(&primary);
        backend_close(&secondary);
        return err_nomem(e, sizeof *c, "the checking device");
    }
    *c = (struct check){.base = {.v = &vtable, .name = "check"}, .side = {primary, secondary}};
    *out = &c->base;
    return ERR_OK;
}
