#include "jobs/verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/output_file.h"
#include "jobs/scan.h"
#include "store/checksums.h"
#include "store/manifest.h"

/* One run of bytes with a checksum. */
struct checked_range {
    int file;
    uint64_t offset, n_bytes;
    uint32_t *crc;
    int layer, expert, part;
    const char *tensor; /* or the name of a tensor; NULL: an expert */
    uint32_t measured;  /* the checksum of what was read so far */
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
    pthread_mutex_t lock; /* of what follows */
    uint64_t n_damaged;
};

static err_code add_piece(struct verify *v, struct checked_range piece, struct err *e)
{
    TRY(mem_grow(&v->pieces, &v->capacity, v->n_pieces + 1, sizeof *v->pieces, "what to verify", e));
    v->pieces[v->n_pieces++] = piece;
    v->total_bytes += piece.n_bytes;
    return ERR_OK;
}

/* ---- what there is to check ----------------------------------------------------------------------------------- */

static err_code list_directory(struct verify *v, struct verify_result *out, struct err *e)
{
    v->data_path = mem_print("%s/%s", v->p->path, MANIFEST_DATA);
    if (!v->data_path)
        return err_nomem(e, strlen(v->p->path), "a path");
    TRY(manifest_load_dir(&v->manifest, v->p->path, e));
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
                                                     &m->crc[EXPERT_N_MATRIX * at + (size_t)k], l, i, k, NULL, 0},
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
        TRY(add_piece(
            v, (struct checked_range){t->file, t->offset, t->n_bytes, &v->sums.tensor[i], 0, 0, 0, t->name, 0}, e));
    }
    for (int l = 0; l < store_n_layers(v->store); l++) {
        const struct store_layer *layer = store_get_layer(v->store, l);
        out->n_experts += (uint64_t)layer->n_expert;
        for (int k = 0; k < EXPERT_N_MATRIX; k++)
            for (int i = 0; i < layer->n_expert; i++) {
                const struct store_matrix *m = &layer->part[k];
                uint32_t *crc = &v->sums.part[checksums_index(&v->sums, l, i, k)];
                uint64_t offset = m->offset + (uint64_t)i * m->stride_bytes;
                TRY(add_piece(v, (struct checked_range){m->file, offset, m->n_bytes, crc, l, i, k, NULL, 0}, e));
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

static struct scan_piece piece_at(void *user, size_t i, size_t *unit)
{
    const struct checked_range *p = &((struct verify *)user)->pieces[i];
    *unit = 1;
    return (struct scan_piece){p->file, p->offset, p->n_bytes};
}

static void add_chunk(void *user, size_t i, const void *bytes, size_t n_bytes)
{
    struct checked_range *p = &((struct verify *)user)->pieces[i];
    p->measured = crc32c(p->measured, bytes, n_bytes);
}

static void end_piece(void *user, size_t i, const struct err *failure)
{
    struct verify *v = user;
    const struct checked_range *p = &v->pieces[i];
    struct err e;
    if (failure) {
        tell(v, p, failure->text);
    } else if (v->p->write) {
        *p->crc = p->measured;
    } else if (p->measured != *p->crc) {
        err_set(&e, ERR_FORMAT,
                "the %" PRIu64 " bytes at byte %" PRIu64 " of %s are damaged: checksum %08" PRIx32
                ", expected %08" PRIx32,
                p->n_bytes, p->offset, v->gguf ? gguf_file_path(v->gguf, p->file) : v->data_path, p->measured, *p->crc);
        tell(v, p, e.text);
    }
}

static void close_verify(struct verify *v)
{
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
    const struct scan_params scan = {.store = v.store,
                                     .n_piece = v.n_pieces,
                                     .n_bytes = v.total_bytes,
                                     .n_threads = p->n_threads,
                                     .piece = piece_at,
                                     .chunk = add_chunk,
                                     .end = end_piece,
                                     .progress = p->progress,
                                     .progress_user = p->user,
                                     .user = &v};
    TRY_OUT(scan_run(&scan, e));
    out->n_bytes = v.total_bytes;
    out->n_damaged = v.n_damaged;
    if (v.n_damaged)
        code = err_set(e, ERR_FORMAT, "%s: %" PRIu64 " of %zu pieces are damaged or can't be read%s", p->path,
                       v.n_damaged, v.n_pieces, is_dir ? ": moebius prepare writes them again" : "");
    else if (p->write)
        code = checksums_save(&v.sums, v.store, e);
out:
    close_verify(&v);
    return code;
}
