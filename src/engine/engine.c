#include "base/units_text.h"
#include "engine/engine_internal.h"

#include <stdio.h>
#include <string.h>

#include "engine/expert_images.h"
#include "engine/planning.h"
#include "engine/sized.h"
#include "kernels/kernels.h"
#include "vulkan/vulkan.h"

_Static_assert((int)MOEBIUS_READER_IO_URING == (int)STORE_ENGINE_IO_URING &&
                   (int)MOEBIUS_READER_PREAD == (int)STORE_ENGINE_PREAD &&
                   (int)MOEBIUS_DIRECT_ON == (int)STORE_DIRECT_ON && (int)MOEBIUS_DIRECT_OFF == (int)STORE_DIRECT_OFF,
               "public ways to read are the store's");

const char *moebius_version(void)
{
    return MOEBIUS_VERSION;
}

const char *moebius_build_info(void)
{
    return "devices: cpu (scalar"
#if defined(__x86_64__)
           ", avx2, avxvnni, avx512, avx512vnni, avx512vbmi, amx"
#elif defined(__aarch64__)
           ", neon, dotprod, i8mm"
#endif
           ")"
#if defined(MOEBIUS_WITH_VULKAN)
           ", vulkan"
#endif
           "; reads: "
#if defined(MOEBIUS_WITH_IO_URING)
           "io_uring, "
#endif
           "pread; "
#if defined(MOEBIUS_WITH_HWLOC)
           "memory nodes: hwloc; "
#endif
#if defined(MOEBIUS_WITH_MPI)
           "machines: MPI; "
#endif
           "architectures: "
#define ARCH(name, suffix) name " "
#include "model/arch_list.def"
#undef ARCH
        ;
}

static void engine_log(void *user, enum log_level level, const char *line)
{
    const moebius_engine *g = user;
    g->options.log(g->options.user, (enum moebius_log_level)level, line);
}

void engine_begin_log(moebius_engine *g)
{
    if (g->options.log)
        g->log = (struct log){engine_log, g};
}

static void engine_progress(void *user, uint64_t done_bytes)
{
    const moebius_engine *g = user;
    g->options.progress(g->options.user, done_bytes, g->total_bytes);
}

err_code engine_open_store(moebius_engine *g, struct err *e)
{
    bool has_checksums;
    struct layout_image *images = NULL;
    TRY(store_open_gguf(&g->store, g->gguf, e));
    TRY(store_use_checksums(g->store, &has_checksums, e));
    if (has_checksums)
        TRY(store_check_tensors(g->store, g->pool, e));
    const struct store_queue_params params = {.engine = (enum store_engine)g->options.reader,
                                              .direct = (enum store_direct)g->options.direct};
    store_set_queue_params(g->store, &params);
    if (g->options.n_store_dirs == 0)
        return ERR_OK;
    TRY(expert_images(g->device, g->store, &images, e));
    err_code code = store_attach(g->store, g->options.store_dirs, g->options.n_store_dirs, images, &g->log, e);
    mem_free(images);
    return code;
}

static void note_hugetlb(const moebius_engine *g, size_t n_missing_bytes)
{
    if (n_missing_bytes)
        log_line(&g->log, LOG_WARN,
                 "%s did not fit in the huge pages that are set aside: %zu of 2 MiB are missing "
                 "(vm.nr_hugepages); ordinary memory took them",
                 units_size(n_missing_bytes).s, n_missing_bytes / MEM_HUGE_PAGE);
}

err_code engine_size_model(moebius_engine *g, struct err *e)
{
    const struct planning_facts_params p = {.n_batch = PLANNING_BATCH, .mtp = g->options.mtp};
    TRY(planning_facts_describe(&g->facts, g->gguf, gguf_file_path(g->gguf, 0), &p, e));
    if (engine_ranks(g) && !g->options.expert_ram_bytes) /* of all experts, not of those that this rank will have */
        g->options.expert_ram_bytes = (int64_t)(g->options.expert_ram_share * (double)engine_gpu_need(g).all_experts);
    return ERR_OK;
}

err_code engine_load_model(moebius_engine *g, const struct model_load_params *own, struct err *e)
{
    struct model_load_params params = *own;
    params.pool = g->pool;
    params.store = g->store;
    params.log = &g->log;
    params.policy = g->policy;
    params.expert_budget_bytes = (size_t)g->options.expert_ram_bytes;
    params.expert_budget_share = g->options.expert_ram_share;
    params.deterministic = g->options.deterministic;
    params.mtp = g->options.mtp;
    params.user = g;
    if (g->options.hugetlb)
        mem_hugetlb_begin();
    err_code code = model_load(&g->model, g->gguf, &params, e);
    if (g->options.hugetlb)
        note_hugetlb(g, mem_hugetlb_end());
    return code;
}

/* Whether the experts are to be divided. */
static bool has_places(const moebius_engine *g)
{
    return (g->n_device > 1 && !engine_has_stages(g)) || g->options.ranks;
}

static err_code open_model(moebius_engine *g, const char *path, struct err *e)
{
    TRY(engine_open_store(g, e));
    TRY(engine_choose_stages(g, e));
    TRY(engine_memory_bound(g, e));
    g->total_bytes = model_load_bytes(g->gguf);
    struct model_device devices[ENGINE_MAX_DEVICE];
    for (int i = 0; i < g->n_device; i++)
        devices[i] = (struct model_device){.device = g->devices[i].device, .pool = g->devices[i].pool, .place = i};
    const struct model_load_params params = {.device = g->device,
                                             .devices = devices,
                                             .n_device = g->n_device,
                                             .stages = g->stages,
                                             .n_stage = engine_has_stages(g) ? g->n_stage : 0,
                                             .divide = has_places(g) ? engine_divide : NULL,
                                             .progress = g->options.progress ? engine_progress : NULL};
    TRY(engine_load_model(g, &params, e));
    if (tokenizer_pre_is_missing(g->vocab.tokenizer))
        log_line(&g->log, LOG_WARN,
                 "%s: tokenizer.ggml.pre is missing: text may be cut into other tokens than those of the model", path);
    if (tokenizer_n_vocab(g->vocab.tokenizer) != g->model->n_vocab)
        return err_set(e, ERR_FORMAT,
                       "%s: the vocabulary (tokenizer.ggml.tokens) has %d tokens, the model (token_embd.weight) %lld",
                       path, (int)tokenizer_n_vocab(g->vocab.tokenizer), (long long)g->model->n_vocab);
    TRY(engine_open_places(g, e));
    engine_gpu_reclaim(g);
    engine_gpu_report(g);
    return ERR_OK;
}

err_code engine_check_options(moebius_engine *g, struct err *e)
{
    const moebius_engine_options *o = &g->options;
    if (o->sort_cutoff < 0)
        return err_set(e, ERR_USAGE, "sort cutoff %lld: expected at least 1", (long long)o->sort_cutoff);
    if (o->ram_bytes < -1 || o->expert_ram_bytes < 0 || !(o->expert_ram_share >= 0 && o->expert_ram_share <= 1))
        return err_set(
            e, ERR_USAGE,
            "memory of %lld bytes, %lld for experts or a share of %g: expected -1 or more, 0 or more, and 1 at most",
            (long long)o->ram_bytes, (long long)o->expert_ram_bytes, o->expert_ram_share);
    if (o->replica_bytes < 0 || !(o->replica_share >= 0))
        return err_set(e, ERR_USAGE, "replicas of %lld bytes or a share of %g: expected 0 or more",
                       (long long)o->replica_bytes, o->replica_share);
    if (o->state_bytes < 0 || o->checkpoint_bytes < 0)
        return err_set(e, ERR_USAGE, "state of %lld bytes, checkpoints of %lld: expected 0 or more",
                       (long long)o->state_bytes, (long long)o->checkpoint_bytes);
    if (o->hugetlb && (o->ram_bytes > 0 || o->expert_ram_bytes || o->expert_ram_share > 0))
        return err_set(e, ERR_USAGE,
                       "a bound on memory, and huge pages that were set aside: these can't be given back "
                       "expert by expert; expected one of the two");
    if (o->deterministic && o->ram_bytes > 0)
        return err_set(
            e, ERR_USAGE,
            "deterministic in %lld bytes of memory: how many experts have room there differs from run to run; "
            "bound the memory of the routed experts instead",
            (long long)o->ram_bytes);
    if ((unsigned)o->reader > MOEBIUS_READER_PREAD || (unsigned)o->direct > MOEBIUS_DIRECT_OFF ||
        (unsigned)o->prefetch > MOEBIUS_PREFETCH_OFF || (unsigned)o->numa > MOEBIUS_NUMA_OFF)
        return err_set(e, ERR_USAGE, "reader %d, direct %d, prefetch %d, numa %d: expected one of each enum's values",
                       (int)o->reader, (int)o->direct, (int)o->prefetch, (int)o->numa);
    if (o->check_ops && o->reference)
        return err_set(e, ERR_USAGE, "the reference is what operations are checked against: choose one of the two");
    TRY(engine_list_devices(g, e));
    TRY(engine_check_ranks(g, e));
    if (o->policy && !policy_parse(o->policy, &g->policy))
        return err_set(e, ERR_USAGE, "policy %s: expected lfru, lru or lfu", o->policy);
    return ERR_OK;
}

err_code engine_open_gguf(moebius_engine *g, const char *path, struct err *e)
{
    const struct model_overrides o = {g->options.overrides, g->options.n_override, g->options.yarn};
    return model_open_gguf(&g->gguf, path, NULL, &o, e);
}

/* Everything before the weights: what the options ask for, the file's description, and the devices. */
static err_code prepare(moebius_engine *g, const char *path, struct err *e)
{
    TRY(engine_check_options(g, e));
    TRY(engine_open_gguf(g, path, e));
    TRY(vocab_fill(&g->vocab, g->gguf, e));
    TRY(engine_size_model(g, e));
    TRY(gguf_check_overrides(g->gguf, e));
    TRY(engine_check_cpu_moe(g, e));
    TRY(engine_choose_gpu(g, e));
    return engine_open_devices(g, e);
}

static err_code load_and_tune(moebius_engine *g, const char *path, struct err *e)
{
    TRY(open_model(g, path, e));
    TRY(engine_tune(g, e));
    pool_set_throttled(g->pool, g->n_device == 1);
    return ERR_OK;
}

moebius_status moebius_engine_open_sized(moebius_engine **out, const char *path, const moebius_engine_options *options,
                                         size_t options_bytes, moebius_error *error)
{
    struct err e = {0};
    *out = NULL;
    moebius_engine *g = mem_calloc(1, sizeof *g);
    if (!g)
        return engine_status(err_nomem(&e, sizeof *g, "the engine"), &e, error);
    err_code code = sized_take(&g->options, sizeof g->options, options, options_bytes, "engine options", &e);
    g->prefetch.mode = g->options.deterministic ? MOEBIUS_PREFETCH_OFF : g->options.prefetch;
    engine_begin_log(g);
    if (code == ERR_OK)
        code = prepare(g, path, &e);
    topology_bind_caller(g->topology);
    if (code == ERR_OK)
        code = load_and_tune(g, path, &e);
    topology_release_caller(g->topology);
    if (code != ERR_OK)
        moebius_engine_close(&g);
    *out = g;
    return engine_status(code, &e, error);
}

void moebius_engine_close(moebius_engine **engine)
{
    moebius_engine *g = *engine;
    if (!g)
        return;
    engine_usage_save(g);
    engine_memory_release(g);
    model_work_close(&g->work);
    for (int i = 0; i <= MOEBIUS_KV_Q8_0; i++)
        state_pool_close(&g->pools[i]);
    engine_close_places(g);
    model_close(&g->model);
    store_close(&g->store);
    planning_facts_close(&g->facts);
    vocab_empty(&g->vocab);
    gguf_close(&g->gguf);
    engine_roof_close(g);
    engine_close_devices(g);
    backend_close(&g->no_layers);
    mem_free(g);
    *engine = NULL;
}

int32_t moebius_n_vocab(const moebius_engine *engine)
{
    return (int32_t)engine->model->n_vocab;
}

int64_t moebius_n_ctx_train(const moebius_engine *engine)
{
    return engine->model->n_ctx_train;
}

int moebius_n_threads(const moebius_engine *engine)
{
    return engine_n_threads(engine);
}

int moebius_n_memory_node(const moebius_engine *engine)
{
    return topology_n_node(engine->topology);
}

const char *moebius_arch(const moebius_engine *engine)
{
    return engine->model->arch;
}

int64_t moebius_n_layer(const moebius_engine *engine)
{
    return engine->model->n_trunk;
}

bool moebius_has_mtp(const moebius_engine *engine)
{
    return engine->model->mtp.n > 0;
}

int64_t moebius_n_embd(const moebius_engine *engine)
{
    return engine->model->n_embd;
}

/* Of all devices. */
static struct backend_counters device_counters(const moebius_engine *g)
{
    struct backend_counters all = {0};
    for (int i = 0; i < g->n_device; i++) {
        const struct backend_counters b = backend_counters(g->devices[i].device);
        for (int k = 0; k < OP_N_KIND; k++) {
            all.op[k].n += b.op[k].n;
            all.op[k].n_ns += b.op[k].n_ns;
            all.op[k].n_bytes += b.op[k].n_bytes;
            all.op[k].n_int8 += b.op[k].n_int8;
            all.op[k].n_float += b.op[k].n_float;
            all.op[k].n_tile += b.op[k].n_tile;
        }
        all.n_direct += b.n_direct;
        all.n_sorted += b.n_sorted;
        all.n_expert_rows += b.n_expert_rows;
        all.n_experts += b.n_experts;
    }
    return all;
}

static struct experts_counters expert_counters(const moebius_engine *g)
{
    struct experts_counters all = {0};
    for (int i = 0; i < g->model->n_device; i++) {
        const struct experts_counters c = experts_counters(g->model->devices[i].experts);
        all.n_hit += c.n_hit;
        all.n_miss += c.n_miss;
        all.n_decode_hit += c.n_decode_hit;
        all.n_decode_miss += c.n_decode_miss;
        all.n_evicted += c.n_evicted;
        all.n_read += c.n_read;
        all.n_read_bytes += c.n_read_bytes;
        all.n_prefetched += c.n_prefetched;
        all.n_prefetch_used += c.n_prefetch_used;
        all.n_substituted += c.n_substituted;
        all.n_backfilled += c.n_backfilled;
        all.ratio_sum += c.ratio_sum;
        all.n_spared += c.n_spared;
        all.stall_ns += c.stall_ns;
        all.arrival_ns += c.arrival_ns;
        all.n_many_bytes += c.n_many_bytes;
        all.many_ns += c.many_ns;
    }
    return all;
}

static int give_op_stats(struct backend_counters b, moebius_op_stats *stats, size_t stat_bytes)
{
    _Static_assert((int)OP_N_KIND <= (int)MOEBIUS_MAX_OP, "every kind has its place");
    for (int i = 0; i < OP_N_KIND; i++) {
        const struct op_counters *c = &b.op[i];
        const moebius_op_stats s = {
            op_name((enum op_kind)i), c->n, c->n_ns, c->n_bytes, c->n_int8, c->n_float, c->n_tile};
        sized_give((char *)stats + (size_t)i * stat_bytes, stat_bytes, &s, sizeof s);
    }
    return OP_N_KIND;
}

int moebius_engine_op_stats_sized(const moebius_engine *engine, moebius_op_stats *stats, size_t stat_bytes)
{
    return give_op_stats(device_counters(engine), stats, stat_bytes);
}

int moebius_device_op_stats_sized(const moebius_engine *engine, int i, moebius_op_stats *stats, size_t stat_bytes)
{
    if (i < 0 || i >= engine->n_device)
        return 0;
    return give_op_stats(backend_counters(engine->devices[i].device), stats, stat_bytes);
}

/* Over the pools for caches of each type. */
static uint64_t state_sum(const moebius_engine *g, size_t (*bytes)(const struct state_pool *))
{
    uint64_t n = 0;
    for (int i = 0; i <= MOEBIUS_KV_Q8_0; i++)
        n += g->pools[i] ? bytes(g->pools[i]) : 0;
    return n;
}

static struct vulkan_counters gpu_counters(const moebius_engine *g)
{
    struct vulkan_counters all = {0};
    for (int i = 0; i < g->n_device; i++) {
        struct vulkan_counters c = {0};
        if (g->devices[i].vulkan)
            c = vulkan_get_counters(g->devices[i].vulkan);
        all.n_dispatch += c.n_dispatch;
        all.n_barrier += c.n_barrier;
        all.n_submit += c.n_submit;
    }
    return all;
}

/* What its devices hold in the host's memory. */
static uint64_t host_bytes(const moebius_engine *g, enum mem_tag tag)
{
    uint64_t n = 0;
    for (int i = 0; i < g->n_device; i++)
        n += g->devices[i].vulkan ? 0 : backend_held_bytes(g->devices[i].device, tag);
    return n;
}

static moebius_counters counters(const moebius_engine *engine)
{
    const struct vulkan_counters gpu = gpu_counters(engine);
    const struct backend_counters b = device_counters(engine);
    const struct experts_counters c = expert_counters(engine);
    return (moebius_counters){.n_direct = b.n_direct,
                              .n_sorted = b.n_sorted,
                              .n_expert_rows = b.n_expert_rows,
                              .n_experts = b.n_experts,
                              .n_expert_hit = c.n_hit,
                              .n_expert_miss = c.n_miss,
                              .n_decode_hit = c.n_decode_hit,
                              .n_decode_miss = c.n_decode_miss,
                              .n_expert_evicted = c.n_evicted,
                              .n_expert_read = c.n_read,
                              .n_expert_read_bytes = c.n_read_bytes,
                              .n_prefetched = c.n_prefetched,
                              .n_prefetch_used = c.n_prefetch_used,
                              .n_substituted = c.n_substituted,
                              .substitute_ratio_sum = c.ratio_sum,
                              .n_spared = c.n_spared,
                              .n_backfilled = c.n_backfilled,
                              .stall_ns = c.stall_ns,
                              .arrival_ns = c.arrival_ns,
                              .n_many_read_bytes = c.n_many_bytes,
                              .many_read_ns = c.many_ns,
                              .expert_bytes = engine_expert_bytes(engine, experts_open_bytes) +
                                              engine_cache_bytes(engine, experts_open_bytes),
                              .expert_all_bytes = engine_expert_bytes(engine, experts_max_bytes),
                              .weight_bytes = host_bytes(engine, MEM_WEIGHTS),
                              .context_bytes = host_bytes(engine, MEM_STATE),
                              .work_bytes = host_bytes(engine, MEM_SCRATCH) + engine->roof_bytes,
                              .state_bytes = state_sum(engine, state_pool_used_bytes),
                              .state_max_bytes = state_sum(engine, state_pool_max_bytes),
                              .n_gpu_dispatch = gpu.n_dispatch,
                              .n_gpu_barrier = gpu.n_barrier,
                              .n_gpu_submit = gpu.n_submit,
                              .roof_bytes = engine->roof_bytes};
}

void moebius_engine_counters_sized(const moebius_engine *engine, moebius_counters *out, size_t out_bytes)
{
    const moebius_counters c = counters(engine);
    sized_give(out, out_bytes, &c, sizeof c);
}

bool moebius_engine_device_sized(const moebius_engine *engine, int i, moebius_device *out, size_t out_bytes)
{
    if (i < 0 || i >= engine->n_device)
        return false;
    struct backend *b = engine->devices[i].device;
    const struct model *m = engine->model;
    const struct model_stage stage = i < engine->n_stage && !engine->no_layers ? m->stages[i] : (struct model_stage){0};
    const moebius_device device = {.name = engine->devices[i].name,
                                   .weight_bytes = backend_held_bytes(b, MEM_WEIGHTS),
                                   .expert_bytes = backend_held_bytes(b, MEM_EXPERTS),
                                   .context_bytes = backend_held_bytes(b, MEM_STATE),
                                   .work_bytes = backend_held_bytes(b, MEM_SCRATCH),
                                   .first_layer = stage.first,
                                   .n_layer = stage.end - stage.first,
                                   .is_gpu = engine->devices[i].vulkan != NULL};
    sized_give(out, out_bytes, &device, sizeof device);
    return true;
}

void moebius_engine_forget_experts(moebius_engine *engine)
{
    for (int i = 0; i < engine->model->n_stage; i++)
        if (engine->model->stages[i].experts)
            experts_forget(engine->model->stages[i].experts);
    for (int i = 1; i < engine->places.n_place; i++)
        place_forget(engine->place[i]);
    if (engine->is_warm && engine_has_cache(engine))
        engine_fill_cache(engine);
}

bool moebius_engine_source_sized(const moebius_engine *engine, int i, moebius_source *out, size_t out_bytes)
{
    struct store_place p;
    if (i < 0 || !store_get_place(engine->store, i, &p))
        return false;
    const moebius_source source = {p.path, p.n_reads, p.n_bytes, p.bytes_per_s, p.is_gone};
    sized_give(out, out_bytes, &source, sizeof source);
    return true;
}

int moebius_n_moe_layer(const moebius_engine *engine)
{
    return engine->model->n_moe_layer;
}

void moebius_moe_layer_at_sized(const moebius_engine *engine, int layer, moebius_moe_layer *out, size_t out_bytes)
{
    const struct model *m = engine->model;
    moebius_moe_layer found = {0};
    for (int64_t i = 0; i < m->n_layer; i++)
        if (m->layers[i].is_moe && m->layers[i].moe.experts_layer == layer)
            found = (moebius_moe_layer){m->layers[i].moe.n_expert, m->layers[i].moe.n_used,
                                        experts_slot_bytes(model_experts_of(m, layer), layer),
                                        experts_group(model_experts_of(m, layer), layer)};
    sized_give(out, out_bytes, &found, sizeof found);
}

void moebius_engine_count_experts(moebius_engine *engine, bool on)
{
    for (int i = 0; i < engine->model->n_stage; i++)
        if (engine->model->stages[i].experts)
            experts_count_all(engine->model->stages[i].experts, on);
}

bool moebius_engine_experts(const moebius_engine *engine, int layer, uint64_t *n_chosen, bool *in_memory)
{
    if (layer < 0 || layer >= engine->model->n_moe_layer)
        return false;
    const struct experts *x = model_experts_of(engine->model, layer);
    const struct usage *seen = experts_usage(x);
    const moebius_moe_layer l = moebius_moe_layer_at(engine, layer);
    for (int64_t i = 0; i < l.n_expert; i++) {
        if (n_chosen)
            n_chosen[i] = seen->count[layer * seen->n_expert + i];
        if (in_memory)
            in_memory[i] = experts_has_slot(x, layer, (int32_t)i);
    }
    return true;
}

err_code engine_fingerprint(moebius_engine *g, uint64_t *out, struct err *e)
{
    if (!g->fingerprint) {
        const uint64_t shapes = gguf_fingerprint(g->gguf);
        TRY(store_fingerprint(g->store, &g->fingerprint, e));
        if (shapes != gguf_file_fingerprint(g->gguf)) /* overrides */
            g->fingerprint = gguf_mix(g->fingerprint, &shapes, sizeof shapes);
    }
    *out = g->fingerprint;
    return ERR_OK;
}

uint64_t moebius_fingerprint(const moebius_engine *engine)
{
    return gguf_fingerprint(engine->gguf);
}

const char *moebius_expert_reader(const moebius_engine *engine)
{
    const char *name = "";
    for (int i = engine->model->n_device; i-- > 0;) {
        const char *here = experts_engine(engine->model->devices[i].experts);
        name = *here ? here : name;
    }
    return name;
}
