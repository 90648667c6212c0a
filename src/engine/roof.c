/* Measuring what the machine can do. */
#include <string.h>

#include "base/clock.h"
#include "base/topology.h"
#include "engine/engine_internal.h"
#include "engine/sized.h"
#include "kernels/kernels.h"

/* Memory to read: much more than caches hold. */
enum { CHUNK_BYTES = 4 << 20, MIN_CHUNKS = 64, CHUNKS_A_THREAD = 8, N_READ = 6 };
/* Where there is no room for that: so many times the last cache and some more, as part of it may stay there. */
enum { LEAST_CACHES = 2, LEAST_CHUNKS = 8 };
enum { N_TASK_A_THREAD = 16, N_ROUND = 100000, N_TILE_ROUND = 10000, N_REPEAT = 3 };

struct roof_loop {
    const struct kernels *kernels;
    char *memory;
    bool asks_ahead; /* in read_task: the runs take turns */
};

/* Pages that were never written are all the same one; and each lies near the thread that will read it. */
static void write_task(void *arg, size_t task, int thread)
{
    memset(((const struct roof_loop *)arg)->memory + task * CHUNK_BYTES, 1, CHUNK_BYTES);
}

static void read_task(void *arg, size_t task, int thread)
{
    const struct roof_loop *l = arg;
    l->kernels->peak_read(l->memory + task * CHUNK_BYTES, CHUNK_BYTES, l->asks_ahead);
}

static void int8_task(void *arg, size_t task, int thread)
{
    ((const struct roof_loop *)arg)->kernels->peak_int8(N_ROUND);
}

static void float_task(void *arg, size_t task, int thread)
{
    ((const struct roof_loop *)arg)->kernels->peak_float(N_ROUND);
}

static void tile_task(void *arg, size_t task, int thread)
{
    ((const struct roof_loop *)arg)->kernels->peak_tiles(N_TILE_ROUND);
}

/* The best rate of a few runs, in units of which the loop does n_unit. */
static double best_rate(struct pool *pool, int n_run, size_t n_task, pool_fn *fn, struct roof_loop *l, double n_unit)
{
    double best = 0;
    for (int i = 0; i < n_run; i++) {
        int64_t start = clock_ns();
        l->asks_ahead = i % 2;
        pool_run(pool, n_task, fn, l);
        double rate = n_unit * 1e9 / (double)(clock_ns() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static size_t n_chunks(const moebius_engine *g)
{
    size_t n = (size_t)engine_n_threads(g) * CHUNKS_A_THREAD;
    return n > MIN_CHUNKS ? n : MIN_CHUNKS;
}

/* The threads that measure: the device's, or as many as all devices have together. */
static err_code find_pool(moebius_engine *g, struct pool **pool, struct err *e)
{
    bool is_divided = g->n_device > 1 && !engine_has_stages(g); /* devices that divide layers take turns */
    if (is_divided && !g->roof_pool)
        TRY(pool_create(&g->roof_pool, engine_n_threads(g), e));
    *pool = is_divided ? g->roof_pool : g->pool;
    return ERR_OK;
}

static size_t least_roof_bytes(void)
{
    struct topology_counts c;
    topology_count(&c);
    return LEAST_CHUNKS * (size_t)CHUNK_BYTES + LEAST_CACHES * (size_t)c.l3_bytes;
}

static err_code map_memory(moebius_engine *g, struct pool *pool, struct err *e)
{
    size_t n_bytes = n_chunks(g) * CHUNK_BYTES, least;
    if (g->roof_memory)
        return ERR_OK;
    g->roof_memory = mem_map(n_bytes, MEM_SCRATCH);
    least = g->roof_memory ? 0 : least_roof_bytes();
    while (!g->roof_memory && n_bytes / 2 >= least)
        g->roof_memory = mem_map(n_bytes /= 2, MEM_SCRATCH);
    if (!g->roof_memory)
        return err_nomem(e, n_bytes, "measuring the memory");
    g->roof_bytes = n_bytes;
    pool_run(pool, g->roof_bytes / CHUNK_BYTES, write_task, &(struct roof_loop){g->kernels, g->roof_memory});
    return ERR_OK;
}

double engine_read_speed(moebius_engine *g, size_t n_bytes)
{
    size_t n_all = n_chunks(g), n = n_bytes / CHUNK_BYTES;
    n = n < 1 ? 1 : n < n_all ? n : n_all;
    struct roof_loop l = {g->kernels, mem_try_map(n * CHUNK_BYTES, MEM_SCRATCH)};
    if (!l.memory)
        return 0;
    pool_run(g->pool, n, write_task, &l);
    double rate = best_rate(g->pool, N_REPEAT, n, read_task, &l, (double)(n * CHUNK_BYTES));
    mem_unmap(l.memory, n * CHUNK_BYTES, MEM_SCRATCH);
    return rate;
}

static void unmap_memory(moebius_engine *g)
{
    if (g->roof_memory)
        mem_unmap(g->roof_memory, g->roof_bytes, MEM_SCRATCH);
    g->roof_memory = NULL;
    g->roof_bytes = 0;
}

void engine_roof_close(moebius_engine *g)
{
    unmap_memory(g);
    pool_close(&g->roof_pool);
}

static err_code measure(moebius_engine *g, moebius_roof *roof, struct err *e)
{
    struct pool *pool;
    TRY(find_pool(g, &pool, e));
    int n_threads = pool_n_threads(pool) - g->thread_tuner.n_least;
    pool_use(pool, n_threads); /* decoding may have put some to sleep */
    TRY(map_memory(g, pool, e));
    struct roof_loop l = {g->kernels, g->roof_memory};
    size_t n_chunk = g->roof_bytes / CHUNK_BYTES, n_task = N_TASK_A_THREAD * (size_t)n_threads;
    double n_int8 = (double)g->kernels->peak_int8(1) * N_ROUND * (double)n_task;
    double n_float = (double)g->kernels->peak_float(1) * N_ROUND * (double)n_task;
    roof->int8_per_s = best_rate(pool, N_REPEAT, n_task, int8_task, &l, n_int8);
    roof->read_bytes_per_s = best_rate(pool, N_READ, n_chunk, read_task, &l, (double)(n_chunk * CHUNK_BYTES));
    roof->float_per_s = best_rate(pool, N_REPEAT, n_task, float_task, &l, n_float);
    if (g->kernels->peak_tiles)
        roof->tile_per_s = best_rate(pool, N_REPEAT, n_task, tile_task, &l,
                                     (double)g->kernels->peak_tiles(1) * N_TILE_ROUND * (double)n_task);
    if (!g->is_limited || !engine_is_streaming(g))
        return ERR_OK;
    unmap_memory(g); /* slots gave it */
    return engine_open_slots(g, NULL, e);
}

moebius_status moebius_engine_measure_roof_sized(moebius_engine *engine, moebius_roof *roof, size_t roof_bytes,
                                                 moebius_error *error)
{
    struct err e = {0};
    moebius_roof measured = {0};
    topology_bind_caller(engine->topology);
    err_code code = measure(engine, &measured, &e);
    sized_give(roof, roof_bytes, &measured, sizeof measured);
    topology_release_caller(engine->topology);
    return engine_status(code, &e, error);
}
