#include "store_fake.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/store_internal.h"

struct fake_store {
    struct store base;
    const struct store_fake_file *memory; /* base.n_files of them */
    pthread_mutex_t lock;                 /* of all below */
    struct store_fake_drive drive;
    int64_t idle_at_ns; /* when the drive has moved all that was asked of it */
    int n_faults;
    struct store_fault faults[STORE_FAKE_MAX_FAULTS];
    bool *is_gone; /* each file's */
};

/* The first fault that fires on this range, counted down; false for none. */
static bool take_fault(struct fake_store *s, const struct store_range *r, struct store_fault *out)
{
    bool found = false;
    for (int i = 0; i < s->n_faults && !found; i++) {
        struct store_fault *f = &s->faults[i];
        if (f->file != r->file || f->offset < r->offset || f->offset - r->offset >= r->n_bytes)
            continue;
        if (f->n_skip > 0) {
            f->n_skip--;
            continue;
        }
        found = f->n_times > 0;
        *out = *f;
        if (f->n_times > 0 && f->n_times != UINT64_MAX)
            f->n_times--;
    }
    return found;
}

/* The bytes or the failure of a read that lies within its file; *slow_ns: what a fault adds to its time. */
static int fetch(struct fake_store *s, const struct store_range *r, int64_t *slow_ns)
{
    struct store_fault fault;
    bool faulty = take_fault(s, r, &fault);
    size_t at = faulty ? (size_t)(fault.offset - r->offset) : 0; /* of the byte in question within dst */
    if (faulty && fault.kind == STORE_FAULT_GONE)
        s->is_gone[r->file] = true;
    if (s->is_gone[r->file])
        return ENODEV;
    if (faulty && fault.kind == STORE_FAULT_ERROR)
        return EIO;
    bool is_short = faulty && fault.kind == STORE_FAULT_SHORT;
    size_t n = is_short ? at : r->n_bytes;
    if (n)
        memcpy(r->dst, (const char *)s->memory[r->file].bytes + r->offset, n);
    if (faulty && fault.kind == STORE_FAULT_CORRUPT)
        ((uint8_t *)r->dst)[at] ^= 0xff;
    *slow_ns = faulty && fault.kind == STORE_FAULT_SLOW ? STORE_FAKE_SLOW_NS : 0;
    return is_short ? READ_ENDED : 0;
}

static int read_range(struct store *base, const struct store_range *r)
{
    struct fake_store *s = (struct fake_store *)base;
    int64_t slow_ns = 0;
    pthread_mutex_lock(&s->lock);
    int failure = fetch(s, r, &slow_ns);
    pthread_mutex_unlock(&s->lock);
    return failure;
}

/* ---- queues -------------------------------------------------------------------------------------------------- */

struct fake_queue {
    struct store_queue base;
    struct store_read *first; /* by the time they end (start_ns), then as submitted */
};

static int64_t drive_takes(struct fake_store *s, size_t n_bytes)
{
    int64_t now = clock_ns();
    if (s->idle_at_ns < now)
        s->idle_at_ns = now;
    if (s->drive.bytes_per_s)
        s->idle_at_ns += (int64_t)((double)n_bytes * 1e9 / (double)s->drive.bytes_per_s);
    return s->idle_at_ns + s->drive.latency_ns;
}

static void fake_submit(struct store_queue *base, struct store_read *const *reads, size_t n)
{
    struct fake_queue *q = (struct fake_queue *)base;
    struct fake_store *s = (struct fake_store *)base->store;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        struct store_read *r = reads[i], **at = &q->first;
        int64_t slow_ns = 0;
        if (read_begin(base, r))
            r->failure =
                fetch(s, &(struct store_range){r->file, r->offset, r->n_bytes, (void *)(uintptr_t)r->bytes}, &slow_ns);
        r->start_ns = drive_takes(s, r->n_bytes) + slow_ns;
        while (*at && (*at)->start_ns <= r->start_ns)
            at = &(*at)->next;
        r->next = *at;
        *at = r;
    }
    pthread_mutex_unlock(&s->lock);
}

static size_t fake_collect(struct store_queue *base, struct store_read **done, size_t max, bool wait)
{
    struct fake_queue *q = (struct fake_queue *)base;
    size_t n = 0;
    int64_t rest_ns = wait && q->first ? q->first->start_ns - clock_ns() : 0;
    while (rest_ns > 0) {
        struct timespec t = {.tv_sec = rest_ns / 1000000000, .tv_nsec = rest_ns % 1000000000};
        nanosleep(&t, NULL);
        rest_ns = q->first->start_ns - clock_ns();
    }
    for (int64_t now = clock_ns(); n < max && q->first && q->first->start_ns <= now; n++) {
        done[n] = q->first;
        q->first = q->first->next;
        if (done[n]->failure == 0)
            store_count(base->store, 1, done[n]->n_bytes);
    }
    return n;
}

static void fake_queue_close(struct store_queue *q)
{
    mem_free(q);
}

static err_code fake_queue_open(struct store_queue **out, struct store *s, struct err *e)
{
    static const struct queue_ops ops = {.submit = fake_submit, .collect = fake_collect, .close = fake_queue_close};
    struct fake_queue *q = mem_calloc(1, sizeof *q);
    if (!q)
        return err_nomem(e, sizeof *q, "a queue of reads");
    *q = (struct fake_queue){.base = {.ops = &ops, .engine = "fake"}};
    *out = &q->base;
    return ERR_OK;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void close_fake(struct store *base)
{
    struct fake_store *s = (struct fake_store *)base;
    pthread_mutex_destroy(&s->lock);
    mem_free(base->files);
    mem_free(s->is_gone);
    mem_free(s);
}

static const struct store_ops fake_ops = {.read = read_range, .queue_open = fake_queue_open, .close = close_fake};

err_code store_open_fake(struct store **out, const struct store_fake_file *files, int n_files, struct err *e)
{
    *out = NULL;
    struct fake_store *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a fake store");
    *s = (struct fake_store){.base = {.ops = &fake_ops, .n_files = n_files}, .memory = files};
    pthread_mutex_init(&s->lock, NULL); /* can't fail on Linux */
    s->base.files = mem_calloc((size_t)n_files, sizeof *s->base.files);
    s->is_gone = mem_calloc((size_t)n_files, sizeof *s->is_gone);
    if (!s->base.files || !s->is_gone) {
        close_fake(&s->base);
        return err_nomem(e, (size_t)n_files * sizeof *s->base.files, "a fake store");
    }
    for (int i = 0; i < n_files; i++)
        s->base.files[i] =
            (struct store_file){.path = files[i].name, .n_bytes = files[i].n_bytes, .fd = -1, .direct_fd = -1};
    *out = &s->base;
    return ERR_OK;
}

static struct fake_store *lock_fake(struct store *base)
{
    assert(base->ops == &fake_ops);
    struct fake_store *s = (struct fake_store *)base;
    pthread_mutex_lock(&s->lock);
    return s;
}

void store_fake_set_layers(struct store *base, const struct store_layer *layers, int n)
{
    struct fake_store *s = lock_fake(base);
    s->base.layers = layers;
    s->base.n_layers = n;
    pthread_mutex_unlock(&s->lock);
}

void store_fake_set_drive(struct store *base, struct store_fake_drive drive)
{
    struct fake_store *s = lock_fake(base);
    s->drive = drive;
    pthread_mutex_unlock(&s->lock);
}

void store_fake_add_fault(struct store *base, struct store_fault fault)
{
    struct fake_store *s = lock_fake(base);
    assert(s->n_faults < STORE_FAKE_MAX_FAULTS);
    s->faults[s->n_faults++] = fault;
    pthread_mutex_unlock(&s->lock);
}

void store_fake_clear_faults(struct store *base)
{
    struct fake_store *s = lock_fake(base);
    s->n_faults = 0;
    pthread_mutex_unlock(&s->lock);
}
