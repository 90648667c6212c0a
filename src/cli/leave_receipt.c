#include "cli/leave_receipt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cli/open_model.h"
#include "cli/rank_run.h"
#include "cli/run_plan.h"
#include "cli/say.h"
#include "cli/stats.h"
#include "engine/cache_file.h"
#include "engine/receipts_file.h"

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* Appends text as far as there is room. */
static void add(struct receipt *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add(struct receipt *r, const char *fmt, ...)
{
    size_t n = strlen(r->settings);
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->settings + n, sizeof r->settings - n, fmt, args);
    va_end(args);
}

static void add_word(struct receipt *r, const char *name, const char *value)
{
    if (value)
        add(r, " %s %s", name, value);
}

/* Writes the options that decide speed; folders are written as "DIR". */
static void describe_settings(struct receipt *r, const struct model_options *o)
{
    add(r, "--kv %s", o->kv ? o->kv : "f16");
    if (o->ram_bytes)
        add(r, " --ram %lld", (long long)o->ram_bytes);
    if (o->expert_ram.n_bytes)
        add(r, " --expert-ram %lld", (long long)o->expert_ram.n_bytes);
    if (o->expert_ram.share > 0)
        add(r, " --expert-ram %g%%", 100 * o->expert_ram.share);
    if (o->n_batch)
        add(r, " --batch %lld", (long long)o->n_batch);
    if (o->car.threshold > 0)
        add(r, " --car %g", (double)o->car.threshold);
    add_word(r, "--devices", o->devices);
    add_word(r, "--split", o->split);
    if (o->replicas.n_bytes)
        add(r, " --replicas %lld", (long long)o->replicas.n_bytes);
    if (o->replicas.share > 0)
        add(r, " --replicas %g%%", 100 * o->replicas.share);
    add_word(r, "--policy", o->policy);
    add_word(r, "--prefetch", o->prefetch);
    add_word(r, "--io", o->io);
    add_word(r, "--direct", o->direct);
    add_word(r, "--store", o->store ? "DIR" : NULL);
    add_word(r, "--numa", o->numa);
    if (o->hugetlb)
        add(r, " --hugetlb");
}

/* ---- the regime -------------------------------------------------------------------------------------------------- */

static double share_of(uint64_t part, uint64_t rest)
{
    return part + rest ? (double)part / (double)(part + rest) : 0;
}

/* The share of the experts' bytes in memory that processors hold. *has_gpu: the first device is a GPU. */
static double share_beside_gpu(const moebius_engine *g, bool *has_gpu)
{
    uint64_t on_gpu = 0, beside = 0;
    moebius_device d;
    *has_gpu = false;
    for (int i = 0; moebius_engine_device(g, i, &d); i++) {
        *has_gpu = *has_gpu || (i == 0 && d.is_gpu);
        *(d.is_gpu ? &on_gpu : &beside) += d.expert_bytes;
    }
    return share_of(beside, on_gpu);
}

static void find_regime(struct receipt *r, const moebius_engine *g, const moebius_counters *c)
{
    bool has_gpu, is_streaming = c->expert_bytes < c->expert_all_bytes;
    double beside = share_beside_gpu(g, &has_gpu);
    double missed = c->n_decode_hit + c->n_decode_miss ? share_of(c->n_decode_miss, c->n_decode_hit)
                                                       : share_of(c->n_expert_miss, c->n_expert_hit);
    if (rank_run_ranks())
        r->regime = REGIME_RANKS;
    else if (is_streaming)
        r->regime = has_gpu ? REGIME_TIERED : REGIME_STREAM;
    else if (has_gpu)
        r->regime = beside > 0 ? REGIME_OFFLOAD : REGIME_VRAM;
    else
        r->regime = REGIME_RAM;
    r->at = is_streaming ? missed : r->regime == REGIME_OFFLOAD ? beside : 0;
}

/* ---- the receipt ------------------------------------------------------------------------------------------------- */

static double rate(int64_t n_tok, int64_t n_least, int64_t n_ns)
{
    return n_tok >= n_least && n_ns >= RECEIPT_MIN_NS ? (double)n_tok * 1e9 / (double)n_ns : 0;
}

static void describe(struct receipt *r, const struct model_options *o, const moebius_engine *g,
                     const struct run_figures *f)
{
    const moebius_counters c = moebius_engine_counters(g);
    moebius_device second;
    const char *slash = strrchr(o->path, '/'), *name = slash ? slash + 1 : o->path;
    r->time_s = (int64_t)time(NULL);
    cpu_name(r->machine, sizeof r->machine);
    (void)printable_line(name, strlen(name), r->model,
                         sizeof r->model); /* cut at a whole character, so that it can be read again */
    (void)printable_line(moebius_arch(g), strlen(moebius_arch(g)), r->arch, sizeof r->arch);
    snprintf(r->method, sizeof r->method, "%s", f->method);
    r->fingerprint = moebius_fingerprint(g);
    r->n_threads = moebius_n_threads(g);
    r->n_texts = f->n_texts > 0 ? f->n_texts : 1;
    r->n_ctx = f->n_ctx;
    r->n_prompt = f->n_prompt;
    r->prompt_from = f->prompt_from;
    memcpy(r->rates, f->rates, sizeof r->rates);
    if (!moebius_engine_device(g, 1, &second)) /* several devices share the drive, and each knows only its own reads */
        r->rates[MACHINE_DRIVE] = stats_drive_rate(&c);
    r->peak_bytes = (uint64_t)stats_peak_bytes() - c.roof_bytes; /* measuring the roof is not part of the run */
    find_regime(r, g, &c);
    if (r->regime != REGIME_STREAM && r->regime != REGIME_TIERED) { /* the roof does not include drives */
        r->ceiling[SPEED_DECODE] = r->measured[SPEED_DECODE] > 0 ? f->decode_ceiling : 0;
        r->ceiling[SPEED_PREFILL] = r->measured[SPEED_PREFILL] > 0 ? f->prefill_ceiling : 0;
    }
    if (c.n_expert_hit + c.n_expert_miss && c.n_expert_read) { /* otherwise all reads were for loading */
        r->read_bytes = c.n_expert_read_bytes;
        r->hit_bytes = c.n_expert_hit * (c.n_expert_read_bytes / c.n_expert_read);
    }
    describe_settings(r, o);
    run_plan_fill(r, o, g);
    if (f->varies)
        r->planned_bytes = 0;
}

void cli_receipt_warning(void *user, enum log_level level, const char *line)
{
    say(level, "receipts: %s", line);
}

static err_code leave(const struct receipt *r, struct err *e)
{
    static const struct log log = {.sink = cli_receipt_warning};
    char *path;
    TRY(receipts_path(&path, e));
    if (!path)
        return ERR_OK;
    err_code code = cache_file_make_folders(path, e);
    if (code == ERR_OK)
        code = receipts_add(path, r, 1, &log, e);
    mem_free(path);
    return code;
}

void cli_leave_receipt(const struct model_options *o, const moebius_engine *engine, const struct run_figures *f)
{
    struct receipt r = {.measured = {[SPEED_DECODE] = rate(f->n_decoded, RECEIPT_MIN_DECODE, f->decode_ns),
                                     [SPEED_PREFILL] = rate(f->n_prefill, RECEIPT_MIN_PREFILL, f->prefill_ns)}};
    struct err e;
    const char *no = getenv("MOEBIUS_NO_RECEIPT");
    if (o->no_receipt || (no && *no) || o->reference || o->check_ops || !rank_run_is_first() ||
        (r.measured[SPEED_DECODE] <= 0 && r.measured[SPEED_PREFILL] <= 0))
        return;
    describe(&r, o, engine, f);
    if (cli_has_stages(engine) && (r.regime == REGIME_RAM || r.regime == REGIME_STREAM))
        return; /* processors that take turns say nothing about processors that compute together */
    if (leave(&r, &e) != ERR_OK)
        say(LOG_WARN, "no receipt of this run: %s", e.text);
}

void cli_leave_texts_receipt(const struct model_options *o, const moebius_engine *engine, const char *method,
                             const struct texts_stats *stats)
{
    uint64_t n_pass = stats->n_decode_pass ? stats->n_decode_pass : 1, n_text = 0;
    for (size_t i = 0; i < sizeof stats->n_ended / sizeof *stats->n_ended; i++)
        n_text += stats->n_ended[i];
    n_text = n_text ? n_text : 1;
    const struct run_figures f = {
        .method = method,
        .varies = true,
        .n_prefill = (int64_t)stats->n_prompt,
        .prefill_ns = stats->prefill_ns,
        .n_decoded = stats->n_guess ? 0 : (int64_t)stats->n_decoded, /* with guesses the speed depends on the texts */
        .decode_ns = stats->decode_ns,
        .n_texts = (int64_t)((stats->n_decoded - stats->n_guess_right + n_pass / 2) / n_pass),
        .n_ctx = (int64_t)((stats->n_prompt + stats->n_cached + stats->n_answer / 2) / n_text),
        .n_prompt = (int64_t)(stats->n_prompt / n_text),
        .prompt_from = (int64_t)(stats->n_cached / n_text)};
    cli_leave_receipt(o, engine, &f);
}
