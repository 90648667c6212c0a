#include "experts/resident.h"

#include <stdatomic.h>

#include "experts/read_requests.h"

/* What the threads share while the experts of one layer are loaded. */
struct layer_load {
    const struct resident_load *d;
    int layer;
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

/* Room for a piece of any expert of a layer. A copy of an expert that fails may be followed by one that needs less,
 * never by one that needs more. */
static size_t layer_room(const struct resident_load *d, const struct slot_layer *l)
{
    size_t most = 0;
    for (int32_t expert = 0; expert < l->d.n_expert; expert++) {
        struct store_blob b;
        if (l->d.is_here && !l->d.is_here[expert])
            continue;
        store_expert_blob(d->store, l->d.index, expert, &b);
        for (int i = 0; i < EXPERT_N_MATRIX; i++) {
            const struct store_matrix *m = &store_get_layer(d->store, l->d.index)->part[i];
            size_t row_bytes = m->n_bytes / m->n_row, n = n_piece(&b, m);
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
static void read_ahead(const struct resident_load *d, const struct expert_layer *l, int32_t expert)
{
    struct store_range all[EXPERT_N_MATRIX];
    struct store_blob b;
    if (expert >= l->n_expert)
        return;
    store_expert_blob(d->store, l->index, expert, &b);
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        all[i] = (struct store_range){b.part[i].file, b.part[i].offset, b.part[i].n_bytes, NULL};
    store_read_ahead(d->store, all, EXPERT_N_MATRIX);
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
    struct store_blob b;
    err_code code;
    if (i == 0) {
        read_ahead(x->d, l, expert);
        read_ahead(x->d, l, next_here(l, expert + 1)); /* the drive works on while this one is packed */
    }
    do {
        store_expert_blob(x->d->store, l->index, expert, &b);
        code = read_part(x, expert, &b, i, staging, e);
    } while (code != ERR_OK && store_expert_retry(x->d->store, l->index, expert, &b, e));
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

static err_code load_layers(struct resident_load *d, struct layer_load *x, struct err *e)
{
    for (int i = 0; i < d->slots->n_layer; i++) {
        const struct slot_layer *l = &d->slots->layers[i];
        if (!l->group->is_resident)
            continue;
        x->layer = i;
        pool_run(d->pool, EXPERT_N_MATRIX * (size_t)l->d.n_expert, load_task, x);
        if (x->code != ERR_OK)
            return err_set(e, x->code, "%s", x->err.text);
        TRY(slots_write_table(d->slots, i, e));
        d->n_read += (uint64_t)l->n_here;
    }
    d->n_read_bytes = x->n_read_bytes;
    return ERR_OK;
}

err_code resident_load(struct resident_load *d, struct err *e)
{
    struct layer_load x = {.d = d, .has_failed = ATOMIC_FLAG_INIT};
    struct expert_slots *s = d->slots;
    for (int i = 0; i < s->n_layer; i++) {
        size_t room = layer_room(d, &s->layers[i]);
        x.staging_bytes = room > x.staging_bytes ? room : x.staging_bytes;
    }
    size_t n_bytes = x.staging_bytes * (size_t)pool_n_threads(d->pool);
    x.staging = n_bytes ? mem_map(n_bytes, MEM_SCRATCH) : NULL;
    if (n_bytes && !x.staging)
        return err_nomem(e, n_bytes, "reading experts");
    for (int i = 0; i < s->n_group; i++)
        s->groups[i].is_resident = slots_open_all(s, &s->groups[i]);
    err_code code = load_layers(d, &x, e);
    for (int i = 0; i < s->n_group && code != ERR_OK; i++)
        s->groups[i].is_resident = false;
    mem_unmap(x.staging, n_bytes, MEM_SCRATCH);
    return code;
}
