/* Tensors of a GGUF, whole or in parts, brought to the devices of their layers. */
#include "model/loader.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "quant/layout.h"
#include "store/store.h"

enum { NAME_BYTES = 128 };

static void full_name(int64_t layer, const char *name, char out[NAME_BYTES])
{
    if (layer < 0)
        snprintf(out, NAME_BYTES, "%s", name);
    else
        snprintf(out, NAME_BYTES, "blk.%lld.%s", (long long)layer, name);
}

struct backend *load_device(const struct loader *l, int64_t layer)
{
    const struct model *m = l->m;
    return layer == LOAD_OUTPUT ? m->stages[m->n_stage - 1].device
           : layer < 0          ? m->device
                                : model_stage_of(m, layer)->device;
}

const struct gguf_tensor *load_find(const struct loader *l, int64_t layer, const char *name)
{
    char full[NAME_BYTES];
    full_name(layer, name, full);
    return gguf_tensor_find(l->g, full);
}

err_code load_need(struct loader *l, int64_t layer, const char *name, int64_t ne0, int64_t ne1, int64_t ne2,
                   const struct gguf_tensor **out, struct err *e)
{
    char full[NAME_BYTES];
    full_name(layer, name, full);
    const struct gguf_tensor *t = gguf_tensor_find(l->g, full);
    const char *path = gguf_file_path(l->g, t ? t->file : 0);
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor %s is missing", path, full);
    if (!t->info)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s has type %u, which this version does not know", path, full,
                       t->type_id);
    if (t->ne[0] != (uint64_t)ne0 || t->ne[1] != (uint64_t)ne1 || t->ne[2] != (uint64_t)ne2 || t->ne[3] != 1)
        return err_set(e, ERR_FORMAT, "%s: tensor %s has shape [%llu, %llu, %llu], expected [%lld, %lld, %lld]", path,
                       full, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                       (long long)ne0, (long long)ne1, (long long)ne2);
    size_t stem = strlen(full) - strlen("weight");
    if (t->info->type == QUANT_NVFP4 && !strcmp(full + stem, "weight")) {
        memcpy(full + stem, "scale", sizeof "scale");
        if (gguf_tensor_find(l->g, full))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s scales a matrix of NVFP4, which this version does not do",
                           path, full);
    }
    l->used[t - gguf_tensor_at(l->g, 0)] = true;
    *out = t;
    return ERR_OK;
}

err_code load_name(struct loader *l, const struct gguf_tensor *t, const char **out, struct err *e)
{
    *out = arena_strndup(&l->m->arena, t->name, strlen(t->name));
    return *out ? ERR_OK : err_nomem(e, strlen(t->name), "a name");
}

struct tensor_source {
    struct loader *l;
    const struct gguf_tensor *t;
    size_t row_bytes;
    const struct row_run *runs; /* which of the tensor's rows, in order */
    int n_run;
};

err_code load_read(struct loader *l, const struct gguf_tensor *t, uint64_t off_bytes, size_t n_bytes, void *dst,
                   struct err *e)
{
    const struct store_range range = {.file = t->file, .offset = t->offset + off_bytes, .n_bytes = n_bytes, .dst = dst};
    if (store_read(l->p->store, &range, 1, e) != ERR_OK)
        return err_prefix(e, "tensor %s", t->name);
    uint64_t total = atomic_fetch_add(&l->n_read, range.n_bytes) + range.n_bytes;
    if (l->p->progress)
        l->p->progress(l->p->user, total);
    return ERR_OK;
}

static err_code read_file_rows(const struct tensor_source *s, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    return load_read(s->l, s->t, row0 * s->row_bytes, n * s->row_bytes, dst, e);
}

static err_code read_rows(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    const struct tensor_source *s = user;
    uint64_t first = 0; /* of the run, in the matrix */
    for (int i = 0; i < s->n_run && n; first += (uint64_t)s->runs[i++].n_row) {
        const struct row_run *r = &s->runs[i];
        while (n && row0 < first + (uint64_t)r->n_row) {
            uint64_t at = row0 - first, block = (uint64_t)r->block, in_block = at % block;
            uint64_t some = block - in_block < n ? block - in_block : n;
            if (some > (uint64_t)r->n_row - at)
                some = (uint64_t)r->n_row - at;
            TRY(read_file_rows(s, (uint64_t)r->first + at / block * (uint64_t)r->stride + in_block, some, dst, e));
            dst = (char *)dst + some * s->row_bytes;
            row0 += some;
            n -= some;
        }
    }
    return ERR_OK;
}

/* Hands rows that `src` reads to the layer's device; the model owns the result. */
static err_code load_matrix(struct loader *l, int64_t layer, const char *name, struct weight_desc d,
                            const struct weight_source *src, struct weight **out, struct err *e)
{
    struct model *m = l->m;
    d.name = arena_strndup(&m->arena, name, strlen(name));
    if (!d.name)
        return err_nomem(e, strlen(name), "a name");
    assert(m->n_weights < m->weights_capacity);
    struct backend *device = load_device(l, layer);
    TRY(backend_weight_load(device, &d, src, out, e));
    m->weights[m->n_weights++] = (struct model_weight){device, *out};
    return ERR_OK;
}

err_code load_weight_rows(struct loader *l, const struct file_matrix *from, const struct row_run *runs, int n_run,
                          struct weight **out, struct err *e)
{
    const struct gguf_tensor *t = NULL;
    TRY(load_need(l, from->layer, from->name, from->k, from->n_row, 1, &t, e));
    struct tensor_source src = {.l = l, .t = t, .runs = runs, .n_run = n_run};
    quant_row_bytes(t->info, t->ne[0], &src.row_bytes);
    int64_t n_row = 0;
    for (int i = 0; i < n_run; i++)
        n_row += runs[i].n_row;
    /* one part of a tensor stands for all of it, as all see the same: that with its first row */
    const struct weight_desc d = {.type = t->info, .k = from->k, .n_row = n_row, .is_observed = runs[0].first == 0};
    return load_matrix(l, from->layer, t->name, d, &(struct weight_source){read_rows, &src}, out, e);
}

enum { HEAD_ROWS = LAYOUT_R16_ROWS }; /* a head's rows are filled up to a multiple with zero rows */

struct head_source {
    struct tensor_source file;
    struct head_rows rows;
    int64_t n_padded; /* rows of a head in the matrix */
};

/* Rows [at, at + n) of a head, as the file has them. */
static err_code read_plain_head(const struct head_source *s, uint64_t head, uint64_t at, uint64_t n, char *dst,
                                struct err *e)
{
    const struct head_rows *r = &s->rows;
    return read_file_rows(&s->file, head * (uint64_t)r->stride + (uint64_t)r->first + at, n, dst, e);
}

/* The same of a head that lies transposed in the file: decoded to float, columns become rows. */
static err_code read_transposed_head(const struct head_source *s, uint64_t head, uint64_t at, uint64_t n, char *dst,
                                     struct err *e)
{
    const struct head_rows *r = &s->rows;
    const struct gguf_tensor *t = s->file.t;
    uint64_t n_col = (uint64_t)r->k, width = t->ne[0]; /* the file has n_col rows of `width` for this head */
    char *raw = mem_alloc(n_col * s->file.row_bytes);
    float *values = mem_calloc(width, sizeof *values), *out = (float *)(void *)dst;
    err_code code =
        raw && values ? read_plain_head(s, head, 0, n_col, raw, e) : err_nomem(e, n_col * s->file.row_bytes, t->name);
    for (uint64_t c = 0; code == ERR_OK && c < n_col; c++) {
        t->info->decode(raw + c * s->file.row_bytes, values, (int64_t)width);
        for (uint64_t i = 0; i < n; i++)
            out[i * n_col + c] = values[at + i];
    }
    mem_free(raw);
    mem_free(values);
    return code;
}

static err_code read_head_rows(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    const struct head_source *s = user;
    uint64_t n_row = (uint64_t)s->rows.n_row, padded = (uint64_t)s->n_padded;
    size_t row_bytes = s->rows.transposed ? (size_t)s->rows.k * sizeof(float) : s->file.row_bytes;
    for (char *to = dst; n;) {
        uint64_t head = row0 / padded, at = row0 % padded, some = padded - at < n ? padded - at : n;
        uint64_t real = at >= n_row ? 0 : n_row - at < some ? n_row - at : some;
        if (real)
            TRY(s->rows.transposed ? read_transposed_head(s, head, at, real, to, e)
                                   : read_plain_head(s, head, at, real, to, e));
        memset(to + real * row_bytes, 0, (some - real) * row_bytes);
        to += some * row_bytes;
        row0 += some;
        n -= some;
    }
    return ERR_OK;
}

err_code load_head_weight(struct loader *l, int64_t layer, const char *name, const int64_t shape[3],
                          const struct head_rows *rows, int64_t n_head, struct weight **out, struct err *e)
{
    const struct gguf_tensor *t = NULL;
    TRY(load_need(l, layer, name, shape[0], shape[1], shape[2], &t, e));
    struct head_source src = {.file = {.l = l, .t = t}, .rows = *rows};
    quant_row_bytes(t->info, t->ne[0], &src.file.row_bytes);
    src.n_padded = (rows->n_row + HEAD_ROWS - 1) / HEAD_ROWS * HEAD_ROWS;
    const struct weight_desc d = {.type = rows->transposed ? quant_info(QUANT_F32) : t->info,
                                  .k = rows->k,
                                  .n_row = n_head * src.n_padded,
                                  .is_observed = !rows->transposed && shape[2] == n_head};
    return load_matrix(l, layer, t->name, d, &(struct weight_source){read_head_rows, &src}, out, e);
}

err_code load_weight(struct loader *l, int64_t layer, const char *name, int64_t k, int64_t n_row, struct weight **out,
                     struct err *e)
{
    const struct file_matrix from = {layer, name, k, n_row};
    const struct row_run all = {.n_row = n_row, .block = n_row, .stride = n_row};
    return load_weight_rows(l, &from, &all, 1, out, e);
}

err_code load_vector(struct loader *l, int64_t layer, const char *name, int64_t n, bool need, struct tensor *out,
                     struct err *e)
{
    return load_table(l, layer, name, n, 1, need, out, e);
}

static err_code read_table(struct loader *l, struct backend *device, const struct gguf_tensor *t,
                           const struct tensor *out, struct err *e)
{
    struct tensor_source src = {.l = l, .t = t, .row_bytes = t->n_bytes};
    int64_t n = tensor_n_elem(out);
    float *values = mem_calloc((size_t)n, sizeof *values);
    char *raw = mem_alloc(t->n_bytes);
    err_code code = values && raw ? read_file_rows(&src, 0, 1, raw, e) : err_nomem(e, t->n_bytes, t->name);
    if (code == ERR_OK) {
        for (int64_t r = 0, n_row = n / (int64_t)t->ne[0]; r < n_row; r++)
            t->info->decode(raw + (uint64_t)r * (t->n_bytes / (uint64_t)n_row), values + r * (int64_t)t->ne[0],
                            (int64_t)t->ne[0]);
        backend_write(device, out, values);
    }
    mem_free(values);
    mem_free(raw);
    return code;
}

/* A table, whose rows may lie in the third dimension. */
static err_code need_table(struct loader *l, const struct file_matrix *from, const struct gguf_tensor **out,
                           struct err *e)
{
    const struct gguf_tensor *t = load_find(l, from->layer, from->name);
    bool is_deep = t && t->ne[1] == 1 && t->ne[2] != 1;
    return load_need(l, from->layer, from->name, from->k, is_deep ? 1 : from->n_row, is_deep ? from->n_row : 1, out, e);
}

/* load_tables to a device of choice. */
static err_code load_tables_to(struct loader *l, struct backend *device, const struct file_matrix *from, int n_table,
                               struct tensor *out, struct err *e)
{
    const struct gguf_tensor *t[LOAD_MAX_TABLE] = {NULL};
    struct model *m = l->m;
    int64_t n_row = 0, row = 0;
    assert(n_table <= LOAD_MAX_TABLE);
    for (int i = 0; i < n_table; n_row += from[i++].n_row)
        TRY(need_table(l, &from[i], &t[i], e));
    TRY(backend_tensor_create(device, ELEM_F32, from->k, n_row, 1, MEM_WEIGHTS, out, e));
    m->buffers[m->n_buffers++] = (struct model_buffer){device, out->buffer};
    for (int i = 0; i < n_table && l->p->store; row += from[i++].n_row) {
        const struct tensor rows = tensor_rows(*out, row, from[i].n_row);
        TRY(read_table(l, device, t[i], &rows, e));
    }
    return ERR_OK;
}

err_code load_new_tensor(struct loader *l, int64_t layer, int64_t n, int64_t n_row, struct tensor *out, struct err *e)
{
    struct model *m = l->m;
    struct backend *device = load_device(l, layer);
    TRY(backend_tensor_create(device, ELEM_F32, n, n_row, 1, MEM_WEIGHTS, out, e));
    m->buffers[m->n_buffers++] = (struct model_buffer){device, out->buffer};
    return ERR_OK;
}

err_code load_tables(struct loader *l, const struct file_matrix *tables, int n_table, struct tensor *out, struct err *e)
{
    return load_tables_to(l, load_device(l, tables->layer), tables, n_table, out, e);
}

err_code load_table_to(struct loader *l, struct backend *device, const struct file_matrix *from, bool need,
                       struct tensor *out, struct err *e)
{
    return need || load_find(l, from->layer, from->name) ? load_tables_to(l, device, from, 1, out, e) : ERR_OK;
}

err_code load_table(struct loader *l, int64_t layer, const char *name, int64_t n, int64_t n_row, bool need,
                    struct tensor *out, struct err *e)
{
    return load_table_to(l, load_device(l, layer), &(struct file_matrix){layer, name, n, n_row}, need, out, e);
}
