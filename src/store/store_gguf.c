#define _GNU_SOURCE /* stores over files: a GGUF, whole or split, or any other */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/checksums.h"
#include "store/store_internal.h"

enum {
    PIECE_BYTES = 1 << 30,    /* of one pread: Linux cuts longer ones a little below 2 GiB */
    PREFETCH_BYTES = 64 << 20 /* of a batch: more would only push out what was fetched first */
};

struct file_store {
    struct store base;
    struct store_layer *layers;
};

static void name_tensor(const struct store *s, int file, uint64_t at, char *out, size_t n)
{
    const struct gguf *g = s->gguf;
    for (uint64_t i = 0; g && i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->file == file && at >= t->offset && at - t->offset < t->n_bytes)
            snprintf(out, n, " (tensor \"%.200s\")", t->name);
    }
}

static int read_range(struct store *s, const struct store_range *r)
{
    for (size_t done = 0; done < r->n_bytes;) {
        size_t rest = r->n_bytes - done;
        ssize_t n = pread(s->files[r->file].fd, (char *)r->dst + done, rest < PIECE_BYTES ? rest : PIECE_BYTES,
                          (off_t)(r->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : READ_ENDED;
        done += (size_t)n;
    }
    return 0;
}

/* Whether the page cache has the end of a range, and so most likely all of it. */
static bool is_cached(int fd, const struct store_range *r)
{
    char last;
    struct iovec v = {&last, 1};
    return r->n_bytes > 0 && preadv2(fd, &v, 1, (off_t)(r->offset + r->n_bytes - 1), RWF_NOWAIT) == 1;
}

/* Queues the ranges with the kernel, so that the disk works on all of them while the first is copied. */
static void prefetch(struct store *base, const struct store_range *ranges, size_t n)
{
    size_t budget = PREFETCH_BYTES;
    for (size_t i = 0; i < n && ranges[i].n_bytes <= budget; i++) {
        const struct store_range *r = &ranges[i];
        if (r->file < 0 || r->file >= base->n_files || r->offset > INT64_MAX)
            return; /* read_range says why */
        if (is_cached(base->files[r->file].fd, r))
            continue; /* asking for it would cost a look at each of its pages */
        (void)posix_fadvise(base->files[r->file].fd, (off_t)r->offset, (off_t)r->n_bytes, POSIX_FADV_WILLNEED);
        budget -= r->n_bytes;
    }
}

static void close_files(struct store *base)
{
    struct file_store *s = (struct file_store *)base;
    for (int i = 0; i < base->n_files; i++)
        store_file_close(&base->files[i]);
    copies_close(base->copies);
    if (base->checksums)
        checksums_close(base->checksums);
    mem_free(base->checksums);
    mem_free(base->files);
    mem_free(s->layers);
    mem_free(s);
}

static const struct store_ops file_ops = {
    .read = read_range, .prefetch = prefetch, .name = name_tensor, .close = close_files};

static err_code open_file(struct store_file *f, const char *path, uint64_t n_bytes, struct err *e)
{
    TRY(store_file_open(f, path, e));
    if (f->n_bytes != n_bytes)
        return err_set(e, ERR_IO,
                       "%s: has %" PRIu64 " bytes now and had %" PRIu64
                       " when its metadata was read: it changed in between",
                       path, f->n_bytes, n_bytes);
    return ERR_OK;
}

/* With room for n files, of which none is open. */
static err_code create_store(struct store **out, int n, struct err *e)
{
    *out = NULL;
    struct file_store *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a store");
    s->base.ops = &file_ops;
    s->base.files = mem_calloc((size_t)n, sizeof *s->base.files);
    if (!s->base.files) {
        mem_free(s);
        return err_nomem(e, (size_t)n * sizeof(struct store_file), "a store");
    }
    *out = &s->base;
    return ERR_OK;
}

err_code store_open_gguf(struct store **out, const struct gguf *g, struct err *e)
{
    err_code code;
    int n = gguf_n_files(g);
    TRY(create_store(out, n, e));
    struct file_store *s = (struct file_store *)*out;
    s->base.gguf = g;
    for (int i = 0; i < n; i++) {
        s->base.n_files++; /* half open: to be closed with the others */
        TRY_OUT(open_file(&s->base.files[i], gguf_file_path(g, i), gguf_file_bytes(g, i), e));
    }
    TRY_OUT(store_layers_find(g, &s->layers, &s->base.n_layers, e));
    s->base.layers = s->layers;
    return ERR_OK;
out:
    store_close(out);
    return code;
}

err_code store_open_file(struct store **out, const char *path, struct err *e)
{
    TRY(create_store(out, 1, e));
    (*out)->n_files = 1;
    err_code code = store_file_open(&(*out)->files[0], path, e);
    if (code != ERR_OK)
        store_close(out);
    return code;
}
