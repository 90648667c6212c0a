#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "base/units_text.h"
#include "cli/commands.h"
#include "cli/input_text.h"
#include "cli/interrupt.h"
#include "cli/leave_receipt.h"
#include "cli/open_model.h"
#include "cli/place_stats.h"
#include "cli/prompt_options.h"
#include "cli/run_plan.h"
#include "cli/stats.h"
#include "jobs/ppl.h"

struct ppl {
    struct model_options model;
    const char *file;
    const char *resume;
    int64_t n_window;
    bool against, keep_cache, json;
    struct opened opened;
    moebius_session *exact; /* of the same engine, with exact routing, to compare with */
    int32_t *ids;
    size_t n_ids;
    int64_t start_ns;
};

/* 1 is off. */
static bool uses_car(const struct ppl *p)
{
    return p->model.car.threshold > 0 && p->model.car.threshold < 1;
}

static bool print_progress(void *user, const struct ppl_result *r, int64_t n_window)
{
    const struct ppl *p = user;
    double seconds = (double)(clock_ns() - p->start_ns) / 1e9;
    double n_done = (double)(r->n_window - r->n_resumed);
    fprintf(
        stderr, "%s[%lld/%lld] perplexity %.4f +- %.4f, %.0f tokens/s, %s left%s", isatty(STDERR_FILENO) ? "\r" : "",
        (long long)r->n_window, (long long)n_window, r->ppl, r->ppl_error, n_done * (double)p->model.n_ctx / seconds,
        units_duration(seconds / n_done * (double)(n_window - r->n_window)).s, isatty(STDERR_FILENO) ? "   " : "\n");
    return !cli_interrupted();
}

/* The settings that decide the figures besides the model and the text. A run can be continued only with the same ones.
 */
static err_code settings(const struct ppl *p, char *out, size_t n_bytes, struct err *e)
{
    const struct model_options *m = &p->model;
    const moebius_car *car = &m->car;
    enum cpu_level level;
    TRY(cpu_level_detect(&level, e));
    int n = snprintf(out, n_bytes, "ctx %lld kv %s cpu %s", (long long)m->n_ctx, m->kv ? m->kv : "f16",
                     m->reference ? "reference" : cpu_level_name(level));
    if (m->overrides.n > 0 || m->yarn > 0)
        n += snprintf(out + n, n_bytes - (size_t)n, " overrides %016llx",
                      (unsigned long long)moebius_fingerprint(p->opened.engine));
    if (uses_car(p))
        snprintf(out + n, n_bytes - (size_t)n,
                 " car %.9g damp %d warmup %lld protect %lld backfill %lld deterministic %d against %d batch %lld "
                 "experts %lld %.9g ram %lld policy %s",
                 (double)car->threshold, car->damp, (long long)car->n_warmup, (long long)car->n_protect,
                 (long long)car->n_backfill, m->deterministic, p->against, (long long)m->n_batch,
                 (long long)m->expert_ram.n_bytes, m->expert_ram.share, (long long)m->ram_bytes,
                 m->policy ? m->policy : "lfru");
    return ERR_OK;
}

static err_code check(const struct ppl *p, struct err *e)
{
    if (!p->file)
        return err_set(e, ERR_USAGE, "no text: name one with -f FILE");
    if (p->model.n_ctx < 4)
        return err_set(e, ERR_USAGE, "--ctx %lld: expected at least 4", (long long)p->model.n_ctx);
    if (p->against && !uses_car(p))
        return err_set(e, ERR_USAGE, "--against compares --car X with the model's own predictions: expected both");
    if (p->keep_cache && !uses_car(p))
        return err_set(e, ERR_USAGE, "--keep-cache: makes a difference to --car X alone: expected both");
    if (p->keep_cache && (p->against || p->resume))
        return err_set(e, ERR_USAGE,
                       "--keep-cache: a window would depend on what ran before it, so that neither --against nor "
                       "--resume can go with it");
    return ERR_OK;
}

static void print_result(const struct ppl *p, const struct ppl_result *r)
{
    printf("perplexity %.4f +- %.4f (nll %.5f +- %.5f, %zu tokens, %lld window%s of %lld, %lld scored)\n", r->ppl,
           r->ppl_error, r->nll, r->nll_error, p->n_ids, (long long)r->n_window, r->n_window == 1 ? "" : "s",
           (long long)p->model.n_ctx, (long long)r->n_scored);
    if (p->against)
        printf(
            "against %.4f without --car: ratio %.5f +- %.5f, divergence %.5f +- %.5f, same likeliest token %.2f%% +- "
            "%.2f%%\n",
            r->other_ppl, r->ratio, r->ratio_error, r->divergence, r->divergence_error, 100 * r->same_top,
            100 * r->same_top_error);
}

static err_code print_json(const struct ppl *p, const struct ppl_result *r, struct err *e)
{
    json_t *all =
        json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I}", "perplexity", r->ppl, "error", r->ppl_error, "nll",
                  r->nll, "nll_error", r->nll_error, "n_tok", (json_int_t)p->n_ids, "n_window", (json_int_t)r->n_window,
                  "n_ctx", (json_int_t)p->model.n_ctx, "n_scored", (json_int_t)r->n_scored);
    if (all && p->against)
        json_object_set_new(all, "against",
                            json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "perplexity", r->other_ppl, "ratio",
                                      r->ratio, "ratio_error", r->ratio_error, "divergence", r->divergence,
                                      "divergence_error", r->divergence_error, "same_top", r->same_top,
                                      "same_top_error", r->same_top_error));
    if (!all)
        return err_nomem(e, 1024, "the result");
    json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
    return ERR_OK;
}

/* Opens the sessions: the one asked for, and the one to compare with. */
static err_code open_sessions(struct ppl *p, struct err *e)
{
    struct opened exact = {.engine = p->opened.engine};
    struct model_options o = p->model;
    o.car = (moebius_car){0};
    const struct run_texts texts = {.n_ctx = p->model.n_ctx};
    (void)run_plan_begin(&p->model, p->opened.engine, &texts);
    TRY(cli_open_session(&p->model, p->model.n_ctx, &p->opened, e));
    err_code code = p->against ? cli_open_session(&o, o.n_ctx, &exact, e) : ERR_OK;
    p->exact = exact.session;
    return code;
}

/* The receipt of a run, whose windows count as prompts. */
static void leave_receipt(const struct ppl *p, const struct ppl_result *r, int64_t n_ns)
{
    const struct run_figures f = {.method = "ppl",
                                  .n_prefill = (r->n_window - r->n_resumed) * p->model.n_ctx,
                                  .prefill_ns = n_ns,
                                  .n_prompt = p->model.n_ctx};
    cli_leave_receipt(&p->model, p->opened.engine, &f);
}

static err_code ppl(struct ppl *p, struct err *e)
{
    struct ppl_result r;
    struct ppl_params params = {.n_ctx = p->model.n_ctx,
                                .n_window = p->n_window,
                                .by_token = uses_car(p),
                                .forget = uses_car(p) && !p->keep_cache,
                                .resume = p->resume,
                                .progress = print_progress,
                                .user = p};
    p->file = cli_file_or_piped(p->file);
    TRY(check(p, e));
    TRY(output_file_check(p->resume, e));
    TRY(cli_open_engine(&p->model, &p->opened, e));
    TRY(cli_read_tokens(p->file, moebius_engine_vocab(p->opened.engine), &p->ids, &p->n_ids, e));
    if (p->resume) {
        TRY(settings(p, params.identity.settings, sizeof params.identity.settings, e));
        TRY(ppl_identify(&params.identity, p->model.path, p->ids, p->n_ids, e));
    }
    TRY(open_sessions(p, e));
    params.against = p->exact;
    cli_catch_interrupt();
    p->start_ns = clock_ns();
    TRY(ppl_run(p->opened.engine, p->opened.session, p->ids, p->n_ids, &params, &r, e));
    int64_t end_ns = clock_ns();
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\n");
    if (p->json)
        TRY(print_json(p, &r, e));
    else
        print_result(p, &r);
    if (uses_car(p)) {
        stats_print(p->opened.engine, NULL);
        fprintf(stderr, "\n");
    }
    place_stats_print(p->opened.engine, stderr);
    if (!uses_car(p)) /* with --car, the time is not divided into prompts and single tokens */
        leave_receipt(p, &r, end_ns - p->start_ns);
    return cli_interrupted() ? err_set(e, ERR_CANCELLED, "interrupted after %lld window%s", (long long)r.n_window,
                                       r.n_window == 1 ? "" : "s")
                             : ERR_OK;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct ppl p = {.model.n_ctx = 512};
    const struct option options[] = {
        MODEL_OPTIONS(p.model),
        CAR_OPTIONS(p.model),
        {"--file,-f", OPT_INPUT, &p.file, "FILE", "the text (-: standard input)", 0, 0, 0},
        {"--ctx,-c", OPT_INT, &p.model.n_ctx, "N", "tokens in a window (512)", 1, 1 << 30, 0},
        {"--json", OPT_FLAG, &p.json, "", "print one JSON object", 0, 0, 0},
        {"--chunks", OPT_INT, &p.n_window, "N", "score only the first N windows", 1, 1e12, 0},
        {"--resume", OPT_OUTPUT, &p.resume, "FILE", "keep progress in FILE, and resume from it", 0, 0, 0},
        {"--against", OPT_FLAG, &p.against, "", "with --car: compare with the model's own predictions", 0, 0, 0},
        {"--keep-cache", OPT_FLAG, &p.keep_cache, "", "with --car: keep the experts in memory between windows", 0, 0,
         0},
        RECEIPT_OPTION(p.model),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = ppl(&p, &e);
    moebius_session_close(&p.exact);
    cli_close(&p.opened);
    mem_free(p.ids);
    return cli_exit(c, code, &e);
}

const struct command cmd_ppl = {
    .name = "ppl",
    .usage = "-m FILE -f TEXT [OPTIONS]",
    .summary = "measure perplexity on a text, comparable with llama.cpp",
    .details =
        "Cuts the text into windows of --ctx tokens and scores the second half of each. CR LF counts as LF. With "
        "--car, each window begins without experts in memory, and its second half is computed token by token.",
    .hint = "the text is given with -f",
    .runs_model = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
