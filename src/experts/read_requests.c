/* Experts on their way: reads in flight, and what is done with them when they arrive. */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "experts/experts_internal.h"

/* What may be in flight together: enough for a drive to work at full depth, little beside the slots. */
enum { REQUEST_BYTES = 48 << 20, MIN_REQUEST = 4 };

/* What a drive works on at once for one token: what it needs for its full speed, not more. Virtual drives end what they
 * have together, so that the less it is, the sooner the first expert computes while the next is on its
 * way (docs/experiments.md). */
enum { DRIVE_BYTES = 4 << 20, MIN_DEPTH = 4 };

static int drive_depth(const struct store *s, size_t part_bytes)
{
    struct store_place place;
    size_t n_drive = 0;
    for (int i = 1; store_get_place(s, i, &place); i++)
        n_drive++;
    size_t n = DRIVE_BYTES / part_bytes * (n_drive ? n_drive : 1);
    return n < MIN_DEPTH ? MIN_DEPTH : n > STORE_DEPTH ? STORE_DEPTH : (int)n;
}

size_t blob_bytes(const struct store_blob *b)
{
    size_t n = 0;
    for (int i = 0; i < STORE_N_PART; i++)
        n += b->part[i].n_bytes;
    return n;
}

/* Room for the parts of an expert that is not read straight into its slot, wherever they lie. */
static size_t staging_room(const struct store_layer *l)
{
    size_t n = 0;
    for (int i = 0; i < STORE_N_PART; i++)
        n += matrix_room(&l->part[i]);
    return n;
}

/* Whether there are slots that can't be read into. */
static bool needs_staging(const struct experts *x)
{
    for (int i = 0; i < x->n_group; i++)
        if (!backend_slot_room(x->p.device, x->groups[i].slot_pool, 0, 0, false))
            return true;
    return false;
}

/* What computes takes its time: reads that end meanwhile make room for others. */
static void look_after(void *user)
{
    requests_complete(user, false);
}

static void lend_a_hand(void *user);

err_code requests_open(struct experts *x, struct err *e)
{
    int64_t n_slot = MAX_REQUEST;
    if (x->queue)
        return ERR_OK;
    for (int i = 0; i < x->n_layer; i++) {
        struct group *g = group_of(x, i);
        size_t room = staging_room(store_get_layer(x->p.store, x->layers[i].d.index));
        x->request_bytes = room > x->request_bytes ? room : x->request_bytes;
        n_slot = g->n_slot < n_slot ? g->n_slot : n_slot;
    }
    int64_t n = (int64_t)(REQUEST_BYTES / x->request_bytes);
    n = n < MIN_REQUEST ? MIN_REQUEST : n;
    x->n_request = (int)(n < n_slot ? n : n_slot);
    if (!x->staging && needs_staging(x)) { /* opening the queue may have failed before */
        x->staging = mem_map((size_t)x->n_request * x->request_bytes, MEM_SCRATCH);
        if (!x->staging)
            return err_nomem(e, (size_t)x->n_request * x->request_bytes, "reading experts");
    }
    for (int i = 0; i < x->n_request && x->staging; i++)
        x->requests[i].staging = x->staging + (size_t)i * x->request_bytes;
    int depth = store_get_queue_params(x->p.store).depth;
    x->depth = depth ? depth : drive_depth(x->p.store, x->request_bytes / STORE_N_PART);
    TRY(store_queue_open(&x->queue, x->p.store, NULL, e));
    backend_set_between(x->p.device, look_after, x);
    pool_set_between(x->p.pool, lend_a_hand, x);
    return ERR_OK;
}

void requests_close(struct experts *x)
{
    if (x->queue) {
        backend_set_between(x->p.device, NULL, NULL);
        pool_set_between(x->p.pool, NULL, NULL);
    }
    store_queue_close(&x->queue);
    mem_unmap(x->staging, (size_t)x->n_request * x->request_bytes, MEM_SCRATCH);
    x->staging = NULL;
}

struct read_request *request_find(struct experts *x, int layer, int32_t expert)
{
    for (int i = 0; i < x->n_request; i++)
        if (x->requests[i].busy && x->requests[i].layer == layer && x->requests[i].expert == expert)
            return &x->requests[i];
    return NULL;
}

static int part_of(const struct store_read *r)
{
    return (int)(r - ((const struct read_request *)r->user)->read);
}

static void submit(struct experts *x, struct read_request *f)
{
    struct slot_pool *slot_pool = group_of(x, f->layer)->slot_pool;
    char *buf = f->staging;
    store_expert_blob(x->p.store, x->layers[f->layer].d.index, f->expert, &f->blob);
    for (int i = 0; i < STORE_N_PART; i++) {
        const struct store_blob_part *p = &f->blob.part[i];
        void *room = backend_slot_room(x->p.device, slot_pool, f->slot, i, f->blob.packed);
        f->in_slot = room != NULL;
        f->read[i] = (struct store_read){
            .file = p->file, .offset = p->offset, .n_bytes = p->n_bytes, .buf = room ? room : buf, .user = f};
        buf += room ? 0 : store_read_room(p->offset, p->n_bytes);
        f->part_ok[i] = false;
        x->waiting[x->n_waiting++] = &f->read[i];
    }
    f->n_left = STORE_N_PART;
}

/* How many parts the drive may have when it gets this one. No token waits for a prompt's first expert; and what is
 * needed should not have to wait for a guess. */
static int depth_for(const struct experts *x, const struct read_request *f)
{
    return x->fetch.n_tok != 1 ? STORE_DEPTH : f->wanted ? x->depth : (x->depth + 1) / 2;
}

void requests_feed(struct experts *x)
{
    int n = 0;
    while (n < x->n_waiting && x->n_reading + n < depth_for(x, x->waiting[n]->user))
        n++;
    if (n == 0)
        return;
    store_queue_submit(x->queue, x->waiting, (size_t)n);
    x->n_reading += n;
    x->n_waiting -= n;
    memmove(x->waiting, x->waiting + n, (size_t)x->n_waiting * sizeof *x->waiting);
}

/* The slot of an expert that did not arrive. */
static void drop(struct experts *x, struct read_request *f)
{
    struct policy *policy = group_of(x, f->layer)->policy;
    policy_release(policy, f->slot);
    policy_drop(policy, f->slot);
    f->busy = false;
    x->n_busy--;
}

void request_give_up(struct experts *x, struct read_request *f)
{
    int n = 0;
    f->given_up = true;
    for (int i = 0; i < x->n_waiting; i++)
        if (x->waiting[i]->user == f) {
            f->left_out[part_of(x->waiting[i])] = true;
            f->n_left--;
        } else {
            x->waiting[n++] = x->waiting[i];
        }
    x->n_waiting = n;
    if (f->n_left == 0)
        drop(x, f);
}

void request_want(struct experts *x, struct read_request *f)
{
    f->wanted = true;
    f->given_up = false;
    for (int i = 0; i < STORE_N_PART; i++)
        if (f->left_out[i]) {
            f->left_out[i] = false;
            f->n_left++;
            x->waiting[x->n_waiting++] = &f->read[i];
        }
}

bool request_start(struct experts *x, int layer, int32_t expert, bool grow_only, struct read_request **out)
{
    struct group *g = group_of(x, layer);
    struct read_request *f = NULL;
    bool evicted;
    for (int i = 0; i < x->n_request && !f; i++)
        f = x->requests[i].busy ? NULL : &x->requests[i];
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
    *f = (struct read_request){.busy = true, .layer = layer, .expert = expert, .slot = slot, .staging = f->staging};
    x->n_busy++;
    submit(x, f);
    requests_feed(x);
    *out = f;
    return true;
}

/* ---- arrivals ------------------------------------------------------------------------------------------------- */

/* PIECES: of the work on what arrives together, a thread, so that none waits long for another. */
enum { PIECES = 2 };

struct arrivals {
    struct experts *x;
    struct store_read *done[MAX_WAITING];
    int n_piece; /* of a part */
    atomic_bool failed[MAX_WAITING];
};

/* Compares one part of one expert with its checksum. */
static void check_part(void *arg, size_t task, int thread)
{
    const struct arrivals *l = arg;
    const struct store_read *r = l->done[task];
    struct read_request *f = r->user;
    struct experts *x = l->x;
    struct err e;
    f->part_ok[part_of(r)] = !r->failure && store_blob_check(x->p.store, x->layers[f->layer].d.index, f->expert,
                                                             &f->blob, part_of(r), r->bytes, &e) == ERR_OK;
}

/* Packs a piece of what was read into the flight's slot. */
static err_code fill_slot(struct experts *x, const struct read_request *f, int part, const char *bytes, size_t piece,
                          size_t n, struct err *e)
{
    const struct store_matrix *m = &store_get_layer(x->p.store, x->layers[f->layer].d.index)->part[part];
    int64_t row = piece_row(m, piece, n), end = piece_row(m, piece + 1, n);
    return backend_slot_fill(x->p.device, group_of(x, f->layer)->slot_pool, f->slot, part,
                             bytes + (uint64_t)row * (m->n_bytes / m->n_row), f->blob.packed, row, end - row, e);
}

static void pack_piece(void *arg, size_t task, int thread)
{
    struct arrivals *l = arg;
    size_t at = task / (size_t)l->n_piece;
    const struct store_read *r = l->done[at];
    const struct read_request *f = r->user;
    struct err e;
    if (f->part_ok[part_of(r)] && !f->in_slot &&
        fill_slot(l->x, f, part_of(r), r->bytes, task % (size_t)l->n_piece, (size_t)l->n_piece, &e) != ERR_OK)
        atomic_store(&l->failed[at], true);
}

static void run(struct pool *pool, size_t n, pool_fn *fn, void *arg)
{
    if (pool)
        pool_run(pool, n, fn, arg);
    else
        for (size_t i = 0; i < n; i++)
            fn(arg, i, 0);
}

/* Checks n parts, and packs those that are not in their slots; pool NULL: on this thread alone. */
static void work_up(struct arrivals *l, size_t n, struct pool *pool)
{
    bool all_in_slots = true;
    run(pool, n, check_part, l);
    for (size_t i = 0; i < n; i++) {
        atomic_init(&l->failed[i], false);
        all_in_slots = all_in_slots && ((struct read_request *)l->done[i]->user)->in_slot;
    }
    if (all_in_slots)
        return;
    l->n_piece = pool ? 1 + (pool_n_threads(pool) * PIECES - 1) / (int)n : 1;
    run(pool, n * (size_t)l->n_piece, pack_piece, l);
    for (size_t i = 0; i < n; i++)
        if (atomic_load(&l->failed[i]))
            ((struct read_request *)l->done[i]->user)->part_ok[part_of(l->done[i])] = false;
}

/* Why a part is not in its slot. */
static err_code explain(struct experts *x, const struct read_request *f, struct err *e)
{
    int part = 0, layer = x->layers[f->layer].d.index;
    while (f->part_ok[part])
        part++;
    const struct store_read *r = &f->read[part];
    if (r->failure)
        store_read_error(x->p.store, r, e);
    else if (store_blob_check(x->p.store, layer, f->expert, &f->blob, part, r->bytes, e) == ERR_OK)
        return fill_slot(x, f, part, r->bytes, 0, 1, e);
    return err_prefix(e, "layer %d, expert %d", layer, (int)f->expert);
}

static bool is_whole(const struct read_request *f)
{
    for (int i = 0; i < STORE_N_PART; i++)
        if (!f->part_ok[i])
            return false;
    return true;
}

/* Publishes an expert, or gives its slot up; false when it is under way again from another copy. */
static bool land(struct experts *x, struct read_request *f)
{
    struct fetch *t = &x->fetch;
    struct err why = {0};
    if (f->given_up) {
        drop(x, f);
        return true;
    }
    err_code code = is_whole(f) ? ERR_OK : explain(x, f, &why);
    if (code != ERR_OK && store_expert_retry(x->p.store, x->layers[f->layer].d.index, f->expert, &f->blob, &why)) {
        submit(x, f);
        return false;
    }
    if (code != ERR_OK) {
        drop(x, f);
        if (f->wanted && t->code == ERR_OK) /* a wrong guess may fail in silence */
            t->code = err_set(&t->err, code, "%s", why.text);
        return true;
    }
    for (int i = 0; i < STORE_N_PART && f->in_slot; i++)
        backend_slot_adopt(x->p.device, group_of(x, f->layer)->slot_pool, f->slot, i, f->read[i].bytes, f->blob.packed);
    f->busy = false;
    x->n_busy--;
    x->counters.n_read++;
    x->counters.n_read_bytes += blob_bytes(&f->blob);
    if (f->wanted)
        t->ready[t->n_ready++] = f->expert; /* still held */
    else
        prefetch_take(x, f->layer, f->expert);
    return true;
}

/* Takes what has ended from the queue, and gives it other reads at once. */
static void take_arrivals(struct experts *x, bool wait)
{
    int64_t start_ns = clock_ns();
    size_t n = store_queue_collect(x->queue, x->arrived + x->n_arrived, (size_t)(MAX_WAITING - x->n_arrived), wait);
    if (wait)
        x->counters.stall_ns += clock_ns() - start_ns;
    x->n_arrived += (int)n;
    x->n_reading -= (int)n;
    if (n > 0)
        fetch_feed(x);
}

/* Works up the first n that have arrived; true when an expert is whole. */
static bool work_up_arrivals(struct experts *x, int n, struct pool *pool)
{
    struct arrivals l = {.x = x};
    bool any = false;
    int64_t start_ns = clock_ns();
    memcpy(l.done, x->arrived, (size_t)n * sizeof *l.done);
    x->n_arrived -= n;
    memmove(x->arrived, x->arrived + n, (size_t)x->n_arrived * sizeof *x->arrived);
    work_up(&l, (size_t)n, pool);
    x->counters.arrival_ns += clock_ns() - start_ns;
    for (int i = 0; i < n; i++) {
        struct read_request *f = l.done[i]->user;
        if (--f->n_left == 0 && land(x, f))
            any = true;
    }
    fetch_feed(x);
    return any;
}

void requests_complete(struct experts *x, bool wait)
{
    bool any = false;
    x->is_completing = true;
    while (x->n_busy > 0) {
        take_arrivals(x, wait && !any && x->n_arrived == 0);
        if (x->n_arrived == 0)
            break;
        any = work_up_arrivals(x, x->n_arrived, x->p.pool) || any;
    }
    x->is_completing = false;
}

/* Between the tasks of a loop: a part at a time, so that the other threads don't wait for this one. */
static void lend_a_hand(void *user)
{
    struct experts *x = user;
    if (x->is_completing || x->n_busy == 0)
        return;
    take_arrivals(x, false);
    if (x->n_arrived > 0)
        work_up_arrivals(x, 1, NULL);
}
