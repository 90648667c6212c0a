/* Plans for runs whose layers are on one or several GPUs: where the experts of each layer are, and how much memory that
 * takes. The processor's experts have slots as far as there is memory; the others are streamed (docs/places.md). */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units_text.h"
#include "planner/plan_internal.h"

static bool has_stages(const struct making *k)
{
    return k->s->split == PLAN_SPLIT_STAGES;
}

static int n_gpu(const struct making *k)
{
    return has_stages(k) ? k->s->n_gpu : 1;
}

/* Memory of GPU i that may be taken; 0: unknown. */
static uint64_t gpu_limit(const struct making *k, int i)
{
    const struct machine_gpu *g = &k->m->gpus[i];
    return k->s->vram_bytes ? k->s->vram_bytes : g->free_bytes ? g->free_bytes : g->memory_bytes;
}

uint64_t plan_layer_bytes(const struct plan_facts *f)
{
    uint64_t most = 0;
    for (int i = 0; i < f->n_moe; i++)
        most = plan_expert_bytes(f, i, i + 1) > most ? plan_expert_bytes(f, i, i + 1) : most;
    return most + f->weight_bytes / (uint64_t)(f->n_moe ? f->n_moe : 1);
}

/* With several GPUs, each but one may have room left for less than a layer, since layers are not divided. */
uint64_t plan_vram_limit(const struct making *k)
{
    uint64_t sum = 0, idle = (uint64_t)(n_gpu(k) - 1) * plan_layer_bytes(k->f);
    for (int i = 0; i < n_gpu(k); i++) {
        if (!gpu_limit(k, i))
            return 0;
        sum += gpu_limit(k, i);
    }
    return sum > idle ? sum - idle : 1;
}

/* Activations, which each GPU needs for itself. */
static uint64_t work_bytes(const struct making *k)
{
    return (uint64_t)n_gpu(k) * (k->f->work_bytes + k->f->scratch_bytes);
}

static uint64_t driver_bytes(const struct making *k)
{
    return k->s->is_running ? 0 : (uint64_t)n_gpu(k) * PLAN_VRAM_MARGIN_BYTES;
}

uint64_t plan_vram_with(const struct making *k, int n_cpu_moe, int64_t n_ctx)
{
    const struct plan_facts *f = k->f;
    return f->weight_bytes + work_bytes(k) + plan_expert_bytes(f, 0, f->n_moe - n_cpu_moe) +
           (uint64_t)k->s->n_texts * plan_text_bytes(f, k->kv, n_ctx) + driver_bytes(k);
}

/* The machine's memory that is needed without the processor's experts. */
static uint64_t ram_without(const struct making *k)
{
    return k->f->process_bytes + PLAN_MARGIN_BYTES + k->s->place_bytes +
           (uint64_t)k->s->n_texts * plan_host_bytes(k->f, k->s->n_ctx);
}

/* ---- the processor's experts ------------------------------------------------------------------------------------- */

/* The experts that the processor has. */
struct beside {
    uint64_t n_bytes, ram_bytes; /* bytes of these experts, and of those among them that have slots */
    uint64_t least_bytes;        /* least memory for slots that works */
    double miss, prompt_miss;    /* shares of all choices that drives are read for, of a token and of a prompt */
};

/* Finds the misses where n_here of n_bytes have slots, and the share `chosen` of all choices falls on these experts. */
static void find_misses(const struct making *k, struct beside *b, uint64_t n_here, uint64_t n_bytes, double chosen)
{
    int64_t n_expert = plan_n_experts(k->f);
    if (n_here < n_bytes) {
        int64_t n_slot = (int64_t)((double)n_expert * ((double)n_here / (double)n_bytes));
        b->miss = chosen * ceiling_decode_miss(k->f, n_slot, n_expert);
        b->prompt_miss = chosen * ceiling_prompt_miss(n_slot, n_expert);
    }
    if (plan_is_found(k))
        b->miss = k->s->found_drive;
}

/* The processor's part, where it has n_bytes of experts on which the share `chosen` of all choices falls. */
static struct beside divide(const struct making *k, uint64_t n_bytes, double chosen)
{
    uint64_t limit = k->p->ram_limit, taken = ram_without(k), room = limit > taken ? limit - taken : 0;
    struct beside b = {.n_bytes = n_bytes, .ram_bytes = n_bytes, .least_bytes = k->f->least_slot_bytes};
    b.least_bytes = b.least_bytes < n_bytes ? b.least_bytes : n_bytes;
    b.ram_bytes = plan_allowed_bytes(k, n_bytes);
    if (limit && room < b.ram_bytes)
        b.ram_bytes = room;
    find_misses(k, &b, b.ram_bytes, n_bytes, chosen);
    return b;
}

/* The processor's part, where it has the experts of the last n_cpu_moe layers. */
static struct beside divide_last(const struct making *k, int n_cpu_moe)
{
    uint64_t n_bytes = plan_expert_bytes(k->f, k->f->n_moe - n_cpu_moe, k->f->n_moe);
    return divide(k, n_bytes, k->f->n_moe ? (double)n_cpu_moe / k->f->n_moe : 0);
}

static void add_beside(struct making *k, const struct beside *b)
{
    struct plan *p = k->p;
    uint64_t all = plan_expert_bytes(k->f, 0, k->f->n_moe), on_drive = b->n_bytes - b->ram_bytes;
    plan_add_row(k, "experts", "ram", b->ram_bytes);
    plan_add_row(k, "experts", "drive", on_drive);
    p->miss = b->miss;
    p->prompt_miss = b->prompt_miss;
    if (on_drive)
        p->n_slot = (int64_t)((double)p->n_expert * (1 - (double)on_drive / (double)all));
}

static void add_drives(struct making *k, const struct beside *b, struct ceiling_params *c)
{
    c->miss = b->miss;
    c->missing_bytes = (double)(plan_is_found(k) ? b->n_bytes : b->n_bytes - b->ram_bytes);
    if (b->miss > 0)
        plan_find_drives(k, c);
}

/* ---- a GPU ------------------------------------------------------------------------------------------------------- */

/* The rate of GPUs that compute one after the other, each with a part of the work in proportion to its memory; 0: not
 * known. at: the offset of the rate in struct machine_gpu. */
static double rate_in_turns(const struct making *k, size_t at)
{
    double s = 0, sum = 0;
    for (int i = 0; i < n_gpu(k); i++) {
        double rate = *(const double *)((const char *)&k->m->gpus[i] + at), part = (double)gpu_limit(k, i);
        part = n_gpu(k) == 1 ? 1 : part; /* whatever memory it has */
        if (!(rate > 0) || !(part > 0))
            return 0;
        s += part / rate;
        sum += part;
    }
    return sum / s;
}

static struct ceiling_params gpu_params(const struct making *k, int n_cpu_moe)
{
    return (struct ceiling_params){.facts = k->f,
                                   .kv = k->kv,
                                   .read_per_s = rate_in_turns(k, offsetof(struct machine_gpu, bytes_per_s)),
                                   .int8_per_s = rate_in_turns(k, offsetof(struct machine_gpu, int8_per_s)),
                                   .n_cpu_moe = n_cpu_moe,
                                   .cpu_read_per_s = machine_memory_speed(k->m, k->s->n_threads)};
}

static enum regime gpu_regime(int n_cpu_moe)
{
    return n_cpu_moe ? REGIME_OFFLOAD : REGIME_VRAM;
}

static double gpu_at(const struct making *k, int n_cpu_moe)
{
    return k->f->n_moe ? (double)n_cpu_moe / k->f->n_moe : 0;
}

static bool fits(const struct making *k, uint64_t vram_bytes, uint64_t ram_bytes)
{
    return (!k->p->vram_limit || vram_bytes <= k->p->vram_limit) && (!k->p->ram_limit || ram_bytes <= k->p->ram_limit);
}

static void add_gpu_row(struct making *k, int n)
{
    struct plan_gpu_row *r = &k->p->gpu[k->p->n_gpu++];
    struct ceiling_params c = gpu_params(k, n);
    const struct beside b = divide_last(k, n);
    add_drives(k, &b, &c);
    *r = (struct plan_gpu_row){
        .n_cpu_moe = n, .vram_bytes = plan_vram_with(k, n, k->s->n_ctx), .ram_bytes = ram_without(k) + b.ram_bytes};
    r->fits = fits(k, r->vram_bytes, ram_without(k) + b.least_bytes);
    const struct calibration_query q = {.of = SPEED_DECODE,
                                        .regime = b.miss > 0 ? REGIME_TIERED : gpu_regime(n),
                                        .at = b.miss > 0 ? b.miss : gpu_at(k, n),
                                        .n_texts = k->s->n_texts,
                                        .n_tok = k->s->n_depth,
                                        .time = ceiling_step(&c, k->s->n_texts, k->s->n_depth)};
    r->decode = plan_forecast(k, q, k->s->n_texts);
    if (r->fits && k->p->gpu_chosen < 0 && (k->s->n_cpu_moe < 0 || k->s->n_cpu_moe == n))
        k->p->gpu_chosen = k->p->n_gpu - 1;
}

/* Adds checkpoints, as far as the rows before leave room. */
static void add_checkpoints(struct making *k)
{
    uint64_t limit = k->p->vram_limit, taken = k->p->vram_bytes;
    plan_add_row(k, "checkpoints", "vram",
                 plan_checkpoint_bytes(k, !limit          ? UINT64_MAX
                                          : limit > taken ? limit - taken
                                                          : 0));
}

static void map_gpu(struct making *k, int n)
{
    const struct plan_facts *f = k->f;
    const struct beside b = divide_last(k, n);
    const struct plan_settings *s = k->s;
    plan_add_row(k, "weights", "vram", f->weight_bytes);
    plan_add_row(k, "experts", "vram", plan_expert_bytes(f, 0, f->n_moe - n));
    plan_add_row(k, "texts", "vram", (uint64_t)s->n_texts * plan_text_bytes(f, k->kv, s->n_ctx));
    plan_add_row(k, "activations", "vram", work_bytes(k));
    plan_add_row(k, "driver", "vram", driver_bytes(k));
    add_checkpoints(k);
    plan_add_program(k);
    add_beside(k, &b);
    plan_add_row(k, "texts", "ram", (uint64_t)s->n_texts * plan_host_bytes(f, s->n_ctx));
    k->p->least_bytes = ram_without(k) + b.least_bytes;
}

static void refuse_gpu(struct making *k, int n)
{
    struct plan *p = k->p;
    bool is_vram = p->vram_limit && plan_vram_with(k, n, k->s->n_ctx) > p->vram_limit;
    int fits = -1;
    for (int i = 0; i < p->n_gpu; i++)
        if (p->gpu[i].fits && (fits < 0 || abs(p->gpu[i].n_cpu_moe - n) < abs(p->gpu[fits].n_cpu_moe - n)))
            fits = i;
    p->is_refused = true;
    snprintf(p->refusal, sizeof p->refusal,
             "with the experts of %d of %d layers in the machine's memory %s of %s are needed, and there are %s", n,
             k->f->n_moe, units_size(is_vram ? plan_vram_with(k, n, k->s->n_ctx) : p->least_bytes).s,
             is_vram ? "VRAM" : "memory", units_size(is_vram ? p->vram_limit : p->ram_limit).s);
    if (fits >= 0)
        plan_say(&p->nearest, "--n-cpu-moe %d, all else as asked for", p->gpu[fits].n_cpu_moe);
    else
        plan_say(&p->nearest, "without the GPU: see the plan for --devices cpu:%d", k->s->n_threads);
}

static void write_gpu_flags(struct making *k, int n)
{
    char *out = k->p->flags;
    size_t size = sizeof k->p->flags;
    snprintf(out, size, "--gpu 0 --threads %d --n-cpu-moe %d --ctx %" PRId64 " --kv %s", k->s->n_threads, n,
             k->s->n_ctx, k->kv->name);
    plan_add_ram_flag(k);
}

static void plan_layers(struct making *k)
{
    struct plan *p = k->p;
    for (int n = 0; n <= k->f->n_moe && p->n_gpu < PLAN_MAX_GPU_ROW; n++)
        add_gpu_row(k, n);
    int asked = k->s->n_cpu_moe >= 0 ? k->s->n_cpu_moe : k->f->n_moe;
    int n = p->gpu_chosen >= 0 ? p->gpu[p->gpu_chosen].n_cpu_moe : asked;
    const struct beside b = divide_last(k, n);
    struct ceiling_params c = gpu_params(k, n);
    map_gpu(k, n);
    add_drives(k, &b, &c);
    p->regime = b.miss > 0 ? REGIME_TIERED : gpu_regime(n);
    p->at = b.miss > 0 ? b.miss : gpu_at(k, n);
    plan_assume(k);
    if (p->gpu_chosen < 0)
        refuse_gpu(k, n);
    else
        plan_find_speeds(k, &c);
    plan_say(&p->assumptions, "the last layers' experts stay in memory%s; the driver takes 1 GiB of VRAM",
             b.miss > 0 ? " as far as there is room" : "");
    write_gpu_flags(k, n);
}

/* ---- each layer on both ------------------------------------------------------------------------------------------ */

/* Bytes of experts on the GPU. */
static uint64_t vram_experts(const struct making *k)
{
    uint64_t all = plan_expert_bytes(k->f, 0, k->f->n_moe), base = plan_vram_with(k, k->f->n_moe, k->s->n_ctx);
    uint64_t room = !k->p->vram_limit ? all : k->p->vram_limit > base ? k->p->vram_limit - base : 0;
    uint64_t wanted = k->s->gpu_share > 0 ? (uint64_t)((double)all * k->s->gpu_share) : room;
    return wanted < all ? wanted : all;
}

static void map_both(struct making *k, uint64_t vram, const struct beside *b)
{
    const struct plan_facts *f = k->f;
    const struct plan_settings *s = k->s;
    plan_add_row(k, "weights", "vram", f->weight_bytes);
    plan_add_row(k, s->split == PLAN_SPLIT_CACHE ? "expert copies" : "experts", "vram", vram);
    plan_add_row(k, "texts", "vram", (uint64_t)s->n_texts * plan_text_bytes(f, k->kv, s->n_ctx));
    plan_add_row(k, "activations", "vram", work_bytes(k));
    plan_add_row(k, "driver", "vram", driver_bytes(k));
    add_checkpoints(k);
    plan_add_program(k);
    add_beside(k, b);
    plan_add_row(k, "texts", "ram", (uint64_t)s->n_texts * plan_host_bytes(f, s->n_ctx));
    k->p->least_bytes = ram_without(k) + b->least_bytes;
}

static bool refuse_both(struct making *k, uint64_t vram)
{
    struct plan *p = k->p;
    uint64_t base = plan_vram_with(k, k->f->n_moe, k->s->n_ctx);
    uint64_t need = base + (vram > k->f->least_slot_bytes ? vram : k->f->least_slot_bytes);
    bool lacks_vram = p->vram_limit && need > p->vram_limit, lacks_ram = p->ram_limit && p->least_bytes > p->ram_limit;
    if (!lacks_vram && !lacks_ram)
        return false;
    p->is_refused = true;
    snprintf(p->refusal, sizeof p->refusal, "%s of %s are needed, and there are %s",
             units_size(lacks_vram ? need : p->least_bytes).s, lacks_vram ? "VRAM" : "memory",
             units_size(lacks_vram ? p->vram_limit : p->ram_limit).s);
    for (int n = 0; n <= k->f->n_moe && !has_stages(k); n++)
        if (fits(k, plan_vram_with(k, n, k->s->n_ctx), ram_without(k) + divide_last(k, n).least_bytes)) {
            plan_say(&p->nearest, "--n-cpu-moe %d, without --split", n);
            return true;
        }
    plan_say(&p->nearest, "without the GPU: see the plan for --devices cpu:%d", k->s->n_threads);
    return true;
}

static void write_split(struct making *k)
{
    const struct plan_settings *s = k->s;
    char *out = k->p->flags;
    size_t size = sizeof k->p->flags;
    double percent = 100 * s->gpu_share;
    snprintf(out, size, "--devices vulkan:0,cpu:%d --split ", s->n_threads);
    if (s->split == PLAN_SPLIT_SHARE)
        snprintf(out + strlen(out), size - strlen(out), "experts:%g,%g", percent, 100 - percent);
    else if (percent > 0)
        snprintf(out + strlen(out), size - strlen(out), "cache:%g%%", percent);
    else
        snprintf(out + strlen(out), size - strlen(out), "cache");
    snprintf(out + strlen(out), size - strlen(out), " --ctx %" PRId64 " --kv %s", s->n_ctx, k->kv->name);
    plan_add_ram_flag(k);
}

/* A plan in which GPU and processor compute each layer. Copies are of the experts that earlier runs chose most; where
 * experts are divided, all are taken to be chosen equally often. */
static void plan_both(struct making *k)
{
    struct plan *p = k->p;
    bool is_cache = k->s->split == PLAN_SPLIT_CACHE;
    uint64_t all = plan_expert_bytes(k->f, 0, k->f->n_moe), vram = vram_experts(k), ram = is_cache ? all : all - vram;
    double share = all ? (double)vram / (double)all : 0;
    p->gpu_hit = plan_is_found(k) ? plan_found_gpu(k)
                 : is_cache       ? ceiling_copies_hit(k->f, (int64_t)(share * (double)p->n_expert), p->n_expert)
                                  : share;
    struct beside b = divide(k, ram, is_cache ? 1 : 1 - p->gpu_hit);
    if (b.miss > 1 - p->gpu_hit) /* the experts chosen most have slots, too, and what the GPU has is not read */
        b.miss = 1 - p->gpu_hit;
    map_both(k, vram, &b);
    p->regime = b.miss > 0 ? REGIME_TIERED : ram ? REGIME_OFFLOAD : REGIME_VRAM;
    p->at = b.miss > 0 ? b.miss : all ? (double)ram / (double)(ram + vram) : 0;
    struct ceiling_params c = gpu_params(k, 0);
    c.is_divided = true;
    c.gpu_hit = p->gpu_hit;
    add_drives(k, &b, &c);
    plan_assume(k);
    if (!refuse_both(k, vram))
        plan_find_speeds(k, &c);
    plan_say(&p->assumptions, "GPU and processor compute each layer at once, the GPU %.1f%% of the choices%s",
             100 * p->gpu_hit,
             plan_is_found(k) ? ""
             : !is_cache      ? ", all experts being chosen equally often"
             : k->f->curve || k->f->n_mass
                 ? ", as in earlier runs"
                 : ", as if all experts were chosen equally often: what is hot is chosen more");
    write_split(k);
}

/* ---- layers on several GPUs -------------------------------------------------------------------------------------- */

static void write_stages(struct making *k)
{
    char *out = k->p->flags;
    size_t size = sizeof k->p->flags, n = (size_t)snprintf(out, size, "--devices vulkan:0");
    for (int i = 1; i < n_gpu(k); i++)
        n += (size_t)snprintf(out + n, size - n, ",vulkan:%d", i);
    snprintf(out + n, size - n, " --split stages --ctx %" PRId64 " --kv %s", k->s->n_ctx, k->kv->name);
}

/* Experts that no GPU has room for are read from the drive. */
static void plan_stages(struct making *k)
{
    struct plan *p = k->p;
    uint64_t all = plan_expert_bytes(k->f, 0, k->f->n_moe), vram = vram_experts(k);
    if (plan_allowed_bytes(k, all) < vram)
        vram = plan_allowed_bytes(k, all);
    struct beside b = {.n_bytes = all - vram};
    find_misses(k, &b, vram, all, 1);
    map_both(k, vram, &b);
    p->regime = b.miss > 0 ? REGIME_TIERED : REGIME_VRAM;
    p->at = b.miss;
    struct ceiling_params c = gpu_params(k, 0);
    add_drives(k, &b, &c);
    plan_assume(k);
    if (!refuse_both(k, vram))
        plan_find_speeds(k, &c);
    plan_say(&p->assumptions,
             "%d GPUs have layers as they have memory, and compute one after the other; each leaves less than a layer, "
             "and its driver takes 1 GiB",
             n_gpu(k));
    write_stages(k);
}

void plan_make_gpu(struct making *k)
{
    struct plan *p = k->p;
    p->vram_limit = plan_vram_limit(k);
    p->ram_limit = plan_ram_limit(k);
    p->n_slot = p->n_expert = plan_n_experts(k->f);
    if (k->s->split == PLAN_SPLIT_LAST)
        plan_layers(k);
    else if (has_stages(k))
        plan_stages(k);
    else
        plan_both(k);
    plan_refuse_speed(k);
}
