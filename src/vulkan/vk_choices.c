/* Chooses how products with weights of each type are computed: with floats or integers; many rows with tiles or
 * without, and tiles of integers with cooperative matrices. The choices are made by measuring, and are kept from run to
 * run (vulkan_save_pipelines). */
#include <string.h>

#include "base/clock.h"
#include "vulkan/vk_ops.h"

/* Whether shaders/integers.glsl and unit_integers.glsl support a type. */
static bool has_integers(enum quant_type type)
{
    switch (type) {
    case QUANT_Q4_0:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
    case QUANT_Q6_K:
    case QUANT_MXFP4: return true;
    default: return false;
    }
}

bool vk_is_integer(const struct vk *v, enum quant_type type)
{
    return v->choices.of[type] & VK_INTEGER;
}

bool vk_is_tiled(const struct vk *v, enum quant_type type)
{
    return v->choices.of[type] & VK_TILED && v->limits.shared_bytes >= VK_TILE_BYTES;
}

bool vk_has_matrices(const struct vk *v, enum quant_type type)
{
    enum { BOTH = VK_INTEGER | VK_TILED | VK_MATRIX };
    return (v->choices.of[type] & BOTH) == BOTH && v->limits.shared_bytes >= VK_MATRIX_BYTES;
}

/* The size of the products that are measured. On a GPU the matrix has some megabytes, so that the dispatch itself
 * hardly counts, and there are so many rows of activations that tiles, too, keep the whole GPU busy. */
enum { TRIAL_K = 2048, TRIAL_RUNS = 3, TRIAL_PRODUCTS = 4 };
enum { TRIAL_ROWS = 8192, TRIAL_PROMPT = 256, SOFTWARE_TRIAL_ROWS = 512, SOFTWARE_TRIAL_PROMPT = VK_TILE };

struct trial {
    struct vk *v;
    const struct quant_info *type;
    struct weight *w;
    struct tensor x, y; /* of a prompt's rows */
};

/* Fills rows with bytes that stand for small finite numbers in all types. */
static err_code read_any(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    enum { MASK = 0x3f };
    size_t row_bytes = *(const size_t *)user;
    for (size_t i = 0; i < (size_t)n * row_bytes; i++)
        ((uint8_t *)dst)[i] = (uint8_t)(((size_t)row0 * row_bytes + i) * 2654435761u >> 24 & MASK);
    return ERR_OK;
}

static err_code write_any(struct backend *b, const struct tensor *x, struct err *e)
{
    enum { PERIOD = 113 };
    size_t n = (size_t)(x->ne[0] * x->ne[1]);
    float *any = mem_alloc(n * sizeof *any);
    if (!any)
        return err_nomem(e, n * sizeof *any, "a product to measure");
    for (size_t i = 0; i < n; i++)
        any[i] = (float)(i % PERIOD) / PERIOD - 0.5f;
    backend_write(b, x, any);
    mem_free(any);
    return ERR_OK;
}

/* Measures n products of m rows with a choice; *best_ns becomes the time if that is shorter. */
static err_code time_products(const struct trial *t, uint8_t choice, int64_t m, int n, int64_t *best_ns, struct err *e)
{
    struct backend *b = &t->v->base;
    struct tensor x = t->x, y = t->y;
    int64_t begin = clock_ns();
    x.ne[1] = y.ne[1] = m;
    t->v->choices.of[t->type->type] = choice;
    for (int j = 0; j < n; j++)
        backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {x}, .out = {y}, .weight = {t->w}});
    TRY(backend_wait(b, backend_fence(b), e));
    int64_t ns = clock_ns() - begin;
    *best_ns = ns < *best_ns ? ns : *best_ns;
    return ERR_OK;
}

/* Measures the shortest times of two choices, by turns, as a GPU that was idle takes a while to become fast. The first
 * products compile the shaders. */
static err_code race(const struct trial *t, const uint8_t choice[2], int64_t m, int n, int64_t best_ns[2],
                     struct err *e)
{
    for (int i = 0; i <= TRIAL_RUNS; i++) {
        if (i <= 1)
            best_ns[0] = best_ns[1] = INT64_MAX;
        for (int j = 0; j < 2; j++)
            TRY(time_products(t, choice[j], m, i ? n : 1, &best_ns[j], e));
    }
    return ERR_OK;
}

/* Whether two choices give the same bits, as they must. */
static err_code check_same(const struct trial *t, const uint8_t choice[2], int64_t m, bool *are_same, struct err *e)
{
    size_t n = tensor_bytes(&t->y);
    char *y = mem_alloc(2 * n);
    int64_t ns = INT64_MAX;
    err_code code = y ? ERR_OK : err_nomem(e, 2 * n, "results to compare");
    for (size_t i = 0; i < 2 && code == ERR_OK; i++) {
        code = time_products(t, choice[i], m, 1, &ns, e);
        if (code == ERR_OK)
            code = backend_read(&t->v->base, &t->y, y + i * n, e);
    }
    *are_same = code == ERR_OK && !memcmp(y, y + n, n);
    mem_free(y);
    return code;
}

/* Chooses cooperative matrices where they are faster. If the driver can't compile or run them, they are not used. */
static void try_matrices(const struct trial *t, uint8_t *choice, int64_t m)
{
    const uint8_t with[2] = {*choice, VK_INTEGER | VK_TILED | VK_MATRIX};
    const struct vk_limits *l = &t->v->limits;
    int64_t ns[2];
    bool are_same = false;
    struct err e;
    if (!(*choice & VK_INTEGER) || !l->matrix[0] || l->shared_bytes < VK_MATRIX_BYTES)
        return;
    if (race(t, with, m, 1, ns, &e) == ERR_OK && ns[1] < ns[0] && check_same(t, with, m, &are_same, &e) == ERR_OK &&
        are_same)
        *choice = with[1];
}

/* Integers must be faster by a tenth, as floats are closer to the exact product. Tiles give the same bits. */
static err_code compare(struct trial *t, uint8_t *choice, struct err *e)
{
    struct backend *b = &t->v->base;
    bool is_software = t->v->is_software;
    int64_t n_row = is_software ? SOFTWARE_TRIAL_ROWS : TRIAL_ROWS,
            m = is_software ? SOFTWARE_TRIAL_PROMPT : TRIAL_PROMPT;
    int64_t ns[2];
    size_t row_bytes = 0;
    const struct weight_desc desc = {"a matrix to measure", t->type, TRIAL_K, n_row};
    if (!quant_row_bytes(t->type, TRIAL_K, &row_bytes))
        return err_set(e, ERR_FAIL, "rows of %d weights", TRIAL_K);
    TRY(backend_weight_load(b, &desc, &(struct weight_source){read_any, &row_bytes}, &t->w, e));
    TRY(backend_tensor_create(b, ELEM_F32, TRIAL_K, m, 1, MEM_SCRATCH, &t->x, e));
    TRY(backend_tensor_create(b, ELEM_F32, n_row, m, 1, MEM_SCRATCH, &t->y, e));
    TRY(write_any(b, &t->x, e));
    if (has_integers(t->type->type)) {
        TRY(race(t, (uint8_t[]){0, VK_INTEGER}, 1, TRIAL_PRODUCTS, ns, e));
        *choice = ns[1] + ns[1] / 10 < ns[0] ? VK_INTEGER : 0;
    }
    TRY(race(t, (uint8_t[]){*choice, *choice | VK_TILED}, m, 1, ns, e));
    *choice |= ns[1] < ns[0] ? VK_TILED : 0;
    try_matrices(t, choice, m);
    return ERR_OK;
}

/* Where there is no memory for measuring, integers are used if the device has instructions for them; such a choice is
 * not kept for later runs. */
static uint8_t measure(struct vk *v, const struct quant_info *type)
{
    struct trial t = {.v = v, .type = type};
    vk_flush(v);                                         /* pending operations go by the present choices */
    const struct vulkan_counters recorded = v->recorded; /* the products that are measured don't count */
    const struct backend_counters counters = v->counters;
    uint8_t choice = 0;
    struct err e;
    v->choices.is_measuring = true;
    if (compare(&t, &choice, &e) == ERR_OK)
        choice |= VK_MEASURED;
    else
        choice = has_integers(type->type) && v->limits.has_dot ? VK_INTEGER : 0;
    backend_buffer_close(&v->base, &t.x.buffer);
    backend_buffer_close(&v->base, &t.y.buffer);
    backend_weight_close(&v->base, &t.w);
    v->choices.is_measuring = false;
    v->recorded = recorded;
    v->counters = counters;
    return choice;
}

/* Whether the environment makes the choice, in which case nothing is measured. */
static bool is_asked(const struct vk_env *env, enum quant_type type, uint8_t *choice)
{
    bool has_matrices = !strcmp(env->tiles, "matrix");
    *choice = 0;
    if (!strcmp(env->products, "integer") && has_integers(type))
        *choice |= VK_INTEGER;
    if (!strcmp(env->tiles, "1") || has_matrices)
        *choice |= VK_TILED | (has_matrices ? VK_MATRIX : 0);
    return *env->products || *env->tiles;
}

/* With a software driver shared memory is no faster than other memory. */
void vk_choices_open(struct vk *v)
{
    const char *tiles = v->api.env.tiles;
    v->choices.stages_attention = *tiles ? strcmp(tiles, "0") != 0 : !v->is_software;
}

void vk_choose(struct vk *v, const struct quant_info *type)
{
    uint8_t *choice = &v->choices.of[type->type], asked;
    if (v->choices.is_measuring || (*choice & VK_CHOSEN))
        return;
    if (is_asked(&v->api.env, type->type, &asked))
        *choice = VK_CHOSEN | asked;
    else
        *choice = VK_CHOSEN | measure(v, type);
}

void vk_recall_choices(struct vk *v, const uint8_t of[QUANT_MAX_ID])
{
    uint8_t asked;
    if (is_asked(&v->api.env, QUANT_F32, &asked))
        return;
    for (int i = 0; i < QUANT_MAX_ID; i++) {
        int without = has_integers((enum quant_type)i) ? 0 : VK_INTEGER;
        without |= v->limits.matrix[0] ? 0 : VK_MATRIX;
        v->choices.of[i] = of[i] & (uint8_t)~without;
    }
}
