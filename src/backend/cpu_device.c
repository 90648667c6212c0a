/* The CPU device: memory, weights and slot pools. Operations run as they are enqueued, each as one or a few parallel
 * loops of the pool; a fence is therefore passed when it is made. */
#include "backend/cpu_internal.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* The most bytes that a loading task reads at once, but for whole groups of rows: enough for the disk, and still in the
 * processor's cache when they are packed. */
enum { LOAD_CHUNK_BYTES = 512 << 10 };

/* Parts near the threads that a loop over them gives them to; what has none on all nodes by turns. */
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

static err_code cpu_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                  struct buffer **out, struct err *e)
{
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    if (!buf)
        return err_nomem(e, sizeof *buf, "a buffer");
    *buf = (struct buffer){.base = mem_map(n_bytes ? n_bytes : 1, tag), .n_bytes = n_bytes ? n_bytes : 1, .tag = tag};
    if (!buf->base) {
        mem_free(buf);
        return err_nomem(e, n_bytes, mem_tag_name(tag));
    }
    place_buffer(cpu_of(b), buf, n_part);
    *out = buf;
    return ERR_OK;
}

static void cpu_buffer_close(struct backend *b, struct buffer *buf)
{
    mem_unmap(buf->base, buf->n_bytes, buf->tag);
    mem_free(buf);
}

static void cpu_write(struct backend *b, const struct tensor *t, const void *src)
{
    assert(t->off_bytes + tensor_bytes(t) <= t->buffer->n_bytes);
    memcpy(tensor_data(t), src, tensor_bytes(t));
}

static void cpu_clear(struct backend *b, const struct tensor *t)
{
    memset(tensor_data(t), 0, tensor_bytes(t));
}

static err_code report(struct cpu *c, struct err *e)
{
    if (c->error.code == ERR_OK)
        return ERR_OK;
    err_code code = err_set(e, c->error.code, "%s", c->error.text);
    c->error = (struct err){0};
    return code;
}

static err_code cpu_read(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    TRY(report(cpu_of(b), e));
    memcpy(dst, tensor_data(t), tensor_bytes(t));
    return ERR_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

struct load {
    struct weight *w;
    const struct weight_source *src;
    const char *name;
    layout_put_fn *put;
    int64_t chunk_rows;
    size_t row_bytes;
    char *staging; /* one chunk a thread, in SCRATCH_THREAD */
    atomic_flag failed;
    struct err err;
    err_code code;
};

static void load_chunk(void *arg, size_t task, int thread)
{
    struct load *l = arg;
    struct weight *w = l->w;
    uint64_t row0 = task * (uint64_t)l->chunk_rows, n = (uint64_t)w->n_row - row0;
    if (n > (uint64_t)l->chunk_rows)
        n = (uint64_t)l->chunk_rows;
    bool in_place = w->layout == LAYOUT_ROWS;
    char *dst = in_place ? (char *)w->data + row0 * l->row_bytes
                         : l->staging + (size_t)thread * (size_t)l->chunk_rows * l->row_bytes;
    struct err e = {0};
    err_code code = l->src->read(l->src->user, row0, n, dst, &e);
    if (code != ERR_OK) {
        if (!atomic_flag_test_and_set(&l->failed)) {
            l->err = e;
            l->code = code;
        }
        return;
    }
    if (!in_place)
        layout_pack(w->layout, w->type, w->data, dst, row0, n, (uint64_t)w->n_row, (uint64_t)w->k, l->put);
}

/* Rows of a loading task, so that all threads have as many. */
static int64_t load_rows(const struct cpu *c, int64_t n_row, size_t row_bytes)
{
    int64_t n_thread = pool_n_used(c->pool), n_chunk = (int64_t)((size_t)n_row * row_bytes / LOAD_CHUNK_BYTES);
    n_chunk = (n_chunk / n_thread + 1) * n_thread;
    return ((n_row + n_chunk - 1) / n_chunk + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
}

static void cpu_weight_close(struct backend *b, struct weight *w)
{
    mem_unmap(w->data, w->n_bytes, MEM_WEIGHTS);
    mem_free(w);
}

/* Bytes of a matrix's first rows, a multiple of 16 or all. */
static size_t packed_bytes(const struct cpu *c, const struct quant_info *type, int64_t n_row, int64_t k)
{
    size_t n = 0;
    bool ok = layout_bytes(c->kernels->layout[type->type], type, (uint64_t)n_row, (uint64_t)k, &n);
    assert(ok);
    return n;
}

/* Each row near the threads that will compute it. */
static void place_weight(struct cpu *c, struct weight *w)
{
    int n_node = pool_n_node(c->pool);
    for (int i = 0; i < n_node; i++) {
        size_t from = packed_bytes(c, w->type, cpu_node_row(c, i, w->n_row), w->k);
        size_t end = packed_bytes(c, w->type, cpu_node_row(c, i + 1, w->n_row), w->k);
        topology_bind_memory(pool_topology(c->pool), (char *)w->data + from, end - from, i);
    }
}

/* Routers, for one, are BF16 when a model is trained and F32 in its file. They lose nothing as BF16 again: products are
 * the same to the bit (docs/numerics.md), and one token reads half of the bytes. */
struct narrowing {
    const struct weight *from;
    struct weight to;
    int64_t chunk_rows;
    atomic_bool lossy;
};

static void narrow_chunk(void *arg, size_t task, int thread)
{
    struct narrowing *n = arg;
    int64_t row0 = (int64_t)task * n->chunk_rows, n_row = n->from->n_row - row0, k = n->from->k;
    const uint32_t *from = (const uint32_t *)n->from->data + row0 * k;
    uint16_t *to = (uint16_t *)n->to.data + row0 * k;
    uint32_t lost = 0;
    for (int64_t r = 0; r < n_row && r < n->chunk_rows && !atomic_load(&n->lossy); r++, from += k, to += k) {
        for (int64_t i = 0; i < k; i++) {
            to[i] = (uint16_t)(from[i] >> 16);
            lost |= from[i] << 16;
        }
        if (lost)
            atomic_store(&n->lossy, true);
    }
}

static void narrow(struct cpu *c, struct weight *w, int64_t chunk_rows)
{
    struct narrowing n = {.from = w, .to = *w, .chunk_rows = chunk_rows};
    n.to.type = quant_info(QUANT_BF16);
    n.to.n_bytes = w->n_bytes / 2;
    n.to.data = mem_map(n.to.n_bytes, MEM_WEIGHTS);
    if (!n.to.data)
        return;
    place_weight(c, &n.to);
    pool_run(c->pool, (size_t)((w->n_row + chunk_rows - 1) / chunk_rows), narrow_chunk, &n);
    struct weight *unused = atomic_load(&n.lossy) ? &n.to : w;
    mem_unmap(unused->data, unused->n_bytes, MEM_WEIGHTS);
    if (unused == w)
        *w = n.to;
}

static err_code cpu_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                                struct weight **out, struct err *e)
{
    struct cpu *c = cpu_of(b);
    struct weight *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, d->name);
    *w = (struct weight){.type = d->type,
                         .layout = c->kernels->layout[d->type->type],
                         .k = d->k,
                         .n_row = d->n_row,
                         .observed = d->is_observed ? d->name : NULL};
    struct load l = {.w = w, .src = src, .name = d->name, .put = c->kernels->r16_put, .failed = ATOMIC_FLAG_INIT};
    bool ok = quant_row_bytes(d->type, (uint64_t)d->k, &l.row_bytes) &&
              layout_bytes(w->layout, d->type, (uint64_t)d->n_row, (uint64_t)d->k, &w->n_bytes);
    assert(ok);
    w->data = mem_map(w->n_bytes, MEM_WEIGHTS);
    l.chunk_rows = load_rows(c, d->n_row, l.row_bytes);
    size_t staging_bytes = l.chunk_rows * l.row_bytes * (size_t)pool_n_threads(c->pool);
    bool is_packed = w->layout != LAYOUT_ROWS;
    if (is_packed && mem_make_room(staging_bytes))
        l.staging = cpu_scratch(c, SCRATCH_THREAD, staging_bytes);
    if (!w->data || (is_packed && !l.staging)) {
        cpu_weight_close(b, w);
        return err_nomem(e, w->n_bytes + staging_bytes, d->name);
    }
    place_weight(c, w);
    pool_run(c->pool, (size_t)((d->n_row + l.chunk_rows - 1) / l.chunk_rows), load_chunk, &l);
    if (l.code != ERR_OK) {
        cpu_weight_close(b, w);
        return err_set(e, l.code, "%s", l.err.text);
    }
    if (d->type->type == QUANT_F32)
        narrow(c, w, l.chunk_rows);
    *out = w;
    return ERR_OK;
}

/* ---- slot pools ---------------------------------------------------------------------------------------------------
 */

/* How n_ff rows of gate and up and n_embd rows of down lie in a slot. */
static struct layout_image slot_image(const struct cpu *c, const struct slot_pool_desc *d, int64_t n_ff, int64_t n_embd)
{
    struct layout_image image = {0};
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        size_t n = packed_bytes(c, d->type[i], i == EXPERT_DOWN ? n_embd : n_ff, slot_matrix_k(d, i));
        image.layout[i] = c->kernels->layout[d->type[i]->type];
        image.off[i] = image.n_bytes;
        image.n_bytes += (n + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    return image;
}

static struct layout_image part_image(const struct cpu *c, const struct slot_pool_desc *d, int node)
{
    return slot_image(c, d, cpu_node_row(c, node + 1, d->n_ff) - cpu_node_row(c, node, d->n_ff),
                      cpu_node_row(c, node + 1, d->n_embd) - cpu_node_row(c, node, d->n_embd));
}

static bool cpu_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out)
{
    *out = slot_image(cpu_of(b), d, d->n_ff, d->n_embd);
    return true;
}

/* Slots that lie on one node can be read into. A matrix as read may begin anywhere in its first block of
 * SLOT_ALIGN, so each has a block more than in the image. */
static size_t part_slot_bytes(const struct cpu *c, const struct slot_pool_desc *d, int node)
{
    return part_image(c, d, node).n_bytes + (pool_n_node(c->pool) == 1 ? EXPERT_N_MATRIX * SLOT_ALIGN : 0);
}

static size_t cpu_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    size_t n = 0;
    for (int i = 0; i < pool_n_node(cpu_of(b)->pool); i++)
        n += part_slot_bytes(cpu_of(b), d, i);
    return n;
}

static void cpu_slot_pool_close(struct backend *b, struct slot_pool *slot_pool)
{
    mem_unreserve(slot_pool->data, slot_pool->n_bytes, (size_t)slot_pool->n_open * slot_pool->slot_bytes, MEM_EXPERTS);
    mem_free(slot_pool->slots);
    mem_free(slot_pool);
}

static err_code cpu_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                     struct err *e)
{
    struct cpu *c = cpu_of(b);
    int n_node = pool_n_node(c->pool);
    struct slot_pool *slot_pool = mem_calloc(1, sizeof *slot_pool);
    if (!slot_pool)
        return err_nomem(e, sizeof *slot_pool, "an expert slot_pool");
    *slot_pool = (struct slot_pool){.d = *d, .slot_bytes = cpu_slot_pool_slot_bytes(b, d)};
    for (int i = 0; i < n_node; i++) {
        slot_pool->part[i].image = part_image(c, d, i);
        slot_pool->part[i].slot_bytes = part_slot_bytes(c, d, i);
        slot_pool->n_bytes += mem_length(slot_pool->part[i].slot_bytes * (size_t)d->n_slot);
    }
    slot_pool->slots = mem_calloc((size_t)d->n_slot, sizeof *slot_pool->slots);
    slot_pool->data = mem_reserve(slot_pool->n_bytes);
    if (!slot_pool->data || !slot_pool->slots) {
        size_t n = slot_pool->n_bytes;
        cpu_slot_pool_close(b, slot_pool);
        return err_nomem(e, n, "routed experts");
    }
    char *data = slot_pool->data;
    for (int i = 0; i < n_node; i++) {
        size_t n = mem_length(slot_pool->part[i].slot_bytes * (size_t)d->n_slot);
        slot_pool->part[i].data = data;
        topology_bind_memory(pool_topology(c->pool), data, n, i);
        data += n;
    }
    *out = slot_pool;
    return ERR_OK;
}

static char *part_slot(const struct slot_pool *slot_pool, int node, int64_t slot)
{
    assert(slot >= 0 && slot < slot_pool->d.n_slot);
    return slot_pool->part[node].data + (size_t)slot * slot_pool->part[node].slot_bytes;
}

static bool cpu_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    if (!mem_commit(slot_pool->slot_bytes, MEM_EXPERTS))
        return false;
    slot_pool->n_open++;
    return true;
}

static void cpu_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    for (int i = 0; i < pool_n_node(cpu_of(b)->pool); i++)
        mem_populate(part_slot(slot_pool, i, slot), slot_pool->part[i].slot_bytes);
}

static void cpu_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    for (int i = 0; i < pool_n_node(cpu_of(b)->pool); i++)
        mem_decommit(part_slot(slot_pool, i, slot), slot_pool->part[i].slot_bytes, MEM_EXPERTS);
    slot_pool->n_open--;
}

static void *cpu_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                           bool is_packed)
{
    if (pool_n_node(cpu_of(b)->pool) > 1)
        return NULL;
    return part_slot(slot_pool, 0, slot) + slot_pool->part[0].image.off[matrix] + (is_packed ? 0 : matrix * SLOT_ALIGN);
}

static void cpu_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                           const void *bytes, bool is_packed)
{
    const struct layout_image *image = &slot_pool->part[0].image;
    slot_pool->slots[slot][matrix] = (struct slot_matrix){
        .shift = (size_t)((const char *)bytes - (part_slot(slot_pool, 0, slot) + image->off[matrix])),
        .is_raw = !is_packed && image->layout[matrix] != LAYOUT_ROWS,
    };
}

static err_code cpu_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot,
                              const struct slot_rows *rows, struct err *e)
{
    const struct cpu *c = cpu_of(b);
    const struct slot_pool_desc *d = &slot_pool->d;
    const struct quant_info *type = d->type[rows->matrix];
    int64_t n_all = slot_matrix_rows(d, rows->matrix), k = slot_matrix_k(d, rows->matrix);
    if (rows->row0 == 0 && rows->n_row > 0) /* several threads may fill rows; one says where they lie */
        slot_pool->slots[slot][rows->matrix] = (struct slot_matrix){0};
    for (int i = 0; i < pool_n_node(c->pool); i++) {
        int64_t first = cpu_node_row(c, i, n_all), end = cpu_node_row(c, i + 1, n_all), row1 = rows->row0 + rows->n_row;
        int64_t from = rows->row0 > first ? rows->row0 : first, to = row1 < end ? row1 : end;
        const struct layout_image *image = &slot_pool->part[i].image;
        char *dst = part_slot(slot_pool, i, slot) + image->off[rows->matrix];
        if (from >= to)
            continue;
        const char *src =
            (const char *)rows->src + packed_bytes(c, type, from - rows->row0, k); /* as many as unpacked */
        if (rows->is_packed)
            memcpy(dst + packed_bytes(c, type, from - first, k), src, packed_bytes(c, type, to - from, k));
        else
            layout_pack(image->layout[rows->matrix], type, dst, src, (uint64_t)(from - first), (uint64_t)(to - from),
                        (uint64_t)(end - first), (uint64_t)k, c->kernels->r16_put);
    }
    return ERR_OK;
}

/* ---- scratch, queue, life ------------------------------------------------------------------------------------ */

void *cpu_scratch(struct cpu *c, enum cpu_scratch id, size_t n_bytes)
{
    size_t has = c->scratch[id].n_bytes;
    if (MEM_GUARDED ? has == n_bytes : has >= n_bytes)
        return c->scratch[id].p;
    mem_unmap(c->scratch[id].p, c->scratch[id].n_bytes, MEM_SCRATCH);
    c->scratch[id].n_bytes = 0;
    c->scratch[id].p = mem_try_map(n_bytes, MEM_SCRATCH);
    if (c->scratch[id].p)
        c->scratch[id].n_bytes = n_bytes;
    else if (mem_room_bytes() < mem_length(n_bytes))
        c->missing_bytes = n_bytes;
    else if (c->error.code == ERR_OK)
        err_nomem(&c->error, n_bytes, "work space");
    return c->scratch[id].p;
}

static uint64_t cpu_fence(struct backend *b)
{
    return ++cpu_of(b)->n_fence;
}

static err_code cpu_wait(struct backend *b, uint64_t fence, struct err *e)
{
    assert(fence <= cpu_of(b)->n_fence);
    return report(cpu_of(b), e);
}

static void cpu_trim(struct backend *b)
{
    struct cpu *c = cpu_of(b);
    for (int i = 0; i < N_SCRATCH; i++) {
        mem_unmap(c->scratch[i].p, c->scratch[i].n_bytes, MEM_SCRATCH);
        c->scratch[i].p = NULL;
        c->scratch[i].n_bytes = 0;
    }
}

static struct backend_counters cpu_counters(struct backend *b)
{
    return cpu_of(b)->counters;
}

static void cpu_observe(struct backend *b, backend_observer *observer, void *user)
{
    cpu_of(b)->observer = observer;
    cpu_of(b)->observer_user = user;
}

static void cpu_close(struct backend *b)
{
    cpu_trim(b);
    mem_free(cpu_of(b));
}

err_code backend_cpu_open(struct backend **out, struct pool *pool, const struct kernels *kernels, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_create = cpu_buffer_create,
        .buffer_close = cpu_buffer_close,
        .write = cpu_write,
        .clear = cpu_clear,
        .read = cpu_read,
        .weight_load = cpu_weight_load,
        .weight_close = cpu_weight_close,
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
        .enqueue = cpu_enqueue,
        .supports = cpu_supports,
        .fence = cpu_fence,
        .wait = cpu_wait,
        .trim = cpu_trim,
        .counters = cpu_counters,
        .observe = cpu_observe,
        .close = cpu_close,
    };
    *out = NULL;
    struct cpu *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "the CPU device");
    *c = (struct cpu){.base = {.v = &vtable, .name = kernels->name}, .pool = pool, .kernels = kernels};
    *out = &c->base;
    return ERR_OK;
}
