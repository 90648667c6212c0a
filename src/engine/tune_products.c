#include "engine/tune_products.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/tuning.h"

/* A piece is as large as a task of decode, and a trial gives each thread a few. */
enum { PIECE_WEIGHTS = 1 << 19, PIECES_A_THREAD = 2 };

typedef void matrix_fn(void *user, const struct cpu_rows *rows);

static bool has_pool_before(const struct experts *x, int layer)
{
    for (int i = 0; i < layer; i++)
        if (experts_slot_pool(x, i) == experts_slot_pool(x, layer))
            return true;
    return false;
}

/* Calls fn for the matrices in the CPU device's memory: the model's weights, and its experts where all have slots. */
static void each_matrix(const moebius_engine *g, matrix_fn *fn, void *user)
{
    const struct model *m = g->model;
    if (g->device != g->devices[0].cpu)
        return;
    for (size_t i = 0; i < m->n_weights; i++) {
        if (m->weights[i].device != g->device) /* of another stage */
            continue;
        struct cpu_rows rows = backend_cpu_weight_rows(g->device, m->weights[i].weight);
        fn(user, &rows);
    }
    for (int layer = 0; layer < m->n_moe_layer; layer++) {
        if (!experts_is_resident(m->experts, layer) || has_pool_before(m->experts, layer))
            continue;
        const struct slot_pool *pool = experts_slot_pool(m->experts, layer);
        for (int64_t i = 0; pool && i < backend_cpu_n_slot(pool) * EXPERT_N_MATRIX; i++) {
            struct cpu_rows rows =
                backend_cpu_slot_rows(g->device, pool, i / EXPERT_N_MATRIX, (int)(i % EXPERT_N_MATRIX));
            if (rows.w)
                fn(user, &rows);
        }
    }
}

/* ---- types ----------------------------------------------------------------------------------------------------- */

/* Matrices by type and length of rows. */
enum { MAX_CLASS = 64 };
struct matrix_classes {
    struct tune_type of[MAX_CLASS]; /* [n]; more are left out */
    int n;
};

static size_t rows_bytes(const struct cpu_rows *r)
{
    size_t row_bytes = 0;
    quant_row_bytes(r->type, (uint64_t)r->k, &row_bytes);
    return row_bytes * (size_t)(r->row1 - r->row0);
}

static void count_matrix(void *user, const struct cpu_rows *r)
{
    struct matrix_classes *c = user;
    int i = 0;
    while (i < c->n && (c->of[i].type != r->type || c->of[i].k != r->k))
        i++;
    if (i == MAX_CLASS)
        return;
    if (i == c->n)
        c->of[c->n++] = (struct tune_type){.type = r->type, .k = r->k};
    c->of[i].n_bytes += rows_bytes(r);
}

static int compare_bytes(const void *a, const void *b)
{
    size_t x = ((const struct tune_type *)a)->n_bytes, y = ((const struct tune_type *)b)->n_bytes;
    return (x < y) - (x > y);
}

int tune_types(const moebius_engine *g, size_t min_bytes, struct tune_type types[TUNE_MAX_TYPE])
{
    struct matrix_classes c = {0};
    bool seen[QUANT_MAX_ID] = {false};
    int n = 0;
    each_matrix(g, count_matrix, &c);
    qsort(c.of, (size_t)c.n, sizeof *c.of, compare_bytes);
    for (int i = 0; i < c.n && n < TUNE_MAX_TYPE && c.of[i].n_bytes >= min_bytes; i++) {
        if (!seen[c.of[i].type->type])
            types[n++] = c.of[i];
        seen[c.of[i].type->type] = true;
    }
    return n;
}

/* ---- times ----------------------------------------------------------------------------------------------------- */

/* The pieces of a type. `rows` is NULL while they are being counted. */
struct pieces {
    const struct tune_type *type;
    struct cpu_rows *rows; /* [n] */
    size_t n;
};

static void add_pieces(void *user, const struct cpu_rows *r)
{
    struct pieces *p = user;
    if (r->type != p->type->type || r->k != p->type->k)
        return;
    int64_t step = (PIECE_WEIGHTS / r->k / LAYOUT_R16_ROWS + 1) * LAYOUT_R16_ROWS;
    for (int64_t row = r->row0; row < r->row1; row += step) {
        if (p->rows) {
            p->rows[p->n] = *r;
            p->rows[p->n].row0 = row;
            p->rows[p->n].row1 = row + step < r->row1 ? row + step : r->row1;
        }
        p->n++;
    }
}

/* A race of prefetches, or of two ways to multiply. */
struct product_race {
    moebius_engine *g;
    struct pieces pieces;
    size_t next, n_each; /* the first piece of the next trial; pieces of a trial */
    int64_t n_tok;
    struct kernel_how choices[RACE_MAX_CHOICE];
};

/* Each trial takes the pieces behind those of the one before, so that none is in a cache. */
static int64_t time_choice(void *user, int choice)
{
    struct product_race *r = user;
    if (r->next + r->n_each > r->pieces.n)
        r->next = 0;
    const struct cpu_rows *first = r->pieces.rows + r->next;
    r->next += r->n_each;
    return backend_cpu_trial(r->g->device, first, r->n_each, r->n_tok, r->choices[choice]);
}

/* The first choice is what is in force; the others differ in prefetch. */
static int fill_choices(struct kernel_how choices[RACE_MAX_CHOICE], struct kernel_how now, enum tune_effort effort)
{
    static const int32_t quick[] = {256, 512, 1024, 2048, 4096, 8192};
    static const int32_t thorough[] = {128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384};
    const int32_t *ahead = effort == TUNE_QUICK ? quick : thorough;
    size_t n_ahead = effort == TUNE_QUICK ? sizeof quick / sizeof *quick : sizeof thorough / sizeof *thorough;
    int n = 0;
    for (int i = 0; i < RACE_MAX_CHOICE; i++)
        choices[i] = now;
    n++;
    choices[n++].prefetch = (struct kernel_prefetch){0, KERNEL_CACHE_L1};
    for (size_t i = 0; i < n_ahead; i++)
        for (int to = KERNEL_CACHE_L1; to <= KERNEL_CACHE_BOTH; to++) {
            bool makes_sense = to == KERNEL_CACHE_NTA    ? effort == TUNE_THOROUGH
                               : to == KERNEL_CACHE_BOTH ? ahead[i] > KERNEL_NEAR_BYTES
                                                         : true;
            if (makes_sense)
                choices[n++].prefetch = (struct kernel_prefetch){ahead[i], (enum kernel_cache)to};
        }
    return n;
}

static bool race_products(struct product_race *r, enum tune_effort effort, int64_t budget_ns, struct tune_product *out)
{
    struct race race = {.budget_ns = budget_ns, .time_ns = time_choice, .user = r};
    const struct kernel_how now = {.prefetch = out->before,
                                   .panels_from = engine_tuning(r->g)->cpu.panels_from[out->type->type]};
    race.n_choice = fill_choices(r->choices, now, effort);
    int best = race_run(&race);
    if (best < 0)
        return false;
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_each; i++)
        bytes += rows_bytes(&r->pieces.rows[i]);
    out->chosen = r->choices[best].prefetch;
    out->gain = race.score[0] / race.score[best];
    out->bytes_per_s = (double)bytes * 1e9 / (double)race.best_ns[best];
    return true;
}

/* The pieces are r->pieces.rows, owned by the caller (mem_free); the first two choices prefetch as for several tokens.
 */
static bool race_open(struct product_race *r, moebius_engine *g, const struct tune_type *t, int64_t n_tok)
{
    *r = (struct product_race){.g = g, .pieces = {.type = t}, .n_tok = n_tok};
    r->choices[0].prefetch = r->choices[1].prefetch = engine_tuning(g)->cpu.several;
    each_matrix(g, add_pieces, &r->pieces);
    r->pieces.rows = mem_alloc(r->pieces.n * sizeof *r->pieces.rows);
    if (!r->pieces.rows)
        return false;
    r->pieces.n = 0;
    each_matrix(g, add_pieces, &r->pieces);
    r->n_each = (size_t)pool_n_threads(g->pool) * PIECES_A_THREAD;
    r->n_each = r->n_each < r->pieces.n ? r->n_each : r->pieces.n;
    return true;
}

/* The better of two ways with n_tok tokens: 0 or 1; -1: memory is short. */
static int race_two(struct product_race *r, int64_t n_tok, int64_t budget_ns)
{
    struct race race = {.n_choice = 2, .budget_ns = budget_ns, .time_ns = time_choice, .user = r};
    r->n_tok = n_tok;
    return race_run(&race);
}

/* With how many of n_tok's numbers, from the first on, the second choice is faster; -1: memory is short. */
static int race_series(struct product_race *r, const int32_t *n_tok, int n, int64_t budget_ns)
{
    int n_won = 0, best = 1;
    for (; n_won < n && best == 1; n_won += best == 1)
        best = race_two(r, n_tok[n_won], budget_ns / n);
    return best < 0 ? -1 : n_won;
}

bool tune_several(moebius_engine *g, const struct tune_type *t, struct kernel_prefetch one, int64_t budget_ns,
                  int32_t *from)
{
    static const int32_t n_tok[] = {2, 3, 4};
    struct product_race r;
    if (!race_open(&r, g, t, 0))
        return false;
    r.choices[1].prefetch = one;
    int n_won = race_series(&r, n_tok, sizeof n_tok / sizeof *n_tok, budget_ns);
    if (n_won >= 0)
        *from = n_tok[0] + n_won;
    mem_free(r.pieces.rows);
    return n_won >= 0;
}

/* race_series of numbers that fall: *from is the last with which the second choice is faster, or 0. Closes the race.
 * False when memory is short. */
static bool race_down(struct product_race *r, const int32_t *n_tok, int n, int64_t budget_ns, int32_t *from)
{
    int n_won = race_series(r, n_tok, n, budget_ns);
    *from = n_won > 0 ? n_tok[n_won - 1] : 0;
    mem_free(r->pieces.rows);
    return n_won >= 0;
}

bool tune_tiles(moebius_engine *g, const struct tune_type *t, int64_t budget_ns, int32_t *from)
{
    static const int32_t n_tok[] = {64, 32, 16, 8};
    struct product_race r;
    *from = 0;
    if (!g->kernels->peak_tiles)
        return true;
    if (!race_open(&r, g, t, 0))
        return false;
    r.choices[0].panels_from = engine_tuning(g)->cpu.panels_from[t->type->type];
    r.choices[1].tiles_from = 1;
    return race_down(&r, n_tok, sizeof n_tok / sizeof *n_tok, budget_ns, from);
}

/* The last two are the fewest that are more than a tile, of eight and of four. */
bool tune_panels(moebius_engine *g, const struct tune_type *t, int64_t budget_ns, int32_t *from)
{
    static const int32_t n_tok[] = {32, 16, 9, 5};
    struct product_race r;
    *from = 0;
    if (!race_open(&r, g, t, 0))
        return false;
    r.choices[1].panels_from = 1;
    return race_down(&r, n_tok, sizeof n_tok / sizeof *n_tok, budget_ns, from);
}

bool tune_product(moebius_engine *g, const struct tune_type *t, int64_t n_tok, enum tune_effort effort,
                  int64_t budget_ns, struct tune_product *out)
{
    struct product_race r;
    const struct cpu_tuning *now = &engine_tuning(g)->cpu;
    if (!race_open(&r, g, t, n_tok))
        return false;
    *out = (struct tune_product){
        .type = t->type, .n_tok = n_tok, .before = n_tok == 1 ? now->one[t->type->type] : now->several};
    bool ok = race_products(&r, effort, budget_ns, out);
    mem_free(r.pieces.rows);
    return ok;
}
