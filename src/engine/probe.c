#define _DEFAULT_SOURCE /* madvise */
/* Measuring a machine once, for plans: memory, processors, drives, GPUs. What can't be measured stays unknown. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/free_memory.h"
#include "base/random.h"
#include "base/topology.h"
#include "engine/gpu_speed.h"
#include "engine/peaks.h"
#include "engine/planning.h"
#include "engine/probe_attention.h"
#include "engine/probe_products.h"
#include "engine/sized.h"
#include "engine/status.h"
#include "kernels/kernels.h"
#include "store/store.h"
#include "vulkan/vulkan.h"

enum {
    CHUNK_BYTES = PEAK_CHUNK_BYTES,
    MOST_CHUNKS = 256, /* 1 GiB: much more than caches hold */
    FREE_SHARE = 8,    /* or one part in so many of what is free */
    N_BEST = 4,        /* rounds of which the best counts */
    MOST_DEPTH = 32,
    GPU_BYTES = 64 << 20,
    N_DISPATCH = 50,
};
/* For each size and depth, the warm-up first. */
static const int64_t warm_up_ns = 100 * 1000 * 1000, drive_ns = 400 * 1000 * 1000;

struct moebius_machine {
    struct machine m;
    char *json;
};

struct probe {
    struct machine *m;
    const moebius_probe_options *o;
    const struct kernels *kernels;
    char *memory;
    size_t n_chunk;
    double done; /* of the whole, 0 to 1 */
};

static err_code tell(struct probe *p, const char *what, double part, struct err *e)
{
    bool goes_on = !p->o->progress || p->o->progress(p->o->user, what, p->done);
    p->done += part;
    return goes_on ? ERR_OK : err_set(e, ERR_CANCELLED, "measuring the machine was interrupted");
}

/* ---- memory and processors --------------------------------------------------------------------------------------- */

static err_code map_memory(struct probe *p, struct err *e)
{
    size_t free_bytes = free_memory_bytes(""), most = (size_t)MOST_CHUNKS * CHUNK_BYTES;
    if (free_bytes != SIZE_MAX && free_bytes / FREE_SHARE < most)
        most = free_bytes / FREE_SHARE;
    p->n_chunk = most / CHUNK_BYTES ? most / CHUNK_BYTES : 1;
    p->memory = mem_map(p->n_chunk * CHUNK_BYTES, MEM_SCRATCH);
    return p->memory ? ERR_OK : err_nomem(e, p->n_chunk * CHUNK_BYTES, "measuring the memory");
}

static void unmap_memory(struct probe *p)
{
    mem_unmap(p->memory, p->n_chunk * CHUNK_BYTES, MEM_SCRATCH);
    p->memory = NULL;
}

/* With fresh memory, whose pages lie near the threads that touch them first. */
static err_code measure_threads(struct probe *p, int n_threads, bool small_pages, double *bytes_per_s, struct err *e)
{
    struct pool *pool = NULL;
    err_code code;
    TRY_OUT(pool_create(&pool, n_threads, e));
    TRY_OUT(map_memory(p, e));
    if (small_pages)
        madvise(p->memory, p->n_chunk * CHUNK_BYTES, MADV_NOHUGEPAGE);
    peaks_write(pool, p->memory, p->n_chunk);
    *bytes_per_s = peaks_read(pool, p->kernels, p->memory, p->n_chunk, N_BEST);
out:
    unmap_memory(p);
    pool_close(&pool);
    return code;
}

static err_code measure_memory(struct probe *p, struct err *e)
{
    struct machine *m = p->m;
    for (int n = 1; m->n_memory < MACHINE_MAX_READ; n = n * 2 < m->n_thread ? n * 2 : m->n_thread) {
        struct machine_memory *to = &m->memory[m->n_memory];
        TRY(tell(p, "memory", 0.04, e));
        to->n_threads = n;
        TRY(measure_threads(p, n, false, &to->bytes_per_s, e));
        m->n_memory++;
        if (n == m->n_thread)
            break;
    }
    TRY(tell(p, "memory in small pages", 0.05, e));
    return measure_threads(p, m->n_thread, true, &m->small_page_per_s, e);
}

static err_code measure_peaks_of(struct probe *p, int n_threads, double *int8_per_s, double *float_per_s, struct err *e)
{
    struct pool *pool;
    TRY(pool_create(&pool, n_threads, e));
    *int8_per_s = peaks_int8(pool, p->kernels, n_threads, N_BEST);
    *float_per_s = peaks_float(pool, p->kernels, n_threads, N_BEST);
    if (n_threads == p->m->n_thread)
        p->m->amx_per_s = peaks_tiles(pool, p->kernels, n_threads, N_BEST);
    pool_close(&pool);
    return ERR_OK;
}

/* One thread has more than its part of what all reach where threads share cores or clocks. */
static err_code measure_peaks(struct probe *p, struct err *e)
{
    struct machine *m = p->m;
    TRY(tell(p, "processors", 0.05, e));
    TRY(measure_peaks_of(p, 1, &m->thread_int8_per_s, &m->thread_float_per_s, e));
    TRY(measure_peaks_of(p, m->n_thread, &m->int8_per_s, &m->float_per_s, e));
    TRY(tell(p, "products by type", 0.05, e));
    TRY(probe_products(p->kernels, m, e));
    return probe_attention(p->kernels, m, e);
}

/* ---- drives ------------------------------------------------------------------------------------------------------ */

/* Reads in flight from random places of a file. */
struct drive_trial {
    struct store *store;
    struct store_queue *queue;
    struct store_read reads[MOST_DEPTH];
    uint64_t file_bytes;
    size_t n_bytes;
    struct random random;
};

static void begin_read(struct drive_trial *t, struct store_read *r)
{
    uint64_t n_place = (t->file_bytes - t->n_bytes) / STORE_ALIGN + 1;
    r->offset = (uint64_t)(random_unit(&t->random) * (double)n_place) * STORE_ALIGN;
    store_queue_submit(t->queue, &r, 1);
}

/* Arrivals, for the line through them that is nearest by least squares: bytes over seconds. Bursts at the ends of the
 * time say less in it than the bytes between two moments do. */
struct arrivals {
    double n, s, bytes, s_square, s_bytes; /* how many, and sums */
};

static void add_arrivals(struct arrivals *a, double s, double n_bytes)
{
    a->n++;
    a->s += s;
    a->bytes += n_bytes;
    a->s_square += s * s;
    a->s_bytes += s * n_bytes;
}

static double slope(const struct arrivals *a)
{
    double spread = a->n * a->s_square - a->s * a->s;
    return spread > 0 ? (a->n * a->s_bytes - a->s * a->bytes) / spread : 0;
}

/* Looks at what arrives in the time after the warm-up, in which a drive, or what throttles it, may be faster than it
 * stays; for longer where that is too little. Then the rest is waited for. */
static err_code run_trial(struct drive_trial *t, int depth, double *bytes_per_s, struct err *e)
{
    struct store_read *done[MOST_DEPTH];
    enum { LEAST_ARRIVALS = 3 };
    struct arrivals all = {0};
    int64_t start = clock_ns(), took = 0;
    double n_bytes = 0;
    int n_busy = depth;
    bool is_over = false;
    err_code code = ERR_OK;
    for (int i = 0; i < depth; i++)
        begin_read(t, &t->reads[i]);
    while (n_busy) {
        size_t n = store_queue_collect(t->queue, done, MOST_DEPTH, true);
        took = clock_ns() - start;
        n_bytes += (double)(n * t->n_bytes);
        if (took >= warm_up_ns && !is_over)
            add_arrivals(&all, (double)took * 1e-9, n_bytes);
        is_over = took >= warm_up_ns + drive_ns && all.n >= LEAST_ARRIVALS;
        n_busy -= (int)n;
        for (size_t i = 0; i < n; i++) {
            if (done[i]->failure && code == ERR_OK)
                code = store_read_error(t->store, done[i], e);
            if (code != ERR_OK || is_over)
                continue;
            begin_read(t, done[i]);
            n_busy++;
        }
    }
    *bytes_per_s = slope(&all);
    return code;
}

static err_code measure_depth(struct drive_trial *t, struct machine_drive *d, int depth, struct err *e)
{
    const struct store_queue_params p = {.depth = depth};
    struct machine_read *r = &d->reads[d->n_read];
    err_code code;
    t->random = random_seed(1);
    for (int i = 0; i < depth; i++)
        t->reads[i] = (struct store_read){.n_bytes = t->n_bytes, .buf = t->reads[i].buf};
    TRY(store_queue_open(&t->queue, t->store, &p, e));
    *r = (struct machine_read){.n_bytes = (int64_t)t->n_bytes, .depth = depth};
    code = run_trial(t, depth, &r->bytes_per_s, e);
    store_queue_close(&t->queue);
    d->n_read += code == ERR_OK;
    return code;
}

static err_code measure_sizes(struct probe *p, struct drive_trial *t, struct machine_drive *d, struct err *e)
{
    static const size_t sizes[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
    static const int depths[] = {1, 4, 16, MOST_DEPTH};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof depths / sizeof *depths; j++) {
            t->n_bytes = sizes[i];
            TRY(tell(p, d->name, 0.5 / (16 * p->o->n_files), e));
            if (sizes[i] <= t->file_bytes)
                TRY(measure_depth(t, d, depths[j], e));
        }
    return ERR_OK;
}

static err_code size_file(const char *path, uint64_t *n_bytes, struct err *e)
{
    enum { LEAST_BYTES = 1 << 20 };
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < LEAST_BYTES)
        return err_set(e, ERR_USAGE, "%s: expected a file of 1 MiB or more, to read a drive by", path);
    *n_bytes = (uint64_t)st.st_size;
    return ERR_OK;
}

static err_code measure_drive(struct probe *p, const char *path, struct err *e)
{
    enum { ROOM = 4 << 20 };
    struct drive_trial t = {0};
    struct machine_drive *d = &p->m->drives[p->m->n_drive];
    char *memory = NULL, *end;
    err_code code;
    TRY(size_file(path, &t.file_bytes, e));
    TRY_OUT(store_open_file(&t.store, path, e));
    memory = mem_map((size_t)MOST_DEPTH * ROOM, MEM_SCRATCH);
    if (!memory) {
        code = err_nomem(e, (size_t)MOST_DEPTH * ROOM, path);
        goto out;
    }
    for (int i = 0; i < MOST_DEPTH; i++)
        t.reads[i].buf = memory + (size_t)i * ROOM;
    snprintf(d->name, sizeof d->name, "%s", path);
    end = strrchr(d->name, '/');
    if (end)
        end[end == d->name] = '\0';
    else
        snprintf(d->name, sizeof d->name, ".");
    p->m->n_drive++;
    code = measure_sizes(p, &t, d, e);
out:
    mem_unmap(memory, (size_t)MOST_DEPTH * ROOM, MEM_SCRATCH);
    store_close(&t.store);
    return code;
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

static double seconds_since(int64_t start)
{
    return (double)(clock_ns() - start) * 1e-9;
}

/* The times of copies and of an empty dispatch, of which the best of some counts. */
static err_code time_gpu(struct backend *b, struct machine_gpu *g, struct err *e)
{
    struct tensor t[2] = {0}, one = {0};
    char *host = mem_calloc(1, GPU_BYTES);
    err_code code = host ? ERR_OK : err_nomem(e, GPU_BYTES, "measuring a GPU");
    for (int i = 0; code == ERR_OK && i < 2; i++)
        code = backend_tensor_create(b, ELEM_F32, 1024, GPU_BYTES / 4096, 1, MEM_SCRATCH, &t[i], e);
    if (code == ERR_OK)
        code = backend_tensor_create(b, ELEM_F32, 64, 1, 1, MEM_SCRATCH, &one, e);
    for (int i = 0; code == ERR_OK && i < N_BEST; i++) {
        int64_t start = clock_ns();
        backend_write(b, &t[0], host);
        TRY_OUT(backend_wait(b, backend_fence(b), e));
        double to = GPU_BYTES / seconds_since(start);
        start = clock_ns();
        TRY_OUT(backend_read(b, &t[1], host, e));
        double from = GPU_BYTES / seconds_since(start);
        g->to_pageable_per_s = to > g->to_pageable_per_s ? to : g->to_pageable_per_s;
        g->from_pageable_per_s = from > g->from_pageable_per_s ? from : g->from_pageable_per_s;
    }
    if (code == ERR_OK)
        code = gpu_time_copies(b, t, &g->bytes_per_s, e);
    if (code == ERR_OK)
        code = vulkan_time_transfers(b, &t[0], &g->to_bytes_per_s, &g->from_bytes_per_s, e);
    for (int i = 0; code == ERR_OK && i < N_DISPATCH; i++) {
        int64_t start = clock_ns();
        backend_enqueue(b, &(struct op){.kind = OP_ADD, .in = {one, one}, .out = {one}});
        TRY_OUT(backend_wait(b, backend_fence(b), e));
        double s = seconds_since(start);
        g->dispatch_s = g->dispatch_s > 0 && g->dispatch_s < s ? g->dispatch_s : s;
    }
out:
    backend_buffer_close(b, &t[0].buffer);
    backend_buffer_close(b, &t[1].buffer);
    backend_buffer_close(b, &one.buffer);
    mem_free(host);
    return code;
}

/* The speeds of a GPU that fails while it is measured stay unknown. */
static err_code measure_gpu(struct probe *p, int number, const moebius_gpu *from, struct err *e)
{
    struct machine_gpu *g = &p->m->gpus[p->m->n_gpu++], timed;
    struct pool *pool;
    struct backend *b = NULL;
    struct err why;
    snprintf(g->name, sizeof g->name, "%.*s", (int)sizeof g->name - 1, from->name);
    g->memory_bytes = from->memory_bytes;
    g->free_bytes = from->shares_memory ? 0 : from->budget_bytes;
    TRY(tell(p, "GPUs", 0.02, e));
    TRY(pool_create(&pool, 1, e));
    timed = *g;
    if (from->is_usable && vulkan_open(&b, number, pool, &why) == ERR_OK && time_gpu(b, &timed, &why) == ERR_OK)
        *g = timed;
    backend_close(&b);
    pool_close(&pool);
    return ERR_OK;
}

static err_code measure_gpus(struct probe *p, struct err *e)
{
    moebius_gpu all[MACHINE_MAX_GPU];
    int n = p->o->gpus ? moebius_list_gpus(all, MACHINE_MAX_GPU, NULL) : 0;
    for (int i = 0; i < n && i < MACHINE_MAX_GPU; i++)
        TRY(measure_gpu(p, i, &all[i], e));
    return ERR_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void look_at_topology(struct machine *m)
{
    struct topology_counts c;
    topology_count(&c);
    m->n_socket = c.n_socket;
    m->n_core = c.n_core;
    m->l2_bytes = c.l2_bytes;
    m->l3_bytes = c.l3_bytes;
}

static err_code measure(struct probe *p, struct err *e)
{
    enum cpu_level level;
    struct topology *t;
    uint64_t file_bytes;
    const moebius_probe_options *o = p->o;
    if (o->n_threads < 0 || o->n_threads > 4096 || o->n_files < 0 || o->n_files > MACHINE_MAX_DRIVE)
        return err_set(e, ERR_USAGE, "%d threads, %d files: expected 0 or more, and at most %d files", o->n_threads,
                       o->n_files, MACHINE_MAX_DRIVE);
    for (int i = 0; i < o->n_files; i++)
        TRY(size_file(o->files[i], &file_bytes, e)); /* before anything is measured */
    planning_machine_look(p->m);
    if (o->n_threads)
        p->m->n_thread = o->n_threads;
    t = topology_open(p->m->n_thread, NULL);
    p->m->n_node = topology_n_node(t);
    topology_close(&t);
    look_at_topology(p->m);
    TRY(cpu_level_detect(&level, e));
    p->kernels = kernels_for(level);
    TRY(measure_peaks(p, e));
    TRY(measure_memory(p, e));
    for (int i = 0; i < o->n_files; i++)
        TRY(measure_drive(p, o->files[i], e));
    return measure_gpus(p, e);
}

moebius_status moebius_machine_probe_sized(moebius_machine **out, const moebius_probe_options *options,
                                           size_t options_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_probe_options o = {0};
    moebius_machine *x = *out = mem_calloc(1, sizeof *x);
    if (!x)
        return engine_status(err_nomem(&e, sizeof *x, "a machine"), &e, error);
    struct probe p = {.m = &x->m, .o = &o};
    err_code code = sized_take(&o, sizeof o, options, options_bytes, "probe options", &e);
    if (code == ERR_OK)
        code = measure(&p, &e);
    if (code == ERR_OK)
        code = machine_write(&x->m, &x->json, &e);
    if (code != ERR_OK)
        moebius_machine_close(out);
    return engine_status(code, &e, error);
}

void moebius_machine_close(moebius_machine **machine)
{
    if (!*machine)
        return;
    mem_free((*machine)->json);
    mem_free(*machine);
    *machine = NULL;
}

const char *moebius_machine_json(const moebius_machine *machine)
{
    return machine->json;
}

moebius_status moebius_machine_save(const moebius_machine *machine, const char *path, moebius_error *error)
{
    struct err e = {0};
    return engine_status(planning_machine_save(&machine->m, path, &e), &e, error);
}
