#define _POSIX_C_SOURCE 200809L
/* receipts: what earlier runs measured. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/input_text.h"
#include "cli/leave_receipt.h"
#include "engine/cache_file.h"
#include "engine/receipts_file.h"
#include "jobs/bench_import.h"

struct receipts_command {
    char *path; /* owned */
    struct receipt *list;
    size_t n;
    struct bench_import import;
    float ceiling_decode, ceiling_prefill;
    bool is_outside; /* a receipt was outside its forecast */
};

static const char *const speeds[SPEED_N] = {[SPEED_DECODE] = "decode", [SPEED_PREFILL] = "prefill"};

struct shown {
    char s[2 * RECEIPT_SETTINGS_BYTES];
};

/* Makes text from a file printable, since others may have written it. */
static struct shown show(const char *text)
{
    struct shown out;
    (void)printable_line(text, strlen(text), out.s, sizeof out.s);
    return out;
}

static struct shown show_time(int64_t time_s)
{
    struct shown out = {"-"};
    time_t t = (time_t)time_s;
    struct tm tm;
    if (time_s && gmtime_r(&t, &tm))
        (void)!strftime(out.s, sizeof out.s, "%Y-%m-%d %H:%M", &tm);
    return out;
}

/* ---- list -------------------------------------------------------------------------------------------------------- */

/* "12.3 (61%)" */
static struct shown show_speed(const struct receipt *r, enum speed_of of)
{
    struct shown out = {"-"};
    double share = receipt_share(r, of);
    if (r->measured[of] > 0 && share > 0)
        snprintf(out.s, sizeof out.s, "%.2f (%.0f%%)", r->measured[of], 100 * share);
    else if (r->measured[of] > 0)
        snprintf(out.s, sizeof out.s, "%.2f", r->measured[of]);
    return out;
}

static void list_all(const struct receipts_command *c)
{
    if (c->n == 0) {
        printf("no receipts: generate, bench, batch, serve and ppl leave them\n");
        return;
    }
    printf("%4s  %-16s  %-11s %-8s %7s %5s %18s %18s  %s\n", "", "when (UTC)", "by", "regime", "threads", "texts",
           "decode tokens/s", "prefill tokens/s", "model");
    for (size_t i = 0; i < c->n; i++) {
        const struct receipt *r = &c->list[i];
        printf("%4zu  %-16s  %-11s %-8s %7lld %5lld %18s %18s  %s\n", i + 1, show_time(r->time_s).s, show(r->method).s,
               regime_name(r->regime), (long long)r->n_threads, (long long)r->n_texts, show_speed(r, SPEED_DECODE).s,
               show_speed(r, SPEED_PREFILL).s, show(r->model).s);
    }
    printf("\n%% is the share of the ceiling, where one is known. `moebius receipts explain N` says more of one.\n");
}

/* ---- explain ----------------------------------------------------------------------------------------------------- */

/* Prints the ceiling of each part alone, and of all one after the other. */
static void explain_parts(const struct receipt *r, enum speed_of of)
{
    double sum = 0;
    for (int i = 0; i < PART_N; i++)
        if (r->part[of][i] > 0) {
            printf("%s%s %.2f", sum > 0 ? ", " : "           alone: ", ceiling_part_names[i], r->part[of][i]);
            sum += 1 / r->part[of][i];
        }
    if (sum > 0)
        printf("; one after the other %.2f\n", 1 / sum);
}

/* The query of a plan of the same run. */
static struct ceiling_time time_of(const struct receipt *r, enum speed_of of)
{
    struct ceiling_time t = {.least_s = r->ceiling[of] > 0 ? 1 / r->ceiling[of] : 0};
    double sum = 0;
    for (int i = 0; i < PART_N; i++) {
        t.part_s[i] = r->part[of][i] > 0 ? 1 / r->part[of][i] : 0;
        sum += t.part_s[i];
    }
    if (!(sum > 0)) /* no parts are known: all of the time counts as one */
        t.part_s[PART_PRODUCTS] = t.least_s;
    return t;
}

/* What the other receipts forecast for this one. */
static void explain_calibration(const struct receipts_command *c, size_t at, enum speed_of of)
{
    const struct receipt *r = &c->list[at];
    const struct calibration_query q = {.of = of,
                                        .regime = r->regime,
                                        .at = r->at,
                                        .n_threads = r->n_threads,
                                        .n_texts = of == SPEED_PREFILL ? 1 : r->n_texts,
                                        .n_tok = of == SPEED_PREFILL ? r->n_prompt : r->n_ctx,
                                        .machine = r->machine,
                                        .fingerprint = r->fingerprint,
                                        .time = time_of(r, of)};
    struct calibration k;
    struct receipt *others = mem_calloc(c->n, sizeof *others);
    if (!others)
        return;
    memcpy(others, c->list, c->n * sizeof *others);
    others[at].measured[of] = 0;
    if (receipts_calibrate(others, c->n, &q, &k))
        printf("           from %d other%s: %.0f%% (%.0f to %.0f%%)%s\n", k.n_used, k.n_used == 1 ? "" : "s",
               100 * k.share, 100 * k.low, 100 * k.high,
               k.is_outside ? ", which is outside of what they measured" : "");
    mem_free(others);
}

static void explain_speed(struct receipts_command *c, size_t at, enum speed_of of)
{
    const struct receipt *r = &c->list[at];
    double share = receipt_share(r, of);
    if (r->measured[of] <= 0)
        return;
    printf("%-10s %.2f tokens/s", speeds[of], r->measured[of]);
    if (share > 0)
        printf(" of a ceiling of %.2f: %.1f%%", r->ceiling[of], 100 * share);
    printf("\n");
    explain_parts(r, of);
    if (share > 1)
        printf("           ABOVE THE CEILING: the machine's rates or the model's bytes must be wrong; it "
               "does "
               "not count for forecasts\n");
    if (r->forecast_high[of] > 0)
        printf("           forecast %.2f to %.2f: %s\n", r->forecast_low[of], r->forecast_high[of],
               receipt_is_inside(r, of) ? "inside" : "OUTSIDE");
    if (r->floor > 0 && of == SPEED_DECODE)
        printf("           floor %.2f: %s\n", r->floor, r->measured[of] >= r->floor ? "cleared" : "missed");
    c->is_outside = c->is_outside || share > 1 || !receipt_is_inside(r, of);
    if (share > 0 && share <= 1)
        explain_calibration(c, at, of);
}

static void explain_bytes(const struct receipt *r)
{
    if (r->peak_bytes && r->planned_bytes)
        printf("memory     peak %.3f GB, planned %.3f GB\n", (double)r->peak_bytes / 1e9,
               (double)r->planned_bytes / 1e9);
    else if (r->peak_bytes)
        printf("memory     peak %.3f GB\n", (double)r->peak_bytes / 1e9);
    if (r->read_bytes || r->hit_bytes)
        printf("experts    %.3f GB found in memory, %.3f GB read\n", (double)r->hit_bytes / 1e9,
               (double)r->read_bytes / 1e9);
}

static err_code explain(struct receipts_command *c, const char *word, struct err *e)
{
    char *end;
    long n = strtol(word, &end, 10);
    if (c->n == 0)
        return err_set(e, ERR_USAGE, "explain %s: there are no receipts", word);
    if (end == word || *end || n < 1 || (size_t)n > c->n)
        return err_set(e, ERR_USAGE, "explain %s: expected a number of the list, 1 to %zu", word, c->n);
    const struct receipt *r = &c->list[n - 1];
    printf("when       %s UTC, by %s\n", show_time(r->time_s).s, show(r->method).s);
    printf("machine    %s, %lld threads\n", show(r->machine).s, (long long)r->n_threads);
    printf("model      %s", show(r->model).s);
    if (r->fingerprint)
        printf(" (%s, %016" PRIx64 ")", show(r->arch).s, r->fingerprint);
    printf("\n");
    printf("settings   %s\n", show(r->settings).s);
    printf("regime     %s", regime_name(r->regime));
    if (r->regime == REGIME_STREAM || r->regime == REGIME_TIERED)
        printf(", %.1f%% of experts were read", 100 * r->at);
    else if (r->regime == REGIME_OFFLOAD)
        printf(", %.1f%% of experts beside the GPU", 100 * r->at);
    printf("; %lld text%s, %lld tokens before\n", (long long)r->n_texts, r->n_texts == 1 ? "" : "s",
           (long long)r->n_ctx);
    for (int of = 0; of < SPEED_N; of++)
        explain_speed(c, (size_t)n - 1, (enum speed_of)of);
    explain_bytes(r);
    return ERR_OK;
}

/* ---- export, add ------------------------------------------------------------------------------------------------- */

static err_code export_all(const struct receipts_command *c, struct err *e)
{
    for (size_t i = 0; i < c->n; i++) {
        char *line;
        TRY(receipt_write(&c->list[i], &line, e));
        printf("%s\n", line);
        mem_free(line);
    }
    return ERR_OK;
}

static err_code add(struct receipts_command *c, const char *file, const struct log *log, struct err *e)
{
    enum { MOST = 64 << 20 };
    char *text;
    size_t n_text, n;
    struct receipt *more;
    if (!c->path)
        return err_set(e, ERR_IO, "no cache directory: neither XDG_CACHE_HOME nor HOME is an absolute path");
    TRY(cli_read_file_within(file, MOST, &text, &n_text, e));
    c->import.ceiling[SPEED_DECODE] = (double)c->ceiling_decode;
    c->import.ceiling[SPEED_PREFILL] = (double)c->ceiling_prefill;
    err_code code = bench_import_read(&c->import, text, n_text, file, &more, &n, e);
    mem_free(text);
    TRY(code);
    code = cache_file_make_folders(c->path, e);
    if (code == ERR_OK)
        code = receipts_add(c->path, more, n, log, e);
    for (size_t i = 0; code == ERR_OK && i < n; i++)
        for (int of = 0; of < SPEED_N; of++)
            c->is_outside = c->is_outside || receipt_share(&more[i], (enum speed_of)of) > 1;
    if (code == ERR_OK)
        printf("%s: %zu measurement%s added%s\n", file, n, n == 1 ? "" : "s",
               c->is_outside ? "; some are ABOVE THEIR CEILING" : "");
    mem_free(more);
    return code;
}

static err_code do_it(struct receipts_command *c, int argc, char **argv, struct err *e)
{
    static const struct log log = {.sink = cli_receipt_warning};
    const char *what = argc > 1 ? argv[1] : "list", *word = argc > 2 ? argv[2] : NULL;
    bool is_add = !strcmp(what, "add"), is_explain = !strcmp(what, "explain");
    if ((is_add || is_explain) == !word)
        return err_set(e, ERR_USAGE, "%s: expected %s", what,
                       is_add       ? "a file"
                       : is_explain ? "a number"
                                    : "no word more");
    if (is_add)
        return add(c, word, &log, e);
    if (c->path)
        TRY(receipts_load(c->path, &c->list, &c->n, &log, e));
    if (is_explain)
        return explain(c, word, e);
    if (!strcmp(what, "export"))
        return export_all(c, e);
    if (strcmp(what, "list") != 0)
        return err_set(e, ERR_USAGE, "%s: expected list, explain N, export or add FILE", what);
    list_all(c);
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct receipts_command r = {0};
    bool no_sandbox = false;
    const struct option options[] = {
        {"--layers", OPT_INT, &r.import.n_layer, "N", "add: number of MoE layers, if some ran on the CPU", 1, 4096, 0},
        {"--decode-ceiling", OPT_FLOAT, &r.ceiling_decode, "X", "add: decode ceiling, tokens/s", 0.001, 1e9, 0},
        {"--prefill-ceiling", OPT_FLOAT, &r.ceiling_prefill, "X", "add: prefill ceiling, tokens/s", 0.001, 1e9, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0}, why;
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = receipts_path(&r.path, &e);
    if (code == ERR_OK && r.path)
        (void)!cache_file_make_folders(r.path, &why); /* what is not there can't be allowed */
    if (code == ERR_OK)
        code = cli_confine(c, options, N_OPTIONS(options), argc, argv, r.path, &e);
    if (code == ERR_OK)
        code = do_it(&r, argc, argv, &e);
    mem_free(r.list);
    mem_free(r.path);
    return code == ERR_OK && r.is_outside ? EXIT_OUTSIDE : cli_exit(c, code, &e);
}

const struct command cmd_receipts = {
    .name = "receipts",
    .usage = "[list | explain N | export | add FILE]",
    .summary = "show how fast earlier runs were",
    .details =
        "generate, bench, batch, serve and ppl record a receipt in the cache directory if they ran long enough to "
        "measure. add imports what llama-bench -o json wrote. The exit status is 22 if a receipt that is explained or "
        "added lies above its ceiling or outside its forecast.",
    .max_operand = 2,
    .subcommands = {{"", {"--no-sandbox"}},
                    {"list", {"--no-sandbox"}},
                    {"explain", {"--no-sandbox"}},
                    {"export", {"--no-sandbox"}}},
    .operands = {0, OPT_INPUT},
    .group = COMMAND_MEASURE,
    .run = run,
};
