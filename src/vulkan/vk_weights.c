/* Weights: sixteen rows interleaved, as the shaders read them (shaders/types.glsl). */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "vulkan/vk_internal.h"

/* Floats are packed in blocks of this many, with zeros behind the end of a row. */
enum { FLOAT_BLOCK = 32, ROWS = LAYOUT_R16_ROWS };

static bool is_float(const struct quant_info *type)
{
    return type->act == QUANT_ACT_FLOAT;
}

static bool has_shader(const struct quant_info *type)
{
    switch (type->type) {
    case QUANT_F32:
    case QUANT_F16:
    case QUANT_BF16:
    case QUANT_Q4_0:
    case QUANT_Q4_1:
    case QUANT_Q5_0:
    case QUANT_Q5_1:
    case QUANT_Q8_0:
    case QUANT_Q2_K:
    case QUANT_Q3_K:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
    case QUANT_Q6_K:
    case QUANT_IQ1_S:
    case QUANT_IQ1_M:
    case QUANT_IQ2_XXS:
    case QUANT_IQ2_XS:
    case QUANT_IQ2_S:
    case QUANT_IQ3_XXS:
    case QUANT_IQ3_S:
    case QUANT_IQ4_NL:
    case QUANT_IQ4_XS:
    case QUANT_TQ1_0:
    case QUANT_TQ2_0:
    case QUANT_MXFP4:
    case QUANT_NVFP4:
    case QUANT_Q1_0:
    case QUANT_Q2_0:
    case QUANT_IQ2_KT:
    case QUANT_IQ3_KT:
    case QUANT_IQ4_KT: return true;
    default: return false;
    }
}

bool vk_type_supported(const struct vk *v, const struct quant_info *type)
{
    return has_shader(type) && !vk_env_lacks(&v->api.env, type->name);
}

static size_t row_bytes(const struct quant_info *type, int64_t k)
{
    size_t n = 0;
    bool ok = quant_row_bytes(type, (uint64_t)k, &n);
    assert(ok);
    (void)ok;
    return n;
}

size_t vk_group_bytes(const struct quant_info *type, int64_t k)
{
    if (is_float(type))
        k = (k + FLOAT_BLOCK - 1) / FLOAT_BLOCK * FLOAT_BLOCK;
    return ROWS * row_bytes(type, k);
}

static void pack_floats(const struct quant_info *type, int64_t k, char *dst, const char *src, int64_t n)
{
    size_t row = row_bytes(type, k), whole = row / 4;
    memset(dst, 0, vk_group_bytes(type, k));
    for (int64_t r = 0; r < n; r++, src += row) {
        for (size_t i = 0; i < whole; i++)
            memcpy(dst + (i * ROWS + (size_t)r) * 4, src + i * 4, 4);
        memcpy(dst + (whole * ROWS + (size_t)r) * 4, src + whole * 4, row % 4);
    }
}

void vk_pack_group(const struct quant_info *type, int64_t k, void *dst, const void *src, int64_t n)
{
    if (is_float(type))
        pack_floats(type, k, dst, src, n);
    else
        layout_pack(&(struct layout_matrix){LAYOUT_R16, type, (uint64_t)n, (uint64_t)k}, dst, src, 0, (uint64_t)n,
                    NULL);
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

/* A task reads and packs about this many bytes. */
enum { TASK_BYTES = 256 << 10 };

struct loading {
    struct vk *v;
    struct weight *w;
    const struct weight_source *src;
    int64_t task_groups;
    size_t row_bytes, group_bytes;
    char *staging; /* for each thread, rows as they are read and as they are packed */
    atomic_flag failed;
    struct err err;
    err_code code;
};

static err_code load_groups(const struct loading *l, int64_t group0, int64_t n_group, char *staging, struct err *e)
{
    const struct weight *w = l->w;
    int64_t row0 = group0 * ROWS, n = w->n_row - row0 < n_group * ROWS ? w->n_row - row0 : n_group * ROWS;
    char *packed = staging + (size_t)(l->task_groups * ROWS) * l->row_bytes;
    TRY(l->src->read(l->src->user, (uint64_t)row0, (uint64_t)n, staging, e));
    for (int64_t i = 0; i * ROWS < n; i++)
        vk_pack_group(w->type, w->k, packed + (size_t)i * l->group_bytes, staging + (size_t)(i * ROWS) * l->row_bytes,
                      n - i * ROWS < ROWS ? n - i * ROWS : ROWS);
    for (int64_t row = row0, end; row < row0 + n; row = end) { /* the groups may belong to several parts */
        int64_t part = row / w->part_rows, n_run;
        end = (part + 1) * w->part_rows < row0 + n ? (part + 1) * w->part_rows : row0 + n;
        n_run = (end - row + ROWS - 1) / ROWS;
        TRY(vk_upload(l->v, &w->parts[part], (size_t)(row % w->part_rows / ROWS) * l->group_bytes,
                      packed + (size_t)((row - row0) / ROWS) * l->group_bytes, (size_t)n_run * l->group_bytes, e));
    }
    return ERR_OK;
}

static void load_task(void *arg, size_t task, int thread)
{
    struct loading *l = arg;
    struct err e = {0};
    char *staging = l->staging + (size_t)thread * (size_t)l->task_groups * (l->group_bytes + ROWS * l->row_bytes);
    err_code code = load_groups(l, (int64_t)task * l->task_groups, l->task_groups, staging, &e);
    if (code != ERR_OK && !atomic_flag_test_and_set(&l->failed)) {
        l->err = e;
        l->code = code;
    }
}

void vk_weight_close(struct backend *b, struct weight *w)
{
    struct vk *v = vk_of(b);
    vk_drain(v);
    for (int64_t i = 0; w->parts && i < w->n_part; i++)
        vk_piece_give(v, &w->parts[i]);
    vk_table_close(v, &w->table);
    if (w->n_bytes)
        vk_uncount(v, w->n_bytes, MEM_WEIGHTS);
    mem_free(w->parts);
    mem_free(w);
}

int64_t vk_part_rows(const struct vk *v, const struct quant_info *type, int64_t k)
{
    return (int64_t)(v->limits.allocation_bytes / vk_group_bytes(type, k)) * ROWS;
}

/* Divides a matrix into parts that are small enough for the driver to allocate. */
static err_code place(struct vk *v, struct weight *w, const char *name, struct err *e)
{
    size_t group = vk_group_bytes(w->type, w->k), n_group = (size_t)((w->n_row + ROWS - 1) / ROWS);
    int64_t most = vk_part_rows(v, w->type, w->k), all = (int64_t)n_group * ROWS;
    if (most == 0)
        return err_set(e, ERR_LIMIT, "%s: %d rows of %s have %zu bytes: the driver allocates less", v->base.name, ROWS,
                       name, group);
    w->part_rows = most < all ? most : all;
    w->n_part = (w->n_row + w->part_rows - 1) / w->part_rows;
    w->parts = mem_calloc((size_t)w->n_part, sizeof *w->parts);
    if (!w->parts)
        return err_nomem(e, (size_t)w->n_part * sizeof *w->parts, name);
    TRY(vk_count(v, n_group * group, MEM_WEIGHTS, name, e));
    w->n_bytes = n_group * group;
    TRY(vk_table_open(v, (size_t)w->n_part, &w->table, e));
    for (int64_t i = 0; i < w->n_part; i++) {
        int64_t rest = w->n_row - i * w->part_rows, n = rest < w->part_rows ? rest : w->part_rows;
        TRY(vk_piece_take(v, VK_FOR_DEVICE, (size_t)((n + ROWS - 1) / ROWS) * group, name, &w->parts[i], e));
        vk_table_set(w->table, (size_t)i, vk_piece_address(&w->parts[i]));
    }
    return ERR_OK;
}

static err_code load(struct vk *v, struct weight *w, const struct weight_source *src, const char *name, struct err *e)
{
    struct loading l = {.v = v, .w = w, .src = src, .failed = ATOMIC_FLAG_INIT};
    int64_t n_group = (w->n_row + ROWS - 1) / ROWS;
    l.row_bytes = row_bytes(w->type, w->k);
    l.group_bytes = vk_group_bytes(w->type, w->k);
    l.task_groups = TASK_BYTES / (int64_t)l.group_bytes + 1;
    size_t n_bytes = (size_t)l.task_groups * (l.group_bytes + ROWS * l.row_bytes) * (size_t)pool_n_threads(v->pool);
    l.staging = mem_alloc(n_bytes);
    if (!l.staging)
        return err_nomem(e, n_bytes, name);
    pool_run(v->pool, (size_t)((n_group + l.task_groups - 1) / l.task_groups), load_task, &l);
    mem_free(l.staging);
    return l.code == ERR_OK ? ERR_OK : err_set(e, l.code, "%s", l.err.text);
}

err_code vk_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                        struct weight **out, struct err *e)
{
    struct vk *v = vk_of(b);
    if (!vk_type_supported(v, d->type))
        return err_set(e, ERR_UNSUPPORTED, "%s: %s is of type %s, which this device has no shader for", v->base.name,
                       d->name, d->type->name);
    vk_choose(v, d->type);
    struct weight *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, d->name);
    *w = (struct weight){.type = d->type, .k = d->k, .n_row = d->n_row, .observed = d->is_observed ? d->name : NULL};
    err_code code = place(v, w, d->name, e);
    if (code == ERR_OK)
        code = load(v, w, src, d->name, e);
    if (code != ERR_OK) {
        vk_weight_close(b, w);
        return code;
    }
    *out = w;
    return ERR_OK;
}

struct weight_shape vk_weight_shape(struct backend *b, const struct weight *w)
{
    return (struct weight_shape){w->type, w->k, w->n_row, w->observed};
}
