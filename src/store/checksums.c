#include "store/checksums.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/pool.h"
#include "gguf/gguf_writer.h"
#include "store/store_internal.h"

#define TYPE "moebius.checksums"

enum { VERSION = 1 };

size_t checksums_index(const struct checksums *c, int layer, int expert, enum expert_matrix matrix)
{
    return c->first[layer] + (size_t)expert * EXPERT_N_MATRIX + (size_t)matrix;
}

char *checksums_path(const struct store *s)
{
    return mem_print("%s.crc32c", s->files[0].path);
}

err_code checksums_create(struct checksums *c, const struct store *s, struct err *e)
{
    assert(s->gguf);
    *c = (struct checksums){.n_tensors = gguf_n_tensors(s->gguf)};
    for (int l = 0; l < s->n_layers; l++)
        c->n_parts += (size_t)s->layers[l].n_expert * EXPERT_N_MATRIX;
    c->tensor = arena_calloc(&c->arena, (size_t)c->n_tensors + 1, sizeof *c->tensor);
    c->is_expert = arena_calloc(&c->arena, (size_t)c->n_tensors + 1, sizeof *c->is_expert);
    c->part = arena_calloc(&c->arena, c->n_parts + 1, sizeof *c->part);
    c->first = arena_calloc(&c->arena, (size_t)s->n_layers + 1, sizeof *c->first);
    if (!c->tensor || !c->is_expert || !c->part || !c->first)
        return err_nomem(e, c->n_parts * sizeof *c->part, "checksums");
    for (int l = 0; l < s->n_layers; l++) {
        c->first[l + 1] = c->first[l] + (size_t)s->layers[l].n_expert * EXPERT_N_MATRIX;
        for (int p = 0; p < EXPERT_N_MATRIX && s->layers[l].n_expert; p++)
            c->is_expert[s->layers[l].part[p].tensor] = true;
    }
    return ERR_OK;
}

void checksums_close(struct checksums *c)
{
    arena_close(&c->arena);
    *c = (struct checksums){0};
}

static void model_id(const struct store *s, char out[20])
{
    snprintf(out, 20, "%016" PRIx64, gguf_file_fingerprint(s->gguf));
}

static err_code copy_array(const struct gguf *g, const char *key, uint32_t *out, uint64_t n, struct err *e)
{
    const void *data;
    uint64_t found;
    TRY(gguf_opt_array(g, key, GGUF_U32, &data, &found, e));
    if (found != n)
        return err_set(e, ERR_FORMAT, "%s: %s has %" PRIu64 " entries: expected %" PRIu64, gguf_file_path(g, 0), key,
                       found, n);
    if (n)
        memcpy(out, data, (size_t)n * sizeof *out);
    return ERR_OK;
}

err_code checksums_parse(struct checksums *c, const struct store *s, const struct gguf *g, struct err *e)
{
    const char *path = gguf_file_path(g, 0);
    struct gguf_string type = {0}, model = {0};
    uint32_t version = 0;
    char id[20];
    TRY(checksums_create(c, s, e));
    TRY(gguf_opt_string(g, "general.type", &type, e));
    if (type.n != strlen(TYPE) || memcmp(type.s, TYPE, type.n) != 0)
        return err_set(e, ERR_FORMAT, "%s: not a file of checksums", path);
    TRY(gguf_need_u32(g, TYPE ".version", &version, e));
    TRY(gguf_need_string(g, TYPE ".model", &model, e));
    model_id(s, id);
    if (version != VERSION || model.n != strlen(id) || memcmp(model.s, id, model.n) != 0)
        return err_set(e, ERR_FORMAT, "%s: checksums of another model than %s, or of another version: write them again",
                       path, s->files[0].path);
    TRY(copy_array(g, TYPE ".tensor", c->tensor, c->n_tensors, e));
    return copy_array(g, TYPE ".expert", c->part, c->n_parts, e);
}

err_code checksums_load(struct checksums *c, const struct store *s, bool *found, struct err *e)
{
    struct gguf *g = NULL;
    *c = (struct checksums){0};
    char *path = checksums_path(s);
    if (!path)
        return err_nomem(e, strlen(s->files[0].path), "checksums");
    *found = access(path, F_OK) == 0;
    err_code code = *found ? gguf_open(&g, path, e) : ERR_OK;
    if (*found && code == ERR_OK)
        code = checksums_parse(c, s, g, e);
    if (code != ERR_OK)
        checksums_close(c);
    gguf_close(&g);
    mem_free(path);
    return code;
}

err_code checksums_save(const struct checksums *c, const struct store *s, struct err *e)
{
    struct gguf_writer *w = NULL;
    char id[20];
    char *path = checksums_path(s);
    if (!path)
        return err_nomem(e, strlen(s->files[0].path), "checksums");
    err_code code = gguf_writer_create(&w, e);
    if (code == ERR_OK) {
        model_id(s, id);
        gguf_writer_add_string(w, "general.type", TYPE);
        gguf_writer_add_u32(w, TYPE ".version", VERSION);
        gguf_writer_add_string(w, TYPE ".model", id);
        gguf_writer_add_array(w, TYPE ".tensor", GGUF_U32, c->tensor, c->n_tensors);
        gguf_writer_add_array(w, TYPE ".expert", GGUF_U32, c->part, c->n_parts);
        code = gguf_writer_save(w, path, e);
    }
    gguf_writer_close(&w);
    mem_free(path);
    return code;
}

err_code store_use_checksums(struct store *s, bool *found, struct err *e)
{
    assert(!s->checksums);
    struct checksums *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "checksums");
    err_code code = checksums_load(c, s, found, e);
    if (code == ERR_OK && *found)
        s->checksums = c;
    else
        mem_free(c);
    return code;
}

/* ---- checking tensors ---------------------------------------------------------------------------------------- */

enum { CHUNK_BYTES = 4 << 20 };

struct tensor_check {
    struct store *s;
    char *work; /* CHUNK_BYTES a thread */
    atomic_flag failed;
    atomic_bool stop;
    err_code code;
    struct err err;
};

static err_code check_tensor(const struct tensor_check *c, uint64_t i, char *work, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_at(c->s->gguf, i);
    uint32_t crc = 0;
    for (uint64_t done = 0; done < t->n_bytes && !atomic_load(&c->stop);) {
        size_t n = t->n_bytes - done < CHUNK_BYTES ? (size_t)(t->n_bytes - done) : CHUNK_BYTES;
        const struct store_range r = store_tensor_part(t, done, n, work);
        TRY(store_read(c->s, &r, 1, e));
        crc = crc32c(crc, work, n);
        done += n;
    }
    if (atomic_load(&c->stop) || crc == c->s->checksums->tensor[i])
        return ERR_OK;
    return err_set(e, ERR_FORMAT, "%s: tensor \"%s\" is damaged: its checksum is %08" PRIx32 ", expected %08" PRIx32,
                   c->s->files[t->file].path, t->name, crc, c->s->checksums->tensor[i]);
}

static void check_task(void *arg, size_t i, int thread)
{
    struct tensor_check *c = arg;
    struct err e = {0};
    if (c->s->checksums->is_expert[i])
        return;
    err_code code = check_tensor(c, i, c->work + (size_t)thread * CHUNK_BYTES, &e);
    if (code == ERR_OK)
        return;
    atomic_store(&c->stop, true);
    if (!atomic_flag_test_and_set(&c->failed)) {
        c->code = code;
        c->err = e;
    }
}

err_code store_check_tensors(struct store *s, struct pool *pool, struct err *e)
{
    size_t n_bytes = (size_t)pool_n_threads(pool) * CHUNK_BYTES;
    struct tensor_check c = {.s = s, .failed = ATOMIC_FLAG_INIT, .work = mem_map(n_bytes, MEM_SCRATCH)};
    assert(s->checksums);
    if (!c.work)
        return err_nomem(e, n_bytes, "comparing checksums");
    pool_run(pool, (size_t)s->checksums->n_tensors, check_task, &c);
    mem_unmap(c.work, n_bytes, MEM_SCRATCH);
    return c.code == ERR_OK ? ERR_OK : err_set(e, c.code, "%s", c.err.text);
}
