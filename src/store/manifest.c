#include "store/manifest.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/model_limits.h"
#include "gguf/gguf_writer.h"

#define TYPE "moebius.store"

enum { VERSION = 2, MAX_IMAGE_BYTES = 1 << 30 };

/* The arrays, from the layers' counts. */
static err_code make_arrays(struct manifest *m, struct err *e)
{
    size_t n = 0;
    for (int i = 0; i < m->n_layers; i++) {
        m->layers[i].first = n;
        n += (size_t)m->layers[i].n_expert;
    }
    m->n_experts = n;
    m->place = arena_calloc(&m->arena, n + 1, sizeof *m->place);
    m->crc = arena_calloc(&m->arena, EXPERT_N_MATRIX * n + 1, sizeof *m->crc);
    if (!m->place || !m->crc)
        return err_nomem(e, n * sizeof *m->place, "a store's manifest");
    memset(m->place, 0xff, n * sizeof *m->place);
    return ERR_OK;
}

err_code manifest_create(struct manifest *m, uint64_t fingerprint, const struct store_layer *layers,
                         const struct layout_image *images, int n_layers, struct err *e)
{
    *m = (struct manifest){.n_layers = n_layers};
    snprintf(m->fingerprint, sizeof m->fingerprint, "%016" PRIx64, fingerprint);
    m->layers = arena_calloc(&m->arena, (size_t)n_layers + 1, sizeof *m->layers);
    if (!m->layers)
        return err_nomem(e, (size_t)n_layers * sizeof *m->layers, "a store's manifest");
    for (int i = 0; i < n_layers; i++)
        if (layers[i].n_expert) {
            assert(images[i].n_bytes % STORE_ALIGN == 0);
            m->layers[i].n_expert = layers[i].n_expert;
            m->layers[i].image = images[i];
        }
    return make_arrays(m, e);
}

err_code manifest_create_like(struct manifest *m, const struct manifest *other, struct err *e)
{
    *m = (struct manifest){.n_layers = other->n_layers};
    snprintf(m->fingerprint, sizeof m->fingerprint, "%s", other->fingerprint);
    size_t n_bytes = (size_t)m->n_layers * sizeof *m->layers;
    m->layers = arena_alloc(&m->arena, n_bytes + 1);
    if (!m->layers)
        return err_nomem(e, n_bytes, "a store's manifest");
    memcpy(m->layers, other->layers, n_bytes);
    return make_arrays(m, e);
}

void manifest_close(struct manifest *m)
{
    arena_close(&m->arena);
    *m = (struct manifest){0};
}

size_t manifest_part_bytes(const struct manifest_layer *l, enum expert_matrix matrix)
{
    return (matrix + 1 < EXPERT_N_MATRIX ? l->image.off[matrix + 1] : l->image.n_bytes) - l->image.off[matrix];
}

size_t manifest_index(const struct manifest *m, int layer, int expert)
{
    assert(layer >= 0 && layer < m->n_layers && expert >= 0 && expert < m->layers[layer].n_expert);
    return m->layers[layer].first + (size_t)expert;
}

uint64_t manifest_data_bytes(const struct manifest *m)
{
    uint64_t end = 0;
    for (int l = 0; l < m->n_layers; l++)
        for (int i = 0; i < m->layers[l].n_expert; i++) {
            uint64_t place = m->place[m->layers[l].first + (size_t)i];
            if (place != MANIFEST_ABSENT && place + m->layers[l].image.n_bytes > end)
                end = place + m->layers[l].image.n_bytes;
        }
    return end;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* An array of exactly n (any length when n is 0, returned in it). */
static err_code need_array(const struct gguf *g, const char *key, enum gguf_value_type type, const void **data,
                           uint64_t *n, struct err *e)
{
    uint64_t found = 0;
    TRY(gguf_opt_array(g, key, type, data, &found, e));
    if (!*data || (*n && found != *n))
        return err_set(e, ERR_FORMAT, "%s: %s has %" PRIu64 " entries: expected %" PRIu64, gguf_file_path(g, 0), key,
                       found, *n ? *n : 1);
    *n = found;
    return ERR_OK;
}

/* Layer by layer: how many experts, and how each lies in its image. */
static err_code parse_layers(struct manifest *m, const struct gguf *g, struct err *e)
{
    const char *path = gguf_file_path(g, 0);
    const void *counts, *bytes, *layouts, *offs;
    uint64_t n = 0, n_matrix, n_experts = 0;
    TRY(need_array(g, TYPE ".layer.expert_count", GGUF_U32, &counts, &n, e));
    n_matrix = EXPERT_N_MATRIX * n;
    TRY(need_array(g, TYPE ".layer.bytes", GGUF_U64, &bytes, &n, e));
    TRY(need_array(g, TYPE ".layer.layouts", GGUF_U32, &layouts, &n_matrix, e));
    TRY(need_array(g, TYPE ".layer.offsets", GGUF_U64, &offs, &n_matrix, e));
    if (n > LIMIT_LAYERS)
        return err_set(e, ERR_LIMIT, "%s: %" PRIu64 " layers: expected at most %d", path, n, LIMIT_LAYERS);
    m->n_layers = (int)n;
    m->layers = arena_calloc(&m->arena, (size_t)n, sizeof *m->layers);
    if (!m->layers)
        return err_nomem(e, (size_t)n * sizeof *m->layers, "a store's manifest");
    for (int i = 0; i < m->n_layers; i++) {
        struct manifest_layer *l = &m->layers[i];
        uint32_t count = ((const uint32_t *)counts)[i];
        uint64_t size = ((const uint64_t *)bytes)[i];
        n_experts += count;
        bool ok = count <= LIMIT_EXPERTS && n_experts <= LIMIT_ALL_EXPERTS && size <= MAX_IMAGE_BYTES &&
                  size % STORE_ALIGN == 0 && (count == 0 || size > 0);
        uint64_t last = 0;
        l->n_expert = (int)count;
        l->image.n_bytes = (size_t)size;
        for (int j = 0; j < EXPERT_N_MATRIX; j++) {
            uint32_t layout = ((const uint32_t *)layouts)[EXPERT_N_MATRIX * i + j];
            uint64_t off = ((const uint64_t *)offs)[EXPERT_N_MATRIX * i + j];
            ok = ok && layout < LAYOUT_N && off % STORE_ALIGN == 0 && off <= size && off >= last;
            last = off;
            l->image.layout[j] = ok ? (enum quant_layout)layout : LAYOUT_ROWS;
            l->image.off[j] = (size_t)off;
        }
        if (!ok)
            return err_set(e, ERR_FORMAT,
                           "%s: layer %d: %" PRIu32 " experts of %" PRIu64
                           " bytes: not in a form that this version knows",
                           path, i, count, size);
    }
    return ERR_OK;
}

err_code manifest_parse(struct manifest *m, const struct gguf *g, struct err *e)
{
    const char *path = gguf_file_path(g, 0);
    struct gguf_string type = {0}, fingerprint = {0};
    uint32_t version = 0;
    const void *place, *crc;
    *m = (struct manifest){0};
    TRY(gguf_opt_string(g, "general.type", &type, e));
    if (type.n != strlen(TYPE) || memcmp(type.s, TYPE, type.n) != 0)
        return err_set(e, ERR_FORMAT, "%s: not the manifest of a prepared store", path);
    TRY(gguf_need_u32(g, TYPE ".version", &version, e));
    if (version != VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: a store of version %" PRIu32 ": this program knows version %d: prepare it again", path,
                       version, VERSION);
    TRY(gguf_need_string(g, TYPE ".fingerprint", &fingerprint, e));
    if (fingerprint.n >= sizeof m->fingerprint)
        return err_set(e, ERR_FORMAT, "%s: a fingerprint of %" PRIu64 " bytes: expected fewer than %zu", path,
                       (uint64_t)fingerprint.n, sizeof m->fingerprint);
    memcpy(m->fingerprint, fingerprint.s, fingerprint.n);
    TRY(parse_layers(m, g, e));
    uint64_t n = 0;
    for (int i = 0; i < m->n_layers; i++)
        n += (uint64_t)m->layers[i].n_expert;
    TRY(need_array(g, TYPE ".expert.place", GGUF_U64, &place, &n, e)); /* before arrays of that size are made */
    uint64_t n_parts = EXPERT_N_MATRIX * n;
    TRY(need_array(g, TYPE ".expert.crc32c", GGUF_U32, &crc, &n_parts, e));
    TRY(make_arrays(m, e));
    if (n != m->n_experts)
        return err_set(e, ERR_FORMAT, "%s: no experts", path);
    memcpy(m->place, place, m->n_experts * sizeof *m->place);
    memcpy(m->crc, crc, EXPERT_N_MATRIX * m->n_experts * sizeof *m->crc);
    for (size_t i = 0; i < m->n_experts; i++)
        if (m->place[i] != MANIFEST_ABSENT && (m->place[i] % STORE_ALIGN || m->place[i] > INT64_MAX - MAX_IMAGE_BYTES))
            return err_set(e, ERR_FORMAT, "%s: expert %zu lies at byte %" PRIu64 ": expected a multiple of %d", path, i,
                           m->place[i], STORE_ALIGN);
    return ERR_OK;
}

err_code manifest_load(struct manifest *m, const char *path, struct err *e)
{
    struct gguf *g;
    *m = (struct manifest){0};
    TRY(gguf_open(&g, path, e));
    err_code code = manifest_parse(m, g, e);
    gguf_close(&g);
    if (code != ERR_OK)
        manifest_close(m);
    return code;
}

err_code manifest_load_dir(struct manifest *m, const char *dir, struct err *e)
{
    struct err part;
    struct manifest unfinished = {0};
    char *path = mem_print("%s/%s", dir, MANIFEST_FILE), *part_path = mem_print("%s/%s", dir, MANIFEST_PART);
    err_code code = path && part_path ? manifest_load(m, path, e) : err_nomem(e, strlen(dir), "a path");
    if (code == ERR_IO && manifest_load(&unfinished, part_path, &part) == ERR_OK)
        err_set(e, code, "%s: this store is not finished: run moebius prepare again to finish it", dir);
    manifest_close(&unfinished);
    mem_free(path);
    mem_free(part_path);
    return code;
}

err_code manifest_check(const struct manifest *m, const char *path, const struct manifest *wanted, struct err *e)
{
    bool same = m->n_layers == wanted->n_layers && !strcmp(m->fingerprint, wanted->fingerprint);
    for (int i = 0; same && i < m->n_layers; i++)
        same = m->layers[i].n_expert == wanted->layers[i].n_expert;
    if (!same)
        return err_set(e, ERR_FORMAT, "%s: prepared from another model or another version of it (%s, this one is %s)",
                       path, m->fingerprint, wanted->fingerprint);
    for (int i = 0; i < m->n_layers; i++) {
        const struct layout_image *a = &m->layers[i].image, *b = &wanted->layers[i].image;
        if (m->layers[i].n_expert == 0)
            continue;
        for (int j = 0; j < EXPERT_N_MATRIX; j++)
            if (a->layout[j] != b->layout[j] || a->off[j] != b->off[j] || a->n_bytes != b->n_bytes)
                return err_set(e, ERR_FORMAT,
                               "%s: layer %d is in layout %s, %zu bytes an expert; this device takes %s, %zu bytes: "
                               "prepare it on this machine, or run without it",
                               path, i, layout_name(a->layout[j]), a->n_bytes, layout_name(b->layout[j]), b->n_bytes);
    }
    return ERR_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static err_code add_layers(const struct manifest *m, struct gguf_writer *w, struct err *e)
{
    uint64_t n = (uint64_t)m->n_layers;
    struct arena arena = {0};
    uint32_t *counts = arena_calloc(&arena, n + 1, sizeof *counts);
    uint64_t *bytes = arena_calloc(&arena, n + 1, sizeof *bytes);
    uint32_t *layouts = arena_calloc(&arena, EXPERT_N_MATRIX * n + 1, sizeof *layouts);
    uint64_t *offs = arena_calloc(&arena, EXPERT_N_MATRIX * n + 1, sizeof *offs);
    if (!counts || !bytes || !layouts || !offs) {
        arena_close(&arena);
        return err_nomem(e, n * 32, "a store's manifest");
    }
    for (uint64_t i = 0; i < n; i++) {
        counts[i] = (uint32_t)m->layers[i].n_expert;
        bytes[i] = m->layers[i].image.n_bytes;
        for (uint64_t j = 0; j < EXPERT_N_MATRIX; j++) {
            layouts[EXPERT_N_MATRIX * i + j] = (uint32_t)m->layers[i].image.layout[j];
            offs[EXPERT_N_MATRIX * i + j] = m->layers[i].image.off[j];
        }
    }
    gguf_writer_add_array(w, TYPE ".layer.expert_count", GGUF_U32, counts, n);
    gguf_writer_add_array(w, TYPE ".layer.bytes", GGUF_U64, bytes, n);
    gguf_writer_add_array(w, TYPE ".layer.layouts", GGUF_U32, layouts, EXPERT_N_MATRIX * n);
    gguf_writer_add_array(w, TYPE ".layer.offsets", GGUF_U64, offs, EXPERT_N_MATRIX * n);
    arena_close(&arena);
    return ERR_OK;
}

err_code manifest_save(const struct manifest *m, const char *path, struct err *e)
{
    struct gguf_writer *w;
    struct output_file f;
    TRY(gguf_writer_create(&w, e));
    gguf_writer_add_string(w, "general.type", TYPE);
    gguf_writer_add_u32(w, TYPE ".version", VERSION);
    gguf_writer_add_string(w, TYPE ".fingerprint", m->fingerprint);
    err_code code = add_layers(m, w, e);
    gguf_writer_add_array(w, TYPE ".expert.place", GGUF_U64, m->place, m->n_experts);
    gguf_writer_add_array(w, TYPE ".expert.crc32c", GGUF_U32, m->crc, EXPERT_N_MATRIX * m->n_experts);
    if (code == ERR_OK) /* so that what a killed run left is taken over */
        code = output_file_open_shared(&f, path, e);
    if (code == ERR_OK)
        code = gguf_writer_write(w, &f, e);
    gguf_writer_close(&w);
    return code;
}
