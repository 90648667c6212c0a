#include "experts/experts.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "base/pool.h"
#include "store/store.h"

struct slot {
    int32_t expert; /* -1: empty */
    int32_t n_held;
    uint64_t last_use; /* tick of the last acquire */
};

struct layer_slots {
    struct expert_layer d;
    int64_t n_slot;
    struct bank *bank;
    struct slot *slots;
    int32_t *slot_of;    /* [n_expert], -1: not in a slot */
    struct tensor table; /* device copy of slot_of, once all are in for good */
    bool resident;
};

struct experts {
    struct backend *device;
    struct store *store;
    struct arena arena;
    struct layer_slots *layers;
    int n_layer;
    char *staging; /* one expert's bytes as the store has them */
    size_t staging_bytes;
    uint64_t tick;
    struct experts_counters counters;
};

size_t expert_layer_bytes(const struct expert_layer *l)
{
    return l->gate.n_bytes + l->up.n_bytes + l->down.n_bytes;
}

static err_code create_layer(struct experts *x, struct layer_slots *l, int64_t n_slot, struct err *e)
{
    int64_t n_expert = l->d.n_expert;
    l->n_slot = n_slot == 0 || n_slot > n_expert ? n_expert : n_slot;
    l->d.shape.n_slot = l->n_slot;
    l->slots = arena_calloc(&x->arena, (size_t)l->n_slot, sizeof *l->slots);
    l->slot_of = arena_calloc(&x->arena, (size_t)n_expert, sizeof *l->slot_of);
    if (!l->slots || !l->slot_of)
        return err_nomem(e, (size_t)n_expert * sizeof *l->slots, "expert slots");
    for (int64_t i = 0; i < l->n_slot; i++)
        l->slots[i].expert = -1;
    for (int64_t i = 0; i < n_expert; i++)
        l->slot_of[i] = -1;
    TRY(backend_tensor_create(x->device, ELEM_I32, n_expert, 1, 1, MEM_SCRATCH, &l->table, e));
    return backend_bank_create(x->device, &l->d.shape, &l->bank, e);
}

err_code experts_create(struct experts **out, struct backend *device, struct store *store,
                        const struct expert_layer *layers, int n_layer, int64_t n_slot, struct err *e)
{
    err_code code;
    *out = NULL;
    struct experts *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, "the experts");
    *x = (struct experts){.device = device, .store = store, .n_layer = n_layer};
    x->layers = arena_calloc(&x->arena, (size_t)n_layer, sizeof *x->layers);
    if (!x->layers) {
        code = err_nomem(e, (size_t)n_layer * sizeof *x->layers, "the experts");
        goto out;
    }
    for (int i = 0; i < n_layer; i++) {
        x->layers[i].d = layers[i];
        TRY_OUT(create_layer(x, &x->layers[i], n_slot, e));
        size_t n = expert_layer_bytes(&layers[i]);
        x->staging_bytes = n > x->staging_bytes ? n : x->staging_bytes;
    }
    x->staging = x->staging_bytes ? mem_map(x->staging_bytes, MEM_SCRATCH) : NULL;
    code = x->staging || !x->staging_bytes ? ERR_OK : err_nomem(e, x->staging_bytes, "reading experts");
out:
    if (code != ERR_OK)
        experts_close(&x);
    *out = x;
    return code;
}

void experts_close(struct experts **out)
{
    struct experts *x = *out;
    if (!x)
        return;
    for (int i = 0; x->layers && i < x->n_layer; i++) {
        backend_bank_close(x->device, &x->layers[i].bank);
        backend_buffer_close(x->device, &x->layers[i].table.buffer);
    }
    mem_unmap(x->staging, x->staging_bytes, MEM_SCRATCH);
    arena_close(&x->arena);
    mem_free(x);
    *out = NULL;
}

/* Reads one expert into a slot, through `staging`. Safe on several threads for different slots and staging. */
static err_code fill(struct experts *x, struct layer_slots *l, int32_t expert, int64_t slot, char *staging,
                     struct err *e)
{
    struct store_blob b = {0};
    if (l->d.index < store_n_layers(x->store))
        store_expert_blob(x->store, l->d.index, expert, &b);
    while (b.packed) {
        const struct store_blob_part *p = &b.part[0];
        void *dst = backend_bank_slot(x->device, l->bank, slot);
        if (store_read(x->store, &(struct store_range){p->file, p->offset, p->n_bytes, dst}, 1, e) == ERR_OK &&
            store_blob_check(x->store, l->d.index, expert, &b, 0, dst, e) == ERR_OK)
            return ERR_OK;
        if (!store_expert_retry(x->store, l->d.index, expert, &b, e))
            return e->code;
        store_expert_blob(x->store, l->d.index, expert, &b);
    }
    const struct expert_matrix *m[3] = {&l->d.gate, &l->d.up, &l->d.down};
    struct store_range ranges[3];
    char *dst = staging;
    for (int i = 0; i < 3; i++) {
        ranges[i] = (struct store_range){.file = m[i]->file,
                                         .offset = m[i]->offset + (uint64_t)expert * m[i]->stride_bytes,
                                         .n_bytes = m[i]->n_bytes,
                                         .dst = dst};
        dst += m[i]->n_bytes;
    }
    if (store_read(x->store, ranges, 3, e) != ERR_OK)
        return err_prefix(e, "layer %d, expert %d", l->d.index, (int)expert);
    for (int i = 0; i < b.n_part; i++)
        TRY(store_blob_check(x->store, l->d.index, expert, &b, i, ranges[i].dst, e));
    return backend_bank_fill(x->device, l->bank, slot, ranges[0].dst, ranges[1].dst, ranges[2].dst, e);
}

/* ---- loading everything -------------------------------------------------------------------------------------- */

struct load {
    struct experts *x;
    struct layer_slots *l;
    char *staging;
    void (*progress)(void *user, uint64_t n_bytes);
    void *user;
    atomic_ullong n_read;
    atomic_flag failed;
    atomic_bool stop;
    err_code code;
    struct err err;
};

static void load_task(void *arg, size_t expert, int thread)
{
    struct load *d = arg;
    struct err e = {0};
    if (atomic_load(&d->stop))
        return;
    err_code code =
        fill(d->x, d->l, (int32_t)expert, (int64_t)expert, d->staging + (size_t)thread * d->x->staging_bytes, &e);
    if (code == ERR_OK) {
        size_t n = expert_layer_bytes(&d->l->d);
        uint64_t total = atomic_fetch_add(&d->n_read, n) + n;
        if (d->progress)
            d->progress(d->user, total);
    } else if (!atomic_flag_test_and_set(&d->failed)) {
        d->code = code;
        d->err = e;
        atomic_store(&d->stop, true);
    }
}

err_code experts_load(struct experts *x, struct pool *pool, void (*progress)(void *user, uint64_t n_bytes), void *user,
                      struct err *e)
{
    size_t n_bytes = x->staging_bytes * (size_t)pool_n_threads(pool);
    if (n_bytes == 0)
        return ERR_OK;
    struct load d = {.x = x, .progress = progress, .user = user, .failed = ATOMIC_FLAG_INIT};
    d.staging = mem_map(n_bytes, MEM_SCRATCH);
    if (!d.staging)
        return err_nomem(e, n_bytes, "reading experts");
    for (int i = 0; i < x->n_layer && d.code == ERR_OK; i++) {
        struct layer_slots *l = d.l = &x->layers[i];
        if (l->n_slot < l->d.n_expert)
            continue;
        pool_run(pool, (size_t)l->d.n_expert, load_task, &d);
        for (int32_t j = 0; j < l->d.n_expert && d.code == ERR_OK; j++) {
            l->slots[j].expert = j;
            l->slot_of[j] = j;
        }
        backend_write(x->device, &l->table, l->slot_of);
        l->resident = d.code == ERR_OK;
    }
    mem_unmap(d.staging, n_bytes, MEM_SCRATCH);
    x->counters.n_read_bytes += d.n_read;
    return d.code == ERR_OK ? ERR_OK : err_set(e, d.code, "%s", d.err.text);
}

/* ---- slots --------------------------------------------------------------------------------------------------- */

int64_t experts_capacity(const struct experts *x, int layer)
{
    return x->layers[layer].n_slot;
}

const struct tensor *experts_resident(const struct experts *x, int layer)
{
    return x->layers[layer].resident ? &x->layers[layer].table : NULL;
}

struct bank *experts_bank(const struct experts *x, int layer)
{
    return x->layers[layer].bank;
}

/* The slot to fill next: an empty one, else the least recently used that nobody holds. */
static int64_t pick_slot(const struct layer_slots *l)
{
    int64_t best = -1;
    for (int64_t i = 0; i < l->n_slot; i++) {
        if (l->slots[i].expert < 0)
            return i;
        if (l->slots[i].n_held == 0 && (best < 0 || l->slots[i].last_use < l->slots[best].last_use))
            best = i;
    }
    assert(best >= 0); /* the caller holds no more than the capacity */
    return best;
}

static err_code acquire_missing(struct experts *x, struct layer_slots *l, int32_t expert, struct err *e)
{
    int64_t s = pick_slot(l);
    if (l->slots[s].expert >= 0) {
        l->slot_of[l->slots[s].expert] = -1;
        x->counters.n_evicted++;
    }
    l->slots[s] = (struct slot){.expert = -1};
    TRY(fill(x, l, expert, s, x->staging, e));
    l->slots[s].expert = expert;
    l->slot_of[expert] = (int32_t)s;
    x->counters.n_miss++;
    x->counters.n_read_bytes += expert_layer_bytes(&l->d);
    return ERR_OK;
}

static void hold(struct experts *x, struct layer_slots *l, int32_t expert)
{
    struct slot *s = &l->slots[l->slot_of[expert]];
    s->n_held++;
    s->last_use = x->tick;
}

err_code experts_acquire(struct experts *x, int layer, const int32_t *ids, int64_t n, int32_t *slots, struct err *e)
{
    struct layer_slots *l = &x->layers[layer];
    assert(n <= l->n_slot);
    x->tick++;
    for (int64_t i = 0; i < n; i++) /* hits first, so that no miss evicts one */
        if (l->slot_of[ids[i]] >= 0) {
            hold(x, l, ids[i]);
            slots[i] = 0;
            x->counters.n_hit++;
        } else {
            slots[i] = -1;
        }
    for (int64_t i = 0; i < n; i++) {
        if (slots[i] < 0) {
            err_code code = acquire_missing(x, l, ids[i], e);
            if (code != ERR_OK) {
                for (int64_t j = 0; j < n; j++)
                    if (j < i || slots[j] >= 0)
                        experts_release(x, layer, &ids[j], 1);
                return code;
            }
            hold(x, l, ids[i]);
        }
        slots[i] = l->slot_of[ids[i]];
    }
    return ERR_OK;
}

void experts_release(struct experts *x, int layer, const int32_t *ids, int64_t n)
{
    struct layer_slots *l = &x->layers[layer];
    for (int64_t i = 0; i < n; i++) {
        struct slot *s = &l->slots[l->slot_of[ids[i]]];
        assert(s->n_held > 0);
        s->n_held--;
    }
}

struct experts_counters experts_counters(const struct experts *x)
{
    return x->counters;
}
