/* Products on integers: for which types of weights, and activations that are rounded for them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "vulkan/vk_ops.h"

/* Types that have both definitions, as shaders/integers.glsl and product_integers.glsl have them. New ones go to the
 * end: their places are in files (vulkan_save_pipelines). */
static const enum quant_type types[] = {QUANT_Q4_0, QUANT_Q5_0, QUANT_Q8_0, QUANT_Q4_K,
                                        QUANT_Q5_K, QUANT_Q6_K, QUANT_MXFP4};
enum { N_TYPE = sizeof types / sizeof *types };

/* The type's bit in sets of them; 0: it has one definition. */
static uint32_t bit_of(enum quant_type type)
{
    for (int i = 0; i < N_TYPE; i++)
        if (types[i] == type)
            return 1u << i;
    return 0;
}

bool vk_is_integer(const struct vk *v, enum quant_type type)
{
    return v->definitions.integer & bit_of(type);
}

/* ---- which definition a type has --------------------------------------------------------------------------------- */

/* A product to measure: on a GPU of some MB, so that its time is not that of the dispatch. */
enum { TRIAL_K = 2048, TRIAL_ROWS = 8192, SOFTWARE_TRIAL_ROWS = 512, TRIAL_RUNS = 3, TRIAL_PRODUCTS = 4 };

struct trial {
    struct vk *v;
    const struct quant_info *type;
    struct weight *w;
    struct tensor x, y;
};

static err_code read_ones(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    memset(dst, 1, (size_t)n * *(const size_t *)user);
    return ERR_OK;
}

/* The shortest time of some products. The first ones compile and warm up. */
static err_code time_products(const struct trial *t, int64_t *best_ns, struct err *e)
{
    struct backend *b = &t->v->base;
    *best_ns = INT64_MAX;
    for (int i = 0; i <= TRIAL_RUNS; i++) {
        int64_t begin = clock_ns();
        for (int j = 0; j < (i ? TRIAL_PRODUCTS : 1); j++)
            backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {t->x}, .out = {t->y}, .weight = {t->w}});
        TRY(backend_wait(b, backend_fence(b), e));
        int64_t ns = clock_ns() - begin;
        *best_ns = i && ns < *best_ns ? ns : *best_ns;
    }
    return ERR_OK;
}

/* Integers have to be faster by a tenth: floats are nearer to the exact product. */
static err_code compare(struct trial *t, bool *is_integer, struct err *e)
{
    struct backend *b = &t->v->base;
    int64_t n_row = t->v->is_software ? SOFTWARE_TRIAL_ROWS : TRIAL_ROWS, ns[2];
    size_t row_bytes = 0;
    struct vk_definitions *d = &t->v->definitions;
    uint32_t bit = bit_of(t->type->type);
    const struct weight_desc desc = {"a matrix to measure", t->type, TRIAL_K, n_row};
    if (!quant_row_bytes(t->type, TRIAL_K, &row_bytes))
        return err_set(e, ERR_FAIL, "rows of %d weights", TRIAL_K);
    TRY(backend_weight_load(b, &desc, &(struct weight_source){read_ones, &row_bytes}, &t->w, e));
    TRY(backend_tensor_create(b, ELEM_F32, TRIAL_K, 1, 1, MEM_SCRATCH, &t->x, e));
    TRY(backend_tensor_create(b, ELEM_F32, n_row, 1, 1, MEM_SCRATCH, &t->y, e));
    backend_clear(b, &t->x);
    for (int i = 0; i < 2; i++) {
        d->integer = i ? d->integer | bit : d->integer & ~bit;
        TRY(time_products(t, &ns[i], e));
    }
    *is_integer = ns[1] + ns[1] / 10 < ns[0];
    return ERR_OK;
}

/* Where there is no room to measure, those types are of integers that the device has instructions for. */
static bool measure(struct vk *v, const struct quant_info *type)
{
    struct trial t = {.v = v, .type = type};
    vk_flush(v);                                         /* what is pending has its definitions */
    const struct vulkan_counters recorded = v->recorded; /* nobody asked for these products */
    const struct backend_counters counters = v->counters;
    uint32_t before = v->definitions.integer;
    bool is_integer = v->limits.has_dot;
    struct err e;
    v->definitions.is_measuring = true;
    if (compare(&t, &is_integer, &e) != ERR_OK)
        is_integer = v->limits.has_dot;
    backend_buffer_close(&v->base, &t.x.buffer);
    backend_buffer_close(&v->base, &t.y.buffer);
    backend_weight_close(&v->base, &t.w);
    v->definitions.is_measuring = false;
    v->definitions.integer = before;
    v->recorded = recorded;
    v->counters = counters;
    return is_integer;
}

void vk_define(struct vk *v, const struct quant_info *type)
{
    struct vk_definitions *d = &v->definitions;
    uint32_t bit = bit_of(type->type);
    const char *asked = getenv("MOEBIUS_VULKAN_PRODUCTS");
    if (!bit || d->is_measuring || (d->known & bit))
        return;
    bool is_integer = asked ? !strcmp(asked, "integer") : measure(v, type);
    d->integer |= is_integer ? bit : 0;
    d->known |= bit;
    d->measured |= asked ? 0 : bit;
}

void vk_recall_definitions(struct vk *v, const struct vk_definitions *from)
{
    struct vk_definitions *d = &v->definitions;
    if (getenv("MOEBIUS_VULKAN_PRODUCTS"))
        return;
    d->known |= from->measured;
    d->measured |= from->measured;
    d->integer |= from->integer;
}

/* ---- rounded activations ----------------------------------------------------------------------------------------- */

enum { RUN = 32, RUN_BYTES = 48 };

size_t vk_runs_bytes(int64_t k)
{
    return (size_t)(k / RUN) * (RUN_BYTES + sizeof(uint32_t)); /* and the largest of each block */
}

enum vk_integers vk_integers_of(const struct vk *v, enum quant_type type, const struct vk_norm *norm,
                                const struct vk_rows *rows, bool one_by_one)
{
    enum { SUMS_BYTES = 2048 };
    if (!vk_is_integer(v, type))
        return VK_FLOATS;
    if (norm)
        return VK_ROUNDS_NORMED;
    bool fits = vk_by_four(rows->x, rows->k) && vk_runs_bytes(rows->k) + SUMS_BYTES <= v->limits.shared_bytes;
    return one_by_one && fits ? VK_ROUNDS : VK_RUNS_IN_MEMORY;
}

const struct buffer *vk_round_rows(struct vk *v, enum quant_type type, const struct vk_rows *rows,
                                   const struct vk_access *from)
{
    enum { GROUP = 64 };
    struct buffer *runs = vk_scratch(v, VK_SCRATCH_RUNS, (size_t)(rows->m * rows->k / RUN) * RUN_BYTES);
    struct vk_touched x = {.access = {*from}, .n = 1};
    if (!runs)
        return NULL;
    const struct {
        uint64_t x, runs;
        uint32_t k, m;
    } push = {rows->x, vk_buffer_address(runs), (uint32_t)rows->k, (uint32_t)rows->m};
    vk_whole(&x, runs, true);
    uint32_t n_y = rows->m < v->limits.n_workgroup_y ? (uint32_t)rows->m : v->limits.n_workgroup_y;
    VK_RUN(v, VK_PROGRAM(quantize, GROUP, type, vk_by_four(rows->x, rows->k)), push, &x,
           vk_groups(rows->k, GROUP * RUN), n_y, 1, rows->m * rows->k * (int64_t)sizeof(float));
    return runs;
}
