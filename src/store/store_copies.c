/* The directories of a prepared store: which has an expert, which to read it from, and which to trust no more. */
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "store/drives.h"
#include "store/manifest.h"
#include "store/store_internal.h"

enum { MAX_FAILURES = 3 }; /* reads that may fail before a directory is given up */

struct copy {
    struct drive drive;
    char *dir, *data_path;
    struct manifest manifest;
    int file;
    bool *bad; /* [n_experts] failed once */
    int n_failures;
    bool is_gone, said_slow;
    uint64_t n_reads, n_bytes; /* that arrived */
};

struct store_copies {
    pthread_mutex_t lock; /* of what changes in the copies */
    const struct log *log;
    int n;
    struct copy copies[STORE_MAX_DIRS];
};

/* ---- attaching ----------------------------------------------------------------------------------------------- */

static err_code attach_dir(struct store *s, struct copy *c, const char *dir, const struct manifest *wanted,
                           struct err *e)
{
    err_code code;
    c->dir = mem_strdup(dir);
    c->data_path = mem_print("%s/%s", dir, MANIFEST_DATA);
    char *path = mem_print("%s/%s", dir, MANIFEST_FILE);
    struct store_file *files = mem_resize(s->files, (size_t)s->n_files + 1, sizeof *files);
    if (files)
        s->files = files;
    if (!c->dir || !c->data_path || !path || !files) {
        code = err_nomem(e, (size_t)s->n_files * sizeof *files, "a prepared store");
        goto out;
    }
    code = manifest_load_dir(&c->manifest, dir, e);
    if (code == ERR_OK)
        code = manifest_check(&c->manifest, path, wanted, e);
    if (code != ERR_OK)
        goto out;
    c->bad = arena_calloc(&c->manifest.arena, c->manifest.n_experts, sizeof *c->bad);
    if (!c->bad) {
        code = err_nomem(e, c->manifest.n_experts, "a prepared store");
        goto out;
    }
    c->file = s->n_files++;
    TRY_OUT(store_file_open(&s->files[c->file], c->data_path, e));
    if (s->files[c->file].n_bytes < manifest_data_bytes(&c->manifest))
        code = err_set(e, ERR_FORMAT, "%s: has %" PRIu64 " bytes; %s tells of %" PRIu64 ": prepare it again",
                       c->data_path, s->files[c->file].n_bytes, MANIFEST_FILE, manifest_data_bytes(&c->manifest));
out:
    mem_free(path);
    return code;
}

err_code store_attach(struct store *s, const char *const *dirs, int n_dirs, const struct layout_image *images,
                      const struct log *log, struct err *e)
{
    struct manifest wanted = {0};
    uint64_t fingerprint;
    assert(!s->copies);
    if (n_dirs < 1 || n_dirs > STORE_MAX_DIRS)
        return err_set(e, ERR_USAGE, "a store in %d directories: expected 1 to %d", n_dirs, STORE_MAX_DIRS);
    TRY(store_fingerprint(s, &fingerprint, e));
    s->copies = mem_calloc(1, sizeof *s->copies);
    if (!s->copies)
        return err_nomem(e, sizeof *s->copies, "a prepared store");
    s->copies->log = log;
    pthread_mutex_init(&s->copies->lock, NULL); /* can't fail on Linux */
    err_code code = manifest_create(&wanted, fingerprint, s->layers, images, s->n_layers, e);
    for (int i = 0; i < n_dirs && code == ERR_OK; i++) {
        s->copies->n++;
        code = attach_dir(s, &s->copies->copies[i], dirs[i], &wanted, e);
    }
    manifest_close(&wanted);
    return code;
}

void copies_close(struct store_copies *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n; i++) {
        manifest_close(&c->copies[i].manifest);
        mem_free(c->copies[i].dir);
        mem_free(c->copies[i].data_path);
    }
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- choosing ------------------------------------------------------------------------------------------------ */

bool copies_pick(struct store_copies *c, int layer, int expert, struct store_blob *out)
{
    struct drive *drives[STORE_MAX_DIRS];
    bool alive[STORE_MAX_DIRS], has[STORE_MAX_DIRS];
    size_t at = manifest_index(&c->copies[0].manifest, layer, expert); /* the same in all */
    size_t n_bytes = c->copies[0].manifest.layers[layer].image.n_bytes;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->n; i++) {
        struct copy *p = &c->copies[i];
        drives[i] = &p->drive;
        alive[i] = !p->is_gone;
        has[i] = p->manifest.place[at] != MANIFEST_ABSENT && !p->bad[at];
    }
    int i = drives_pick(drives, alive, has, c->n, n_bytes, clock_ns());
    pthread_mutex_unlock(&c->lock);
    if (i < 0)
        return false;
    const struct copy *p = &c->copies[i];
    *out = (struct store_blob){.has_crc = true, .packed = true, .copy = i};
    for (int k = 0; k < EXPERT_N_MATRIX; k++) {
        size_t off = p->manifest.layers[layer].image.off[k];
        out->part[k] = (struct store_blob_part){p->file, p->manifest.place[at] + off,
                                                manifest_part_bytes(&p->manifest.layers[layer], k),
                                                p->manifest.crc[at * EXPERT_N_MATRIX + (size_t)k]};
    }
    return true;
}

void copies_fail(struct store_copies *c, int layer, int expert, int copy, const struct err *why)
{
    struct copy *p = &c->copies[copy];
    pthread_mutex_lock(&c->lock);
    p->bad[manifest_index(&p->manifest, layer, expert)] = true;
    bool gives_up = !p->is_gone && ++p->n_failures >= MAX_FAILURES;
    p->is_gone = p->is_gone || gives_up;
    bool is_gone = p->is_gone && !gives_up;
    pthread_mutex_unlock(&c->lock);
    if (is_gone)
        return; /* said already */
    log_line(c->log, LOG_WARN, "%s: reading it from elsewhere", why->text);
    if (gives_up)
        log_line(c->log, LOG_WARN, "%s: %d reads failed: nothing more is read from there", p->dir, MAX_FAILURES);
}

static struct copy *copy_of(struct store_copies *c, int file)
{
    for (int i = 0; i < c->n; i++)
        if (c->copies[i].file == file)
            return &c->copies[i];
    return NULL;
}

void copies_begin(struct store_copies *c, int file, size_t n_bytes)
{
    struct copy *p = copy_of(c, file);
    if (!p)
        return;
    pthread_mutex_lock(&c->lock);
    drive_begin(&p->drive, n_bytes, clock_ns());
    pthread_mutex_unlock(&c->lock);
}

/* A drive that has become slow is worth a word when there are others. */
void copies_end(struct store_copies *c, int file, size_t n_bytes, bool arrived)
{
    struct copy *p = copy_of(c, file);
    if (!p)
        return;
    pthread_mutex_lock(&c->lock);
    drive_end(&p->drive, n_bytes, arrived, clock_ns());
    p->n_reads += arrived;
    p->n_bytes += arrived ? n_bytes : 0;
    bool is_slow = drive_is_slow(&p->drive), says = is_slow && !p->said_slow && c->n > 1;
    double speed = p->drive.bytes_per_s, usual = p->drive.usual_bytes_per_s;
    p->said_slow = is_slow;
    pthread_mutex_unlock(&c->lock);
    if (says)
        log_line(c->log, LOG_WARN, "%s: slowed down to %.0f MB/s from %.0f: the others take over", p->dir, speed / 1e6,
                 usual / 1e6);
}

void copies_count(struct store_copies *c, int file, size_t n_bytes)
{
    struct copy *p = copy_of(c, file);
    if (!p)
        return;
    pthread_mutex_lock(&c->lock);
    p->n_reads++;
    p->n_bytes += n_bytes;
    pthread_mutex_unlock(&c->lock);
}

bool copies_place(struct store_copies *c, int copy, struct store_place *out)
{
    if (copy >= c->n)
        return false;
    const struct copy *p = &c->copies[copy];
    pthread_mutex_lock(&c->lock);
    *out = (struct store_place){p->dir, p->n_reads, p->n_bytes, p->drive.bytes_per_s, p->is_gone};
    pthread_mutex_unlock(&c->lock);
    return true;
}

void copies_name(const struct store_copies *c, int file, uint64_t at, char *out, size_t n)
{
    const struct copy *p = copy_of((struct store_copies *)(uintptr_t)c, file);
    for (int l = 0; p && l < p->manifest.n_layers; l++) {
        const struct manifest_layer *m = &p->manifest.layers[l];
        for (int i = 0; i < m->n_expert; i++) {
            uint64_t place = p->manifest.place[m->first + (size_t)i];
            if (place != MANIFEST_ABSENT && at >= place && at - place < m->image.n_bytes)
                snprintf(out, n, " (layer %d, expert %d)", l, i);
        }
    }
}
