#include "store/checksums.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gguf/gguf_writer.h"
#include "store/store_internal.h"

#define TYPE "moebius.checksums"

enum { VERSION = 1 };

size_t checksums_index(const struct store *s, int layer, int expert, int part)
{
    size_t n = 0;
    for (int i = 0; i < layer; i++)
        n += (size_t)s->layers[i].n_expert;
    return (n + (size_t)expert) * STORE_N_PART + (size_t)part;
}

bool checksums_is_expert(const struct store *s, const struct gguf_tensor *t)
{
    for (int l = 0; l < s->n_layers; l++)
        for (int p = 0; p < STORE_N_PART && s->layers[l].n_expert; p++) {
            const struct store_matrix *m = &s->layers[l].part[p];
            if (m->file == t->file && m->offset >= t->offset && m->offset - t->offset < t->n_bytes)
                return true;
        }
    return false;
}

char *checksums_path(const struct store *s)
{
    const char *model = s->files[0].path;
    size_t n = strlen(model) + sizeof ".crc32c";
    char *path = mem_alloc(n);
    if (path)
        snprintf(path, n, "%s.crc32c", model);
    return path;
}

err_code checksums_create(struct checksums *c, const struct store *s, struct err *e)
{
    assert(s->gguf);
    *c = (struct checksums){.n_tensors = gguf_n_tensors(s->gguf)};
    c->n_parts = checksums_index(s, s->n_layers, 0, 0);
    c->tensor = arena_calloc(&c->arena, (size_t)c->n_tensors + 1, sizeof *c->tensor);
    c->part = arena_calloc(&c->arena, c->n_parts + 1, sizeof *c->part);
    if (!c->tensor || !c->part)
        return err_nomem(e, c->n_parts * sizeof *c->part, "checksums");
    return ERR_OK;
}

void checksums_close(struct checksums *c)
{
    arena_close(&c->arena);
    *c = (struct checksums){0};
}

static void model_id(const struct store *s, char out[20])
{
    snprintf(out, 20, "%016" PRIx64, gguf_fingerprint(s->gguf));
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
