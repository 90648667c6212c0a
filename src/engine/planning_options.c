/* What the options of a plan ask for, as settings of the planner. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/free_memory.h"
#include "base/minmax.h"
#include "engine/device_options.h"
#include "engine/planning_internal.h"

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* The most tokens of all texts together: with 16 MiB of state for each of them, bytes still fit 64 bits. */
static const int64_t MOST_TOKENS = INT64_C(1) << 40;

err_code planning_check_options(const moebius_plan_options *o, struct err *e)
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

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* The context; 0: the plan chooses it, up to n_ctx_most. */
static int64_t context_of(const moebius_plan *p, const moebius_plan_options *o)
{
    return o->n_ctx || o->n_ctx_most ? o->n_ctx : min_i64(PLANNING_CTX, p->facts.n_ctx_train);
}

struct plan_settings planning_settings_of(const moebius_plan *p, const moebius_plan_options *o)
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

err_code planning_take_options(const moebius_plan *p, const moebius_plan_options *o, struct plan_settings *s,
                               struct err *e)
{
    TRY(check_gpu(p, o, e));
    *s = planning_settings_of(p, o);
    TRY(take_split(p, o, s, e));
    TRY(check_found(p, o, s, e));
    find_drives(p, o, s);
    return ERR_OK;
}

/* A word as a shell takes it. */
static void put_word(struct bytes *out, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:=/+@%-";
    if (*s && s[strspn(s, plain)] == '\0') {
        bytes_put_text(out, s);
        return;
    }
    bytes_put_char(out, '\'');
    for (; *s; s++)
        if (*s == '\'')
            bytes_put_text(out, "'\\''");
        else
            bytes_put_char(out, *s);
    bytes_put_char(out, '\'');
}

err_code planning_put_given(struct bytes *out, const moebius_plan_options *o, struct err *e)
{
    struct bytes dirs = {0};
    char number[32];
    for (int i = 0; i < o->n_store_dirs; i++) {
        bytes_put_text(&dirs, i ? "," : "");
        bytes_put_text(&dirs, o->store_dirs[i]);
    }
    if (dirs.n) {
        bytes_put_text(out, " --store ");
        put_word(out, bytes_text(&dirs));
    }
    for (int i = 0; i < o->n_override; i++) {
        bytes_put_text(out, " --override-kv ");
        put_word(out, o->overrides[i]);
    }
    if (o->yarn > 0) {
        snprintf(number, sizeof number, " --yarn %g", o->yarn);
        bytes_put_text(out, number);
    }
    bool is_short = dirs.is_short || out->is_short;
    bytes_close(&dirs);
    return is_short ? err_nomem(e, out->n, "a plan") : ERR_OK;
}

struct planning_facts_params planning_facts_params_of(const moebius_plan_options *o)
{
    int64_t n_batch = o->n_batch ? o->n_batch : PLANNING_BATCH;
    return (struct planning_facts_params){.n_ctx = o->n_ctx,
                                          .n_batch = o->n_ctx ? min_i64(n_batch, o->n_ctx) : n_batch,
                                          .usage = o->usage,
                                          .overrides = {o->overrides, o->n_override, o->yarn}};
}
