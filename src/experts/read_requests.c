#include "experts/read_requests.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"

/* Requests together ask for this much: enough for a drive to work at full depth, little beside the slots. */
enum { REQUEST_BYTES = 48 << 20, MIN_REQUEST = 4 };

/* A drive gets this much at once while a single token waits: what it needs for its full speed, not more. Virtual drives
 * end what they have together, so that the less it is, the sooner the first expert computes while the next is being
 * read (docs/experiments.md). */
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

/* Room for the parts of an expert that is not read straight into its slot. */
static size_t staging_room(const struct store_layer *l)
{
    size_t n = 0;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        n += read_matrix_room(&l->part[i]);
    return n;
}

/* Whether there are slots that can't be read into. */
static bool needs_staging(const struct expert_slots *s)
{
    for (int i = 0; i < s->n_group; i++)
        if (s->groups[i].slot_pool && !backend_slot_room(s->device, s->groups[i].slot_pool, 0, 0, false))
            return true;
    return false;
}

err_code requests_open(struct read_requests *r, struct err *e)
{
    int64_t n_slot = READ_REQUESTS_MAX;
    if (r->queue)
        return ERR_OK;
    for (int i = 0; i < r->slots->n_layer; i++) {
        const struct slot_layer *l = &r->slots->layers[i];
        if (l->n_here == 0)
            continue;
        size_t room = staging_room(store_get_layer(r->store, l->d.index));
        r->request_bytes = room > r->request_bytes ? room : r->request_bytes;
        n_slot = l->group->n_slot < n_slot ? l->group->n_slot : n_slot;
    }
    int64_t n = (int64_t)(REQUEST_BYTES / r->request_bytes);
    n = n < MIN_REQUEST ? MIN_REQUEST : n;
    r->n_request = (int)(n < n_slot ? n : n_slot);
    if (!r->staging && needs_staging(r->slots)) { /* opening the queue may have failed before */
        r->staging = mem_map((size_t)r->n_request * r->request_bytes, MEM_SCRATCH);
        if (!r->staging)
            return err_nomem(e, (size_t)r->n_request * r->request_bytes, "reading experts");
    }
    for (int i = 0; i < r->n_request && r->staging; i++)
        r->requests[i].staging = r->staging + (size_t)i * r->request_bytes;
    int depth = store_get_queue_params(r->store).depth;
    r->depth = depth ? depth : drive_depth(r->store, r->request_bytes / EXPERT_N_MATRIX);
    return store_queue_open(&r->queue, r->store, NULL, e);
}

void requests_close(struct read_requests *r)
{
    store_queue_close(&r->queue);
    mem_unmap(r->staging, (size_t)r->n_request * r->request_bytes, MEM_SCRATCH);
    r->staging = NULL;
}

struct read_request *requests_find(struct read_requests *r, int layer, int32_t expert)
{
    for (int i = 0; i < r->n_request && r->n_busy > 0; i++)
        if (r->requests[i].is_busy && r->requests[i].layer == layer && r->requests[i].expert == expert)
            return &r->requests[i];
    return NULL;
}

static int part_of(const struct store_read *p)
{
    return (int)(p - ((const struct read_request *)p->user)->read);
}

/* Makes the parts of a request wait for the queue. */
static void ask(struct read_requests *r, struct read_request *q)
{
    const struct slot_layer *l = &r->slots->layers[q->layer];
    char *buf = q->staging;
    store_expert_blob(r->store, l->d.index, q->expert, &q->blob);
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct store_blob_part *p = &q->blob.part[i];
        void *room = backend_slot_room(r->slots->device, l->group->slot_pool, q->slot, i, q->blob.packed);
        q->in_slot = room != NULL;
        q->read[i] = (struct store_read){
            .file = p->file, .offset = p->offset, .n_bytes = p->n_bytes, .buf = room ? room : buf, .user = q};
        buf += room ? 0 : store_read_room(p->offset, p->n_bytes);
        r->waiting[r->n_waiting++] = &q->read[i];
    }
    q->n_left = EXPERT_N_MATRIX;
}

/* A request that has a slot and reads nothing yet. */
static struct read_request *begin(struct read_requests *r, int layer, int32_t expert, bool grow_only)
{
    struct slot_group *g = r->slots->layers[layer].group;
    struct read_request *q = NULL;
    bool evicted;
    for (int i = 0; i < r->n_request && !q; i++)
        q = r->requests[i].is_busy ? NULL : &r->requests[i];
    if (!q)
        return NULL;
    if (!policy_has_free(g->policy))
        slots_open_one(r->slots, g);
    if (grow_only && !policy_has_free(g->policy))
        return NULL;
    int64_t slot = slots_take(r->slots, layer, expert, &evicted);
    if (slot < 0)
        return NULL;
    r->n_evicted += evicted;
    *q = (struct read_request){.is_busy = true, .layer = layer, .expert = expert, .slot = slot, .staging = q->staging};
    r->n_busy++;
    return q;
}

struct read_request *requests_start(struct read_requests *r, int layer, int32_t expert, bool grow_only)
{
    struct read_request *q = begin(r, layer, expert, grow_only);
    if (!q)
        return NULL;
    ask(r, q);
    requests_submit(r);
    return q;
}

/* How many parts the queue may have when it gets a part of this request. No token waits for a prompt's first expert;
 * and what is wanted should not have to wait for a prefetch. */
static int depth_for(const struct read_requests *r, const struct read_request *q)
{
    return !r->is_single_token ? STORE_DEPTH : q->is_wanted ? r->depth : (r->depth + 1) / 2;
}

void requests_submit(struct read_requests *r)
{
    int n = 0;
    while (n < r->n_waiting && r->n_reading + n < depth_for(r, r->waiting[n]->user))
        n++;
    if (n == 0)
        return;
    if (r->n_reading == 0)
        r->looked_ns = clock_ns();
    atomic_store_explicit(&r->is_at_queue, true, memory_order_relaxed);
    store_queue_submit(r->queue, r->waiting, (size_t)n);
    atomic_store_explicit(&r->is_at_queue, false, memory_order_relaxed);
    r->n_reading += n;
    r->n_waiting -= n;
    memmove(r->waiting, r->waiting + n, (size_t)r->n_waiting * sizeof *r->waiting);
}

/* Ends a request whose expert is not in its slot. */
static void drop(struct read_requests *r, struct read_request *q)
{
    struct policy *policy = r->slots->layers[q->layer].group->policy;
    policy_release(policy, q->slot);
    policy_drop(policy, q->slot);
    q->is_busy = false;
    r->n_busy--;
}

void request_abandon(struct read_requests *r, struct read_request *q)
{
    int n = 0;
    q->is_abandoned = true;
    for (int i = 0; i < r->n_waiting; i++)
        if (r->waiting[i]->user == q) {
            q->left_out[part_of(r->waiting[i])] = true;
            q->n_left--;
        } else {
            r->waiting[n++] = r->waiting[i];
        }
    r->n_waiting = n;
    if (q->n_left == 0)
        drop(r, q);
}

void request_want(struct read_requests *r, struct read_request *q)
{
    q->is_wanted = true;
    q->is_abandoned = false;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        if (q->left_out[i]) {
            q->left_out[i] = false;
            q->n_left++;
            r->waiting[r->n_waiting++] = &q->read[i];
        }
}

/* Counts what the last n of the parts that have arrived say of the drives. */
static void count_rate(struct read_requests *r, size_t n)
{
    int64_t now_ns = clock_ns();
    if (!r->is_single_token) {
        for (int i = r->n_arrived - (int)n; i < r->n_arrived; i++)
            r->n_many_bytes += r->arrived[i]->failure ? 0 : r->arrived[i]->n_bytes;
        r->many_ns += now_ns - r->looked_ns;
    }
    r->looked_ns = now_ns;
}

bool requests_collect(struct read_requests *r, bool wait)
{
    int64_t start_ns = clock_ns();
    atomic_store_explicit(&r->is_at_queue, true, memory_order_relaxed);
    size_t n = store_queue_collect(r->queue, r->arrived + r->n_arrived, (size_t)(READ_PARTS_MAX - r->n_arrived), wait);
    atomic_store_explicit(&r->is_at_queue, false, memory_order_relaxed);
    if (wait)
        r->stall_ns += clock_ns() - start_ns;
    r->n_arrived += (int)n;
    r->n_reading -= (int)n;
    if (n > 0)
        count_rate(r, n);
    return n > 0;
}

/* ---- parts that have arrived ---------------------------------------------------------------------------------- */

/* What arrives together is packed in this many pieces for each thread, so that none waits long for another. */
enum { PIECES = 2 };

struct arrivals {
    struct read_requests *r;
    struct store_read *parts[READ_PARTS_MAX];
    int n_piece; /* that each part is packed in */
    atomic_bool failed[READ_PARTS_MAX];
};

/* Compares one part of one expert with its checksum. */
static err_code check_part(const struct read_requests *r, const struct read_request *q, int part, struct err *e)
{
    return store_blob_check(r->store, r->slots->layers[q->layer].d.index, q->expert, &q->blob, part,
                            q->read[part].bytes, e);
}

static void check_task(void *arg, size_t task, int thread)
{
    const struct arrivals *a = arg;
    const struct store_read *p = a->parts[task];
    struct read_request *q = p->user;
    struct err e;
    q->part_ok[part_of(p)] = !p->failure && check_part(a->r, q, part_of(p), &e) == ERR_OK;
}

/* Packs a piece of a part into the request's slot. */
static err_code fill_slot(struct read_requests *r, const struct read_request *q, int part, size_t piece, size_t n,
                          struct err *e)
{
    const struct slot_layer *l = &r->slots->layers[q->layer];
    const struct store_matrix *m = &store_get_layer(r->store, l->d.index)->part[part];
    int64_t row = read_piece_row(m, piece, n), end = read_piece_row(m, piece + 1, n);
    const char *src = (const char *)q->read[part].bytes + (uint64_t)row * (m->n_bytes / m->n_row);
    const struct slot_rows rows = {part, src, q->blob.packed, row, end - row};
    return backend_slot_fill(r->slots->device, l->group->slot_pool, q->slot, &rows, e);
}

static void pack_task(void *arg, size_t task, int thread)
{
    struct arrivals *a = arg;
    size_t at = task / (size_t)a->n_piece, piece = task % (size_t)a->n_piece;
    const struct store_read *p = a->parts[at];
    const struct read_request *q = p->user;
    struct err e;
    if (q->part_ok[part_of(p)] && !q->in_slot &&
        fill_slot(a->r, q, part_of(p), piece, (size_t)a->n_piece, &e) != ERR_OK)
        atomic_store(&a->failed[at], true);
}

static void run(struct pool *pool, size_t n, pool_fn *fn, void *arg)
{
    if (pool)
        pool_run(pool, n, fn, arg);
    else
        for (size_t i = 0; i < n; i++)
            fn(arg, i, 0);
}

static void check_and_pack(struct arrivals *a, int n, struct pool *pool)
{
    bool all_in_slots = true;
    run(pool, (size_t)n, check_task, a);
    for (int i = 0; i < n; i++) {
        atomic_init(&a->failed[i], false);
        all_in_slots = all_in_slots && ((struct read_request *)a->parts[i]->user)->in_slot;
    }
    if (all_in_slots)
        return;
    a->n_piece = pool ? 1 + (pool_n_threads(pool) * PIECES - 1) / n : 1;
    run(pool, (size_t)n * (size_t)a->n_piece, pack_task, a);
    for (int i = 0; i < n; i++)
        if (atomic_load(&a->failed[i]))
            ((struct read_request *)a->parts[i]->user)->part_ok[part_of(a->parts[i])] = false;
}

int requests_process(struct read_requests *r, int n, struct pool *pool, struct read_request **ended)
{
    struct arrivals a = {.r = r};
    int n_ended = 0;
    int64_t start_ns = clock_ns();
    memcpy(a.parts, r->arrived, (size_t)n * sizeof *a.parts);
    r->n_arrived -= n;
    memmove(r->arrived, r->arrived + n, (size_t)r->n_arrived * sizeof *r->arrived);
    check_and_pack(&a, n, pool);
    r->arrival_ns += clock_ns() - start_ns;
    for (int i = 0; i < n; i++) {
        struct read_request *q = a.parts[i]->user;
        if (--q->n_left == 0)
            ended[n_ended++] = q;
    }
    return n_ended;
}

/* Why a part is not in the slot. */
static err_code explain(struct read_requests *r, const struct read_request *q, int part, struct err *e)
{
    if (q->read[part].failure)
        return store_read_error(r->store, &q->read[part], e);
    TRY(check_part(r, q, part, e));
    return fill_slot(r, q, part, 0, 1, e);
}

static err_code check_whole(struct read_requests *r, const struct read_request *q, struct err *e)
{
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        if (!q->part_ok[i] && explain(r, q, i, e) != ERR_OK)
            return err_prefix(e, "layer %d, expert %d", r->slots->layers[q->layer].d.index, (int)q->expert);
    return ERR_OK;
}

/* Tells the device that the slot has all it needs. */
static void begin_upload(struct read_requests *r, struct read_request *q)
{
    const struct slot_layer *l = &r->slots->layers[q->layer];
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        if (q->in_slot)
            backend_slot_adopt(r->slots->device, l->group->slot_pool, q->slot, i, q->read[i].bytes, q->blob.packed);
        r->n_read_bytes += q->is_copy ? 0 : q->blob.part[i].n_bytes;
    }
    q->is_uploading = true;
    q->upload = backend_upload_fence(r->slots->device);
}

int requests_uploaded(struct read_requests *r, bool wait, struct read_request **ended)
{
    int n_ended = 0;
    int64_t start_ns = clock_ns();
    for (int i = 0; i < r->n_request && r->n_busy > 0; i++) {
        struct read_request *q = &r->requests[i];
        bool is_passed;
        struct err e; /* request_finish is told it, too */
        if (q->is_busy && q->is_uploading &&
            (backend_upload_poll(r->slots->device, q->upload, wait && n_ended == 0, &is_passed, &e) != ERR_OK ||
             is_passed))
            ended[n_ended++] = q;
    }
    if (wait && n_ended)
        r->stall_ns += clock_ns() - start_ns;
    return n_ended;
}

enum read_result request_finish(struct read_requests *r, struct read_request *q, struct err *e)
{
    const struct slot_layer *l = &r->slots->layers[q->layer];
    bool is_passed;
    if (q->is_abandoned) {
        drop(r, q);
        return READ_ABANDONED;
    }
    err_code code = q->is_uploading ? ERR_OK : check_whole(r, q, e);
    if (code != ERR_OK && store_expert_retry(r->store, l->d.index, q->expert, &q->blob, e)) {
        ask(r, q);
        return READ_AGAIN;
    }
    if (code == ERR_OK && !q->is_uploading)
        begin_upload(r, q);
    if (code == ERR_OK && backend_upload_poll(r->slots->device, q->upload, false, &is_passed, e) != ERR_OK)
        code = err_prefix(e, "layer %d, expert %d", l->d.index, (int)q->expert);
    if (code != ERR_OK) {
        drop(r, q);
        return READ_FAILED;
    }
    if (!is_passed)
        return READ_UPLOADING;
    q->is_busy = false;
    r->n_busy--;
    r->n_read += !q->is_copy;
    return READ_DONE;
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

/* What the threads that copy an expert share. */
struct copy {
    const struct read_requests *r;
    const struct read_request *q;
    const struct expert_bytes *from;
    size_t n_piece; /* that each matrix is copied in */
    atomic_bool has_failed;
};

static void copy_task(void *arg, size_t task, int thread)
{
    struct copy *c = arg;
    int i = (int)(task / c->n_piece);
    size_t piece = task % c->n_piece;
    const struct slot_layer *l = &c->r->slots->layers[c->q->layer];
    const struct store_matrix *m = &store_get_layer(c->r->store, l->d.index)->part[i];
    int64_t row = read_piece_row(m, piece, c->n_piece), end = read_piece_row(m, piece + 1, c->n_piece);
    const char *src = (const char *)c->from->matrix[i] + (uint64_t)row * (m->n_bytes / m->n_row);
    const struct slot_rows rows = {i, src, c->from->is_packed[i], row, end - row};
    struct err e;
    if (backend_slot_fill(c->r->slots->device, l->group->slot_pool, c->q->slot, &rows, &e) != ERR_OK)
        atomic_store(&c->has_failed, true);
}

struct read_request *requests_copy(struct read_requests *r, int layer, int32_t expert, const struct expert_bytes *from)
{
    struct read_request *q = begin(r, layer, expert, false);
    if (!q)
        return NULL;
    struct copy c = {.r = r, .q = q, .from = from, .n_piece = (size_t)pool_n_threads(r->pool)};
    q->is_copy = true;
    pool_run(r->pool, EXPERT_N_MATRIX * c.n_piece, copy_task, &c);
    if (atomic_load(&c.has_failed)) {
        drop(r, q);
        return NULL;
    }
    begin_upload(r, q);
    return q;
}
