#include "engine/peaks.h"

#include <string.h>

#include "base/clock.h"

enum { TASKS_A_THREAD = 16, N_ROUND = 100000, N_TILE_ROUND = 10000 };

struct peak_loop {
    const struct kernels *kernels;
    char *memory;
    bool asks_ahead;                  /* in read_task: the runs take turns */
    int64_t (*peak)(int64_t n_round); /* in peak_task */
    int64_t n_round;
};

static void write_task(void *arg, size_t task, int thread)
{
    memset(((const struct peak_loop *)arg)->memory + task * PEAK_CHUNK_BYTES, 1, PEAK_CHUNK_BYTES);
}

static void read_task(void *arg, size_t task, int thread)
{
    const struct peak_loop *l = arg;
    l->kernels->peak_read(l->memory + task * PEAK_CHUNK_BYTES, PEAK_CHUNK_BYTES, l->asks_ahead);
}

static void peak_task(void *arg, size_t task, int thread)
{
    const struct peak_loop *l = arg;
    l->peak(l->n_round);
}

/* In units of which all tasks together do n_unit. */
static double best_rate(struct pool *pool, int n_run, size_t n_task, pool_fn *fn, struct peak_loop *l, double n_unit)
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

/* Multiply-adds a second of a peak loop. */
static double measure_peak(struct pool *pool, int64_t (*peak)(int64_t), int64_t n_round, int n_threads, int n_run)
{
    size_t n_task = TASKS_A_THREAD * (size_t)n_threads;
    struct peak_loop l = {.peak = peak, .n_round = n_round};
    return peak ? best_rate(pool, n_run, n_task, peak_task, &l, (double)peak(1) * (double)n_round * (double)n_task) : 0;
}

void peaks_write(struct pool *pool, char *memory, size_t n_chunk)
{
    pool_run(pool, n_chunk, write_task, &(struct peak_loop){.memory = memory});
}

double peaks_read(struct pool *pool, const struct kernels *k, char *memory, size_t n_chunk, int n_run)
{
    struct peak_loop l = {.kernels = k, .memory = memory};
    return best_rate(pool, n_run, n_chunk, read_task, &l, (double)n_chunk * PEAK_CHUNK_BYTES);
}

double peaks_int8(struct pool *pool, const struct kernels *k, int n_threads, int n_run)
{
    return measure_peak(pool, k->peak_int8, N_ROUND, n_threads, n_run);
}

double peaks_float(struct pool *pool, const struct kernels *k, int n_threads, int n_run)
{
    return measure_peak(pool, k->peak_float, N_ROUND, n_threads, n_run);
}

double peaks_tiles(struct pool *pool, const struct kernels *k, int n_threads, int n_run)
{
    return measure_peak(pool, k->peak_tiles, N_TILE_ROUND, n_threads, n_run);
}
