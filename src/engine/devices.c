/* The devices of this process: their threads, and what they are called. The first runs the layers, unless these are
 * divided. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/output_file.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"
#include "engine/gpu_choice.h"
#include "engine/sized.h"
#include "kernels/kernels.h"
#include "ranks/ranks.h"
#include "vulkan/vulkan.h"

/* Ranks on one machine share its processors, unless each has been bound to its own. */
static int engine_n_cpu(const moebius_engine *g)
{
    int n = cpu_n_available(), n_all = (int)sysconf(_SC_NPROCESSORS_ONLN), n_rank = 1;
    if (engine_ranks(g) && n >= n_all)
        n_rank = ranks_n_here(engine_ranks(g));
    return n > n_rank ? n / n_rank : 1;
}

/* Equal bits are promised within one level. */
static err_code choose_level(const moebius_engine *g, enum cpu_level *out, struct err *e)
{
    if (!engine_ranks(g))
        return cpu_level_detect(out, e);
    *out = ranks_level(engine_ranks(g));
    return ERR_OK;
}

void engine_take_devices(moebius_engine *g)
{
    g->n_device = g->asked.n_device;
    g->n_stage = 1;
    for (int i = 0; i < g->n_device; i++) {
        g->devices[i].asked = g->asked.devices[i];
        g->devices[i].engine = g;
    }
}

int64_t engine_n_cpu_moe(const moebius_engine *g)
{
    return max_i64(g->options.n_cpu_moe, 0);
}

/* A GPU alone gets a processor device for the experts that it is not to have. */
static err_code list_beside(moebius_engine *g, int n_threads, struct err *e)
{
    char devices[2 * DEVICE_NAME_BYTES], name[DEVICE_NAME_BYTES];
    const moebius_engine_options *o = &g->options;
    if (o->split)
        return err_set(e, ERR_USAGE, "experts of %lld layers in memory, and a split %s: expected one of the two",
                       (long long)engine_n_cpu_moe(g), o->split);
    if (engine_asks_for_gpu(g)) /* it is chosen later */
        return ERR_OK;
    if (engine_ranks(g) || (g->asked.n_device == 1 && !g->asked.devices[0].is_vulkan))
        return err_set(e, ERR_USAGE, "experts of %lld layers in memory, and no GPU that has the others: expected one",
                       (long long)engine_n_cpu_moe(g));
    if (g->asked.n_device == 1 && o->n_cpu_moe > 0) {
        snprintf(devices, sizeof devices, "%s,cpu:%d", device_options_name(&g->asked.devices[0], name), n_threads);
        TRY(device_options_parse(&g->asked, devices, n_threads, 1, NULL, e));
    }
    if (g->asked.n_device > 1)
        engine_split_last(g);
    return ERR_OK;
}

void engine_split_last(moebius_engine *g)
{
    g->asked.split = (struct split){.kind = SPLIT_LAST, .n_last = (int)min_i64(engine_n_cpu_moe(g), INT32_MAX)};
}

err_code engine_check_cpu_moe(const moebius_engine *g, struct err *e)
{
    if (g->options.n_cpu_moe <= g->facts.n_moe)
        return ERR_OK;
    return err_set(e, ERR_USAGE, "experts of %lld layers in memory: expected at most the %d that have experts",
                   (long long)g->options.n_cpu_moe, g->facts.n_moe);
}

/* A bound for GPUs where all devices are named and none is one. Others may get a GPU, or not, as there is one. */
static err_code check_vram(const moebius_engine *g, struct err *e)
{
    const moebius_engine_options *o = &g->options;
    if (!o->vram_bytes || engine_ranks(g) || engine_asks_for_gpu(g) || !(o->devices || o->gpu))
        return ERR_OK;
    for (int i = 0; i < g->asked.n_device; i++)
        if (g->asked.devices[i].is_vulkan)
            return ERR_OK;
    return err_set(e, ERR_USAGE, "GPU memory of %lld bytes, and no GPU among the devices: expected one",
                   (long long)o->vram_bytes);
}

err_code engine_list_devices(moebius_engine *g, struct err *e)
{
    const moebius_engine_options *o = &g->options;
    if (o->devices && o->n_threads)
        return err_set(e, ERR_USAGE, "%d threads, and devices %s: expected one of the two", o->n_threads, o->devices);
    int n_rank = engine_ranks(g) ? ranks_n(engine_ranks(g)) : 1,
        n_threads = o->n_threads ? o->n_threads : (int)min_i64(engine_n_cpu(g), POOL_MAX_THREADS);
    const char *split = engine_asks_for_gpu(g) ? NULL : o->split; /* as the choice of a GPU divides them */
    g->vram_bytes = o->vram_bytes > 0 ? (size_t)o->vram_bytes : SIZE_MAX;
    TRY(engine_check_gpu(g, e));
    TRY(engine_check_stages(g, e));
    TRY(device_options_parse(&g->asked, o->devices, n_threads, n_rank, split, e));
    TRY(check_vram(g, e));
    if (o->n_cpu_moe)
        TRY(list_beside(g, n_threads, e));
    engine_take_devices(g);
    if ((o->replica_bytes || o->replica_share > 0) && g->asked.n_place == 1 && !engine_asks_for_gpu(g))
        return err_set(e, ERR_USAGE, "replicas of experts, and one device: expected several");
    return ERR_OK;
}

/* Threads of the device that runs the layers, bound to memory nodes where there are several. Threads of several devices
 * go where the system puts them. */
static err_code bind_pool(moebius_engine *g, struct pool *pool, struct err *e)
{
    int n_cpu = engine_n_cpu(g), n_threads = pool_n_threads(pool);
    if (g->options.numa != MOEBIUS_NUMA_OFF && g->n_device == 1)
        g->topology = topology_open(n_threads, &g->log);
    pool_place(pool, g->topology);
    thread_tuner_init(&g->thread_tuner, n_threads,
                      g->topology ? n_threads : n_cpu); /* the first threads are the first node's */
    if (g->topology && g->options.hugetlb)
        return err_set(e, ERR_USAGE,
                       "huge pages that were set aside can't be dealt out to %d memory nodes yet: expected "
                       "transparent ones, or threads that are not bound to nodes",
                       topology_n_node(g->topology));
    if (g->topology)
        log_line(&g->log, LOG_INFO, "%d threads on %d memory nodes", n_threads, topology_n_node(g->topology));
    return ERR_OK;
}

/* The file of what a device's driver has compiled, in the cache directory; owned by the caller (mem_free). NULL: there
 * is none. */
static char *pipelines_path(struct backend *vulkan)
{
    char name[VULKAN_CACHE_NAME_BYTES], *path;
    struct err e;
    vulkan_cache_name(vulkan, name);
    return cache_file_path(name, &path, &e) == ERR_OK ? path : NULL;
}

/* What earlier runs have compiled. Without it, or where it is damaged, it is compiled again. */
static void recall_pipelines(moebius_engine *g, struct backend *vulkan)
{
    char *path = pipelines_path(vulkan), *bytes = NULL;
    size_t n = 0;
    struct err e;
    if (path && cache_file_read(path, &bytes, &n, &e) == ERR_OK && bytes && !vulkan_use_pipelines(vulkan, bytes, n))
        log_line(&g->log, LOG_WARN, "%s is damaged: shaders are compiled again", path);
    mem_free(bytes);
    mem_free(path);
}

static void keep_pipelines(const moebius_engine *g, struct backend *vulkan)
{
    char *path = pipelines_path(vulkan);
    void *bytes = NULL;
    size_t n;
    struct err e;
    struct output_file f;
    err_code code = path ? vulkan_save_pipelines(vulkan, &bytes, &n, &e) : ERR_OK;
    if (bytes) {
        code = cache_file_make_folders(path, &e);
        if (code == ERR_OK)
            code = output_file_open(&f, path, &e);
        if (code == ERR_OK) {
            fwrite(bytes, 1, n, f.stream);
            code = output_file_finish_unsynced(&f, &e);
        }
    }
    if (code != ERR_OK)
        log_line(&g->log, LOG_WARN, "compiled shaders are not kept: %s", e.text);
    mem_free(bytes);
    mem_free(path);
}

static err_code open_vulkan(moebius_engine *g, struct engine_device *d, struct err *e)
{
    if (g->options.reference)
        return err_set(e, ERR_USAGE, "the reference is a CPU device: expected it without devices vulkan:%d",
                       d->asked.number);
    TRY(vulkan_open(&d->device, d->asked.number, d->pool, e));
    d->vulkan = d->device;
    vulkan_set_limit(d->vulkan, g->vram_bytes);
    if (g->options.time_gpus && !vulkan_time_operations(d->vulkan))
        log_line(&g->log, LOG_WARN, "%s: its driver has no timestamps: operations are not timed",
                 backend_name(d->device));
    recall_pipelines(g, d->vulkan);
    log_line(&g->log, LOG_INFO, "%s", backend_name(d->device));
    return ERR_OK;
}

/* Threads of a device's pool. A CPU device that runs all layers has those of all CPU devices: it uses the others' cores
 * while they compute nothing. */
static int n_pool_threads(const moebius_engine *g, const struct engine_device *d)
{
    int n = 0;
    if (d != g->devices || d->asked.is_vulkan || g->asked.split.kind == SPLIT_STAGES)
        return d->asked.n_threads;
    for (int i = 0; i < g->n_device; i++)
        n += g->devices[i].asked.is_vulkan ? 0 : g->devices[i].asked.n_threads;
    return n;
}

static err_code open_device(moebius_engine *g, struct engine_device *d, struct err *e)
{
    char kind[DEVICE_NAME_BYTES];
    snprintf(d->name, sizeof d->name, "place %d (%s)", (int)(d - g->devices), device_options_name(&d->asked, kind));
    TRY(pool_create(&d->pool, n_pool_threads(g, d), e));
    if (d == g->devices)
        TRY(bind_pool(g, d->pool, e));
    if (d->asked.is_vulkan)
        TRY(open_vulkan(g, d, e));
    else
        TRY(backend_cpu_open(&d->device, d->pool, g->kernels, e));
    d->cpu = d->asked.is_vulkan ? NULL : d->device;
    if (!g->options.check_ops)
        return ERR_OK;
    struct backend *primary = d->device, *secondary;
    TRY(backend_cpu_open(&secondary, d->pool, kernels_reference(), e));
    return backend_check_open(&d->device, primary, secondary, e);
}

err_code engine_open_devices(moebius_engine *g, struct err *e)
{
    enum cpu_level level;
    TRY(choose_level(g, &level, e));
    g->kernels = g->options.reference ? kernels_reference() : kernels_for(level);
    for (int i = 0; i < g->n_device; i++)
        TRY(open_device(g, &g->devices[i], e));
    g->pool = g->devices[0].pool;
    g->device = g->devices[0].device;
    return ERR_OK;
}

void engine_close_devices(moebius_engine *g)
{
    for (int i = 0; i < g->n_device; i++) {
        if (g->devices[i].vulkan)
            keep_pipelines(g, g->devices[i].vulkan);
        backend_close(&g->devices[i].device);
        pool_close(&g->devices[i].pool);
    }
    topology_close(&g->topology);
}

int moebius_list_gpus_sized(moebius_gpu *gpus, int n_max, size_t gpu_bytes, moebius_error *error)
{
    struct vulkan_device *all;
    struct err e = {0};
    int n;
    engine_status(vulkan_list(&all, &n, &e), &e, error);
    for (int i = 0; i < n && i < n_max; i++) {
        moebius_gpu gpu = {.kind = all[i].kind,
                           .memory_bytes = all[i].memory_bytes,
                           .budget_bytes = all[i].budget_bytes,
                           .is_auto = i == gpu_choose(all, n),
                           .shares_memory = all[i].shares_memory,
                           .has_upload_queue = all[i].has_upload_queue,
                           .is_usable = all[i].is_usable};
        snprintf(gpu.name, sizeof gpu.name, "%s", all[i].name);
        snprintf(gpu.driver, sizeof gpu.driver, "%s", all[i].driver);
        snprintf(gpu.why_not, sizeof gpu.why_not, "%s", all[i].why_not);
        for (int j = 0; j < 3; j++)
            gpu.api_version[j] = (int)all[i].api_version[j];
        sized_give((char *)gpus + (size_t)i * gpu_bytes, gpu_bytes, &gpu, sizeof gpu);
    }
    mem_free(all);
    return n;
}

int engine_n_threads(const moebius_engine *g)
{
    int n = 0;
    for (int i = 0; i < g->n_device; i++)
        n += g->devices[i].asked.n_threads;
    return n;
}

bool engine_has_core_each(const moebius_engine *g)
{
    return engine_n_threads(g) <= engine_n_cpu(g);
}
