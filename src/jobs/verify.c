#include "jobs/verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/output_file.h"
#include "base/pool.h"
#include "store/checksums.h"
#include "store/manifest.h"

/* MIN_READERS: threads read and wait for the drive, so there may be more of them than processors. */
enum { CHUNK_BYTES = 4 << 20, MIN_READERS = 8 };

/* One run of bytes with a checksum. */
struct checked_range {
    int file;
    uint64_t offset, n_bytes;
    uint32_t *crc;
    int layer, expert, part;
    const char *tensor; /* or the name of a tensor; NULL: an expert */
};

struct verify {
    const struct verify_params *p;
    struct store *store;
    struct gguf *gguf;
    char *data_path;
    struct manifest manifest;
    struct checksums sums;
    struct checked_range *pieces;
    size_t n_pieces, capacity;
    uint64_t total_bytes;
    struct pool *pool;
    struct verify_reader { /* one a thread */
        struct store_queue *queue;
        void *buf;
    } * readers;
    atomic_ullong done_bytes;
    atomic_bool stop;
    pthread_mutex_t lock; /* of what follows */
    uint64_t n_damaged;
};

static err_code add_piece(struct verify *v, struct checked_range piece, struct err *e)
{
    if (v->n_pieces == v->capacity) {
        size_t n = v->capacity ? 2 * v->capacity : 1024;
        struct checked_range *p = mem_resize(v->pieces, n, sizeof *p);
        if (!p)
            return err_nomem(e, n * sizeof *p, "what to verify");
        v->pieces = p;
        v->capacity = n;
    }
    v->pieces[v->n_pieces++] = piece;
    v->total_bytes += piece.n_bytes;
    return ERR_OK;
}

/* ---- what there is to check ----------------------------------------------------------------------------------- */

static err_code list_directory(struct verify *v, struct verify_result *out, struct err *e)
{
    size_t n = strlen(v->p->path) + 32;
    char *path = mem_alloc(n);
    v->data_path = mem_alloc(n);
    if (!path || !v->data_path) {
        mem_free(path);
        return err_nomem(e, n, "a path");
    }
    snprintf(path, n, "%s/%s", v->p->path, MANIFEST_FILE);
    snprintf(v->data_path, n, "%s/%s", v->p->path, MANIFEST_DATA);
    err_code code = manifest_load(&v->manifest, path, e);
    mem_free(path);
    TRY(code);
    TRY(store_open_file(&v->store, v->data_path, e));
    const struct manifest *m = &v->manifest;
    for (int l = 0; l < m->n_layers; l++)
        for (int i = 0; i < m->layers[l].n_expert; i++) {
            size_t at = manifest_index(m, l, i);
            if (m->place[at] == MANIFEST_ABSENT)
                continue;
            out->n_experts++;
            for (int k = 0; k < EXPERT_N_MATRIX; k++)
                TRY(add_piece(v,
                              (struct checked_range){0, m->place[at] + m->layers[l].image.off[k],
                                                     manifest_part_bytes(&m->layers[l], k),
                                                     &m->crc[EXPERT_N_MATRIX * at + (size_t)k], l, i, k, NULL},
                              e));
        }
    return ERR_OK;
}

/* Whether the checksums can be written when all is read. */
static err_code check_sidecar(const struct store *s, struct err *e)
{
    char *path = checksums_path(s);
    if (!path)
        return err_nomem(e, 0, "a path");
    err_code code = output_file_check(path, e);
    mem_free(path);
    return code;
}

static err_code list_model(struct verify *v, struct verify_result *out, struct err *e)
{
    bool found = true;
    TRY(gguf_open(&v->gguf, v->p->path, e));
    TRY(store_open_gguf(&v->store, v->gguf, e));
    if (v->p->write)
        TRY(check_sidecar(v->store, e));
    TRY(v->p->write ? checksums_create(&v->sums, v->store, e) : checksums_load(&v->sums, v->store, &found, e));
    if (!found)
        return err_set(
            e, ERR_USAGE,
            "%s: there are no checksums (%s.crc32c): write them with --write while the file is known to be good",
            v->p->path, gguf_file_path(v->gguf, 0));
    for (uint64_t i = 0; i < gguf_n_tensors(v->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(v->gguf, i);
        if (v->sums.is_expert[i])
            continue;
        out->n_tensors++;
        TRY(add_piece(v, (struct checked_range){t->file, t->offset, t->n_bytes, &v->sums.tensor[i], 0, 0, 0, t->name},
                      e));
    }
    for (int l = 0; l < store_n_layers(v->store); l++) {
        const struct store_layer *layer = store_get_layer(v->store, l);
        out->n_experts += (uint64_t)layer->n_expert;
        for (int k = 0; k < EXPERT_N_MATRIX; k++)
            for (int i = 0; i < layer->n_expert; i++) {
                const struct store_matrix *m = &layer->part[k];
                uint32_t *crc = &v->sums.part[checksums_index(&v->sums, l, i, k)];
                uint64_t offset = m->offset + (uint64_t)i * m->stride_bytes;
                TRY(add_piece(v, (struct checked_range){m->file, offset, m->n_bytes, crc, l, i, k, NULL}, e));
            }
    }
    return ERR_OK;
}

/* ---- checking ------------------------------------------------------------------------------------------------ */

static void tell(struct verify *v, const struct checked_range *p, const char *sentence)
{
    static const char *const parts[EXPERT_N_MATRIX] = {
        [EXPERT_GATE] = ", gate", [EXPERT_UP] = ", up", [EXPERT_DOWN] = ", down"};
    struct err e;
    if (p->tensor)
        err_set(&e, ERR_CHECK, "tensor \"%s\": %s", p->tensor, sentence);
    else
        err_set(&e, ERR_CHECK, "layer %d, expert %d%s: %s", p->layer, p->expert, parts[p->part], sentence);
    pthread_mutex_lock(&v->lock);
    v->n_damaged++;
    v->p->damaged(v->p->user, e.text);
    pthread_mutex_unlock(&v->lock);
}

/* The checksum of a piece, read chunk by chunk. */
static err_code measure(struct verify *v, struct verify_reader *reader, const struct checked_range *p, uint32_t *crc,
                        struct err *e)
{
    *crc = 0;
    for (uint64_t done = 0; done < p->n_bytes && !atomic_load(&v->stop);) {
        size_t n = p->n_bytes - done < CHUNK_BYTES ? (size_t)(p->n_bytes - done) : CHUNK_BYTES;
        struct store_read r = {.file = p->file, .offset = p->offset + done, .n_bytes = n, .buf = reader->buf};
        struct store_read *read = &r, *got;
        store_queue_submit(reader->queue, &read, 1);
        store_queue_collect(reader->queue, &got, 1, true);
        if (r.failure)
            return store_read_error(v->store, &r, e);
        *crc = crc32c(*crc, r.bytes, n);
        done += n;
        uint64_t total = atomic_fetch_add(&v->done_bytes, n) + n;
        if (v->p->progress && !v->p->progress(v->p->user, total, v->total_bytes))
            atomic_store(&v->stop, true);
    }
    return ERR_OK;
}

static void check_task(void *arg, size_t task, int thread)
{
    struct verify *v = arg;
    const struct checked_range *p = &v->pieces[task];
    struct err e = {0};
    uint32_t crc;
    if (atomic_load(&v->stop))
        return;
    if (measure(v, &v->readers[thread], p, &crc, &e) != ERR_OK) {
        tell(v, p, e.text);
        return;
    }
    if (atomic_load(&v->stop))
        return; /* half read */
    if (v->p->write) {
        *p->crc = crc;
    } else if (crc != *p->crc) {
        err_set(&e, ERR_FORMAT,
                "the %" PRIu64 " bytes at byte %" PRIu64 " of %s are damaged: checksum %08" PRIx32
                ", expected %08" PRIx32,
                p->n_bytes, p->offset, v->gguf ? gguf_file_path(v->gguf, p->file) : v->data_path, crc, *p->crc);
        tell(v, p, e.text);
    }
}

static err_code open_readers(struct verify *v, struct err *e)
{
    int n = v->p->n_threads ? v->p->n_threads : cpu_n_available();
    n = n < MIN_READERS ? MIN_READERS : n;
    TRY(pool_create(&v->pool, n, e));
    v->readers = mem_calloc((size_t)n, sizeof *v->readers);
    if (!v->readers)
        return err_nomem(e, (size_t)n * sizeof *v->readers, "readers");
    for (int i = 0; i < n; i++) {
        size_t room = store_read_room(STORE_ALIGN - 1, CHUNK_BYTES);
        TRY(store_queue_open(&v->readers[i].queue, v->store, &(struct store_queue_params){.depth = 1}, e));
        v->readers[i].buf = mem_map(room, MEM_SCRATCH);
        if (!v->readers[i].buf)
            return err_nomem(e, room, "reading");
    }
    return ERR_OK;
}

static void close_verify(struct verify *v)
{
    for (int i = 0; v->readers && i < pool_n_threads(v->pool); i++) {
        store_queue_close(&v->readers[i].queue);
        if (v->readers[i].buf)
            mem_unmap(v->readers[i].buf, store_read_room(STORE_ALIGN - 1, CHUNK_BYTES), MEM_SCRATCH);
    }
    mem_free(v->readers);
    pool_close(&v->pool);
    mem_free(v->pieces);
    manifest_close(&v->manifest);
    checksums_close(&v->sums);
    store_close(&v->store);
    gguf_close(&v->gguf);
    mem_free(v->data_path);
    pthread_mutex_destroy(&v->lock);
}

err_code verify_run(const struct verify_params *p, struct verify_result *out, struct err *e)
{
    struct stat st;
    err_code code;
    struct verify v = {.p = p, .lock = PTHREAD_MUTEX_INITIALIZER};
    *out = (struct verify_result){0};
    bool is_dir = stat(p->path, &st) == 0 && S_ISDIR(st.st_mode);
    if (is_dir && p->write)
        return err_set(e, ERR_USAGE, "%s: a prepared store has its checksums: --write is for GGUF files", p->path);
    TRY_OUT(is_dir ? list_directory(&v, out, e) : list_model(&v, out, e));
    TRY_OUT(open_readers(&v, e));
    pool_run(v.pool, v.n_pieces, check_task, &v);
    out->n_bytes = v.total_bytes;
    out->n_damaged = v.n_damaged;
    if (atomic_load(&v.stop))
        code = err_set(e, ERR_CANCELLED, "stopped");
    else if (v.n_damaged)
        code = err_set(e, ERR_FORMAT, "%s: %" PRIu64 " of %zu pieces are damaged or can't be read", p->path,
                       v.n_damaged, v.n_pieces);
    else if (p->write)
        code = checksums_save(&v.sums, v.store, e);
out:
    close_verify(&v);
    return code;
}
