#include "jobs/prepare.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/file_io.h"
#include "base/pool.h"
#include "engine/expert_images.h"
#include "jobs/prepare_internal.h"
#include "kernels/kernels.h"

struct prepare {
    const struct prepare_params *p;
    struct gguf *gguf;
    struct store *store;
    struct pool *pool;
    struct backend *device;
    struct layout_image *images;
    struct manifest wanted;
    int n_targets; /* open, maybe half */
    struct target targets[STORE_MAX_DIRS];
    atomic_ullong total_bytes; /* to be compared and written */
    atomic_ullong n_damaged, damaged_bytes;
    uint32_t *crc; /* [n_experts][EXPERT_N_MATRIX] of what this run wrote */
    size_t raw_bytes, image_bytes;
    char *work; /* a thread: raw_bytes of an expert as the GGUF has it, then its image */
    int layer;  /* that is written now */
    atomic_ullong done_bytes;
    atomic_bool stop;
    atomic_flag failed;
    err_code code;
    struct err err;
};

_Static_assert(STORE_MAX_DIRS == sizeof((struct prepare_result *)0)->n_dir_experts / sizeof(uint64_t),
               "a figure for each directory");

/* ---- planning ------------------------------------------------------------------------------------------------ */

static err_code open_source(struct prepare *x, struct err *e)
{
    enum cpu_level level;
    uint64_t fingerprint;
    bool has_checksums;
    int n_threads = x->p->n_threads ? x->p->n_threads : pool_default_threads();
    TRY(cpu_level_detect(&level, e));
    TRY(pool_create(&x->pool, n_threads, e));
    TRY(backend_cpu_open(&x->device, x->pool, kernels_for(level), e));
    TRY(gguf_open(&x->gguf, x->p->model, e));
    TRY(store_open_gguf(&x->store, x->gguf, e));
    TRY(store_use_checksums(x->store, &has_checksums, e));
    TRY(expert_images(x->device, x->store, &x->images, e));
    TRY(store_fingerprint(x->store, &fingerprint, e));
    int n = store_n_layers(x->store);
    if (n > 0)
        TRY(manifest_create(&x->wanted, fingerprint, store_get_layer(x->store, 0), x->images, n, e));
    if (x->wanted.n_experts == 0)
        return err_set(e, ERR_USAGE, "%s: has no routed experts, so there is nothing to prepare", x->p->model);
    x->crc = mem_calloc(EXPERT_N_MATRIX * x->wanted.n_experts, sizeof *x->crc);
    return x->crc ? ERR_OK : err_nomem(e, x->wanted.n_experts * sizeof *x->crc, "checksums");
}

/* Each drive's share of a striped store: as fast as it reads, and alike where that can't be measured. Directories of
 * one file system are one drive, measured once: what it gives to one of them in a bad moment isn't its speed. */
static void set_shares(struct prepare *x)
{
    double speed[STORE_MAX_DIRS], sum = 0;
    bool known = true;
    for (int i = 0; i < x->n_targets; i++) {
        int j = 0;
        while (x->targets[j].file_system != x->targets[i].file_system)
            j++;
        speed[i] = j < i ? speed[j] : measure_drive(x->p->dirs[i]);
        known = known && speed[i] > 0;
        sum += speed[i];
    }
    for (int i = 0; i < x->n_targets; i++)
        x->targets[i].share = known ? speed[i] / sum : 1.0 / x->n_targets;
}

static bool holds(const struct target *t, size_t index)
{
    return t->m.place[index] != MANIFEST_ABSENT;
}

/* Who gets an expert that is to lie in one directory: who has it, else who is furthest behind its share. */
static struct target *pick_target(struct prepare *x, size_t index, size_t n_bytes)
{
    struct target *best = &x->targets[0], *holder = NULL;
    for (int i = 0; i < x->n_targets; i++) {
        struct target *t = &x->targets[i];
        t->credit += t->share * (double)n_bytes;
        if (!holder && holds(t, index))
            holder = t;
        if (t->credit > best->credit)
            best = t;
    }
    best = holder ? holder : best;
    best->credit -= (double)n_bytes;
    return best;
}

static void plan(struct prepare *x, struct prepare_result *out)
{
    for (int l = 0; l < x->wanted.n_layers; l++)
        for (int i = 0; i < x->wanted.layers[l].n_expert; i++) {
            size_t index = manifest_index(&x->wanted, l, i), n_bytes = x->wanted.layers[l].image.n_bytes;
            struct target *one = x->p->mirror ? NULL : pick_target(x, index, n_bytes);
            for (int k = 0; k < x->n_targets; k++) {
                struct target *t = &x->targets[k];
                bool wanted = !one || one == t;
                out->n_found += holds(t, index);
                x->total_bytes += holds(t, index) ? n_bytes : 0;
                out->n_dir_experts[k] += wanted || holds(t, index);
                if (wanted && !holds(t, index))
                    target_plan(t, index, n_bytes);
            }
        }
    for (int k = 0; k < x->n_targets; k++) {
        out->n_experts += x->targets[k].n_planned;
        out->n_bytes += x->targets[k].planned_bytes;
    }
    x->total_bytes += out->n_bytes;
}

/* Counts what was done, and asks whether to go on. */
static err_code tell(struct prepare *x, size_t n_bytes, struct err *e)
{
    uint64_t done = atomic_fetch_add(&x->done_bytes, n_bytes) + n_bytes;
    if (x->p->progress && !x->p->progress(x->p->user, done, x->total_bytes))
        return err_set(e, ERR_CANCELLED, "stopped; run it again and it goes on");
    return ERR_OK;
}

/* ---- what is there ------------------------------------------------------------------------------------------- */

static bool is_whole(const struct target *t, const struct manifest_layer *l, size_t index, char *image)
{
    bool ok = file_read_at(t->fd, image, l->image.n_bytes, t->m.place[index]);
    for (int i = 0; ok && i < EXPERT_N_MATRIX; i++)
        ok = crc32c(0, image + l->image.off[i], manifest_part_bytes(l, i)) ==
             t->m.crc[EXPERT_N_MATRIX * index + (size_t)i];
    return ok;
}

/* Plans an expert once more, in its place, where it is there and damaged: only the bytes that the manifest tells of
 * come there. image: room for it. */
static err_code check_found(struct prepare *x, size_t index, char *image, struct err *e)
{
    const struct manifest_layer *l = &x->wanted.layers[x->layer];
    for (int k = 0; k < x->n_targets; k++) {
        struct target *t = &x->targets[k];
        if (!holds(t, index))
            continue;
        if (!is_whole(t, l, index, image)) {
            t->planned[index] = t->m.place[index];
            x->n_damaged++;
            x->damaged_bytes += l->image.n_bytes;
            x->total_bytes += l->image.n_bytes;
        }
        TRY(tell(x, l->image.n_bytes, e));
    }
    return ERR_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

/* Reads an expert, packs it, and writes it where it was planned. */
static err_code write_expert(struct prepare *x, int expert, char *raw, char *image, struct err *e)
{
    const struct store_layer *l = store_get_layer(x->store, x->layer);
    const struct layout_image *m = &x->images[x->layer];
    size_t index = manifest_index(&x->wanted, x->layer, expert);
    struct store_blob b;
    struct store_range ranges[EXPERT_N_MATRIX];
    char *dst = raw;
    store_expert_blob(x->store, x->layer, expert, &b);
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        ranges[i] = (struct store_range){b.part[i].file, b.part[i].offset, b.part[i].n_bytes, dst};
        dst += b.part[i].n_bytes;
    }
    if (store_read(x->store, ranges, EXPERT_N_MATRIX, e) != ERR_OK)
        return err_prefix(e, "layer %d, expert %d", x->layer, expert);
    memset(image, 0, m->n_bytes); /* gaps between matrices, too, have one value */
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct store_matrix *p = &l->part[i];
        TRY(store_blob_check(x->store, x->layer, expert, &b, i, ranges[i].dst, e));
        const struct layout_matrix matrix = {m->layout[i], p->type, p->n_row, p->k};
        layout_pack(&matrix, image + m->off[i], ranges[i].dst, 0, p->n_row, NULL);
    }
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        x->crc[EXPERT_N_MATRIX * index + (size_t)i] =
            crc32c(0, image + m->off[i], manifest_part_bytes(&x->wanted.layers[x->layer], i));
    for (int k = 0; k < x->n_targets; k++)
        if (x->targets[k].planned[index] != MANIFEST_ABSENT) {
            TRY(target_write(&x->targets[k], index, image, m->n_bytes, e));
            TRY(tell(x, m->n_bytes, e));
        }
    return ERR_OK;
}

static bool is_planned(const struct prepare *x, size_t index)
{
    for (int k = 0; k < x->n_targets; k++)
        if (x->targets[k].planned[index] != MANIFEST_ABSENT)
            return true;
    return false;
}

static void write_task(void *arg, size_t expert, int thread)
{
    struct prepare *x = arg;
    struct err e = {0};
    char *raw = x->work + (size_t)thread * (x->raw_bytes + x->image_bytes);
    size_t index = manifest_index(&x->wanted, x->layer, (int)expert);
    if (atomic_load(&x->stop))
        return;
    err_code code = check_found(x, index, raw + x->raw_bytes, &e);
    if (code == ERR_OK && is_planned(x, index))
        code = write_expert(x, (int)expert, raw, raw + x->raw_bytes, &e);
    if (code == ERR_OK)
        return;
    atomic_store(&x->stop, true);
    if (!atomic_flag_test_and_set(&x->failed)) {
        x->code = code;
        x->err = e;
    }
}

/* Layer by layer: after each, what was written is made safe. */
static err_code write_all(struct prepare *x, struct err *e)
{
    for (x->layer = 0; x->layer < x->wanted.n_layers; x->layer++) {
        size_t n = (size_t)x->wanted.layers[x->layer].n_expert, first = x->wanted.layers[x->layer].first;
        pool_run(x->pool, n, write_task, x);
        if (x->code != ERR_OK)
            return err_set(e, x->code, "%s", x->err.text);
        for (int k = 0; k < x->n_targets; k++)
            TRY(target_commit(&x->targets[k], first, n, x->crc, e));
    }
    for (int k = 0; k < x->n_targets; k++)
        TRY(target_finish(&x->targets[k], e));
    return ERR_OK;
}

static err_code make_work(struct prepare *x, struct err *e)
{
    for (int l = 0; l < x->wanted.n_layers; l++) {
        const struct store_layer *s = store_get_layer(x->store, l);
        size_t raw = 0, image = x->images[l].n_bytes;
        for (int i = 0; i < EXPERT_N_MATRIX; i++)
            raw += s->part[i].n_bytes;
        x->raw_bytes = raw > x->raw_bytes ? raw : x->raw_bytes;
        x->image_bytes = image > x->image_bytes ? image : x->image_bytes;
    }
    x->raw_bytes = store_read_room(0, x->raw_bytes);
    size_t n_bytes = (size_t)pool_n_threads(x->pool) * (x->raw_bytes + x->image_bytes);
    x->work = mem_map(n_bytes, MEM_SCRATCH);
    return x->work ? ERR_OK : err_nomem(e, n_bytes, "preparing experts");
}

static void close_prepare(struct prepare *x)
{
    for (int k = 0; k < x->n_targets; k++)
        target_close(&x->targets[k]);
    if (x->work)
        mem_unmap(x->work, (size_t)pool_n_threads(x->pool) * (x->raw_bytes + x->image_bytes), MEM_SCRATCH);
    mem_free(x->crc);
    mem_free(x->images);
    manifest_close(&x->wanted);
    backend_close(&x->device);
    store_close(&x->store);
    gguf_close(&x->gguf);
    pool_close(&x->pool);
    mem_free(x);
}

/* Whether directory k is one of those before it, which are there by now. */
static bool is_named_twice(const struct prepare_params *p, int k)
{
    struct stat st, before;
    if (stat(p->dirs[k], &st) != 0)
        return false;
    for (int i = 0; i < k; i++)
        if (stat(p->dirs[i], &before) == 0 && before.st_dev == st.st_dev && before.st_ino == st.st_ino)
            return true;
    return false;
}

err_code prepare_run(const struct prepare_params *p, struct prepare_result *out, struct err *e)
{
    err_code code;
    *out = (struct prepare_result){0};
    if (p->n_dirs < 1 || p->n_dirs > STORE_MAX_DIRS)
        return err_set(e, ERR_USAGE, "%d directories: expected 1 to %d", p->n_dirs, STORE_MAX_DIRS);
    struct prepare *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, "preparing experts");
    x->p = p;
    atomic_flag_clear(&x->failed);
    TRY_OUT(open_source(x, e));
    for (int k = 0; k < p->n_dirs; k++) {
        if (is_named_twice(p, k)) {
            code = err_set(e, ERR_USAGE, "%s is named twice: expected different directories", p->dirs[k]);
            goto out;
        }
        x->n_targets++;
        TRY_OUT(target_open(&x->targets[k], p->dirs[k], &x->wanted, e));
    }
    if (!p->mirror && p->n_dirs > 1)
        set_shares(x);
    plan(x, out);
    TRY_OUT(targets_check_space(x->targets, x->n_targets, e));
    TRY_OUT(make_work(x, e));
    code = write_all(x, e);
    out->n_damaged = x->n_damaged;
    out->n_found -= x->n_damaged;
    out->n_experts += x->n_damaged;
    out->n_bytes += x->damaged_bytes;
out:
    close_prepare(x);
    return code;
}
