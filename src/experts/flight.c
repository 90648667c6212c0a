/* Experts on their way: reads in flight, and what is done with them when they arrive. */
#include <assert.h>

#include "base/clock.h"
#include "experts/experts_internal.h"

/* What may be in flight together: enough for a drive to work at full depth, little beside the slots. */
enum { FLIGHT_BYTES = 48 << 20, MIN_FLIGHT = 4 };

/* What the drive works on at once: what it needs for its full speed, not more, so that experts arrive one after the
 * other and the first is packed and computes while the next is on its way. Between 3 and 24 MiB no difference stood
 * out from the noise (docs/experiments.md). */
enum { DRIVE_BYTES = 8 << 20, MIN_DEPTH = 4 };

static int drive_depth(size_t part_bytes)
{
    size_t n = DRIVE_BYTES / part_bytes;
    return n < MIN_DEPTH ? MIN_DEPTH : n > STORE_DEPTH ? STORE_DEPTH : (int)n;
}

size_t blob_bytes(const struct store_blob *b)
{
    size_t n = 0;
    for (int i = 0; i < b->n_part; i++)
        n += b->part[i].n_bytes;
    return n;
}

/* Room for the parts of an expert that is not read straight into its slot, wherever they lie. */
static size_t staging_room(const struct store_layer *l)
{
    size_t n = 0;
    for (int i = 0; i < STORE_N_PART; i++)
        n += store_read_room(STORE_ALIGN - 1, l->part[i].n_bytes);
    return n;
}

err_code flights_open(struct experts *x, struct err *e)
{
    int64_t n_slot = MAX_FLIGHT;
    if (x->queue)
        return ERR_OK;
    for (int i = 0; i < x->n_layer; i++) {
        struct group *g = group_of(x, i);
        size_t room = staging_room(store_get_layer(x->p.store, x->layers[i].d.index));
        x->staging_bytes = room > x->staging_bytes ? room : x->staging_bytes;
        n_slot = g->n_slot < n_slot ? g->n_slot : n_slot;
    }
    int64_t n = (int64_t)(FLIGHT_BYTES / x->staging_bytes);
    n = n < MIN_FLIGHT ? MIN_FLIGHT : n;
    x->n_flight = (int)(n < n_slot ? n : n_slot);
    if (!x->staging) /* opening the queue may have failed before */
        x->staging = mem_map((size_t)x->n_flight * x->staging_bytes, MEM_SCRATCH);
    if (!x->staging)
        return err_nomem(e, (size_t)x->n_flight * x->staging_bytes, "reading experts");
    for (int i = 0; i < x->n_flight; i++)
        x->flights[i].staging = x->staging + (size_t)i * x->staging_bytes;
    struct store_queue_params params = store_get_queue_params(x->p.store);
    params.depth = drive_depth(x->staging_bytes / STORE_N_PART);
    return store_queue_open(&x->queue, x->p.store, &params, e);
}

void flights_close(struct experts *x)
{
    store_queue_close(&x->queue);
    mem_unmap(x->staging, (size_t)x->n_flight * x->staging_bytes, MEM_SCRATCH);
    x->staging = NULL;
}

struct flight *flight_find(struct experts *x, int layer, int32_t expert)
{
    for (int i = 0; i < x->n_flight; i++)
        if (x->flights[i].busy && x->flights[i].layer == layer && x->flights[i].expert == expert)
            return &x->flights[i];
    return NULL;
}

static void submit(struct experts *x, struct flight *f)
{
    struct store_read *reads[STORE_N_PART];
    char *buf = f->staging;
    store_expert_blob(x->p.store, x->layers[f->layer].d.index, f->expert, &f->blob);
    for (int i = 0; i < f->blob.n_part; i++) {
        const struct store_blob_part *p = &f->blob.part[i];
        void *dst = f->blob.packed ? backend_bank_slot(x->p.device, group_of(x, f->layer)->bank, f->slot) : buf;
        f->read[i] =
            (struct store_read){.file = p->file, .offset = p->offset, .n_bytes = p->n_bytes, .buf = dst, .user = f};
        buf += store_read_room(p->offset, p->n_bytes);
        f->part_ok[i] = false;
        reads[i] = &f->read[i];
    }
    f->n_left = f->blob.n_part;
    store_queue_submit(x->queue, reads, (size_t)f->blob.n_part);
}

bool flight_start(struct experts *x, int layer, int32_t expert, bool grow_only, struct flight **out)
{
    struct group *g = group_of(x, layer);
    struct flight *f = NULL;
    bool evicted;
    for (int i = 0; i < x->n_flight && !f; i++)
        f = x->flights[i].busy ? NULL : &x->flights[i];
    if (!f)
        return false;
    if (!policy_has_free(g->policy))
        group_open_slot(x, g);
    if (grow_only && !policy_has_free(g->policy))
        return false;
    int64_t slot = policy_take(g->policy, x->layers[layer].index, expert, &evicted);
    if (slot < 0)
        return false;
    x->counters.n_evicted += evicted;
    *f = (struct flight){.busy = true, .layer = layer, .expert = expert, .slot = slot, .staging = f->staging};
    x->n_busy++;
    submit(x, f);
    *out = f;
    return true;
}

/* ---- arrivals ------------------------------------------------------------------------------------------------- */

enum { BATCH = MAX_FLIGHT * STORE_N_PART };

struct landing {
    struct experts *x;
    struct store_read *done[BATCH];
};

/* Checks and packs one part of one expert. */
static void land_part(void *arg, size_t task, int thread)
{
    const struct landing *l = arg;
    const struct store_read *r = l->done[task];
    struct flight *f = r->user;
    struct experts *x = l->x;
    int part = (int)(r - f->read);
    const void *matrix[STORE_N_PART] = {NULL};
    struct err e;
    matrix[part] = r->bytes;
    if (!r->failure &&
        store_blob_check(x->p.store, x->layers[f->layer].d.index, f->expert, &f->blob, part, r->bytes, &e) == ERR_OK)
        f->part_ok[part] =
            f->blob.packed || backend_bank_fill(x->p.device, group_of(x, f->layer)->bank, f->slot, matrix[STORE_GATE],
                                                matrix[STORE_UP], matrix[STORE_DOWN], &e) == ERR_OK;
}

/* Why a part is not in its slot. */
static err_code explain(struct experts *x, const struct flight *f, struct err *e)
{
    int part = 0, layer = x->layers[f->layer].d.index;
    while (f->part_ok[part])
        part++;
    const struct store_read *r = &f->read[part];
    const void *matrix[STORE_N_PART] = {NULL};
    matrix[part] = r->bytes;
    if (r->failure)
        store_read_error(x->p.store, r, e);
    else if (store_blob_check(x->p.store, layer, f->expert, &f->blob, part, r->bytes, e) == ERR_OK)
        return backend_bank_fill(x->p.device, group_of(x, f->layer)->bank, f->slot, matrix[STORE_GATE],
                                 matrix[STORE_UP], matrix[STORE_DOWN], e);
    return err_prefix(e, "layer %d, expert %d", layer, (int)f->expert);
}

static bool is_whole(const struct flight *f)
{
    for (int i = 0; i < f->blob.n_part; i++)
        if (!f->part_ok[i])
            return false;
    return true;
}

/* Publishes an expert, or gives its slot up; false when it is under way again from another copy. */
static err_code land(struct experts *x, struct flight *f, bool *again, struct err *e)
{
    struct policy *policy = group_of(x, f->layer)->policy;
    struct err why = {0};
    bool whole = is_whole(f);
    err_code code = whole ? ERR_OK : explain(x, f, &why);
    *again = code != ERR_OK && store_expert_retry(x->p.store, x->layers[f->layer].d.index, f->expert, &f->blob, &why);
    if (*again) {
        submit(x, f);
        return ERR_OK;
    }
    f->busy = false;
    x->n_busy--;
    if (code == ERR_OK) {
        x->counters.n_read++;
        x->counters.n_read_bytes += blob_bytes(&f->blob);
        if (f->wanted)
            x->turn.ready[x->turn.n_ready++] = f->expert; /* still held */
        else
            policy_release(policy, f->slot);
        return ERR_OK;
    }
    policy_release(policy, f->slot);
    policy_drop(policy, f->slot);
    return f->wanted ? err_set(e, code, "%s", why.text) : ERR_OK; /* a wrong guess may fail in silence */
}

err_code flights_land(struct experts *x, bool wait, struct err *e)
{
    struct landing l = {.x = x};
    err_code code = ERR_OK;
    bool any = false;
    while (x->n_busy > 0 && code == ERR_OK) {
        int64_t start_ns = clock_ns();
        size_t n = store_queue_collect(x->queue, l.done, BATCH, wait && !any);
        int64_t arrived_ns = clock_ns();
        if (wait && !any)
            x->counters.stall_ns += arrived_ns - start_ns;
        if (n == 0)
            break;
        pool_run(x->p.pool, n, land_part, &l); /* while other reads go on */
        x->counters.pack_ns += clock_ns() - arrived_ns;
        for (size_t i = 0; i < n; i++) {
            struct flight *f = l.done[i]->user;
            bool again = true;
            struct err why;
            err_code one = --f->n_left == 0 ? land(x, f, &again, &why) : ERR_OK;
            if (one != ERR_OK && code == ERR_OK)
                code = err_set(e, one, "%s", why.text);
            any = any || !again;
        }
    }
    return code;
}
