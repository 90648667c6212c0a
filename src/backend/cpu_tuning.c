#include "backend/cpu_tuning.h"

#include <stdatomic.h>
#include <string.h>

#include "backend/cpu_act_internal.h"
#include "backend/cpu_slots_internal.h"
#include "base/clock.h"

struct cpu_tuning cpu_tuning_default(void)
{
    struct cpu_tuning t = {.several = {8192, KERNEL_CACHE_BOTH}, .task_weights = 1 << 19, .n_spin = POOL_N_SPIN};
    for (int i = 0; i < QUANT_MAX_ID; i++) {
        t.one[i] = (struct kernel_prefetch){1024, KERNEL_CACHE_L2};
        t.several_from[i] = 2;
        t.tiles_from[i] = 32;
        t.panels_from[i] = 1;
    }
    return t;
}

void backend_cpu_tune(struct backend *device, const struct cpu_tuning *t)
{
    struct cpu *c = cpu_of(device);
    c->tuning = *t;
    pool_set_spin(c->pool, t->n_spin);
}

struct cpu_rows backend_cpu_weight_rows(struct backend *device, const struct weight *w)
{
    return (struct cpu_rows){w->type, w->data, w->k, w->n_row, 0, cpu_node_row(cpu_of(device), 1, w->n_row)};
}

struct cpu_rows backend_cpu_slot_rows(struct backend *device, const struct slot_pool *pool, int64_t slot, int matrix)
{
    enum expert_matrix which = (enum expert_matrix)matrix;
    int64_t n_row = cpu_node_row(cpu_of(device), 1, slot_matrix_rows(&pool->d, which));
    const void *w = pool->slots[slot][which].is_raw ? NULL : slot_matrix_data(pool, 0, slot, which);
    return (struct cpu_rows){pool->d.type[which], w, slot_matrix_k(&pool->d, which), n_row, 0, n_row};
}

int64_t backend_cpu_n_slot(const struct slot_pool *pool)
{
    return pool->d.n_slot;
}

/* A trial in progress. */
struct trial {
    const struct kernels *kernels;
    const struct cpu_rows *pieces;
    struct kernel_act x;
    int64_t m;
    struct kernel_how how;
    float *y; /* for each thread [m][n_row] */
    int64_t n_row;
    atomic_int_least64_t took_ns; /* processor time of all threads */
};

static void trial_piece(void *arg, size_t i, int thread)
{
    struct trial *t = arg;
    int64_t start_ns = clock_thread_ns();
    const struct cpu_rows *p = &t->pieces[i];
    const struct kernel_matmul a = {.w = p->w,
                                    .k = p->k,
                                    .n_row = p->n_row,
                                    .row0 = p->row0,
                                    .row1 = p->row1,
                                    .x = &t->x,
                                    .m = t->m,
                                    .y = t->y + thread * t->m * t->n_row - p->row0,
                                    .ldy = t->n_row,
                                    .how = t->how};
    t->kernels->matmul[p->type->type](&a);
    atomic_fetch_add(&t->took_ns, clock_thread_ns() - start_ns);
}

static int64_t most_rows(const struct cpu_rows *pieces, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = pieces[i].row1 - pieces[i].row0 > most ? pieces[i].row1 - pieces[i].row0 : most;
    return most;
}

/* Makes rounded rows of ones: products take the same time for all numbers. */
static bool trial_input(struct cpu *c, struct trial *t, int64_t k)
{
    enum quant_act kind = kernels_act(c->kernels, t->pieces->type);
    float *x = cpu_scratch(c, SCRATCH_GATHER, (size_t)(t->m * k) * sizeof *x);
    for (int64_t i = 0; x && i < t->m * k; i++)
        x[i] = 1;
    return x && cpu_act_round(c, SCRATCH_ACT + kind, kind, x, t->m, k, &t->x);
}

int64_t backend_cpu_trial(struct backend *device, const struct cpu_rows *pieces, size_t n, int64_t m,
                          struct kernel_how how)
{
    struct cpu *c = cpu_of(device);
    struct trial t = {.kernels = c->kernels, .pieces = pieces, .m = m, .how = how, .n_row = most_rows(pieces, n)};
    int n_used = pool_n_used(c->pool);
    t.y = cpu_scratch(c, SCRATCH_THREAD, (size_t)(t.m * t.n_row * n_used) * sizeof *t.y);
    if (!t.y || !trial_input(c, &t, pieces->k))
        return 0;
    int n_first = (int)pool_node_first(c->pool, 1, (size_t)n_used);
    pool_use(c->pool, n_first > 0 ? n_first : 1);
    pool_run(c->pool, n, trial_piece, &t);
    int64_t took_ns = atomic_load(&t.took_ns) / pool_n_used(c->pool);
    pool_use(c->pool, n_used);
    return took_ns > 0 ? took_ns : 1;
}
