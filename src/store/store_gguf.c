#define _GNU_SOURCE /* raw GGUF files through pread and the page cache */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/store_internal.h"

enum {
    PIECE_BYTES = 1 << 30,    /* of one pread: Linux cuts longer ones a little below 2 GiB */
    PREFETCH_BYTES = 64 << 20 /* of a batch: more would only push out what was fetched first */
};

struct gguf_store {
    struct store base;
    const struct gguf *g; /* borrowed */
    int n_files;
    int fds[]; /* n_files, -1: not open */
};

/* " (tensor "NAME")" for the tensor that byte `at` of a file belongs to, or nothing. */
static const char *name_tensor(const struct gguf_store *s, int file, uint64_t at, char *out, size_t n)
{
    out[0] = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(s->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(s->g, i);
        if (t->file == file && at >= t->offset && at - t->offset < t->n_bytes)
            snprintf(out, n, " (tensor \"%.200s\")", t->name);
    }
    return out;
}

static err_code read_range(struct store *base, const struct store_range *r, struct err *e)
{
    struct gguf_store *s = (struct gguf_store *)base;
    char tensor[256];
    if (r->file < 0 || r->file >= s->n_files)
        return err_set(e, ERR_USAGE, "a read from file %d of a model in %d files", r->file, s->n_files);
    const char *path = gguf_file_path(s->g, r->file);
    uint64_t file_bytes = gguf_file_bytes(s->g, r->file);
    if (r->offset > file_bytes || r->n_bytes > file_bytes - r->offset)
        return err_set(e, ERR_IO, "%s: a read of %zu bytes at byte %" PRIu64 " goes beyond the file's %" PRIu64 "%s",
                       path, r->n_bytes, r->offset, file_bytes,
                       name_tensor(s, r->file, r->offset, tensor, sizeof tensor));
    for (size_t done = 0; done < r->n_bytes;) {
        size_t rest = r->n_bytes - done, piece = rest < PIECE_BYTES ? rest : PIECE_BYTES;
        uint64_t at = r->offset + done;
        ssize_t n = pread(s->fds[r->file], (char *)r->dst + done, piece, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_IO, "%s: reading %zu bytes at byte %" PRIu64 "%s: %s", path, rest, at,
                           name_tensor(s, r->file, at, tensor, sizeof tensor), strerror(errno));
        if (n == 0)
            return err_set(e, ERR_IO,
                           "%s: reading %zu bytes at byte %" PRIu64 "%s: the file ends there now; it had %" PRIu64
                           " bytes when it was opened",
                           path, rest, at, name_tensor(s, r->file, at, tensor, sizeof tensor), file_bytes);
        done += (size_t)n;
    }
    return ERR_OK;
}

/* Queues the ranges with the kernel, so that the disk works on all of them while the first is copied. */
static void prefetch(struct store *base, const struct store_range *ranges, size_t n)
{
    struct gguf_store *s = (struct gguf_store *)base;
    size_t budget = PREFETCH_BYTES;
    for (size_t i = 0; i < n && ranges[i].n_bytes <= budget; i++) {
        const struct store_range *r = &ranges[i];
        if (r->file < 0 || r->file >= s->n_files || r->offset > INT64_MAX)
            return; /* read_range says why */
        (void)posix_fadvise(s->fds[r->file], (off_t)r->offset, (off_t)r->n_bytes, POSIX_FADV_WILLNEED);
        budget -= r->n_bytes;
    }
}

static void close_files(struct store *base)
{
    struct gguf_store *s = (struct gguf_store *)base;
    for (int i = 0; i < s->n_files; i++)
        if (s->fds[i] >= 0)
            close(s->fds[i]);
    mem_free(s);
}

static const struct store_ops gguf_ops = {.read = read_range, .prefetch = prefetch, .close = close_files};

static err_code open_file(struct gguf_store *s, int file, struct err *e)
{
    const char *path = gguf_file_path(s->g, file);
    struct stat st;
    s->fds[file] = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fds[file] < 0 || fstat(s->fds[file], &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if ((uint64_t)st.st_size != gguf_file_bytes(s->g, file))
        return err_set(e, ERR_IO,
                       "%s: has %" PRIu64 " bytes now and had %" PRIu64
                       " when its metadata was read: it changed in between",
                       path, (uint64_t)st.st_size, gguf_file_bytes(s->g, file));
    return ERR_OK;
}

err_code store_open_gguf(struct store **out, const struct gguf *g, struct err *e)
{
    *out = NULL;
    int n = gguf_n_files(g);
    struct gguf_store *s = mem_calloc(1, sizeof *s + (size_t)n * sizeof *s->fds);
    if (!s)
        return err_nomem(e, sizeof *s, "a store");
    *s = (struct gguf_store){.base.ops = &gguf_ops, .g = g, .n_files = n};
    memset(s->fds, -1, (size_t)n * sizeof *s->fds);
    err_code code;
    for (int i = 0; i < n; i++)
        TRY_OUT(open_file(s, i, e));
    *out = &s->base;
    return ERR_OK;
out:
    close_files(&s->base);
    return code;
}
