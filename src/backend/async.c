/* A device with a thread of its own, which runs another device's operations in order while whoever enqueues them goes
 * on. Everything but operations, writes, copies and clears waits until the queue is empty and is then done by the
 * caller, so that the other device is never driven by two threads at once. */
#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "backend/backend_internal.h"

enum { N_COMMAND = 256, N_QUEUED_BYTES = 1 << 20 };

enum command_kind { COMMAND_OP, COMMAND_WRITE, COMMAND_COPY, COMMAND_CLEAR };

struct command {
    enum command_kind kind;
    struct op op;           /* COMMAND_OP */
    struct tensor to, from; /* of the others */
    size_t at, n_bytes;     /* COMMAND_WRITE: where in the ring its bytes lie, and how far it is used after them */
};

struct async {
    struct backend base;
    struct backend *inner; /* owned */
    pthread_t thread;
    pthread_mutex_t mutex;   /* of all that follows */
    pthread_cond_t has_work; /* for the thread */
    pthread_cond_t has_room; /* for who enqueues or waits */
    bool is_closing;
    uint64_t n_begun, n_done;           /* commands that were enqueued, that have run */
    struct command commands[N_COMMAND]; /* command i is at i % N_COMMAND */
    size_t bytes_begin, bytes_end;      /* of the ring below: positions that only grow */
    char bytes[N_QUEUED_BYTES];         /* what is to be written */
};

static struct async *async_of(struct backend *b)
{
    return (struct async *)b;
}

/* ---- the thread ------------------------------------------------------------------------------------------------ */

static void run_command(struct async *a, const struct command *c)
{
    switch (c->kind) {
    case COMMAND_OP: backend_enqueue(a->inner, &c->op); break;
    case COMMAND_WRITE: backend_write(a->inner, &c->to, a->bytes + c->at % N_QUEUED_BYTES); break;
    case COMMAND_COPY: backend_copy(a->inner, &c->from, &c->to); break;
    case COMMAND_CLEAR: backend_clear(a->inner, &c->to); break;
    }
}

static void *run_commands(void *async)
{
    struct async *a = async;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (a->n_begun == a->n_done && !a->is_closing)
            pthread_cond_wait(&a->has_work, &a->mutex);
        if (a->n_begun == a->n_done)
            break;
        const struct command *c = &a->commands[a->n_done % N_COMMAND];
        pthread_mutex_unlock(&a->mutex);
        run_command(a, c);
        pthread_mutex_lock(&a->mutex);
        if (c->kind == COMMAND_WRITE)
            a->bytes_begin = c->at + c->n_bytes;
        a->n_done++;
        pthread_cond_broadcast(&a->has_room);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* ---- the queue ------------------------------------------------------------------------------------------------- */

/* The place for one more command; the mutex is held until it is pushed. */
static struct command *next_command(struct async *a)
{
    pthread_mutex_lock(&a->mutex);
    while (a->n_begun - a->n_done == N_COMMAND)
        pthread_cond_wait(&a->has_room, &a->mutex);
    return &a->commands[a->n_begun % N_COMMAND];
}

static void push(struct async *a)
{
    a->n_begun++;
    pthread_cond_signal(&a->has_work);
    pthread_mutex_unlock(&a->mutex);
}

/* Waits until n commands have run. */
static void wait_for(struct async *a, uint64_t n)
{
    pthread_mutex_lock(&a->mutex);
    while (a->n_done < n)
        pthread_cond_wait(&a->has_room, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
}

/* The other device, which nobody drives any more. */
static struct backend *idle(struct backend *b)
{
    struct async *a = async_of(b);
    wait_for(a, a->n_begun);
    return a->inner;
}

static void async_enqueue(struct backend *b, const struct op *op)
{
    struct async *a = async_of(b);
    struct command *c = next_command(a);
    c->kind = COMMAND_OP;
    c->op = *op;
    push(a);
}

/* Where in the ring n bytes may lie in one piece, from its end on; the mutex is held. */
static size_t ring_place(const struct async *a, size_t n)
{
    size_t at = a->bytes_end, to_end = N_QUEUED_BYTES - at % N_QUEUED_BYTES;
    return n <= to_end ? at : at + to_end;
}

static void async_write(struct backend *b, const struct tensor *t, const void *src)
{
    struct async *a = async_of(b);
    size_t n = tensor_bytes(t);
    if (n > N_QUEUED_BYTES / 2) {
        backend_write(idle(b), t, src);
        return;
    }
    struct command *c = next_command(a);
    while (ring_place(a, n) + n - a->bytes_begin > N_QUEUED_BYTES)
        pthread_cond_wait(&a->has_room, &a->mutex);
    *c = (struct command){.kind = COMMAND_WRITE, .to = *t, .at = ring_place(a, n), .n_bytes = n};
    memcpy(a->bytes + c->at % N_QUEUED_BYTES, src, n);
    a->bytes_end = c->at + n;
    push(a);
}

static void async_copy(struct backend *b, const struct tensor *from, const struct tensor *to)
{
    struct command *c = next_command(async_of(b));
    c->kind = COMMAND_COPY;
    c->from = *from;
    c->to = *to;
    push(async_of(b));
}

static void async_clear(struct backend *b, const struct tensor *t)
{
    struct command *c = next_command(async_of(b));
    c->kind = COMMAND_CLEAR;
    c->to = *t;
    push(async_of(b));
}

static uint64_t async_fence(struct backend *b)
{
    return async_of(b)->n_begun;
}

/* The other device's own queue is waited for, too. */
static err_code async_wait(struct backend *b, uint64_t fence, struct err *e)
{
    struct async *a = async_of(b);
    wait_for(a, fence);
    struct backend *inner = idle(b);
    return backend_wait(inner, backend_fence(inner), e);
}

/* ---- the other device's work ----------------------------------------------------------------------------------- */

static size_t async_buffer_bytes(struct backend *b, const struct buffer *buf)
{
    return async_of(b)->inner->v->buffer_bytes(async_of(b)->inner, buf);
}

static struct weight_shape async_weight_shape(struct backend *b, const struct weight *w)
{
    return async_of(b)->inner->v->weight_shape(async_of(b)->inner, w);
}

static struct slot_pool_desc async_slot_pool_shape(struct backend *b, const struct slot_pool *slot_pool)
{
    return async_of(b)->inner->v->slot_pool_shape(async_of(b)->inner, slot_pool);
}

static err_code async_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                    struct buffer **out, struct err *e)
{
    return backend_buffer_create(idle(b), n_bytes, n_part, tag, out, e);
}

static int async_n_node(struct backend *b)
{
    return backend_n_node(async_of(b)->inner);
}

static err_code async_buffer_reserve(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                     struct buffer **out, struct err *e)
{
    return backend_buffer_reserve(idle(b), n_bytes, n_part, tag, out, e);
}

static bool async_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    return backend_buffer_commit(idle(b), buf, off_bytes, n_bytes);
}

static void async_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    backend_buffer_decommit(idle(b), buf, off_bytes, n_bytes);
}

static void async_buffer_close(struct backend *b, struct buffer *buf)
{
    backend_buffer_close(idle(b), &buf);
}

static err_code async_read(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    return backend_read(idle(b), t, dst, e);
}

static err_code async_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                                  struct weight **out, struct err *e)
{
    return backend_weight_load(idle(b), d, src, out, e);
}

static void async_weight_close(struct backend *b, struct weight *w)
{
    backend_weight_close(idle(b), &w);
}

static err_code async_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                       struct err *e)
{
    return backend_slot_pool_create(idle(b), d, out, e);
}

static void async_slot_pool_close(struct backend *b, struct slot_pool *slot_pool)
{
    backend_slot_pool_close(idle(b), &slot_pool);
}

/* What follows is for slots that no enqueued operation uses: the queue is not waited for. */

static size_t async_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    return backend_slot_pool_slot_bytes(async_of(b)->inner, d);
}

static bool async_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    return backend_slot_open(async_of(b)->inner, slot_pool, slot);
}

static void async_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    backend_slot_touch(async_of(b)->inner, slot_pool, slot);
}

static void async_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    backend_slot_close(async_of(b)->inner, slot_pool, slot);
}

static bool async_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out)
{
    return backend_slot_pool_image(async_of(b)->inner, d, out);
}

static void *async_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                             bool is_packed)
{
    return backend_slot_room(async_of(b)->inner, slot_pool, slot, matrix, is_packed);
}

static void async_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                             const void *bytes, bool is_packed)
{
    backend_slot_adopt(async_of(b)->inner, slot_pool, slot, matrix, bytes, is_packed);
}

static err_code async_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot,
                                const struct slot_rows *rows, struct err *e)
{
    return backend_slot_fill(async_of(b)->inner, slot_pool, slot, rows, e);
}

static uint64_t async_upload_fence(struct backend *b)
{
    return backend_upload_fence(async_of(b)->inner);
}

static err_code async_upload_poll(struct backend *b, uint64_t fence, bool wait, bool *is_passed, struct err *e)
{
    return backend_upload_poll(async_of(b)->inner, fence, wait, is_passed, e);
}

static bool async_supports(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    return async_of(b)->inner->v->supports(async_of(b)->inner, op, s);
}

static void async_trim(struct backend *b)
{
    backend_trim(idle(b));
}

static struct backend_counters async_counters(struct backend *b)
{
    return backend_counters(idle(b));
}

static size_t async_held_bytes(struct backend *b, enum mem_tag tag)
{
    return backend_held_bytes(async_of(b)->inner, tag);
}

static void async_observe(struct backend *b, backend_observer *observer, void *user)
{
    backend_observe(idle(b), observer, user);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void close_parts(struct async *a)
{
    pthread_cond_destroy(&a->has_room);
    pthread_cond_destroy(&a->has_work);
    pthread_mutex_destroy(&a->mutex);
    backend_close(&a->inner);
    mem_free(a);
}

static void async_close(struct backend *b)
{
    struct async *a = async_of(b);
    pthread_mutex_lock(&a->mutex);
    a->is_closing = true;
    pthread_cond_signal(&a->has_work);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    close_parts(a);
}

err_code backend_async_open(struct backend **out, struct backend *inner, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_bytes = async_buffer_bytes,
        .weight_shape = async_weight_shape,
        .slot_pool_shape = async_slot_pool_shape,
        .buffer_create = async_buffer_create,
        .n_node = async_n_node,
        .buffer_reserve = async_buffer_reserve,
        .buffer_commit = async_buffer_commit,
        .buffer_decommit = async_buffer_decommit,
        .buffer_close = async_buffer_close,
        .write = async_write,
        .copy = async_copy,
        .clear = async_clear,
        .read = async_read,
        .weight_load = async_weight_load,
        .weight_close = async_weight_close,
        .slot_pool_create = async_slot_pool_create,
        .slot_pool_close = async_slot_pool_close,
        .slot_pool_slot_bytes = async_slot_pool_slot_bytes,
        .slot_open = async_slot_open,
        .slot_touch = async_slot_touch,
        .slot_close = async_slot_close,
        .slot_pool_image = async_slot_pool_image,
        .slot_room = async_slot_room,
        .slot_adopt = async_slot_adopt,
        .slot_fill = async_slot_fill,
        .upload_fence = async_upload_fence,
        .upload_poll = async_upload_poll,
        .enqueue = async_enqueue,
        .supports = async_supports,
        .fence = async_fence,
        .wait = async_wait,
        .trim = async_trim,
        .counters = async_counters,
        .held_bytes = async_held_bytes,
        .observe = async_observe,
        .close = async_close,
    };
    *out = NULL;
    struct async *a = mem_calloc(1, sizeof *a);
    if (!a) {
        backend_close(&inner);
        return err_nomem(e, sizeof *a, "a device's queue");
    }
    a->base = (struct backend){.v = &vtable, .name = backend_name(inner)};
    a->inner = inner;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->has_work, NULL);
    pthread_cond_init(&a->has_room, NULL);
    int failure = pthread_create(&a->thread, NULL, run_commands, a);
    if (failure) {
        close_parts(a);
        return err_set(e, ERR_FAIL, "no thread could be started for a device: %s", strerror(failure));
    }
    *out = &a->base;
    return ERR_OK;
}
