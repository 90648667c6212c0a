#include "model/loader.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/route.h"
#include "base/minmax.h"
#include "base/model_limits.h"
#include "quant/layout.h"
#include "store/store.h"

/* ---- keys ---------------------------------------------------------------------------------------------------- */

void load_key(const struct loader *l, const char *suffix, char key[LOAD_KEY_BYTES])
{
    snprintf(key, LOAD_KEY_BYTES, "%s.%s", l->m->arch, suffix);
}

bool load_has_key(const struct loader *l, const char *suffix)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    return gguf_find(l->g, key) != NULL;
}

static err_code too_large(const struct loader *l, const char *key, uint64_t v, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %llu, expected at most %d", gguf_file_path(l->g, 0), key,
                   (unsigned long long)v, LOAD_MAX_U32);
}

err_code load_u32(struct loader *l, const char *suffix, int64_t *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    uint32_t v;
    load_key(l, suffix, key);
    TRY(gguf_need_u32(l->g, key, &v, e));
    *out = v;
    return *out <= LOAD_MAX_U32 ? ERR_OK : too_large(l, key, v, e);
}

err_code load_u32_opt(struct loader *l, const char *suffix, int64_t *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    return gguf_find(l->g, key) ? load_u32(l, suffix, out, e) : ERR_OK;
}

const struct f32_range load_factor_range = {1e-6f, 1e6f, true}, load_base_range = {1, 1e12f, false};

static err_code take_f32(const struct loader *l, const char *key, const struct f32_range *range, float v, float *out,
                         struct err *e)
{
    if (!(v >= range->least && v <= range->most) && !(v == 0 && range->zero_is_none))
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %g, expected %s%g to %g", gguf_file_path(l->g, 0), key,
                       (double)v, range->zero_is_none ? "0 or " : "", (double)range->least, (double)range->most);
    *out = v;
    return ERR_OK;
}

err_code load_f32_opt(struct loader *l, const char *suffix, const struct f32_range *range, float *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    float v = *out;
    load_key(l, suffix, key);
    if (!gguf_find(l->g, key))
        return ERR_OK;
    TRY(gguf_opt_f32(l->g, key, &v, e));
    return take_f32(l, key, range, v, out, e);
}

err_code load_f32(struct loader *l, const char *suffix, const struct f32_range *range, float *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    TRY(gguf_need_f32(l->g, key, out, e));
    return load_f32_opt(l, suffix, range, out, e);
}

err_code load_bool_opt(struct loader *l, const char *suffix, bool *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    return gguf_opt_bool(l->g, key, out, e);
}

err_code load_layer_u32_opt(struct loader *l, const char *suffix, int64_t layer, int64_t *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    if (!gguf_find(l->g, key))
        return ERR_OK;
    uint32_t *all = mem_calloc((size_t)l->n_block, sizeof *all);
    if (!all)
        return err_nomem(e, (size_t)l->n_block * sizeof *all, key);
    err_code code = gguf_layer_u32(l->g, key, all, (uint32_t)l->n_block, true, e);
    if (code == ERR_OK)
        *out = all[layer];
    mem_free(all);
    return code != ERR_OK || *out <= LOAD_MAX_U32 ? code : too_large(l, key, (uint64_t)*out, e);
}

err_code load_layer_f32_opt(struct loader *l, const char *suffix, int64_t layer, const struct f32_range *range,
                            float *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    const void *all;
    uint64_t n;
    float v;
    load_key(l, suffix, key);
    const struct gguf_value *value = gguf_find(l->g, key);
    if (!value || value->type != GGUF_ARRAY)
        return load_f32_opt(l, suffix, range, out, e);
    TRY(gguf_opt_array(l->g, key, GGUF_F32, &all, &n, e));
    if (n != (uint64_t)l->n_block)
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" has %llu elements, expected one for each of %lld layers",
                       gguf_file_path(l->g, 0), key, (unsigned long long)n, (long long)l->n_block);
    memcpy(&v, (const char *)all + (size_t)layer * sizeof v, sizeof v);
    return take_f32(l, key, range, v, out, e);
}

err_code load_layer_flag_opt(struct loader *l, const char *suffix, int64_t layer, bool *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    const void *flags;
    uint64_t n;
    load_key(l, suffix, key);
    const struct gguf_value *v = gguf_find(l->g, key);
    if (!v || v->type != GGUF_ARRAY)
        return ERR_OK;
    if (v->arr.type != GGUF_BOOL) { /* some converters write 0 and 1 */
        int64_t number = 0;
        TRY(load_layer_u32_opt(l, suffix, layer, &number, e));
        *out = number != 0;
        return ERR_OK;
    }
    TRY(gguf_opt_array(l->g, key, GGUF_BOOL, &flags, &n, e));
    if (n < (uint64_t)l->m->n_layer)
        return err_set(e, ERR_FORMAT, "%s: %s has %llu elements, expected one for each of %lld layers",
                       gguf_file_path(l->g, 0), key, (unsigned long long)n, (long long)l->m->n_layer);
    *out = ((const uint8_t *)flags)[layer];
    return ERR_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

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

/* load_table to a device of choice. */
static err_code load_table_to(struct loader *l, struct backend *device, const struct file_matrix *from, bool need,
                              struct tensor *out, struct err *e)
{
    return need || load_find(l, from->layer, from->name) ? load_tables_to(l, device, from, 1, out, e) : ERR_OK;
}

err_code load_table(struct loader *l, int64_t layer, const char *name, int64_t n, int64_t n_row, bool need,
                    struct tensor *out, struct err *e)
{
    return load_table_to(l, load_device(l, layer), &(struct file_matrix){layer, name, n, n_row}, need, out, e);
}

/* ---- trunk --------------------------------------------------------------------------------------------------- */

/* Says which device computes which layers, once their number is known. */
static err_code take_stages(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    const struct model_load_params *p = l->p;
    m->n_stage = p->n_stage ? p->n_stage : 1;
    m->stages[0] = (struct model_stage){.device = m->device, .end = m->n_layer};
    for (int i = 0; i < p->n_stage; i++) {
        int64_t first = i ? m->stages[i - 1].end : 0, end = i < p->n_stage - 1 ? p->stages[i].end : m->n_layer;
        m->stages[i] = (struct model_stage){.device = p->stages[i].device, .first = first, .end = end};
        if (first >= end || end > m->n_layer)
            return err_set(e, ERR_USAGE,
                           "%s: %lld layers can't be divided among %d devices so that device %d has layers %lld to "
                           "%lld: expected some for each",
                           gguf_file_path(l->g, 0), (long long)m->n_layer, p->n_stage, i, (long long)first,
                           (long long)end - 1);
    }
    return ERR_OK;
}

/* The norm of the output; files of LFM2 call it one of the embedding. */
static const char *find_out_norm(const struct loader *l)
{
    static const char usual[] = "output_norm.weight", other[] = "token_embd_norm.weight";
    return load_find(l, LOAD_OUTPUT, usual) || !load_find(l, LOAD_OUTPUT, other) ? usual : other;
}

/* Files of Nemotron H may have the epsilon of layer norms alone. */
static const char *find_epsilon(const struct loader *l)
{
    static const char usual[] = "attention.layer_norm_rms_epsilon", other[] = "attention.layer_norm_epsilon";
    return load_has_key(l, usual) || !load_has_key(l, other) ? usual : other;
}

/* The layers for multi-token prediction are loaded behind the others, if that is of use: as many as follow each other
 * in the file, and the first one where the layers are divided among devices, whose shares count one. */
static void add_mtp_layers(struct loader *l)
{
    struct model *m = l->m;
    bool is_there = load_find(l, m->n_trunk, "nextn.eh_proj.weight");
    int64_t most = l->p->n_stage > 1 ? 1 : LIMIT_MTP, end = min_i64(l->n_block, m->n_trunk + most);
    while (l->can_mtp && m->n_layer < end && load_find(l, m->n_layer, "nextn.eh_proj.weight"))
        m->n_layer++;
    if (m->n_layer == m->n_trunk)
        log_line(l->p->log, LOG_WARN, "%s: multi-token prediction is not used: %s", gguf_file_path(l->g, 0),
                 is_there ? "it is not known of this architecture" : "its tensors were left out of the file");
}

err_code load_trunk(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    const char *path = gguf_file_path(l->g, 0);
    static const struct f32_range epsilon = {1e-20f, 1, false};
    int64_t n_nextn = 0;
    TRY(load_u32(l, "block_count", &l->n_block, e));
    TRY(load_u32_opt(l, "nextn_predict_layers", &n_nextn, e));
    m->n_trunk = m->n_layer = l->n_block - n_nextn;
    TRY(load_u32(l, "embedding_length", &m->n_embd, e));
    TRY(load_u32(l, "context_length", &m->n_ctx_train, e));
    TRY(load_f32(l, find_epsilon(l), &epsilon, &m->norm_eps, e));
    if (m->n_layer < 1 || l->n_block > LIMIT_LAYERS)
        return err_set(e, ERR_FORMAT, "%s: %lld layers, %lld of them for predicting further tokens: expected 1 to %d",
                       path, (long long)l->n_block, (long long)n_nextn, LIMIT_LAYERS);
    if (l->p->mtp && n_nextn)
        add_mtp_layers(l);
    if (m->n_embd < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.embedding_length is 0, expected at least 1", path, m->arch);
    TRY(take_stages(l, e));
    const struct gguf_tensor *embd = load_find(l, LOAD_INPUT, "token_embd.weight");
    if (!embd)
        return err_set(e, ERR_FORMAT, "%s: tensor token_embd.weight is missing: a vocabulary without a model?", path);
    m->n_vocab = (int64_t)embd->ne[1];
    TRY(load_weight(l, LOAD_INPUT, "token_embd.weight", m->n_embd, m->n_vocab, &m->embed, e));
    m->embed_scale = m->residual_scale = m->logit_scale = 1;
    m->n_stream = 1;
    if (!load_find(l, LOAD_OUTPUT, "output_hc_norm.weight")) /* of gated streams */
        TRY(load_vector(l, LOAD_OUTPUT, find_out_norm(l), m->n_embd, true, &m->out_norm, e));
    m->output = m->embed;
    bool is_tied = !load_find(l, LOAD_OUTPUT, "output.weight");
    if (!is_tied || load_device(l, LOAD_OUTPUT) != m->device)
        TRY(load_weight(l, LOAD_OUTPUT, is_tied ? "token_embd.weight" : "output.weight", m->n_embd, m->n_vocab,
                        &m->output, e));
    m->layers = arena_calloc(&m->arena, (size_t)m->n_layer, sizeof *m->layers);
    m->expert_layers = arena_calloc(&m->arena, (size_t)m->n_layer, sizeof *m->expert_layers);
    m->adjugates = arena_calloc(&m->arena, (size_t)m->n_layer, sizeof *m->adjugates);
    if (!m->layers || !m->expert_layers || !m->adjugates)
        return err_nomem(e, (size_t)m->n_layer * sizeof *m->layers, "the layers");
    return ERR_OK;
}

static err_code load_mtp_head(struct loader *l, int64_t i, struct mtp_head *x, struct err *e)
{
    static const char embed[] = "nextn.embed_tokens.weight", output[] = "nextn.shared_head_head.weight",
                      norm[] = "nextn.shared_head_norm.weight", other_norm[] = "layer_output_norm.weight";
    struct model *m = l->m;
    int64_t n = m->n_embd;
    TRY(load_vector(l, i, "nextn.enorm.weight", n, true, &x->embed_norm, e));
    TRY(load_vector(l, i, "nextn.hnorm.weight", n, true, &x->hidden_norm, e));
    TRY(load_weight(l, i, "nextn.eh_proj.weight", 2 * n, n, &x->proj, e));
    x->embed = m->embed;
    if (load_find(l, i, embed))
        TRY(load_weight(l, i, embed, n, m->n_vocab, &x->embed, e));
    else if (m->n_stage > 1)
        TRY(load_weight(l, LOAD_OUTPUT, "token_embd.weight", n, m->n_vocab, &x->embed, e));
    x->output = m->output;
    if (load_find(l, i, output))
        TRY(load_weight(l, i, output, n, m->n_vocab, &x->output, e));
    x->out_norm = m->out_norm;
    return load_vector(l, i, load_find(l, i, norm) ? norm : other_norm, n, false, &x->out_norm, e);
}

err_code load_mtp(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    m->mtp.n = m->n_layer - m->n_trunk;
    m->mtp.heads = arena_calloc(&m->arena, (size_t)m->mtp.n + 1, sizeof *m->mtp.heads);
    if (!m->mtp.heads)
        return err_nomem(e, (size_t)m->mtp.n * sizeof *m->mtp.heads, "the layers");
    for (int64_t i = 0; i < m->mtp.n; i++)
        TRY(load_mtp_head(l, m->n_trunk + i, &m->mtp.heads[i], e));
    return ERR_OK;
}

/* ---- blocks -------------------------------------------------------------------------------------------------- */

err_code load_act_limits(struct loader *l, int64_t layer, struct layer *y, struct err *e)
{
    float routed = 0, shared = 0;
    TRY(load_layer_f32_opt(l, "swiglu_clamp_exp", layer, &load_factor_range, &routed, e));
    TRY(load_layer_f32_opt(l, "swiglu_clamp_shexp", layer, &load_factor_range, &shared, e));
    y->ffn.act_limit = y->moe.shared_act_limit = shared;
    y->moe.act_limit = routed;
    return ERR_OK;
}

static err_code load_ffn_width(struct loader *l, int64_t layer, struct ffn *f, struct err *e)
{
    TRY(load_layer_u32_opt(l, "feed_forward_length", layer, &f->n_ff, e));
    if (f->n_ff < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.feed_forward_length is missing or 0 in layer %lld",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)layer);
    return ERR_OK;
}

static err_code load_down(struct loader *l, int64_t layer, struct ffn *f, struct err *e)
{
    TRY(load_weight(l, layer, "ffn_down.weight", f->n_ff, l->m->n_embd, &f->down, e));
    return load_vector(l, layer, "ffn_down.bias", l->m->n_embd, false, &f->down_bias, e);
}

err_code load_ffn(struct loader *l, int64_t layer, struct ffn *f, struct err *e)
{
    TRY(load_ffn_width(l, layer, f, e));
    return load_wide_ffn(l, layer, f->n_ff, f, e);
}

err_code load_wide_ffn(struct loader *l, int64_t layer, int64_t n_ff, struct ffn *f, struct err *e)
{
    struct model *m = l->m;
    f->n_ff = n_ff;
    f->act = ACT_SILU;
    TRY(load_weight(l, layer, "ffn_gate.weight", m->n_embd, f->n_ff, &f->gate, e));
    TRY(load_weight(l, layer, "ffn_up.weight", m->n_embd, f->n_ff, &f->up, e));
    TRY(load_vector(l, layer, "ffn_gate.bias", f->n_ff, false, &f->gate_bias, e));
    TRY(load_vector(l, layer, "ffn_up.bias", f->n_ff, false, &f->up_bias, e));
    return load_down(l, layer, f, e);
}

err_code load_ungated_ffn(struct loader *l, int64_t layer, enum act_fn act, struct ffn *f, struct err *e)
{
    TRY(load_ffn_width(l, layer, f, e));
    f->act = act;
    TRY(load_weight(l, layer, "ffn_up.weight", l->m->n_embd, f->n_ff, &f->gate, e));
    TRY(load_vector(l, layer, "ffn_up.bias", f->n_ff, false, &f->gate_bias, e));
    return load_down(l, layer, f, e);
}

err_code load_name(struct loader *l, const struct gguf_tensor *t, const char **out, struct err *e)
{
    *out = arena_strndup(&l->m->arena, t->name, strlen(t->name));
    return *out ? ERR_OK : err_nomem(e, strlen(t->name), "a name");
}

/* The biases of a layer's experts, which may be absent. */
static err_code load_expert_bias(struct loader *l, struct backend *device, const struct expert_layer *x,
                                 struct tensor *bias, struct err *e)
{
    const struct file_matrix from[EXPERT_N_MATRIX] = {
        [EXPERT_GATE] = {x->index, "ffn_gate_exps.bias", x->shape.n_ff, x->n_expert},
        [EXPERT_UP] = {x->index, "ffn_up_exps.bias", x->shape.n_ff, x->n_expert},
        [EXPERT_DOWN] = {x->index, "ffn_down_exps.bias", x->shape.n_embd, x->n_expert},
    };
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        TRY(load_table_to(l, device, &from[i], false, &bias[i], e));
    return ERR_OK;
}

err_code load_expert_rules(struct loader *l, const struct model_device *d, const struct moe_layer *y,
                           struct expert_rules *out, struct err *e)
{
    const struct expert_layer *x = &l->m->expert_layers[y->experts_layer];
    *out = (struct expert_rules){.n_embd = y->n_latent,
                                 .n_expert = y->n_expert,
                                 .n_used = y->n_used,
                                 .act = y->act,
                                 .act_limit = y->act_limit,
                                 .act_up_limit = y->act_up_limit};
    memcpy(out->tensors, y->tensors, sizeof out->tensors);
    memcpy(out->bias, y->bias, sizeof out->bias);
    return d->device == l->m->device ? ERR_OK : load_expert_bias(l, d->device, x, out->bias, e);
}

/* What goes into the routed experts and comes out of them, where they work in a narrower space. */
static err_code load_latent(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    bool is_k3 = load_find(l, layer, "ffn_routed_down.weight") != NULL; /* Kimi K3 has names of its own */
    const char *in = is_k3 ? "ffn_routed_down.weight" : "ffn_latent_down.weight";
    const struct gguf_tensor *down = load_find(l, layer, in);
    y->n_latent = down ? (int64_t)down->ne[1] : y->n_embd;
    if (!down)
        return ERR_OK;
    y->norm_eps = l->m->norm_eps;
    TRY(load_weight(l, layer, in, y->n_embd, y->n_latent, &y->latent_down, e));
    TRY(load_vector(l, layer, "ffn_routed_norm.weight", y->n_latent, false, &y->latent_norm, e));
    return load_weight(l, layer, is_k3 ? "ffn_routed_up.weight" : "ffn_latent_up.weight", y->n_latent, y->n_embd,
                       &y->latent_up, e);
}

/* The tensors of gate and up, which may be one: of experts without a gate it is up, whose halves stand for both. */
struct gate_up {
    const struct gguf_tensor *gate, *up;
};

/* n_ff: the rows of gate and of up. */
static err_code find_gate_up(struct loader *l, int64_t layer, int64_t n_ff, bool is_ungated, const struct moe_layer *y,
                             struct gate_up *out, struct err *e)
{
    static const char fused[] = "ffn_gate_up_exps.weight", up[] = "ffn_up_exps.weight";
    const char *both = is_ungated ? up : load_find(l, layer, fused) ? fused : NULL;
    if (!both) {
        TRY(load_need(l, layer, "ffn_gate_exps.weight", y->n_latent, n_ff, y->n_expert, &out->gate, e));
        return load_need(l, layer, up, y->n_latent, n_ff, y->n_expert, &out->up, e);
    }
    TRY(load_need(l, layer, both, y->n_latent, 2 * n_ff, y->n_expert, &out->gate, e));
    out->up = out->gate;
    return ERR_OK;
}

static err_code load_routed(struct loader *l, int64_t layer, bool is_ungated, struct moe_layer *y, struct err *e)
{
    struct expert_layer *x = &l->m->expert_layers[y->experts_layer];
    struct gate_up in;
    const struct gguf_tensor *down = load_find(l, layer, "ffn_down_exps.weight");
    int64_t n_hidden = down ? (int64_t)down->ne[0] : 0, n_ff_key = 0;
    TRY(load_layer_u32_opt(l, "expert_feed_forward_length", layer, &n_ff_key, e));
    n_hidden = n_ff_key ? n_ff_key : n_hidden;
    if (!down && load_find(l, layer, "ffn_down.0.weight"))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: layer %lld has a tensor for each expert (ffn_down.0.weight): a layout of 2023 that this "
                       "version does not read; expected ffn_down_exps.weight, as later conversions write it",
                       gguf_file_path(l->g, 0), (long long)layer);
    TRY(load_need(l, layer, "ffn_down_exps.weight", n_hidden, y->n_latent, y->n_expert, &down, e));
    if (is_ungated && n_hidden % 2)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: experts without a gate in layer %lld are %lld wide: this version takes even numbers",
                       gguf_file_path(l->g, 0), (long long)layer, (long long)n_hidden);
    int64_t n_ff = is_ungated ? n_hidden / 2 : n_hidden;
    TRY(find_gate_up(l, layer, n_ff, is_ungated, y, &in, e));
    TRY(load_name(l, in.gate, &y->tensors[EXPERT_GATE], e));
    if (in.up != in.gate)
        TRY(load_name(l, in.up, &y->tensors[EXPERT_UP], e));
    TRY(load_name(l, down, &y->tensors[EXPERT_DOWN], e));
    *x = (struct expert_layer){.index = (int)layer,
                               .n_expert = y->n_expert,
                               .n_used = y->n_used,
                               .shape = {.type = {in.gate->info, in.up->info, down->info},
                                         .n_embd = y->n_latent,
                                         .n_ff = n_ff,
                                         .is_ungated = is_ungated}};
    return is_ungated ? ERR_OK : load_expert_bias(l, load_device(l, layer), x, y->bias, e);
}

/* Gate and up of the shared expert from one tensor, gate first. */
static err_code load_fused_shared(struct loader *l, int64_t layer, const char *name, struct moe_layer *y, struct err *e)
{
    int64_t n = y->n_ff_shared;
    const struct file_matrix from = {layer, name, l->m->n_embd, 2 * n};
    const struct row_run gate = {.n_row = n, .block = n, .stride = 2 * n};
    const struct row_run up = {.n_row = n, .block = n, .stride = 2 * n, .first = n};
    TRY(load_weight_rows(l, &from, &gate, 1, &y->shared_gate, e));
    return load_weight_rows(l, &from, &up, 1, &y->shared_up, e);
}

/* The shared expert, as wide as its tensors are: what families write about its width in the metadata is that of one of
 * several, or of all. */
static err_code load_shared(struct loader *l, int64_t layer, bool is_ungated, struct moe_layer *y, struct err *e)
{
    struct model *m = l->m;
    static const char up[] = "ffn_up_shexp.weight";
    const char *gate = is_ungated ? up : "ffn_gate_shexp.weight";
    const struct gguf_tensor *first = load_find(l, layer, gate);
    const struct gguf_tensor *down = load_find(l, layer, "ffn_down_shexp.weight");
    if (!first && !down)
        return ERR_OK;
    y->n_ff_shared = first ? (int64_t)first->ne[1] : (int64_t)down->ne[0];
    if (!first && load_find(l, layer, up)) {
        TRY(load_fused_shared(l, layer, up, y, e));
    } else {
        TRY(load_weight(l, layer, gate, m->n_embd, y->n_ff_shared, &y->shared_gate, e));
        if (!is_ungated)
            TRY(load_weight(l, layer, up, m->n_embd, y->n_ff_shared, &y->shared_up, e));
    }
    TRY(load_weight(l, layer, "ffn_down_shexp.weight", y->n_ff_shared, m->n_embd, &y->shared_down, e));
    if (load_find(l, layer, "ffn_gate_inp_shexp.weight"))
        TRY(load_weight(l, layer, "ffn_gate_inp_shexp.weight", m->n_embd, 1, &y->shared_gate_inp, e));
    return ERR_OK;
}

/* How the file says to score: the numbers that GGUF gives to gating functions. */
static err_code load_gating(struct loader *l, enum route_score *score, struct err *e)
{
    int64_t func = 0;
    TRY(load_u32_opt(l, "expert_gating_func", &func, e));
    switch (func) {
    case 0: return ERR_OK;
    case 1: *score = ROUTE_SOFTMAX; return ERR_OK;
    case 2: *score = ROUTE_SIGMOID; return ERR_OK;
    case 3: *score = ROUTE_SOFTMAX_CHOSEN; return ERR_OK;
    case 4: *score = ROUTE_SQRT_SOFTPLUS; return ERR_OK;
    default:
        return err_set(e, ERR_UNSUPPORTED, "%s: %s.expert_gating_func is %lld; this version knows 1 to 4",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)func);
    }
}

static err_code load_router(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    struct model *m = l->m;
    TRY(load_gating(l, &y->score, e));
    TRY(load_bool_opt(l, "expert_weights_norm", &y->norm_weights, e));
    TRY(load_f32_opt(l, "expert_weights_scale", &load_factor_range, &y->scale, e));
    if (y->scale == 0) /* some files say 0 for none */
        y->scale = 1;
    TRY(load_u32_opt(l, "expert_group_count", &y->n_group, e));
    TRY(load_u32_opt(l, "expert_group_used_count", &y->n_group_used, e));
    if (y->n_group < 2)
        y->n_group = y->n_group_used = 1;
    if (y->n_group > ROUTE_MAX_GROUP || y->n_expert % y->n_group || y->n_group_used < 1 ||
        y->n_group_used > y->n_group || y->n_used > y->n_expert / y->n_group * y->n_group_used)
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: %lld experts in %lld groups, of which %lld serve to choose %lld experts: expected equal "
            "groups with enough experts",
            gguf_file_path(l->g, 0), m->arch, (long long)y->n_expert, (long long)y->n_group, (long long)y->n_group_used,
            (long long)y->n_used);
    TRY(load_weight(l, layer, "ffn_gate_inp.weight", m->n_embd, y->n_expert, &y->router, e));
    TRY(load_vector(l, layer, "ffn_gate_inp.bias", y->n_expert, false, &y->router_bias, e));
    const char *bias = load_find(l, layer, "exp_probs_b") ? "exp_probs_b" : "exp_probs_b.bias";
    return load_vector(l, layer, bias, y->n_expert, false, &y->choice_bias, e);
}

err_code load_moe(struct loader *l, int64_t layer, const struct moe_rules *rules, struct moe_layer *y, struct err *e)
{
    struct model *m = l->m;
    *y = (struct moe_layer){.experts_layer = m->n_moe_layer,
                            .n_embd = m->n_embd,
                            .score = rules->score,
                            .norm_weights = rules->norm_weights,
                            .scale = 1,
                            .n_group = 1,
                            .n_group_used = 1,
                            .act = rules->act};
    TRY(load_u32(l, "expert_count", &y->n_expert, e));
    TRY(load_layer_u32_opt(l, "expert_used_count", layer, &y->n_used, e));
    if (y->n_expert > LIMIT_EXPERTS)
        return err_set(e, ERR_LIMIT, "%s: key \"%s.expert_count\" is %lld, expected at most %d",
                       gguf_file_path(l->g, 0), m->arch, (long long)y->n_expert, LIMIT_EXPERTS);
    if (y->n_used < 1 || y->n_used > y->n_expert)
        return err_set(e, ERR_FORMAT, "%s: %s.expert_used_count is %lld of %lld experts: expected 1 to all",
                       gguf_file_path(l->g, 0), m->arch, (long long)y->n_used, (long long)y->n_expert);
    TRY(load_router(l, layer, y, e));
    TRY(load_latent(l, layer, y, e));
    TRY(load_routed(l, layer, rules->is_ungated, y, e));
    m->n_moe_layer++;
    return load_shared(l, layer, rules->is_ungated, y, e);
}

/* Reads the table to the device, once its numbers have been looked at. */
static err_code read_token_experts(struct loader *l, struct backend *device, const struct gguf_tensor *t,
                                   const struct moe_layer *y, int32_t *values, struct err *e)
{
    struct tensor_source src = {.l = l, .t = t, .row_bytes = t->n_bytes};
    TRY(read_file_rows(&src, 0, 1, values, e));
    for (int64_t i = 0; i < tensor_n_elem(&y->token_experts); i++)
        if (values[i] < 0 || values[i] >= y->n_expert)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: token %lld has expert %d, expected 0 to %lld",
                           gguf_file_path(l->g, t->file), t->name, (long long)(i / y->n_used), (int)values[i],
                           (long long)y->n_expert - 1);
    backend_write(device, &y->token_experts, values);
    return ERR_OK;
}

err_code load_token_experts(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    static const char name[] = "ffn_gate_tid2eid.weight";
    struct model *m = l->m;
    struct backend *device = load_device(l, layer);
    const struct gguf_tensor *t = load_find(l, layer, name);
    if (!t || t->type_id != GGUF_TENSOR_I32 || t->ne[0] != (uint64_t)y->n_used || t->ne[1] != (uint64_t)m->n_vocab ||
        t->ne[2] != 1 || t->ne[3] != 1)
        return err_set(e, ERR_FORMAT, "%s: tensor blk.%lld.%s: expected %lld experts for each of %lld tokens, as I32",
                       gguf_file_path(l->g, t ? t->file : 0), (long long)layer, name, (long long)y->n_used,
                       (long long)m->n_vocab);
    l->used[t - gguf_tensor_at(l->g, 0)] = true;
    TRY(backend_tensor_create(device, ELEM_I32, y->n_used, m->n_vocab, 1, MEM_WEIGHTS, &y->token_experts, e));
    m->buffers[m->n_buffers++] = (struct model_buffer){device, y->token_experts.buffer};
    if (!l->p->store)
        return ERR_OK;
    int32_t *values = mem_alloc(t->n_bytes);
    err_code code =
        values ? read_token_experts(l, device, t, y, values, e) : err_nomem(e, t->n_bytes, "the tokens' experts");
    mem_free(values);
    return code;
}

err_code load_moe_or_ffn(struct loader *l, int64_t layer, const struct moe_rules *rules, struct layer *y, struct err *e)
{
    y->is_moe = load_find(l, layer, "ffn_gate_inp.weight") != NULL;
    return y->is_moe ? load_moe(l, layer, rules, &y->moe, e) : load_ffn(l, layer, &y->ffn, e);
}

static err_code find_mixer(struct loader *l, int64_t layer, const struct transformer_rules *r, struct layer *y,
                           struct err *e)
{
    int64_t n_head_kv = 1;
    TRY(load_layer_u32_opt(l, "attention.head_count_kv", layer, &n_head_kv, e));
    y->is_recurrent = r->recurrent && n_head_kv == 0;
    return ERR_OK;
}

err_code load_transformer(struct loader *l, const struct transformer_rules *r, struct err *e)
{
    struct model *m = l->m;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(find_mixer(l, i, r, y, e));
        TRY(y->is_recurrent ? r->recurrent(l, i, &y->recurrent, e)
                            : load_attention(l, i, r->rope, r->qk_norm, &y->attn, e));
        if (r->window_period)
            TRY(load_window(l, i, r->window_period, r->full_first, &y->attn.window, e));
        if (y->attn.window)
            TRY(load_window_rope(l, r->plain_in_window, &y->attn, e));
        if (r->rope_in_window && y->attn.window == 0)
            y->attn.rope_table = y->attn.q_rope_table = -1;
        y->is_parallel = r->is_parallel;
        y->ffn_norm = y->attn_norm;
        if (!r->is_parallel)
            TRY(load_vector(l, i, r->ffn_norm ? r->ffn_norm : "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, &r->moe, y, e));
    }
    return ERR_OK;
}
