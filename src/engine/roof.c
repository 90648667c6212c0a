/* Measuring what the machine can do. */
#include "base/topology.h"
#include "engine/engine_internal.h"
#include "engine/gpu_speed.h"
#include "engine/peaks.h"
#include "engine/sized.h"

/* Memory to read: much more than caches hold. */
enum { CHUNK_BYTES = PEAK_CHUNK_BYTES, MIN_CHUNKS = 64, CHUNKS_A_THREAD = 8, N_READ = 6 };
/* Where there is no room for that: so many times the last cache and some more, as part of it may stay there. */
enum { LEAST_CACHES = 2, LEAST_CHUNKS = 8 };
enum { N_REPEAT = 3 };

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
    peaks_write(pool, g->roof_memory, g->roof_bytes / CHUNK_BYTES);
    return ERR_OK;
}

double engine_read_speed(moebius_engine *g, size_t n_bytes)
{
    size_t n_all = n_chunks(g), n = n_bytes / CHUNK_BYTES;
    n = n < 1 ? 1 : n < n_all ? n : n_all;
    char *memory = mem_try_map(n * CHUNK_BYTES, MEM_SCRATCH);
    if (!memory)
        return 0;
    peaks_write(g->pool, memory, n);
    double rate = peaks_read(g->pool, g->kernels, memory, n, N_REPEAT);
    mem_unmap(memory, n * CHUNK_BYTES, MEM_SCRATCH);
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
    roof->int8_per_s = peaks_int8(pool, g->kernels, n_threads, N_REPEAT);
    roof->read_bytes_per_s = peaks_read(pool, g->kernels, g->roof_memory, g->roof_bytes / CHUNK_BYTES, N_READ);
    roof->float_per_s = peaks_float(pool, g->kernels, n_threads, N_REPEAT);
    roof->tile_per_s = peaks_tiles(pool, g->kernels, n_threads, N_REPEAT);
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

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

/* Copies of more than caches hold, where there is room. */
static err_code measure_gpu(struct backend *b, moebius_gpu_roof *roof, struct err *e)
{
    enum { ROW = 1024, SHARE = 16, LEAST_ROWS = 256 };
    static const size_t most = (size_t)256 << 20;
    size_t room = backend_room_bytes(b) / SHARE, n_bytes = room < most ? room : most;
    int64_t n_row = (int64_t)(n_bytes / (ROW * sizeof(float)));
    struct tensor t[2] = {0};
    err_code code = ERR_OK;
    n_row = n_row > LEAST_ROWS ? n_row : LEAST_ROWS;
    for (int i = 0; code == ERR_OK && i < 2; i++)
        code = backend_tensor_create(b, ELEM_F32, ROW, n_row, 1, MEM_SCRATCH, &t[i], e);
    if (code == ERR_OK)
        code = gpu_time_copies(b, t, &roof->bytes_per_s, e);
    if (code == ERR_OK)
        code = gpu_time_dispatches(b, &roof->dispatch_s, e);
    backend_buffer_close(b, &t[0].buffer);
    backend_buffer_close(b, &t[1].buffer);
    return code;
}

moebius_status moebius_device_measure_roof_sized(moebius_engine *engine, int i, moebius_gpu_roof *roof,
                                                 size_t roof_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_gpu_roof measured = {0};
    bool is_gpu = i >= 0 && i < engine->n_device && engine->devices[i].vulkan;
    err_code code = is_gpu ? measure_gpu(engine->devices[i].device, &measured, &e)
                           : err_set(&e, ERR_USAGE, "device %d is no GPU", i);
    sized_give(roof, roof_bytes, &measured, sizeof measured);
    return engine_status(code, &e, error);
}
