#define _GNU_SOURCE /* fallocate, sync_file_range */
#include "jobs/quantize_part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file_io.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "base/units_text.h"

/* Stands before the pieces' entries. */
struct journal {
    char magic[8];
    uint64_t fingerprint, n_piece;
};

static const char magic[8] = "MOEBQNT1";

static uint64_t piece_off(const struct quantize_part *p, size_t i)
{
    return p->n_byte + sizeof(struct journal) + i * sizeof(struct part_piece);
}

static uint32_t piece_check(const struct part_piece *piece, size_t i)
{
    uint64_t number = i + 1;
    uint32_t crc = crc32c(0, &number, sizeof number);
    crc = crc32c(crc, &piece->crc, sizeof piece->crc);
    crc = crc32c(crc, &piece->error, sizeof piece->error);
    return crc32c(crc, &piece->size, sizeof piece->size);
}

err_code part_write(const struct quantize_part *p, uint64_t off, const void *bytes, size_t n, struct err *e)
{
    if (!file_write_at(p->fd, bytes, n, off))
        return err_set(e, ERR_IO, "%s: writing %zu bytes at byte %" PRIu64 ": %s", p->path, n, off, strerror(errno));
    return ERR_OK;
}

/* Whether the file holds the journal of this very work; then its entries are read. */
static bool load_journal(struct quantize_part *p, uint64_t fingerprint)
{
    struct journal j;
    if (!file_read_at(p->fd, &j, sizeof j, p->n_byte) || memcmp(j.magic, magic, sizeof magic) != 0 ||
        j.fingerprint != fingerprint || j.n_piece != p->n_piece ||
        !file_read_at(p->fd, p->pieces, p->n_piece * sizeof *p->pieces, piece_off(p, 0)))
        return false;
    for (size_t i = 0; i < p->n_piece; i++)
        p->n_found += p->pieces[i].check == piece_check(&p->pieces[i], i);
    return true;
}

/* An empty file of the full length, with a place on the drive for all of it. */
static err_code start_afresh(struct quantize_part *p, uint64_t fingerprint, struct err *e)
{
    struct journal j = {.fingerprint = fingerprint, .n_piece = p->n_piece};
    struct statvfs fs;
    uint64_t need = piece_off(p, p->n_piece);
    memcpy(j.magic, magic, sizeof magic);
    memset(p->pieces, 0, p->n_piece * sizeof *p->pieces);
    if (ftruncate(p->fd, 0) != 0 || fstatvfs(p->fd, &fs) != 0)
        return err_set(e, ERR_IO, "%s: %s", p->path, strerror(errno));
    if (need > (uint64_t)fs.f_bavail * fs.f_frsize)
        return err_set(e, ERR_IO, "%s: %s are needed and %s are free on that drive", p->out, units_size(need).s,
                       units_size((uint64_t)fs.f_bavail * fs.f_frsize).s);
    /* Not every file system can set bytes aside: then it is found out while writing whether there is room. */
    if (fallocate(p->fd, 0, 0, (off_t)need) != 0 && ftruncate(p->fd, (off_t)need) != 0)
        return err_set(e, ERR_IO, "%s: making it %s long: %s", p->path, units_size(need).s, strerror(errno));
    return part_write(p, p->n_byte, &j, sizeof j, e);
}

err_code part_open(struct quantize_part *p, const char *out, uint64_t fingerprint, uint64_t n_byte, size_t n_piece,
                   struct err *e)
{
    struct stat st;
    *p = (struct quantize_part){.fd = -1, .n_byte = n_byte, .n_piece = n_piece};
    if (!*out || !strcmp(out, "-") || (stat(out, &st) == 0 && !S_ISREG(st.st_mode)))
        return err_set(e, ERR_USAGE, "\"%s\" can't be written; expected a name for a GGUF file", out);
    TRY(output_file_target(out, &p->out, e));
    size_t n = strlen(p->out) + sizeof ".unfinished";
    p->path = mem_alloc(n);
    p->pieces = mem_calloc(n_piece + 1, sizeof *p->pieces);
    if (!p->path || !p->pieces)
        return err_nomem(e, n + n_piece * sizeof *p->pieces, out);
    snprintf(p->path, n, "%s.unfinished", p->out);
    TRY(file_open_locked(p->path, 0, &p->fd, e));
    if (load_journal(p, fingerprint))
        return ERR_OK;
    p->is_stale = fstat(p->fd, &st) == 0 && st.st_size > 0;
    return start_afresh(p, fingerprint, e);
}

void part_close(struct quantize_part *p, bool remove)
{
    if (p->fd >= 0) {
        if (remove)
            (void)unlink(p->path);
        close(p->fd);
    }
    mem_free(p->out);
    mem_free(p->path);
    mem_free(p->pieces);
    *p = (struct quantize_part){.fd = -1};
}

bool part_has(const struct quantize_part *p, size_t i, uint64_t off, void *buffer, size_t n)
{
    const struct part_piece *piece = &p->pieces[i];
    return piece->check == piece_check(piece, i) && file_read_at(p->fd, buffer, n, off) &&
           crc32c(0, buffer, n) == piece->crc;
}

err_code part_add(struct quantize_part *p, size_t i, uint64_t off, const void *bytes, size_t n, double error,
                  double size, struct err *e)
{
    struct part_piece *piece = &p->pieces[i];
    *piece = (struct part_piece){.crc = crc32c(0, bytes, n), .error = error, .size = size};
    piece->check = piece_check(piece, i);
    TRY(part_write(p, off, bytes, n, e));
    (void)sync_file_range(p->fd, (off_t)off, (off_t)n, SYNC_FILE_RANGE_WRITE); /* so that the end need not wait */
    return part_write(p, piece_off(p, i), piece, sizeof *piece, e);
}

err_code part_finish(struct quantize_part *p, struct err *e)
{
    if (!file_sync(p->fd) || ftruncate(p->fd, (off_t)p->n_byte) != 0 || !file_sync(p->fd))
        return err_set(e, ERR_IO, "%s: %s", p->path, strerror(errno));
    if (!file_rename(p->path, p->out))
        return err_set(e, ERR_IO, "%s: renaming to %s: %s", p->path, p->out, strerror(errno));
    output_file_sync_folder(p->out);
    close(p->fd);
    p->fd = -1;
    return ERR_OK;
}
