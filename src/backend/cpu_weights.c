/* Weights of the CPU device: they are read in parallel, packed for the kernels, and lie near the threads that use
 * them. */
#include <assert.h>
#include <stdatomic.h>

#include "backend/cpu_device_internal.h"
#include "base/topology.h"

/* About how many bytes a loading task reads at once: enough for the drive, and few enough to be in the processor's
 * cache when they are packed. */
enum { LOAD_CHUNK_BYTES = 512 << 10 };

struct weight_loading {
    struct weight *w;
    const struct weight_source *src;
    const char *name;
    layout_put_fn *put;
    int64_t chunk_rows;
    size_t row_bytes;
    char *staging; /* a chunk for each thread, in SCRATCH_THREAD; unused for LAYOUT_ROWS */
    atomic_flag failed;
    struct err err;
    err_code code;
};

static void load_chunk(void *arg, size_t task, int thread)
{
    struct weight_loading *l = arg;
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
        layout_pack(&(struct layout_matrix){w->layout, w->type, (uint64_t)w->n_row, (uint64_t)w->k}, w->data, dst, row0,
                    n, l->put);
}

/* The number of rows in a loading task: whole groups, and such that each thread gets the same number of tasks. */
static int64_t load_rows(const struct cpu *c, int64_t n_row, size_t row_bytes)
{
    int64_t n_thread = pool_n_used(c->pool), n_chunk = (int64_t)((size_t)n_row * row_bytes / LOAD_CHUNK_BYTES);
    n_chunk = (n_chunk / n_thread + 1) * n_thread;
    return ((n_row + n_chunk - 1) / n_chunk + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
}

struct weight_shape cpu_weight_shape(struct backend *b, const struct weight *w)
{
    return (struct weight_shape){w->type, w->k, w->n_row, w->observed};
}

void cpu_weight_close(struct backend *b, struct weight *w)
{
    cpu_unmap(cpu_of(b), w->data, w->n_bytes, MEM_WEIGHTS);
    mem_free(w);
}

/* Binds each row to the memory node of the threads that will compute with it. */
static void place_weight(struct cpu *c, struct weight *w)
{
    int n_node = pool_n_node(c->pool);
    for (int i = 0; i < n_node; i++) {
        size_t from = cpu_packed_bytes(c, w->type, cpu_node_row(c, i, w->n_row), w->k);
        size_t end = cpu_packed_bytes(c, w->type, cpu_node_row(c, i + 1, w->n_row), w->k);
        topology_bind_memory(pool_topology(c->pool), (char *)w->data + from, end - from, i);
    }
}

/* Some F32 matrices, such as routers, were BF16 when the model was trained. They are kept as BF16 without any loss:
 * products are the same to the bit (docs/numerics.md), and half as many bytes are read. */
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
    n.to.data = cpu_map(c, n.to.n_bytes, MEM_WEIGHTS);
    if (!n.to.data)
        return;
    place_weight(c, &n.to);
    pool_run(c->pool, (size_t)((w->n_row + chunk_rows - 1) / chunk_rows), narrow_chunk, &n);
    struct weight *unused = atomic_load(&n.lossy) ? &n.to : w;
    cpu_unmap(c, unused->data, unused->n_bytes, MEM_WEIGHTS);
    if (unused == w)
        *w = n.to;
}

/* The memory of an F32 matrix is between half of this and all of it (where narrowing would lose something). */
size_t cpu_weight_bytes(struct backend *b, const struct weight_desc *d)
{
    size_t n = 0;
    layout_bytes(cpu_of(b)->kernels->layout[d->type->type], d->type, (uint64_t)d->n_row, (uint64_t)d->k, &n);
    return mem_length(n);
}

err_code cpu_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
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
    struct weight_loading l = {
        .w = w, .src = src, .name = d->name, .put = c->kernels->r16_put, .failed = ATOMIC_FLAG_INIT};
    bool ok = quant_row_bytes(d->type, (uint64_t)d->k, &l.row_bytes) &&
              layout_bytes(w->layout, d->type, (uint64_t)d->n_row, (uint64_t)d->k, &w->n_bytes);
    assert(ok);
    w->data = cpu_map(c, w->n_bytes, MEM_WEIGHTS);
    l.chunk_rows = load_rows(c, d->n_row, l.row_bytes);
    size_t staging_bytes = l.chunk_rows * l.row_bytes * (size_t)pool_n_threads(c->pool);
    bool is_packed = w->layout != LAYOUT_ROWS;
    if (is_packed && mem_make_room(staging_bytes))
        l.staging = cpu_scratch(c, SCRATCH_THREAD, staging_bytes);
    if (!w->data || (is_packed && !l.staging)) {
        err_code code = err_nomem(e, w->n_bytes + staging_bytes, d->name);
        cpu_weight_close(b, w);
        return code;
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
