#define _GNU_SOURCE
#include "gguf/gguf_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/split_set.h"

static err_code open_file(struct gguf *g, uint64_t file, const char *path, struct err *e)
{
    struct gguf_file *f = &g->files[file];
    f->path = arena_strndup(&g->arena, path, strlen(path));
    if (!f->path)
        return err_nomem(e, strlen(path), "a path");
    int fd = file_open(path, O_RDONLY | O_NONBLOCK, 0); /* opens FIFOs, too, without waiting for a writer */
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    err_code code;
    if (fstat(fd, &st) != 0)
        code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        code = err_set(e, ERR_IO, "%s: expected a regular file", path);
    else
        code = gguf_parse(
            f, &(struct gguf_source){.fd = fd, .n_bytes = (uint64_t)st.st_size, .may_be_header = g->may_be_header},
            &g->arena, &g->totals, e);
    close(fd);
    return code;
}

/* Makes room for n files. The one that was opened first, if any, becomes number `no`. */
static err_code alloc_files(struct gguf *g, uint64_t no, uint64_t n, struct err *e)
{
    struct gguf_file *files = arena_calloc(&g->arena, (size_t)n, sizeof *files);
    if (!files)
        return err_nomem(e, (size_t)n * sizeof *files, "the files of a model");
    if (g->n_files == 1)
        files[no] = g->files[0];
    g->files = files;
    g->n_files = (int)n;
    return ERR_OK;
}

/* An integer key of the split scheme; `fallback` when absent. */
static err_code split_key(const struct gguf_file *f, const char *key, uint64_t fallback, uint64_t max, uint64_t *out,
                          struct err *e)
{
    const struct gguf_value *v = gguf_file_find(f, key);
    *out = fallback;
    if (v && (!gguf_value_u64(v, out) || *out > max))
        return err_set(e, ERR_FORMAT, "%s: key \"%s\": expected an integer from 0 to %" PRIu64, f->path, key, max);
    return ERR_OK;
}

/* Writes the path of part `want` of n to `out`, which has the length of `path`, the path of part `no`. */
static err_code sibling_path(const char *path, uint64_t no, uint64_t n, uint64_t want, char *out, struct err *e)
{
    char suffix[SPLIT_SET_SUFFIX_BYTES + 1];
    struct split_set s;
    size_t length = strlen(path);
    split_set_suffix(suffix, (int)no + 1, (int)n);
    if (!split_set_parse(&s, path, length) || s.part != (int)no + 1 || s.n_part != (int)n)
        return err_set(e, ERR_FORMAT,
                       "%s: part %" PRIu64 " of a model in %" PRIu64 " files (key \"split.count\"): expected a name"
                       " that ends in \"%s\", to find the others by",
                       path, no + 1, n, suffix);
    memcpy(out, path, s.n_name);
    split_set_suffix(out + s.n_name, (int)want + 1, (int)n);
    return ERR_OK;
}

/* Whether a file's metadata says that it is the part that its name says it is. */
static err_code check_part(const struct gguf_file *f, uint64_t no, uint64_t n, struct err *e)
{
    uint64_t f_no, f_n;
    TRY(split_key(f, "split.no", 0, GGUF_MAX_FILES - 1, &f_no, e));
    TRY(split_key(f, "split.count", 1, GGUF_MAX_FILES, &f_n, e));
    if (f_no != no || f_n != n)
        return err_set(e, ERR_FORMAT,
                       "%s: its metadata (keys \"split.no\" and \"split.count\") says part %" PRIu64 " of %" PRIu64
                       ", expected part %" PRIu64 " of %" PRIu64,
                       f->path, f_no + 1, f_n, no + 1, n);
    return ERR_OK;
}

/* Opens the other parts of a split set, of which `path` is part `no`. */
static err_code open_parts(struct gguf *g, const char *path, uint64_t no, uint64_t n, struct err *e)
{
    char *part = arena_strndup(&g->arena, path, strlen(path));
    if (!part)
        return err_nomem(e, strlen(path), "a path");
    if (no >= n)
        return err_set(e, ERR_FORMAT, "%s: key \"split.no\" is %" PRIu64 ", expected less than the %" PRIu64 " parts",
                       path, no, n);
    TRY(alloc_files(g, no, n, e));
    for (uint64_t i = 0; i < n; i++) {
        if (i == no)
            continue;
        TRY(sibling_path(path, no, n, i, part, e));
        if (access(part, F_OK) != 0)
            return err_set(e, ERR_IO, "%s: part %" PRIu64 " of %" PRIu64 " is missing: %s: %s", path, i + 1, n, part,
                           strerror(errno));
        TRY(open_file(g, i, part, e));
        TRY(check_part(&g->files[i], i, n, e));
    }
    return ERR_OK;
}

/* Puts the tensors of all files into one list, with their names' index. */
static err_code join_tensors(struct gguf *g, struct err *e)
{
    for (int f = 0; f < g->n_files; f++)
        g->n_tensors += g->files[f].n_tensors;
    g->tensors = arena_calloc(&g->arena, (size_t)g->n_tensors, sizeof *g->tensors);
    if (!g->tensors)
        return err_nomem(e, (size_t)g->n_tensors * sizeof *g->tensors, "the list of tensors");
    int64_t at = 0, old;
    for (int f = 0; f < g->n_files; f++) {
        const struct gguf_file *file = &g->files[f];
        for (uint64_t i = 0; i < file->n_tensors; i++, at++) {
            const struct gguf_tensor *t = &file->tensors[i];
            g->tensors[at] = *t;
            g->tensors[at].file = f;
            TRY(gguf_index_add(&g->names, t->name, strlen(t->name), at, &old, e));
            if (old != GGUF_INDEX_NONE)
                return err_set(e, ERR_FORMAT, "%s: tensor \"%s\" occurs twice (%s has it, too)", file->path,
                               gguf_show(t->name, strlen(t->name)).s, g->files[g->tensors[old].file].path);
        }
    }
    uint64_t expected;
    TRY(split_key(&g->files[0], "split.tensors.count", g->n_tensors, INT64_MAX, &expected, e));
    if (expected != g->n_tensors)
        return err_set(e, ERR_FORMAT,
                       "%s: key \"split.tensors.count\" says %" PRIu64 " tensors, but the %d file%s %s %" PRIu64,
                       g->files[0].path, expected, g->n_files, g->n_files == 1 ? "" : "s",
                       g->n_files == 1 ? "has" : "have", g->n_tensors);
    return ERR_OK;
}

static err_code open_files(struct gguf **out, const char *path, bool may_be_header, struct err *e)
{
    *out = NULL;
    struct gguf *g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, sizeof *g, "a GGUF view");
    g->may_be_header = may_be_header;
    err_code code;
    uint64_t no, n;
    TRY_OUT(alloc_files(g, 0, 1, e));
    TRY_OUT(open_file(g, 0, path, e));
    TRY_OUT(split_key(&g->files[0], "split.no", 0, GGUF_MAX_FILES - 1, &no, e));
    TRY_OUT(split_key(&g->files[0], "split.count", 1, GGUF_MAX_FILES, &n, e));
    if (n > 1)
        TRY_OUT(open_parts(g, path, no, n, e));
    TRY_OUT(join_tensors(g, e));
    *out = g;
    return ERR_OK;
out:
    gguf_close(&g);
    return code;
}

err_code gguf_open(struct gguf **out, const char *path, struct err *e)
{
    return open_files(out, path, false, e);
}

err_code gguf_open_header(struct gguf **out, const char *path, bool *is_header, struct err *e)
{
    TRY(open_files(out, path, true, e));
    *is_header = false;
    for (int i = 0; i < (*out)->n_files; i++)
        *is_header |= (*out)->files[i].is_header;
    return ERR_OK;
}

err_code gguf_open_memory(struct gguf **out, const void *bytes, size_t n, const char *name, struct err *e)
{
    *out = NULL;
    struct gguf *g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, sizeof *g, "a GGUF view");
    err_code code;
    uint64_t n_parts;
    TRY_OUT(alloc_files(g, 0, 1, e));
    g->files[0].path = arena_strndup(&g->arena, name, strlen(name));
    if (!g->files[0].path) {
        code = err_nomem(e, strlen(name), "a name");
        goto out;
    }
    /* No pointer to the caller's bytes is kept: the parser copies what the view shows. */
    struct gguf_source src = {.fd = -1, .bytes = n ? bytes : "", .n_bytes = n};
    TRY_OUT(gguf_parse(&g->files[0], &src, &g->arena, &g->totals, e));
    TRY_OUT(split_key(&g->files[0], "split.count", 1, GGUF_MAX_FILES, &n_parts, e));
    if (n_parts > 1) {
        code = err_set(e, ERR_UNSUPPORTED,
                       "%s: key \"split.count\" says %" PRIu64 " files; from memory one is expected", name, n_parts);
        goto out;
    }
    TRY_OUT(join_tensors(g, e));
    *out = g;
    return ERR_OK;
out:
    gguf_close(&g);
    return code;
}

void gguf_close(struct gguf **g)
{
    if (!*g)
        return;
    for (int f = 0; f < (*g)->n_files; f++)
        gguf_index_close(&(*g)->files[f].keys);
    gguf_index_close(&(*g)->names);
    arena_close(&(*g)->arena);
    mem_free(*g);
    *g = NULL;
}
