#include "experts/resident.h"

#include <stdatomic.h>

#include "base/minmax.h"
#include "experts/read_requests.h"

/* What the threads share while the experts of one layer are loaded. */
struct layer_load {
    const struct resident_load *d;
    int layer;
    struct store_blob *blobs; /* [n_expert] where the layer's experts are read from, of those that are here */
    char *staging;
    size_t staging_bytes; /* of each thread */
    atomic_ullong n_read_bytes;
    atomic_flag has_failed;
    atomic_bool stop;
    err_code code; /* of the first that failed */
    struct err err;
};

/* What is read and packed at once: little enough that the processor's cache still has it when it is packed, and enough
 * that asking for it costs little. Parts with a checksum, and those that lie as in a slot, are read whole. */
enum { PIECE_BYTES = 1 << 20 };

static size_t n_piece(const struct store_blob *b, const struct store_matrix *m)
{
    return b->packed || b->has_crc || m->n_bytes < 2 * PIECE_BYTES ? 1 : m->n_bytes / PIECE_BYTES;
}

/* Chooses the copies of a layer's experts: one for all parts of an expert, and for what the drive looks for ahead. */
static void choose_copies(struct layer_load *x, int layer)
{
    const struct expert_layer *l = &x->d->slots->layers[layer].d;
    x->layer = layer;
    for (int32_t expert = 0; expert < l->n_expert; expert++)
        if (slots_is_here(x->d->slots, layer, expert))
            store_expert_blob(x->d->store, l->index, expert, &x->blobs[expert]);
}

/* Room for a piece of any expert of the layer. A copy of an expert that fails may be followed by one that needs less,
 * never by one that needs more. */
static size_t layer_room(const struct layer_load *x)
{
    const struct expert_layer *l = &x->d->slots->layers[x->layer].d;
    size_t most = 0;
    for (int32_t expert = 0; expert < l->n_expert; expert++) {
        if (!slots_is_here(x->d->slots, x->layer, expert))
            continue;
        for (int i = 0; i < EXPERT_N_MATRIX; i++) {
            const struct store_matrix *m = &store_get_layer(x->d->store, l->index)->part[i];
            size_t row_bytes = m->n_bytes / m->n_row, n = n_piece(&x->blobs[expert], m);
            size_t room = n > 1 ? m->n_bytes / n + LAYOUT_R16_ROWS * row_bytes : read_matrix_room(m);
            most = room > most ? room : most;
        }
    }
    return most;
}

/* The first expert from `expert` on that is here, or n_expert. */
static int32_t next_here(const struct expert_layer *l, int32_t expert)
{
    while (l->is_here && expert < l->n_expert && !l->is_here[expert])
        expert++;
    return expert;
}

/* Has the drive look for an expert's bytes, if there is such an expert, before they are waited for. */
static void read_ahead(const struct layer_load *x, const struct expert_layer *l, int32_t expert)
{
    struct store_range all[EXPERT_N_MATRIX];
    if (expert >= l->n_expert)
        return;
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct store_blob_part *part = &x->blobs[expert].part[i];
        all[i] = (struct store_range){part->file, part->offset, part->n_bytes, NULL};
    }
    store_read_ahead(x->d->store, all, EXPERT_N_MATRIX);
}

/* Reads one part of an expert into its slot: straight, if that is how it lies, or through `staging`, from where it is
 * packed while it is still in the processor's cache. */
static err_code read_part(const struct layer_load *x, int32_t expert, const struct store_blob *b, int i, char *staging,
                          struct err *e)
{
    const struct slot_layer *l = &x->d->slots->layers[x->layer];
    const struct store_matrix *m = &store_get_layer(x->d->store, l->d.index)->part[i];
    struct backend *device = x->d->slots->device;
    int64_t slot = slots_find(x->d->slots, x->layer, expert);
    void *room = b->packed ? backend_slot_room(device, l->group->slot_pool, slot, i, true) : NULL;
    void *dst = room ? room : staging;
    for (size_t p = 0, n = n_piece(b, m), from = 0; p < n; p++) {
        int64_t row = read_piece_row(m, p, n), n_row = read_piece_row(m, p + 1, n) - row;
        size_t n_bytes = p + 1 < n ? (size_t)n_row * (m->n_bytes / m->n_row) : b->part[i].n_bytes - from;
        const struct store_range range = {b->part[i].file, b->part[i].offset + from, n_bytes, dst};
        TRY(store_read(x->d->store, &range, 1, e));
        TRY(store_blob_check(x->d->store, l->d.index, expert, b, i, dst, e));
        if (!room)
            TRY(backend_slot_fill(device, l->group->slot_pool, slot, &(struct slot_rows){i, dst, b->packed, row, n_row},
                                  e));
        from += n_bytes;
    }
    if (room)
        backend_slot_adopt(device, l->group->slot_pool, slot, i, room, true);
    return ERR_OK;
}

static err_code load_part(const struct layer_load *x, int32_t expert, int i, char *staging, size_t *n_bytes,
                          struct err *e)
{
    const struct expert_layer *l = &x->d->slots->layers[x->layer].d;
    struct store_blob b = x->blobs[expert];
    if (i == 0) {
        read_ahead(x, l, expert);
        read_ahead(x, l, next_here(l, expert + 1)); /* the drive works on while this one is packed */
    }
    err_code code = read_part(x, expert, &b, i, staging, e);
    while (code != ERR_OK && store_expert_retry(x->d->store, l->index, expert, &b, e)) {
        store_expert_blob(x->d->store, l->index, expert, &b);
        code = read_part(x, expert, &b, i, staging, e);
    }
    *n_bytes = b.part[i].n_bytes;
    return code == ERR_OK ? ERR_OK : err_prefix(e, "layer %d, expert %d", l->index, (int)expert);
}

static void load_task(void *arg, size_t task, int thread)
{
    struct layer_load *x = arg;
    struct err e = {0};
    int32_t expert = (int32_t)(task / EXPERT_N_MATRIX);
    size_t n;
    if (atomic_load(&x->stop) || !slots_is_here(x->d->slots, x->layer, expert))
        return;
    err_code code =
        load_part(x, expert, (int)(task % EXPERT_N_MATRIX), x->staging + (size_t)thread * x->staging_bytes, &n, &e);
    if (code == ERR_OK) {
        uint64_t total = atomic_fetch_add(&x->n_read_bytes, n) + n;
        if (x->d->progress)
            x->d->progress(x->d->user, total);
    } else if (!atomic_flag_test_and_set(&x->has_failed)) {
        x->code = code;
        x->err = e;
        atomic_store(&x->stop, true);
    }
}

static err_code wait_for_uploads(struct backend *device, struct err *e)
{
    bool is_passed;
    return backend_upload_poll(device, backend_upload_fence(device), true, &is_passed, e);
}

static err_code load_layers(struct resident_load *d, struct layer_load *x, struct err *e)
{
    for (int i = 0; i < d->slots->n_layer; i++) {
        const struct slot_layer *l = &d->slots->layers[i];
        if (!l->group->is_resident)
            continue;
        choose_copies(x, i);
        pool_run(d->pool, EXPERT_N_MATRIX * (size_t)l->d.n_expert, load_task, x);
        if (x->code != ERR_OK)
            return err_set(e, x->code, "%s", x->err.text);
        TRY(wait_for_uploads(d->slots->device, e));
        TRY(slots_write_table(d->slots, i, e));
        d->n_read += (uint64_t)l->n_here;
    }
    d->n_read_bytes = x->n_read_bytes;
    return ERR_OK;
}

/* A description's experts count as resident, and nobody looks into their slots. */
static void describe(struct expert_slots *s)
{
    for (int i = 0; i < s->n_group; i++)
        s->groups[i].is_resident = true;
}

err_code resident_load(struct resident_load *d, struct err *e)
{
    struct layer_load x = {.d = d, .has_failed = ATOMIC_FLAG_INIT};
    struct expert_slots *s = d->slots;
    int64_t n_expert = 0;
    if (!d->store) {
        describe(s);
        return ERR_OK;
    }
    for (int i = 0; i < s->n_layer; i++)
        n_expert = max_i64(n_expert, s->layers[i].d.n_expert);
    x.blobs = mem_calloc((size_t)n_expert, sizeof *x.blobs);
    for (int i = 0; x.blobs && i < s->n_layer; i++) {
        choose_copies(&x, i);
        x.staging_bytes = max_size(x.staging_bytes, layer_room(&x));
    }
    size_t n_bytes = x.staging_bytes * (size_t)pool_n_threads(d->pool);
    x.staging = n_bytes ? mem_map(n_bytes, MEM_SCRATCH) : NULL;
    err_code code = x.blobs && (x.staging || !n_bytes) ? ERR_OK : err_nomem(e, n_bytes, "reading experts");
    for (int i = 0; i < s->n_group && code == ERR_OK; i++)
        s->groups[i].is_resident = slots_open_all(s, &s->groups[i]);
    if (code == ERR_OK)
        code = load_layers(d, &x, e);
    for (int i = 0; i < s->n_group && code != ERR_OK; i++)
        s->groups[i].is_resident = false;
    if (x.staging)
        mem_unmap(x.staging, n_bytes, MEM_SCRATCH);
    mem_free(x.blobs);
    return code;
}
