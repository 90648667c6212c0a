/* Measuring what the machine can do. */
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "kernels/kernels.h"

enum { READ_BYTES = 512 << 20, READ_CHUNK_BYTES = 4 << 20, N_TASK_A_THREAD = 16, N_ROUND = 100000, N_REPEAT = 5 };

struct roof_loop {
    const struct kernels *kernels;
    char *memory;
};

/* Pages that were never written are all the same one; and each lies near the thread that will read it. */
static void write_task(void *arg, size_t task, int thread)
{
    const struct roof_loop *l = arg;
    memset(l->memory + task * READ_CHUNK_BYTES, 1, READ_CHUNK_BYTES);
}

static void read_task(void *arg, size_t task, int thread)
{
    const struct roof_loop *l = arg;
    l->kernels->peak_read(l->memory + task * READ_CHUNK_BYTES, READ_CHUNK_BYTES);
}

static void int8_task(void *arg, size_t task, int thread)
{
    ((const struct roof_loop *)arg)->kernels->peak_int8(N_ROUND);
}

static void float_task(void *arg, size_t task, int thread)
{
    ((const struct roof_loop *)arg)->kernels->peak_float(N_ROUND);
}

/* The best rate of a few runs, in units of which the loop does n_unit. */
static double best_rate(struct pool *pool, size_t n_task, pool_fn *fn, struct roof_loop *l, double n_unit)
{
    double best = 0;
    for (int i = 0; i < N_REPEAT; i++) {
        int64_t start = clock_ns();
        pool_run(pool, n_task, fn, l);
        double rate = n_unit * 1e9 / (double)(clock_ns() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

moebius_status moebius_engine_measure_roof(moebius_engine *engine, moebius_roof *roof, moebius_error *error)
{
    struct err e = {0};
    char *memory = mem_map(READ_BYTES, MEM_SCRATCH);
    if (!memory)
        return engine_status(err_nomem(&e, READ_BYTES, "measuring the memory"), &e, error);
    struct roof_loop l = {engine->kernels, memory};
    struct pool *p = engine->pool;
    size_t n_task = N_TASK_A_THREAD * (size_t)pool_n_threads(p);
    double n_int8 = (double)l.kernels->peak_int8(1) * N_ROUND * (double)n_task;
    double n_float = (double)l.kernels->peak_float(1) * N_ROUND * (double)n_task;
    topology_bind_caller(engine->topology);
    pool_run(p, READ_BYTES / READ_CHUNK_BYTES, write_task, &l);
    roof->read_bytes_per_s = best_rate(p, READ_BYTES / READ_CHUNK_BYTES, read_task, &l, READ_BYTES);
    roof->int8_per_s = best_rate(p, n_task, int8_task, &l, n_int8);
    roof->float_per_s = best_rate(p, n_task, float_task, &l, n_float);
    topology_release_caller(engine->topology);
    mem_unmap(memory, READ_BYTES, MEM_SCRATCH);
    return engine_status(ERR_OK, &e, error);
}
