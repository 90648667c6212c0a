#define _GNU_SOURCE /* a directory that becomes a store */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_io.h"
#include "base/units_text.h"
#include "jobs/prepare_internal.h"

/* The data file, locked against another prepare. */
static err_code open_data(struct target *t, struct err *e)
{
    if (mkdir(t->dir, 0777) != 0 && errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", t->dir, strerror(errno));
    return file_open_locked(t->data_path, 0, &t->fd, e);
}

/* Experts that lie beyond the end of the data are not there. */
static void drop_missing(struct target *t, uint64_t n_bytes)
{
    for (int l = 0; l < t->m.n_layers; l++)
        for (int i = 0; i < t->m.layers[l].n_expert; i++) {
            uint64_t *place = &t->m.place[t->m.layers[l].first + (size_t)i];
            if (*place != MANIFEST_ABSENT && *place + t->m.layers[l].image.n_bytes > n_bytes)
                *place = MANIFEST_ABSENT;
        }
    t->end = manifest_data_bytes(&t->m);
}

err_code target_open(struct target *t, const char *dir, const struct manifest *wanted, struct err *e)
{
    struct stat st;
    *t = (struct target){.dir = dir, .fd = -1};
    t->path = mem_print("%s/%s", dir, MANIFEST_FILE);
    t->part_path = mem_print("%s/%s", dir, MANIFEST_PART);
    t->data_path = mem_print("%s/%s", dir, MANIFEST_DATA);
    t->planned = mem_calloc(wanted->n_experts + 1, sizeof *t->planned);
    if (!t->path || !t->part_path || !t->data_path || !t->planned)
        return err_nomem(e, wanted->n_experts * sizeof *t->planned, "a prepared store");
    memset(t->planned, 0xff, wanted->n_experts * sizeof *t->planned);
    TRY(open_data(t, e));
    const char *found = access(t->part_path, F_OK) == 0 ? t->part_path : access(t->path, F_OK) == 0 ? t->path : NULL;
    err_code code = found ? manifest_load(&t->m, found, e) : manifest_create_like(&t->m, wanted, e);
    if (code == ERR_OK)
        code = manifest_check(&t->m, found ? found : t->path, wanted, e);
    if (code != ERR_OK)
        return err_prefix(e, "%s holds a store that does not fit; remove it, or choose another directory", dir);
    if (fstat(t->fd, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", t->data_path, strerror(errno));
    t->file_system = st.st_dev;
    drop_missing(t, (uint64_t)st.st_size);
    return ERR_OK;
}

void target_close(struct target *t)
{
    if (t->fd >= 0)
        close(t->fd);
    manifest_close(&t->m);
    mem_free(t->planned);
    mem_free(t->path);
    mem_free(t->part_path);
    mem_free(t->data_path);
}

void target_plan(struct target *t, size_t index, size_t n_bytes)
{
    t->planned[index] = t->end;
    t->end += n_bytes;
    t->planned_bytes += n_bytes;
    t->n_planned++;
}

/* What an unfinished run has written already counts as room. */
err_code targets_check_space(const struct target *targets, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct stat st;
        struct statvfs fs;
        uint64_t need = 0;
        if (fstatvfs(targets[i].fd, &fs) != 0)
            return err_set(e, ERR_IO, "%s: %s", targets[i].data_path, strerror(errno));
        for (int j = 0; j < n; j++) /* directories may share a file system */
            if (targets[j].file_system == targets[i].file_system && fstat(targets[j].fd, &st) == 0) {
                uint64_t has = (uint64_t)st.st_blocks * 512;
                need += targets[j].end > has ? targets[j].end - has : 0;
            }
        uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (need > room)
            return err_set(e, ERR_IO, "%s: %s are needed and %s are free on that drive", targets[i].dir,
                           units_size(need).s, units_size(room).s);
    }
    return ERR_OK;
}

err_code target_write(const struct target *t, size_t index, const void *image, size_t n_bytes, struct err *e)
{
    if (!file_write_at(t->fd, image, n_bytes, t->planned[index]))
        return err_set(e, ERR_IO, "%s: writing %zu bytes at byte %" PRIu64 ": %s", t->data_path, n_bytes,
                       t->planned[index], strerror(errno));
    return ERR_OK;
}

err_code target_commit(struct target *t, size_t first, size_t n, const uint32_t *crc, struct err *e)
{
    bool any = false;
    for (size_t i = first; i < first + n; i++)
        any = any || t->planned[i] != MANIFEST_ABSENT;
    if (!any)
        return ERR_OK;
    t->is_changed = true;
    if (!file_sync(t->fd))
        return err_set(e, ERR_IO, "%s: %s", t->data_path, strerror(errno));
    (void)posix_fadvise(t->fd, 0, 0, POSIX_FADV_DONTNEED); /* it will be read past the page cache */
    for (size_t i = first; i < first + n; i++)
        if (t->planned[i] != MANIFEST_ABSENT) {
            t->m.place[i] = t->planned[i];
            memcpy(&t->m.crc[EXPERT_N_MATRIX * i], &crc[EXPERT_N_MATRIX * i], EXPERT_N_MATRIX * sizeof *crc);
        }
    return manifest_save(&t->m, t->part_path, e);
}

err_code target_finish(struct target *t, struct err *e)
{
    if (!t->is_changed && access(t->path, F_OK) == 0 && access(t->part_path, F_OK) != 0)
        return ERR_OK; /* it was one before */
    if (!file_sync(t->fd))
        return err_set(e, ERR_IO, "%s: %s", t->data_path, strerror(errno));
    TRY(manifest_save(&t->m, t->path, e));
    if (unlink(t->part_path) != 0 && errno != ENOENT)
        return err_set(e, ERR_IO, "%s: %s", t->part_path, strerror(errno));
    return ERR_OK;
}

/* ---- a drive's speed ----------------------------------------------------------------------------------------- */

/* As long for each drive: one that may be fast for a moment, as shares of drives and small caches are, would win by
 * much if it were done in that moment. */
enum { MEASURE_NS = 500 * 1000 * 1000, MEASURE_BYTES = 64 << 20, BLOCK_BYTES = 4 << 20 };

static bool fill(int fd, const void *block)
{
    for (int i = 0; i < MEASURE_BYTES / BLOCK_BYTES; i++)
        if (!file_write(fd, block, BLOCK_BYTES))
            return false;
    return file_sync(fd);
}

double measure_drive(const char *dir)
{
    char *path = mem_print("%s/speed.XXXXXX", dir);
    void *block = mem_map(BLOCK_BYTES, MEM_SCRATCH);
    int fd = path && block ? mkstemp(path) : -1, direct = -1;
    double speed = 0;
    if (fd >= 0) {
        direct = file_open(path, O_RDONLY | O_DIRECT, 0);
        unlink(path);
    }
    if (direct >= 0 && fill(fd, block)) {
        int64_t start = clock_ns(), took = 0;
        ssize_t n = BLOCK_BYTES, sum = 0;
        while (n == BLOCK_BYTES && took < MEASURE_NS) {
            n = pread(direct, block, BLOCK_BYTES, (off_t)(sum % MEASURE_BYTES));
            sum += n;
            took = clock_ns() - start;
        }
        speed = n == BLOCK_BYTES ? (double)sum * 1e9 / (double)took : 0;
    }
    if (direct >= 0)
        close(direct);
    if (fd >= 0)
        close(fd);
    mem_unmap(block, BLOCK_BYTES, MEM_SCRATCH);
    mem_free(path);
    return speed;
}
