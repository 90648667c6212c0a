#define _GNU_SOURCE
#include "hub/piece_table.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"

/* The file: this head, then struct piece for each piece, in the machine's byte order. */
struct head {
    char magic[8];
    uint32_t version, piece_bytes;
    struct piece_label label;
};

static struct head make_head(uint64_t n_bytes, const char *tag, const char *name)
{
    struct head h = {.magic = "MOEBPART", .version = 1, .piece_bytes = PIECE_BYTES, .label.n_bytes = n_bytes};
    snprintf(h.label.tag, sizeof h.label.tag, "%s", tag);
    snprintf(h.label.name, sizeof h.label.name, "%s", name);
    return h;
}

static bool read_head(int fd, struct head *h)
{
    return pread(fd, h, sizeof *h, 0) == (ssize_t)sizeof *h && memcmp(h->magic, "MOEBPART", 8) == 0 &&
           h->version == 1 && memchr(h->label.tag, 0, sizeof h->label.tag) &&
           memchr(h->label.name, 0, sizeof h->label.name);
}

bool piece_table_label(const char *path, struct piece_label *out)
{
    struct head h;
    int fd = file_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    bool is_table = fd >= 0 && read_head(fd, &h);
    if (is_table)
        *out = h.label;
    if (fd >= 0)
        close(fd);
    return is_table;
}

static err_code failed(const struct piece_table *t, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", t->path, strerror(errno));
}

/* The pieces of a table that is there, as far as they are. */
static err_code read_pieces(struct piece_table *t, struct err *e)
{
    char *to = (char *)t->pieces;
    size_t n = (size_t)t->n * sizeof *t->pieces, done = 0;
    for (ssize_t got = 1; done < n && got != 0;) {
        got = pread(t->fd, to + done, n - done, (off_t)(sizeof(struct head) + done));
        if (got < 0 && errno != EINTR)
            return failed(t, e);
        done += got > 0 ? (size_t)got : 0;
    }
    memset(to + done - done % sizeof *t->pieces, 0, n - (done - done % sizeof *t->pieces));
    for (uint64_t i = 0; i < t->n; i++)
        if (t->pieces[i].state > PIECE_CONFIRMED)
            t->pieces[i] = (struct piece){0};
    return ERR_OK;
}

static err_code begin_or_read(struct piece_table *t, const struct head *wanted, struct err *e)
{
    struct head h;
    if (read_head(t->fd, &h) && h.piece_bytes == PIECE_BYTES && h.label.n_bytes == wanted->label.n_bytes &&
        strcmp(h.label.tag, wanted->label.tag) == 0)
        return read_pieces(t, e);
    if (ftruncate(t->fd, 0) != 0 || !file_write_at(t->fd, wanted, sizeof *wanted, 0))
        return failed(t, e);
    return ERR_OK;
}

err_code piece_table_open(struct piece_table *t, const char *path, uint64_t n_bytes, const char *tag, const char *name,
                          struct err *e)
{
    const struct head wanted = make_head(n_bytes, tag, name);
    *t = (struct piece_table){.path = path, .n = (n_bytes + PIECE_BYTES - 1) / PIECE_BYTES};
    t->fd = file_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (t->fd < 0)
        return failed(t, e);
    t->pieces = mem_calloc((size_t)t->n, sizeof *t->pieces);
    err_code code = t->pieces ? begin_or_read(t, &wanted, e) : err_nomem(e, (size_t)t->n * sizeof *t->pieces, path);
    if (code != ERR_OK)
        piece_table_close(t);
    return code;
}

void piece_table_close(struct piece_table *t)
{
    if (t->path && t->fd >= 0)
        close(t->fd);
    mem_free(t->pieces);
    *t = (struct piece_table){.fd = -1};
}

err_code piece_table_put(struct piece_table *t, uint64_t i, struct piece p, struct err *e)
{
    t->pieces[i] = p;
    return file_write_at(t->fd, &p, sizeof p, sizeof(struct head) + i * sizeof p) ? ERR_OK : failed(t, e);
}

bool part_path(const char *path, char *out, size_t n_out)
{
    return (size_t)snprintf(out, n_out, "%s.incomplete", path) < n_out;
}

uint64_t part_bytes(const char *path)
{
    char part[PATH_MAX];
    struct stat st;
    bool is_there = part_path(path, part, sizeof part) && lstat(part, &st) == 0 && S_ISREG(st.st_mode);
    return is_there ? (uint64_t)st.st_size : 0;
}
