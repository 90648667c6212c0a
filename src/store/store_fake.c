#include "store/store_fake.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "store/store_internal.h"

struct fake_store {
    struct store base;
    const struct store_fake_file *files;
    int n_files;
    pthread_mutex_t lock; /* of the faults */
    int n_faults;
    struct store_fault faults[STORE_FAKE_MAX_FAULTS];
};

/* The first fault that fires on this range, counted down; false for none. */
static bool take_fault(struct fake_store *s, const struct store_range *r, struct store_fault *out)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
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
    pthread_mutex_unlock(&s->lock);
    return found;
}

static err_code read_range(struct store *base, const struct store_range *r, struct err *e)
{
    struct fake_store *s = (struct fake_store *)base;
    if (r->file < 0 || r->file >= s->n_files)
        return err_set(e, ERR_USAGE, "a read from file %d of a model in %d files", r->file, s->n_files);
    const struct store_fake_file *f = &s->files[r->file];
    if (r->offset > f->n_bytes || r->n_bytes > f->n_bytes - r->offset)
        return err_set(e, ERR_IO, "%s: a read of %zu bytes at byte %" PRIu64 " goes beyond the file's %zu", f->name,
                       r->n_bytes, r->offset, f->n_bytes);
    struct store_fault fault;
    bool faulty = take_fault(s, r, &fault);
    size_t at = faulty ? (size_t)(fault.offset - r->offset) : 0; /* of the byte in question within dst */
    if (faulty && fault.kind == STORE_FAULT_ERROR)
        return err_set(e, ERR_IO, "%s: reading %zu bytes at byte %" PRIu64 ": injected device error", f->name,
                       r->n_bytes, r->offset);
    size_t n = faulty && fault.kind == STORE_FAULT_SHORT ? at : r->n_bytes;
    if (n)
        memcpy(r->dst, (const char *)f->bytes + r->offset, n);
    if (n < r->n_bytes)
        return err_set(e, ERR_IO, "%s: reading %zu bytes at byte %" PRIu64 ": injected short read of %zu bytes",
                       f->name, r->n_bytes, r->offset, n);
    if (faulty)
        ((uint8_t *)r->dst)[at] ^= 0xff;
    return ERR_OK;
}

static void close_fake(struct store *base)
{
    struct fake_store *s = (struct fake_store *)base;
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static const struct store_ops fake_ops = {.read = read_range, .close = close_fake};

err_code store_open_fake(struct store **out, const struct store_fake_file *files, int n_files, struct err *e)
{
    *out = NULL;
    struct fake_store *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a fake store");
    s->base.ops = &fake_ops;
    s->files = files;
    s->n_files = n_files;
    if (pthread_mutex_init(&s->lock, NULL) != 0) {
        mem_free(s);
        return err_set(e, ERR_FAIL, "a mutex could not be made");
    }
    *out = &s->base;
    return ERR_OK;
}

void store_fake_add_fault(struct store *base, struct store_fault fault)
{
    assert(base->ops == &fake_ops);
    struct fake_store *s = (struct fake_store *)base;
    pthread_mutex_lock(&s->lock);
    assert(s->n_faults < STORE_FAKE_MAX_FAULTS);
    s->faults[s->n_faults++] = fault;
    pthread_mutex_unlock(&s->lock);
}

void store_fake_clear_faults(struct store *base)
{
    assert(base->ops == &fake_ops);
    struct fake_store *s = (struct fake_store *)base;
    pthread_mutex_lock(&s->lock);
    s->n_faults = 0;
    pthread_mutex_unlock(&s->lock);
}
