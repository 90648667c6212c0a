#define _POSIX_C_SOURCE 200809L
#include "cli/model_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/gpu_files.h"
#include "cli/rank_run.h"
#include "cli/say.h"

static void print_log(void *user, enum moebius_log_level level, const char *line)
{
    say(level == MOEBIUS_LOG_WARN ? LOG_WARN : LOG_INFO, "%s", line);
}

err_code cli_split_dirs(const char *text, struct dir_list *out, struct err *e)
{
    enum { MAX = sizeof out->dirs / sizeof *out->dirs };
    char *rest = NULL;
    *out = (struct dir_list){.text = mem_strdup(text)};
    if (!out->text)
        return err_nomem(e, strlen(text), "directories");
    for (char *dir = strtok_r(out->text, ",", &rest); dir; dir = strtok_r(NULL, ",", &rest)) {
        if (out->n == MAX) {
            cli_dirs_close(out);
            return err_set(e, ERR_USAGE, "%s: more than %d directories", text, MAX);
        }
        out->dirs[out->n++] = dir;
    }
    if (out->n)
        return ERR_OK;
    cli_dirs_close(out);
    return err_set(e, ERR_USAGE, "\"%s\": expected a directory", text);
}

void cli_dirs_close(struct dir_list *l)
{
    mem_free(l->text);
    *l = (struct dir_list){0};
}

/* The index of a word among its choices, which is the value of an enum in the public header; 0: it was not given. */
static int choice(const char *word, const char *second, const char *third)
{
    return !word ? 0 : !strcmp(word, second) ? 1 : !strcmp(word, third) ? 2 : 0;
}

/* Uses a GPU if no devices were given, unless an option works on processors only. */
static err_code take_unasked_gpu(const struct model_options *o, moebius_engine_options *out, struct err *e)
{
    bool is_for_cpu = o->devices || o->split || o->replicas.n_bytes || o->replicas.share > 0 || o->reference ||
                      o->hugetlb || o->car.threshold > 0;
    const char *gpu = is_for_cpu ? NULL : gpu_files_default();
    if (gpu && strcmp(gpu, "auto") != 0 && strspn(gpu, "0123456789") != strlen(gpu))
        return err_set(e, ERR_USAGE, "MOEBIUS_GPU=%s: expected auto, none or a GPU's number", gpu);
    out->gpu = gpu;
    return ERR_OK;
}

/* None is -1 there. */
static err_code take_cpu_moe(const struct model_options *o, moebius_engine_options *out, struct err *e)
{
    const char *text = o->n_cpu_moe;
    if (!text)
        return ERR_OK;
    if (!*text || strlen(text) > 4 || strspn(text, "0123456789") != strlen(text))
        return err_set(e, ERR_USAGE, "--n-cpu-moe %s: expected a number of layers, 0 to 9999", text);
    out->n_cpu_moe = strtol(text, NULL, 10);
    out->n_cpu_moe = out->n_cpu_moe ? out->n_cpu_moe : -1;
    out->gpu = out->gpu || out->devices ? out->gpu : "auto";
    return ERR_OK;
}

err_code cli_check_draft(const struct model_options *o, struct err *e)
{
    return o->n_draft && o->car.threshold > 0 ? err_set(e, ERR_USAGE, "--draft and --car: choose one") : ERR_OK;
}

err_code cli_check_model(const struct model_options *o, struct err *e)
{
    TRY(cli_check_draft(o, e));
    return o->path ? ERR_OK : err_set(e, ERR_USAGE, "no model: name one with -m FILE");
}

err_code cli_engine_options(const struct model_options *o, moebius_engine_options *out, struct dir_list *store,
                            struct err *e)
{
    *store = (struct dir_list){0};
    *out = moebius_default_engine_options();
    TRY(cli_check_model(o, e));
    if (o->store)
        TRY(cli_split_dirs(o->store, store, e));
    out->n_threads = (int)o->n_threads;
    out->reference = o->reference;
    out->check_ops = o->check_ops;
    out->sort_cutoff = o->sort_cutoff;
    out->tuning = o->tuning;
    out->ram_bytes = o->ram_bytes;
    out->state_bytes = o->state_bytes;
    out->expert_ram_bytes = o->expert_ram.n_bytes;
    out->expert_ram_share = o->expert_ram.share;
    out->policy = o->policy;
    out->deterministic = o->deterministic;
    out->prefetch = (moebius_prefetch)choice(o->prefetch, "on", "off");
    out->numa = o->numa && !strcmp(o->numa, "off") ? MOEBIUS_NUMA_OFF : MOEBIUS_NUMA_AUTO;
    out->hugetlb = o->hugetlb;
    out->devices = o->devices;
    out->gpu = o->gpu;
    if (!o->gpu)
        TRY(take_unasked_gpu(o, out, e));
    out->vram_bytes = o->vram_bytes;
    out->time_gpus = o->time_gpus;
    out->mtp = o->n_draft > 0 && !o->no_mtp;
    out->split = o->split;
    out->replica_bytes = o->replicas.n_bytes;
    out->replica_share = o->replicas.share;
    out->usage = o->cold ? NULL : o->usage ? o->usage : "";
    out->log = print_log;
    out->store_dirs = store->dirs;
    out->n_store_dirs = store->n;
    out->reader = (moebius_reader)choice(o->io, "io_uring", "pread");
    out->direct = (moebius_direct)choice(o->direct, "on", "off");
    out->ranks = rank_run_ranks();
    out->overrides = o->overrides.items;
    out->n_override = o->overrides.n;
    out->yarn = (double)o->yarn;
    return take_cpu_moe(o, out, e);
}

int cli_kv_type(const char *name)
{
    if (!name || !strcmp(name, "f16"))
        return MOEBIUS_KV_F16;
    return !strcmp(name, "f32") ? MOEBIUS_KV_F32 : MOEBIUS_KV_Q8_0;
}

err_code cli_session_options(const struct model_options *o, moebius_session_options *out, struct err *e)
{
    *out = moebius_default_session_options();
    out->n_batch = o->n_batch;
    out->sort_cutoff = o->sort_cutoff;
    out->car = o->car;
    if (o->car.threshold == 0 && (o->car.damp || o->car.n_warmup || o->car.n_protect || o->car.n_backfill))
        return err_set(e, ERR_USAGE, "--car-damp, --car-warmup, --car-protect and --backfill: expected --car X, too");
    out->kv = cli_kv_type(o->kv);
    return ERR_OK;
}

int cli_count_gpus(const char *devices)
{
    for (int n = 0, at = 0, number;; n++) {
        int end = 0;
        if (sscanf(devices + at, "vulkan:%2d%n", &number, &end) != 1 || number != n)
            return 0;
        at += end;
        if (!devices[at])
            return n + 1;
        if (devices[at++] != ',')
            return 0;
    }
}
