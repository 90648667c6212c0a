#include "store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "store/checksums.h"
#include "store/store_internal.h"

void store_count(struct store *s, uint64_t n_reads, uint64_t n_bytes)
{
    atomic_fetch_add_explicit(&s->n_reads, n_reads, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_bytes, n_bytes, memory_order_relaxed);
}

void store_read_ahead(struct store *s, const struct store_range *ranges, size_t n)
{
    if (s->ops->prefetch)
        s->ops->prefetch(s, ranges, n);
}

err_code store_read(struct store *s, const struct store_range *ranges, size_t n, struct err *e)
{
    int64_t start_ns = clock_ns();
    err_code code = ERR_OK;
    uint64_t n_bytes = 0;
    size_t i;
    if (n > 1)
        store_read_ahead(s, ranges, n);
    for (i = 0; i < n; i++) {
        struct store_read r = {.file = ranges[i].file, .offset = ranges[i].offset, .n_bytes = ranges[i].n_bytes};
        r.failure = store_check_range(s, r.file, r.offset, r.n_bytes);
        if (r.failure == 0)
            r.failure = s->ops->read(s, &ranges[i]);
        if (r.failure != 0) {
            code = store_read_error(s, &r, e);
            break;
        }
        n_bytes += ranges[i].n_bytes;
        if (s->copies)
            copies_count(s->copies, ranges[i].file, ranges[i].n_bytes);
    }
    store_count(s, i, n_bytes);
    atomic_fetch_add_explicit(&s->n_ns, (uint64_t)(clock_ns() - start_ns), memory_order_relaxed);
    return code;
}

int store_check_range(const struct store *s, int file, uint64_t offset, size_t n_bytes)
{
    bool fits = file >= 0 && file < s->n_files && offset <= s->files[file].n_bytes &&
                n_bytes <= s->files[file].n_bytes - offset;
    return fits ? 0 : READ_BEYOND;
}

err_code store_read_error(const struct store *s, const struct store_read *r, struct err *e)
{
    char what[256] = "";
    assert(r->failure != 0);
    if (r->file < 0 || r->file >= s->n_files)
        return err_set(e, ERR_USAGE, "a read from file %d of a model in %d files", r->file, s->n_files);
    const struct store_file *f = &s->files[r->file];
    if (r->failure == READ_BEYOND)
        return err_set(e, ERR_IO, "%s: a read of %zu bytes at byte %" PRIu64 " goes beyond the file's %" PRIu64,
                       f->path, r->n_bytes, r->offset, f->n_bytes);
    if (s->copies)
        copies_name(s->copies, r->file, r->offset, what, sizeof what);
    if (s->ops->name && !what[0])
        s->ops->name(s, r->file, r->offset, what, sizeof what);
    if (r->failure == READ_ENDED)
        return err_set(e, ERR_IO,
                       "%s: reading %zu bytes at byte %" PRIu64 "%s: the file ends there now; it had %" PRIu64
                       " bytes when it was opened",
                       f->path, r->n_bytes, r->offset, what, f->n_bytes);
    return err_set(e, ERR_IO, "%s: reading %zu bytes at byte %" PRIu64 "%s: %s", f->path, r->n_bytes, r->offset, what,
                   strerror(r->failure));
}

struct store_range store_tensor_part(const struct gguf_tensor *t, uint64_t offset, size_t n_bytes, void *dst)
{
    assert(offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    return (struct store_range){.file = t->file, .offset = t->offset + offset, .n_bytes = n_bytes, .dst = dst};
}

struct store_range store_tensor_range(const struct gguf_tensor *t, void *dst)
{
    return store_tensor_part(t, 0, (size_t)t->n_bytes, dst);
}

struct store_counters store_get_counters(const struct store *s)
{
    return (struct store_counters){
        .n_reads = atomic_load_explicit(&s->n_reads, memory_order_relaxed),
        .n_bytes = atomic_load_explicit(&s->n_bytes, memory_order_relaxed),
        .n_ns = atomic_load_explicit(&s->n_ns, memory_order_relaxed),
    };
}

bool store_get_place(const struct store *s, int i, struct store_place *out)
{
    struct store_place p;
    struct store_counters all = store_get_counters(s);
    if (i > 0)
        return s->copies && copies_place(s->copies, i - 1, out);
    *out = (struct store_place){.path = s->files[0].path, .n_reads = all.n_reads, .n_bytes = all.n_bytes};
    for (int k = 0; s->copies && copies_place(s->copies, k, &p); k++) {
        out->n_reads -= p.n_reads;
        out->n_bytes -= p.n_bytes;
    }
    return true;
}

void store_close(struct store **s)
{
    if (*s)
        (*s)->ops->close(*s);
    *s = NULL;
}

/* ---- routed experts ------------------------------------------------------------------------------------------ */

int store_n_layers(const struct store *s)
{
    return s->n_layers;
}

const struct store_layer *store_get_layer(const struct store *s, int layer)
{
    assert(layer >= 0 && layer < s->n_layers);
    return &s->layers[layer];
}

void store_expert_blob(struct store *s, int layer, int expert, struct store_blob *out)
{
    const struct store_layer *l = store_get_layer(s, layer);
    assert(expert >= 0 && expert < l->n_expert);
    if (s->copies && copies_pick(s->copies, layer, expert, out))
        return;
    *out = (struct store_blob){.has_crc = s->checksums, .copy = -1};
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct store_matrix *m = &l->part[i];
        out->part[i].file = m->file;
        out->part[i].offset = m->offset + (uint64_t)expert * m->stride_bytes;
        out->part[i].n_bytes = m->n_bytes;
        if (s->checksums)
            out->part[i].crc = s->checksums->part[checksums_index(s->checksums, layer, expert, i)];
    }
}

err_code store_blob_check(const struct store *s, int layer, int expert, const struct store_blob *b,
                          enum expert_matrix matrix, const void *bytes, struct err *e)
{
    const struct store_blob_part *p = &b->part[matrix];
    uint32_t crc = b->has_crc ? crc32c(0, bytes, p->n_bytes) : p->crc;
    if (crc == p->crc)
        return ERR_OK;
    return err_set(e, ERR_FORMAT,
                   "%s: layer %d, expert %d: the %zu bytes at byte %" PRIu64
                   " are damaged: their checksum is %08" PRIx32 " and was %08" PRIx32 " when they were written",
                   s->files[p->file].path, layer, expert, p->n_bytes, p->offset, crc, p->crc);
}

bool store_expert_retry(struct store *s, int layer, int expert, const struct store_blob *b, const struct err *why)
{
    if (b->copy < 0)
        return false;
    copies_fail(s->copies, layer, expert, b->copy, why);
    return true;
}
