/* Plans and the machines that they are for, as the public interface has them; planner/ does the arithmetic. */
#include "engine/planning.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/free_memory.h"
#include "base/minmax.h"
#include "base/output_file.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"
#include "engine/receipts_file.h"
#include "engine/sized.h"
#include "ranks/ranks.h"
#include "vulkan/vulkan.h"

/* ---- this machine ---------------------------------------------------------------------------------------------- */

static void look_at_memory(struct machine *m)
{
    size_t free_bytes = free_memory_bytes("");
    m->ram_bytes = machine_memory_bytes();
    m->free_bytes = free_bytes == SIZE_MAX ? 0 : free_bytes;
}

/* What drivers give at present of the memory of GPUs that have their own. */
static void look_at_vram(struct machine *m)
{
    moebius_gpu all[MACHINE_MAX_GPU];
    int n = moebius_list_gpus(all, MACHINE_MAX_GPU, NULL);
    for (int i = 0; i < n && i < m->n_gpu; i++)
        if (!all[i].shares_memory && !strncmp(m->gpus[i].name, all[i].name, sizeof m->gpus[i].name - 1))
            m->gpus[i].free_bytes = all[i].budget_bytes;
}

void planning_machine_look(struct machine *m)
{
    *m = (struct machine){.n_thread = pool_default_threads()};
    cpu_name(m->name, sizeof m->name);
    look_at_memory(m);
}

/* The file of what this machine can do, in the cache directory; NULL: there is no such place. */
static err_code kept_path(char **path, struct err *e)
{
    return cache_file_path("machine.json", path, e);
}

static err_code parse_file(struct machine *m, const char *path, bool *is_there, struct err *e)
{
    char *text;
    size_t n;
    TRY(cache_file_read(path, &text, &n, e));
    *is_there = text != NULL;
    err_code code = text ? machine_parse(m, text, n, path, e) : ERR_OK;
    mem_free(text);
    return code;
}

err_code planning_machine_read(struct machine *m, const char *path, struct err *e)
{
    bool is_there = false;
    char *kept = NULL, name[MACHINE_NAME_BYTES];
    if (path) {
        TRY(parse_file(m, path, &is_there, e));
        return is_there ? ERR_OK : err_set(e, ERR_IO, "%s: there is no such file of a machine's facts", path);
    }
    TRY(kept_path(&kept, e));
    err_code code = kept ? parse_file(m, kept, &is_there, e) : ERR_OK;
    mem_free(kept);
    cpu_name(name, sizeof name);
    if (code == ERR_OK && (!is_there || strcmp(m->name, name) != 0)) /* another machine shares the folder */
        planning_machine_look(m);
    look_at_memory(m); /* other processes' memory as it is now */
    return code;
}

err_code planning_machine_save(const struct machine *m, const char *path, struct err *e)
{
    struct output_file f = {0};
    char *text = NULL, *kept = NULL;
    err_code code = ERR_OK;
    if (!path)
        TRY(kept_path(&kept, e));
    if (!path && !kept)
        return err_set(e, ERR_IO, "no cache directory: expected the environment variable HOME or XDG_CACHE_HOME");
    if (kept)
        TRY_OUT(cache_file_make_folders(kept, e));
    TRY_OUT(machine_write(m, &text, e));
    TRY_OUT(output_file_open(&f, path ? path : kept, e));
    fprintf(f.stream, "%s\n", text);
    code = output_file_finish(&f, e);
out:
    mem_free(text);
    mem_free(kept);
    return code;
}

/* ---- the public interface ---------------------------------------------------------------------------------------- */

struct moebius_plan {
    struct machine machine;
    struct plan_facts facts;
    struct receipt *receipts; /* [n_receipt] */
    size_t n_receipt;
    struct plan plan;
    char *text, *json, *line, *svg;
};

/* Lines that can't be read are passed over: `moebius receipts` says what is wrong with them. */
static err_code read_receipts(moebius_plan *p, const char *from, struct err *e)
{
    char *kept;
    if (!from)
        return ERR_OK;
    if (*from && access(from, F_OK) != 0)
        return err_set(e, ERR_IO, "%s: expected a file of receipts, there is none", from);
    if (*from) {
        TRY(receipts_load(from, &p->receipts, &p->n_receipt, NULL, e));
        return p->n_receipt
                   ? ERR_OK
                   : err_set(e, ERR_FORMAT, "%s: expected receipts, as moebius receipts export prints them", from);
    }
    TRY(receipts_path(&kept, e));
    err_code code = kept ? receipts_load(kept, &p->receipts, &p->n_receipt, NULL, e) : ERR_OK;
    mem_free(kept);
    return code;
}

static bool calibrate(void *user, const struct calibration_query *q, struct calibration *out)
{
    const moebius_plan *p = user;
    return receipts_calibrate(p->receipts, p->n_receipt, q, out);
}

/* The most tokens of all texts together: with 16 MiB of state for each of them, bytes still fit 64 bits. */
static const int64_t MOST_TOKENS = INT64_C(1) << 40;

static err_code check_options(const moebius_plan_options *o, struct err *e)
{
    if (o->n_threads < 0 || o->n_ctx < 0 || o->n_ctx > INT32_MAX || o->n_depth < 0 || o->n_texts < 0 ||
        o->n_texts > 1 << 20 || o->n_prompt < 0 || o->n_prompt > INT32_MAX || o->prompt_from < 0 ||
        o->prompt_from > INT32_MAX || o->n_batch < 0 || o->n_ctx_most < 0 || o->state_bytes < 0 ||
        !(o->car >= 0 && o->car <= 1) || o->n_batch > 1 << 20 || o->ram_bytes < 0 || o->vram_bytes < 0 ||
        !(o->floor >= 0) || !(o->memory_per_s >= 0) || !(o->units_per_s >= 0) || !(o->drive_per_s >= 0))
        return err_set(e, ERR_USAGE,
                       "threads, context, depth, texts, prompt, batch, memory or floor: expected 0 or more, and a "
                       "threshold of 0 to 1");
    if (o->n_texts * o->n_ctx > MOST_TOKENS)
        return err_set(e, ERR_USAGE, "%lld texts of %lld tokens: expected at most %lld tokens together",
                       (long long)o->n_texts, (long long)o->n_ctx, (long long)MOST_TOKENS);
    if (o->kv < 0 || o->kv >= FACTS_N_KV)
        return err_set(e, ERR_USAGE, "KV cache of type %d: expected one of moebius_kv_type", o->kv);
    return ERR_OK;
}

static err_code check_gpu(const moebius_plan *p, const moebius_plan_options *o, struct err *e)
{
    if (!o->gpu && (o->n_cpu_moe || o->vram_bytes || o->split))
        return err_set(e, ERR_USAGE,
                       "VRAM, a split, or layers whose experts are not there, without a GPU: expected one");
    if (o->n_gpu < 0 || o->n_gpu > MACHINE_MAX_GPU || (o->n_gpu > 1 && o->n_gpu > p->machine.n_gpu))
        return err_set(e, ERR_USAGE, "a plan for %d GPUs: expected at most the %d that are known of the machine",
                       o->n_gpu, p->machine.n_gpu);
    if (o->n_cpu_moe && o->split)
        return err_set(e, ERR_USAGE, "experts of %lld layers in memory, and a split %s: expected one of the two",
                       (long long)o->n_cpu_moe, o->split);
    if (o->gpu && o->car > 0)
        return err_set(e, ERR_USAGE, "cache-aware routing with a GPU: plans know it without one");
    if (o->gpu && !p->machine.n_gpu)
        return err_set(e, ERR_USAGE, "a plan for a GPU, and none is known of the machine%s%s",
                       o->machine ? " of " : ": moebius probe looks", o->machine ? o->machine : "");
    if (o->n_cpu_moe > p->facts.n_moe)
        return err_set(e, ERR_USAGE, "experts of %lld layers in memory: expected at most the %d that have experts",
                       (long long)o->n_cpu_moe, p->facts.n_moe);
    return ERR_OK;
}

/* A GPU has a part of each layer's choices where it shares them with the processor. */
static err_code check_found(const moebius_plan *p, const moebius_plan_options *o, const struct plan_settings *s,
                            struct err *e)
{
    const double share[] = {o->found_vram, o->found_ram, o->found_drive};
    bool is_right = share[0] + share[1] + share[2] <= 1 + 1e-9;
    for (int i = 0; i < 3; i++)
        is_right = is_right && share[i] >= 0 && share[i] <= 1;
    if (!is_right)
        return err_set(e, ERR_USAGE, "found: expected shares of choices from 0 to 1, together at most 1");
    bool is_given = share[0] + share[1] + share[2] > 0;
    if (is_given && p->facts.n_moe == 0)
        return err_set(e, ERR_USAGE, "found: %s has no experts", p->facts.name);
    if (is_given && o->gpu && (s->split == PLAN_SPLIT_LAST || s->split == PLAN_SPLIT_STAGES))
        return err_set(e, ERR_USAGE, "found, with a GPU: expected a split that divides each layer: cache or experts");
    if (share[0] > 0 && !o->gpu)
        return err_set(e, ERR_USAGE, "found in VRAM, without a GPU: expected one, or a share of 0");
    return ERR_OK;
}

static err_code check_kv(const moebius_plan *p, int kv, struct err *e)
{
    if (p->facts.kv[kv].works)
        return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "%s does not run with caches of type %s", p->facts.name, p->facts.kv[kv].name);
}

/* The context; 0: the plan chooses it, up to n_ctx_most. */
static int64_t context_of(const moebius_plan *p, const moebius_plan_options *o)
{
    return o->n_ctx || o->n_ctx_most ? o->n_ctx : min_i64(PLANNING_CTX, p->facts.n_ctx_train);
}

static struct plan_settings settings_of(const moebius_plan *p, const moebius_plan_options *o)
{
    int n_thread = p->machine.n_thread ? p->machine.n_thread : 1;
    int64_t n_batch = o->n_batch ? o->n_batch : PLANNING_BATCH;
    return (struct plan_settings){.n_ctx = context_of(p, o),
                                  .n_ctx_most = min_i64(o->n_ctx_most, p->facts.n_ctx_train),
                                  .n_depth = o->n_depth,
                                  .own_bytes = o->machine ? 0 : resident_memory_bytes(),
                                  .state_bytes = (uint64_t)o->state_bytes,
                                  .n_texts = o->n_texts ? o->n_texts : 1,
                                  .n_texts_most = o->n_texts_most,
                                  .n_batch = n_batch,
                                  .n_prompt = o->n_prompt ? o->n_prompt : n_batch,
                                  .prompt_from = o->prompt_from,
                                  .n_threads = o->n_threads ? o->n_threads : n_thread,
                                  .kv = o->kv,
                                  .ram_bytes = (uint64_t)o->ram_bytes,
                                  .vram_bytes = (uint64_t)o->vram_bytes,
                                  .uses_gpu = o->gpu,
                                  .n_cpu_moe = o->n_cpu_moe > 0   ? (int)o->n_cpu_moe
                                               : o->n_cpu_moe < 0 ? 0
                                                                  : -1,
                                  .car = o->car,
                                  .found_vram = o->found_vram,
                                  .found_ram = o->found_ram,
                                  .found_drive = o->found_drive,
                                  .floor = o->floor};
}

/* The drives that a store's folders lie on: of this machine, those with the same file system as a folder that was
 * measured; of another one, those that are called so. */
static bool is_on(const char *dir, const struct machine_drive *d, bool is_here)
{
    struct stat a, b;
    if (!strcmp(dir, d->name))
        return true;
    return is_here && stat(dir, &a) == 0 && stat(d->name, &b) == 0 && a.st_dev == b.st_dev;
}

static void find_drives(const moebius_plan *p, const moebius_plan_options *o, struct plan_settings *s)
{
    for (int i = 0; i < o->n_store_dirs && s->n_drive < FACTS_MAX_DRIVE; i++) {
        int drive = -1;
        for (int k = p->machine.n_drive; k-- > 0;)
            drive = is_on(o->store_dirs[i], &p->machine.drives[k], !o->machine) ? k : drive;
        for (int k = 0; k < s->n_drive; k++)
            if (drive >= 0 && s->drives[k] == drive) /* folders of one drive are one drive */
                drive = -2;
        if (drive != -2)
            s->drives[s->n_drive++] = drive;
    }
    s->is_prepared = o->n_store_dirs > 0;
}

/* Two shares are the GPU's and the processor's. */
static err_code take_split(const moebius_plan *p, const moebius_plan_options *o, struct plan_settings *s, struct err *e)
{
    struct split split;
    double shares[DIVISION_MAX_PLACE] = {0};
    int n_share, n_moe = p->facts.n_moe;
    if (!o->split && o->n_gpu > 1)
        return err_set(e, ERR_USAGE, "several GPUs and no split: plans know stages on them");
    if (!o->split)
        return ERR_OK;
    TRY(split_parse(o->split, &split, shares, &n_share, e));
    double sum = shares[0] + shares[1];
    if ((split.kind == SPLIT_STAGES) != (o->n_gpu > 1) || (split.kind == SPLIT_STAGES && n_share))
        return err_set(e, ERR_USAGE, "split %s on %s: plans know stages, without shares, on several GPUs", o->split,
                       o->n_gpu > 1 ? "several GPUs" : "one GPU");
    if (split.kind == SPLIT_RANDOM || split.kind == SPLIT_GATE || (n_share && n_share != 2))
        return err_set(e, ERR_USAGE, "split %s: plans know experts, layers (each with two shares), last and cache",
                       o->split);
    if (split.kind == SPLIT_LAST && split.n_last > n_moe)
        return err_set(e, ERR_USAGE, "split %s: expected at most the %d layers that have experts", o->split, n_moe);
    s->split = split.kind == SPLIT_EXPERTS  ? PLAN_SPLIT_SHARE
               : split.kind == SPLIT_CACHE  ? PLAN_SPLIT_CACHE
               : split.kind == SPLIT_STAGES ? PLAN_SPLIT_STAGES
                                            : PLAN_SPLIT_LAST;
    s->n_gpu = o->n_gpu;
    s->gpu_share = split.kind == SPLIT_CACHE ? split.cache_share : n_share ? shares[0] / sum : 0;
    if (split.kind == SPLIT_LAST)
        s->n_cpu_moe = split.n_last;
    else if (split.kind == SPLIT_LAYERS && n_share)
        s->n_cpu_moe = (int)(n_moe * shares[1] / sum + 0.5);
    return ERR_OK;
}

static struct planning_facts_params facts_params(const moebius_plan_options *o)
{
    int64_t n_batch = o->n_batch ? o->n_batch : PLANNING_BATCH;
    return (struct planning_facts_params){
        .n_ctx = o->n_ctx, .n_batch = o->n_ctx ? min_i64(n_batch, o->n_ctx) : n_batch, .usage = o->usage};
}

/* A rate as it was told (0: it was not), or as it usually is by the receipts; returns how many runs say so. */
static int set_rate(moebius_plan *p, enum machine_rate rate, double told_per_s, int n_threads)
{
    struct machine *m = &p->machine;
    int n_run = 0;
    if (told_per_s > 0)
        machine_set_rate(m, rate, n_threads, told_per_s);
    else
        machine_scale_rate(m, rate, receipts_rate_factor(p->receipts, p->n_receipt, m, rate, n_threads, &n_run));
    return n_run;
}

/* The drives of a machine that a file tells of are as it tells. */
static void set_rates(moebius_plan *p, const moebius_plan_options *o, int n_threads, int n_run[MACHINE_N_RATE])
{
    n_run[MACHINE_MEMORY] = set_rate(p, MACHINE_MEMORY, o->memory_per_s, n_threads);
    n_run[MACHINE_UNITS] = set_rate(p, MACHINE_UNITS, o->units_per_s, n_threads);
    n_run[MACHINE_DRIVE] = o->machine ? 0 : set_rate(p, MACHINE_DRIVE, o->drive_per_s, 0);
}

static err_code make_plan(moebius_plan *p, const moebius_plan_options *o, const struct plan_settings *s, struct err *e)
{
    struct plan_inputs in = {
        .machine = &p->machine, .facts = &p->facts, .settings = *s, .calibrate = calibrate, .user = p};
    TRY(check_kv(p, o->kv, e));
    TRY(read_receipts(p, o->receipts, e));
    set_rates(p, o, s->n_threads, in.n_run);
    plan_make(&p->plan, &in);
    TRY(plan_text(&p->plan, &in, &p->text, e));
    TRY(plan_line(&p->plan, &in, &p->line, e));
    TRY(plan_svg(&p->plan, &in, &p->svg, e));
    return plan_json(&p->plan, &in, &p->json, e);
}

/* What `moebius tune` kept of the model for runs with so many threads on this machine; 0: it was not measured. */
static int64_t kept_cutoff(const struct plan_facts *f, int n_threads)
{
    struct tuning t;
    struct err e;
    enum cpu_level level;
    if (cpu_level_detect(&level, &e) != ERR_OK)
        return 0;
    tuning_look(&t, kernels_for(level), n_threads);
    return tuning_measured_cutoff(&t, f->fingerprint);
}

static err_code open_plan(moebius_plan *p, const void *path, const moebius_plan_options *o, struct err *e)
{
    struct planning_facts_params params = facts_params(o);
    params.store_dirs = o->store_dirs;
    params.n_store_dirs = o->machine ? 0 : o->n_store_dirs; /* those of another machine are names */
    TRY(planning_machine_read(&p->machine, o->machine, e));
    if (o->gpu && !o->machine)
        look_at_vram(&p->machine);
    TRY(planning_facts_read(&p->facts, path, &params, e));
    TRY(check_gpu(p, o, e));
    struct plan_settings s = settings_of(p, o);
    TRY(take_split(p, o, &s, e));
    TRY(check_found(p, o, &s, e));
    find_drives(p, o, &s);
    if (!o->machine)
        s.sort_cutoff = kept_cutoff(&p->facts, s.n_threads);
    return make_plan(p, o, &s, e);
}

/* ---- plans of an engine ------------------------------------------------------------------------------------------ */

/* Whose experts are where. */
static void look_at_division(const moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    const struct division *d = &g->model->division;
    int64_t n_all = 0, n_here = 0;
    size_t all = 0;
    s->n_cpu_moe = 0;
    for (int i = 0; g->places.n_place && i < p->facts.n_moe; i++) {
        s->n_cpu_moe += (division_holders(d, i, 0) & 1) == 0;
        for (int32_t k = 0; k < p->facts.layers[i].n_expert; k++, n_all++)
            n_here += (int64_t)(division_holders(d, i, k) & 1);
        all += (size_t)p->facts.layers[i].n_expert * p->facts.layers[i].slot_bytes;
    }
    if (engine_has_cache(g)) {
        s->split = PLAN_SPLIT_CACHE;
        s->gpu_share = all ? (double)engine_cache_bytes(g, experts_max_bytes) / (double)all : 0;
    } else if (g->asked.split.kind == SPLIT_EXPERTS && n_here < n_all) {
        s->split = PLAN_SPLIT_SHARE;
        s->gpu_share = (double)n_here / (double)n_all;
    }
}

/* GPU i with the memory that the engine holds there or that is free, and with the speeds that were measured. */
static struct machine_gpu gpu_of(const struct machine *m, const moebius_engine *g, int i)
{
    const struct engine_device *d = &g->devices[i];
    struct machine_gpu gpu = {0};
    if (d->asked.number < m->n_gpu)
        gpu = m->gpus[d->asked.number];
    snprintf(gpu.name, sizeof gpu.name, "%s", d->name);
    gpu.free_bytes = vulkan_get_memory(d->vulkan).allocated_bytes + backend_room_bytes(d->device);
    return gpu;
}

/* The GPUs that run the layers. */
static void look_at_gpus(moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    const struct machine m = p->machine;
    bool has_stages = engine_has_stages(g);
    if (!engine_has_own_memory(g, 0))
        return;
    p->machine.n_gpu = has_stages ? g->n_stage : 1;
    for (int i = 0; i < p->machine.n_gpu; i++)
        p->machine.gpus[i] = gpu_of(&m, g, i);
    s->uses_gpu = true;
    s->vram_bytes = 0;
    s->n_gpu = p->machine.n_gpu;
    if (has_stages || (!g->places.n_place && engine_is_streaming(g))) /* what GPUs have no room for is read */
        s->split = PLAN_SPLIT_STAGES;
    else
        look_at_division(p, g, s);
}

/* Of layers that are divided among devices, plans know only those on GPUs with memory of their own. */
static bool can_plan(const moebius_engine *g)
{
    bool all = true;
    for (int i = 0; i < g->n_stage; i++)
        all &= engine_has_own_memory(g, i);
    return all || !engine_has_stages(g);
}

/* Threads that compute, not those that only load for a GPU. */
static int n_computing_threads(const moebius_engine *g)
{
    int n = 0;
    for (int i = 0; i < g->n_device; i++)
        n += g->devices[i].asked.is_vulkan ? 0 : g->devices[i].asked.n_threads;
    return n ? n : g->asked.devices[0].n_threads;
}

/* A running engine's memory is what it was given, whatever else is free now. */
static void take_memory(moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    s->own_bytes = 0;
    s->ram_bytes = g->bound_bytes;
    if (!g->bound_bytes)
        p->machine.ram_bytes = p->machine.free_bytes = 0;
    s->expert_bytes = (uint64_t)g->options.expert_ram_bytes;
    s->expert_share = g->options.expert_ram_share;
    s->state_bytes = (uint64_t)g->options.state_bytes;
    s->n_threads = n_computing_threads(g);
}

/* Which part of the experts rank 0 and the busiest rank compute, and the longest round trip, as a layer waits for all
 * ranks. Of a replica each holder counts as computing an equal part. */
static void look_at_ranks(moebius_plan *p, const moebius_engine *g, struct plan_settings *s)
{
    const struct ranks *r = engine_ranks(g);
    double did[DIVISION_MAX_PLACE] = {0}, n_all = 0, n_here = 0;
    p->machine.n_rank = r ? ranks_n(r) : 0;
    p->machine.rank_round_trip_s = 0;
    for (int i = 1; i < p->machine.n_rank; i++)
        p->machine.rank_round_trip_s =
            fmax(p->machine.rank_round_trip_s, (double)ranks_link(r, i).round_trip_ns * 1e-9);
    for (int i = 0; r && i < p->facts.n_moe; i++)
        for (int32_t k = 0; k < p->facts.layers[i].n_expert; k++, n_all++) {
            uint64_t holders = division_holders(&g->model->division, i, k);
            n_here += (double)(holders & 1);
            for (int rank = 0; rank < p->machine.n_rank; rank++)
                did[rank] += (double)(holders >> rank & 1) / __builtin_popcountll(holders);
        }
    for (int rank = 0; rank < p->machine.n_rank && n_all > 0; rank++)
        s->rank_most = fmax(s->rank_most, did[rank] / n_all);
    s->rank_part = n_all > 0 ? n_here / n_all : 0;
}

static err_code plan_engine(moebius_plan *p, const void *engine, const moebius_plan_options *o, struct err *e)
{
    const moebius_engine *g = engine;
    struct planning_facts_params params = facts_params(o);
    params.process_bytes = g->facts.process_bytes;
    params.mtp = g->options.mtp;
    if (engine_ranks(g) && engine_has_own_memory(g, 0))
        return err_set(e, ERR_UNSUPPORTED, "a plan of several processes with GPUs");
    if (!can_plan(g))
        return err_set(e, ERR_UNSUPPORTED, "a plan of layers on several devices in the machine's memory");
    TRY(planning_machine_read(&p->machine, NULL, e));
    TRY(planning_facts_describe(&p->facts, g->gguf, gguf_file_path(g->gguf, 0), &params, e));
    struct plan_settings s = settings_of(p, o);
    s.is_running = true;
    take_memory(p, g, &s);
    s.place_bytes = engine_places_bytes(g, s.n_batch);
    if (o->kv == g->refused.kv && s.n_ctx >= g->refused.n_ctx)
        s.least_bytes = g->refused.need_bytes;
    look_at_ranks(p, g, &s);
    look_at_gpus(p, g, &s);
    s.sort_cutoff = tuning_measured_cutoff(engine_tuning(g), p->facts.fingerprint);
    return make_plan(p, o, &s, e);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

typedef err_code plan_fn(moebius_plan *p, const void *of, const moebius_plan_options *o, struct err *e);

static moebius_status open_any(moebius_plan **out, plan_fn *fn, const void *of, const moebius_plan_options *options,
                               size_t options_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_plan_options o = {0};
    moebius_plan *p = *out = mem_calloc(1, sizeof *p);
    if (!p)
        return engine_status(err_nomem(&e, sizeof *p, "a plan"), &e, error);
    err_code code = sized_take(&o, sizeof o, options, options_bytes, "plan options", &e);
    if (code == ERR_OK)
        code = check_options(&o, &e);
    if (code == ERR_OK)
        code = fn(p, of, &o, &e);
    if (code != ERR_OK)
        moebius_plan_close(out);
    return engine_status(code, &e, error);
}

moebius_status moebius_plan_open_sized(moebius_plan **out, const char *path, const moebius_plan_options *options,
                                       size_t options_bytes, moebius_error *error)
{
    return open_any(out, open_plan, path, options, options_bytes, error);
}

moebius_status moebius_engine_plan_sized(moebius_plan **out, const moebius_engine *engine,
                                         const moebius_plan_options *options, size_t options_bytes,
                                         moebius_error *error)
{
    return open_any(out, plan_engine, engine, options, options_bytes, error);
}

void moebius_plan_close(moebius_plan **plan)
{
    moebius_plan *p = *plan;
    if (!p)
        return;
    planning_facts_close(&p->facts);
    mem_free(p->receipts);
    mem_free(p->text);
    mem_free(p->json);
    mem_free(p->line);
    mem_free(p->svg);
    mem_free(p);
    *plan = NULL;
}

bool moebius_plan_is_refused(const moebius_plan *plan)
{
    return plan->plan.is_refused;
}

void moebius_plan_rates(const moebius_plan *plan, bool prefill, double *ceiling, double *low, double *high)
{
    const struct plan_speed *s = prefill ? &plan->plan.prefill : &plan->plan.decode;
    *ceiling = s->ceiling;
    *low = s->low;
    *high = s->high;
}

_Static_assert((int)MOEBIUS_PLAN_PARTS == (int)PART_N, "the public interface names all parts");

void moebius_plan_part_rates(const moebius_plan *plan, bool prefill, double rates[MOEBIUS_PLAN_PARTS])
{
    const struct plan_speed *s = prefill ? &plan->plan.prefill : &plan->plan.decode;
    memcpy(rates, s->part, sizeof s->part);
}

const char *moebius_plan_regime(const moebius_plan *plan)
{
    return regime_name(plan->plan.regime);
}

uint64_t moebius_plan_ram_bytes(const moebius_plan *plan)
{
    return plan->plan.ram_bytes;
}

const char *moebius_plan_text(const moebius_plan *plan)
{
    return plan->text;
}

const char *moebius_plan_json(const moebius_plan *plan)
{
    return plan->json;
}

const char *moebius_plan_line(const moebius_plan *plan)
{
    return plan->line;
}

int64_t moebius_plan_n_ctx(const moebius_plan *plan)
{
    return plan->plan.settings.n_ctx;
}

const char *moebius_plan_refusal(const moebius_plan *plan)
{
    return plan->plan.is_refused ? plan->plan.refusal : NULL;
}

const char *moebius_plan_nearest(const moebius_plan *plan, int i)
{
    return plan->plan.is_refused && i >= 0 && i < plan->plan.nearest.n ? plan->plan.nearest.text[i] : NULL;
}

const char *moebius_plan_svg(const moebius_plan *plan)
{
    return plan->svg;
}
