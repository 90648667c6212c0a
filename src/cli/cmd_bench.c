#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/leave_receipt.h"
#include "cli/open_model.h"
#include "cli/place_stats.h"
#include "cli/prompt_options.h"
#include "cli/rank_forecast.h"
#include "cli/run_plan.h"
#include "cli/say.h"
#include "cli/stats.h"
#include "jobs/bench.h"
#include "jobs/read_file.h"

struct bench_command {
    struct model_options model;
    const char *tokens_from;
    struct bench_params params;
    bool load, ops, csv, json;
    struct opened opened;
    int32_t *ids;
};

static bool print_progress(void *user, int64_t n_round)
{
    const struct bench_command *b = user;
    say_progress("%lld of %lld rounds ", (long long)n_round, (long long)b->params.n_round);
    if (n_round == b->params.n_round || cli_interrupted())
        say_progress_end();
    return !cli_interrupted();
}

/* An interrupt ends the rounds early: those that have run are printed, and the command fails. */
static err_code check_rounds(const struct bench_command *b, int64_t n_round, struct err *e)
{
    if (n_round < b->params.n_round)
        return err_set(e, ERR_CANCELLED, "interrupted after %lld of %lld rounds", (long long)n_round,
                       (long long)b->params.n_round);
    return ERR_OK;
}

/* ---- for people ---------------------------------------------------------------------------------------------- */

static void print_phase(const struct bench_command *b, const struct bench_result *r, const char *name,
                        const struct bench_phase *p)
{
    char label[64];
    if (p->n_tok == 0)
        return;
    snprintf(label, sizeof label, "%s %lld", name, (long long)p->n_tok);
    if (b->params.n_depth)
        snprintf(label, sizeof label, "%s %lld @ %lld", name, (long long)p->n_tok, (long long)b->params.n_depth);
    if (b->params.n_texts > 1 && p == &r->decode)
        snprintf(label, sizeof label, "%s %lld x %lld", name, (long long)b->params.n_texts,
                 (long long)b->params.n_decode);
    printf("%-18s %9.2f %9.2f %9.2f %9.1f %6.2f %6.2f %6.2f\n", label, p->tok_per_s.median, p->tok_per_s.min,
           p->tok_per_s.max, p->roof_tok_per_s.median, p->roof_fraction.median, p->roof_fraction.min,
           p->roof_fraction.max);
}

/* Prints the figures that the roof is computed from. */
static void print_work(const char *name, const struct bench_phase *p)
{
    if (p->n_tok == 0)
        return;
    printf("a token of %s: %.4f GB, %.4f G multiply-adds of int8, %.4f float", name, p->n_bytes / 1e9, p->n_int8 / 1e9,
           p->n_float / 1e9);
    printf(p->n_tile > 0 ? ", %.4f of int8 in tiles\n" : "\n", p->n_tile / 1e9);
}

static void print_unsteady(const struct bench_result *r, const char *name, const struct bench_phase *p)
{
    if (p->n_unsteady)
        printf("%s: memory or units changed speed by more than 10%% during %lld of %lld\n"
               "tokens (a shared machine?); 'part of the roof' leaves these out, except in\n"
               "rounds that have no others\n",
               name, (long long)p->n_unsteady, (long long)(p->n_tok * r->n_round));
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Prints for each kind of operation its share of the time, its speed, and its speed relative to the roof. */
static void print_ops(const struct bench_result *r, const char *name, const struct bench_phase *p)
{
    double n_tok = (double)(p->n_tok * r->n_round), all_ns = 0;
    if (p->n_tok == 0)
        return;
    for (int i = 0; i < r->n_op; i++)
        all_ns += (double)p->ops[i].did.n_ns;
    printf("\n%-12s %9s %7s %9s %9s %10s %10s %6s\n", name, "us/token", "share", "calls", "GB/s", "G int8/s",
           "G float/s", "roof");
    for (int i = 0; i < r->n_op; i++) {
        const moebius_op_stats *o = &p->ops[i].did;
        double ns = (double)o->n_ns;
        if (o->n)
            printf("%-12s %9.2f %6.1f%% %9llu %9.2f %10.2f %10.2f %6.2f\n", o->name, ns / 1e3 / n_tok,
                   100 * ns / all_ns, (unsigned long long)o->n, ratio((double)o->n_bytes, ns),
                   ratio((double)(o->n_int8 + o->n_tile), ns), ratio((double)o->n_float, ns),
                   ratio(p->ops[i].roof_s * 1e9, ns));
    }
}

static void print_machine(const struct bench_result *r)
{
    printf("the machine: memory %.1f to %.1f GB/s\n"
           "multiply-adds: int8 %.0f to %.0f G/s, float %.0f to %.0f G/s",
           r->least.read_bytes_per_s / 1e9, r->best.read_bytes_per_s / 1e9, r->least.int8_per_s / 1e9,
           r->best.int8_per_s / 1e9, r->least.float_per_s / 1e9, r->best.float_per_s / 1e9);
    if (r->best.tile_per_s > 0)
        printf(", tiles %.0f to %.0f G/s", r->least.tile_per_s / 1e9, r->best.tile_per_s / 1e9);
    printf("\n");
}

/* The speed that a GPU which computes everything could reach: at four fifths of its memory's bandwidth, with dispatches
 * one after the other. */
static double gpu_tok_per_s(const struct bench_result *r, const struct bench_phase *p)
{
    double s = p->n_bytes / (0.8 * r->gpu.bytes_per_s) + p->n_dispatch * r->gpu.dispatch_s;
    return r->is_gpu_alone && p->n_tok ? 1 / s : 0;
}

static void print_dispatches(const struct bench_result *r, const char *name, const struct bench_phase *p)
{
    double could = gpu_tok_per_s(r, p);
    if (could > 0)
        printf("%s: %.1f dispatches a token; with these and 0.8 of the GPU's memory bandwidth %.1f tokens/s, of which "
               "%.2f\n",
               name, p->n_dispatch, could, p->tok_per_s.median / could);
}

static void print_table(const struct bench_command *b, const struct bench_result *r)
{
    const moebius_engine *g = b->opened.engine;
    printf("%s, %lld layers, %d thread%s", moebius_arch(g), (long long)moebius_n_layer(g), moebius_n_threads(g),
           moebius_n_threads(g) == 1 ? "" : "s");
    if (moebius_n_memory_node(g) > 1)
        printf(" on %d memory nodes", moebius_n_memory_node(g));
    printf(", sort cutoff %lld\n", (long long)moebius_engine_sort_cutoff(g));
    if (r->best.read_bytes_per_s > 0)
        print_machine(r);
    if (r->gpu.bytes_per_s > 0)
        printf("the GPU: memory %.1f GB/s, %.2f us an empty dispatch\n", r->gpu.bytes_per_s / 1e9,
               1e6 * r->gpu.dispatch_s);
    printf("\n");
    printf("%-18s %9s %9s %9s %9s %20s\n", "", "tokens/s", "", "", "roof", "part of the roof  ");
    printf("%-18s %9s %9s %9s %9s %6s %6s %6s\n", "", "median", "slowest", "fastest", "tokens/s", "median", "least",
           "most");
    print_phase(b, r, "prefill", &r->prefill);
    print_phase(b, r, "decode", &r->decode);
    printf("\n");
    print_work("the prompt", &r->prefill);
    print_work("decode", &r->decode);
    print_dispatches(r, "decode", &r->decode);
    if (b->params.n_texts > 1 && r->decode.n_experts > 0)
        printf("decode: %.1f different experts in a layer for %lld texts\n", r->decode.n_experts,
               (long long)b->params.n_texts);
    print_unsteady(r, "prefill", &r->prefill);
    print_unsteady(r, "decode", &r->decode);
    rank_forecast_print(g, &b->params, r, stdout);
    if (b->ops) {
        print_ops(r, "prefill", &r->prefill);
        print_ops(r, "decode", &r->decode);
    }
}

/* ---- for programs -------------------------------------------------------------------------------------------- */

static void print_csv_phase(const struct bench_command *b, const char *name, const struct bench_phase *p)
{
    if (p->n_tok)
        printf("%s,%lld,%lld,%d,%.4f,%.4f,%.4f,%.4f,%.6f,%.0f,%.0f,%.0f,%.6f,%.6f,%lld,%lld,%.4f,%.0f\n", name,
               (long long)p->n_tok, (long long)b->params.n_depth, moebius_n_threads(b->opened.engine),
               p->tok_per_s.median, p->tok_per_s.min, p->tok_per_s.max, p->roof_tok_per_s.median,
               p->roof_fraction.median, p->n_bytes, p->n_int8, p->n_float, p->roof_fraction.min, p->roof_fraction.max,
               (long long)p->n_unsteady, (long long)b->params.n_texts, p->n_experts, p->n_tile);
}

static void print_csv(const struct bench_command *b, const struct bench_result *r)
{
    printf("phase,n_tok,depth,threads,tok_per_s,min,max,roof_tok_per_s,roof_fraction,bytes_per_tok,int8_per_tok,"
           "float_per_tok,roof_fraction_min,roof_fraction_max,unsteady_tok,texts,experts,tile_per_tok\n");
    print_csv_phase(b, "prefill", &r->prefill);
    print_csv_phase(b, "decode", &r->decode);
}

static void print_json_op(const struct bench_op *op, bool is_first)
{
    const moebius_op_stats *o = &op->did;
    printf("%s\"%s\": {\"n\": %llu, \"ns\": %llu, \"roof_ns\": %.0f, \"bytes\": %llu, \"int8\": %llu, "
           "\"float\": %llu, \"tile\": %llu}",
           is_first ? ", \"ops\": {" : ", ", o->name, (unsigned long long)o->n, (unsigned long long)o->n_ns,
           op->roof_s * 1e9, (unsigned long long)o->n_bytes, (unsigned long long)o->n_int8,
           (unsigned long long)o->n_float, (unsigned long long)o->n_tile);
}

static void print_json_phase(const struct bench_command *b, const struct bench_result *r, const char *name,
                             const struct bench_phase *p)
{
    printf(", \"%s\": ", name);
    if (p->n_tok == 0) {
        printf("null");
        return;
    }
    printf("{\"n_tok\": %lld, \"depth\": %lld, \"tok_per_s\": %.4f, \"min\": %.4f, \"max\": %.4f, "
           "\"roof_tok_per_s\": %.4f, \"roof_fraction\": %.6f, \"roof_fraction_min\": %.6f, "
           "\"roof_fraction_max\": %.6f, \"unsteady_tok\": %lld, \"bytes_per_tok\": %.0f, \"int8_per_tok\": %.0f, "
           "\"float_per_tok\": %.0f, \"tile_per_tok\": %.0f, \"experts\": %.4f, \"dispatches_per_tok\": %.4f, "
           "\"gpu_tok_per_s\": %.4f",
           (long long)p->n_tok, (long long)b->params.n_depth, p->tok_per_s.median, p->tok_per_s.min, p->tok_per_s.max,
           p->roof_tok_per_s.median, p->roof_fraction.median, p->roof_fraction.min, p->roof_fraction.max,
           (long long)p->n_unsteady, p->n_bytes, p->n_int8, p->n_float, p->n_tile, p->n_experts, p->n_dispatch,
           gpu_tok_per_s(r, p));
    for (int i = 0, n = 0; b->ops && i < r->n_op; i++)
        if (p->ops[i].did.n)
            print_json_op(&p->ops[i], n++ == 0);
    printf(b->ops ? "}}" : "}");
}

static void print_json_roof(const char *name, const moebius_roof *roof)
{
    printf(", \"%s\": {\"read_bytes_per_s\": %.0f, \"int8_per_s\": %.0f, \"float_per_s\": %.0f, \"tile_per_s\": %.0f}",
           name, roof->read_bytes_per_s, roof->int8_per_s, roof->float_per_s, roof->tile_per_s);
}

static double drive_rate(const struct bench_command *b)
{
    const moebius_counters c = moebius_engine_counters(b->opened.engine);
    return stats_drive_rate(&c);
}

static void print_json(const struct bench_command *b, const struct bench_result *r)
{
    const moebius_engine *g = b->opened.engine;
    printf("{\"arch\": \"%s\", \"threads\": %d, \"sort_cutoff\": %lld, \"texts\": %lld, \"rounds\": %lld",
           moebius_arch(g), moebius_n_threads(g), (long long)moebius_engine_sort_cutoff(g),
           (long long)b->params.n_texts, (long long)r->n_round);
    print_json_roof("roof", &r->best);
    print_json_roof("roof_least", &r->least);
    print_json_roof("roof_mean", &r->mean);
    printf(", \"gpu\": {\"bytes_per_s\": %.0f, \"dispatch_s\": %.9f}", r->gpu.bytes_per_s, r->gpu.dispatch_s);
    printf(", \"drive_bytes_per_s\": %.0f", drive_rate(b));
    print_json_phase(b, r, "prefill", &r->prefill);
    print_json_phase(b, r, "decode", &r->decode);
    rank_forecast_print_json(g, &b->params, r, stdout);
    printf("}\n");
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

struct load_times {
    double *load, *read, *ratio; /* [n] seconds of each round, and load / read */
    int64_t n;                   /* rounds so far */
    uint64_t n_bytes;
};

static err_code time_reading(struct bench_command *b, struct load_times *t, int64_t i, struct err *e)
{
    return read_file_time(b->model.path, (int)b->model.n_threads, b->model.hugetlb, &t->read[i], &t->n_bytes, e);
}

static err_code time_load(struct bench_command *b, struct load_times *t, int64_t i, struct err *e)
{
    TRY(cli_open_engine(&b->model, &b->opened, e));
    t->load[i] = (double)b->opened.load_ns * 1e-9;
    cli_close(&b->opened);
    return ERR_OK;
}

/* Reads the file and loads the model in turns. The first read only fills the page cache and doesn't count. Which of the
 * two comes first changes with each round: a host that reclaims unused memory every few seconds might otherwise slow
 * down the same one each time. */
static err_code time_loading(struct bench_command *b, struct load_times *t, struct err *e)
{
    if (!b->model.path)
        return err_set(e, ERR_USAGE, "no model: name one with -m FILE");
    cli_catch_interrupt();
    TRY(time_reading(b, t, 0, e));
    for (bool more = true; more && t->n < b->params.n_round; more = print_progress(b, t->n)) {
        int64_t i = t->n++;
        TRY((i % 2 ? time_load : time_reading)(b, t, i, e));
        TRY((i % 2 ? time_reading : time_load)(b, t, i, e));
        t->ratio[i] = t->load[i] / t->read[i];
    }
    return ERR_OK;
}

static void print_loading(const struct bench_command *b, const struct load_times *t)
{
    struct bench_spread load = bench_spread(t->load, t->n), read = bench_spread(t->read, t->n);
    struct bench_spread ratio = bench_spread(t->ratio, t->n);
    double gb = (double)t->n_bytes / 1e9;
    if (b->json) {
        printf("{\"bytes\": %llu, \"rounds\": %lld, \"load\": {\"s\": %.6f, \"min\": %.6f, \"max\": %.6f}, "
               "\"read\": {\"s\": %.6f, \"min\": %.6f, \"max\": %.6f}, \"ratio\": %.4f, "
               "\"round_ratio\": {\"median\": %.4f, \"min\": %.4f, \"max\": %.4f}}\n",
               (unsigned long long)t->n_bytes, (long long)t->n, load.median, load.min, load.max, read.median, read.min,
               read.max, load.median / read.median, ratio.median, ratio.min, ratio.max);
    } else if (b->csv) {
        printf("phase,bytes,s,min,max\n");
        printf("load,%llu,%.6f,%.6f,%.6f\n", (unsigned long long)t->n_bytes, load.median, load.min, load.max);
        printf("read,%llu,%.6f,%.6f,%.6f\n", (unsigned long long)t->n_bytes, read.median, read.min, read.max);
    } else {
        printf("%-32s %10s %10s %10s %10s\n", "", "seconds", "fastest", "slowest", "GB/s");
        printf("%-32s %10.3f %10.3f %10.3f %10.2f\n", "load", load.median, load.min, load.max, gb / load.median);
        printf("%-32s %10.3f %10.3f %10.3f %10.2f\n", "read into fresh memory, no more", read.median, read.min,
               read.max, gb / read.median);
        printf("\nratio of the medians %.2f, of the fastest %.2f, in a round %.2f (%.2f to %.2f)\n",
               load.median / read.median, load.min / read.min, ratio.median, ratio.min, ratio.max);
    }
}

static err_code bench_loading(struct bench_command *b, struct err *e)
{
    size_t n = (size_t)b->params.n_round;
    struct load_times t = {.load = mem_calloc(3 * n, sizeof *t.load)};
    if (!t.load)
        return err_nomem(e, 3 * n * sizeof *t.load, "a benchmark");
    t.read = t.load + n;
    t.ratio = t.read + n;
    err_code code = time_loading(b, &t, e);
    if (code == ERR_OK)
        print_loading(b, &t);
    mem_free(t.load);
    return code == ERR_OK ? check_rounds(b, t.n, e) : code;
}

/* The time of a phase's tokens in all rounds at the median speed. */
static int64_t phase_ns(const struct bench_result *r, const struct bench_phase *p)
{
    double n_tok = (double)(p->n_tok * r->n_round);
    return p->tok_per_s.median > 0 ? (int64_t)(n_tok * 1e9 / p->tok_per_s.median) : 0;
}

/* The ceiling is the roof that was measured beside the rounds. */
static void leave_receipt(const struct bench_command *b, const struct bench_result *r)
{
    const struct bench_params *p = &b->params;
    const struct run_figures f = {
        .method = "bench",
        .n_prefill = r->prefill.n_tok * r->n_round,
        .prefill_ns = phase_ns(r, &r->prefill),
        .n_decoded = r->decode.n_tok * r->n_round,
        .decode_ns = phase_ns(r, &r->decode),
        .n_texts = p->n_texts,
        .n_ctx = p->n_depth + p->n_prefill + p->n_decode / 2,
        .n_prompt = p->n_prefill,
        .prompt_from = p->n_depth,
        .prefill_ceiling = r->prefill.roof_tok_per_s.median,
        .decode_ceiling = r->decode.roof_tok_per_s.median,
        .rates = {[MACHINE_MEMORY] = r->mean.read_bytes_per_s, [MACHINE_UNITS] = r->mean.int8_per_s}};
    cli_leave_receipt(&b->model, b->opened.engine, &f);
}

static err_code bench(struct bench_command *b, struct err *e)
{
    struct bench_result r;
    const struct bench_params *p = &b->params;
    if (p->n_prefill + p->n_decode == 0)
        return err_set(e, ERR_USAGE, "nothing to measure: -p and -n are both 0");
    b->model.time_gpus = b->ops;
    TRY(cli_open_engine(&b->model, &b->opened, e));
    TRY(cli_bench_tokens(b->tokens_from, b->opened.engine, &b->ids, &b->params.n_ids, e));
    b->params.ids = b->ids;
    const struct run_texts texts = {.n_texts = p->n_texts, .n_ctx = p->n_depth + p->n_prefill + p->n_decode};
    TRY(cli_open_session(&b->model, run_plan_begin(&b->model, b->opened.engine, &texts), &b->opened, e));
    cli_catch_interrupt();
    TRY(bench_run(b->opened.engine, b->opened.session, p, print_progress, b, &r, e));
    if (b->json)
        print_json(b, &r);
    else if (b->csv)
        print_csv(b, &r);
    else
        print_table(b, &r);
    stats_print_car(b->opened.engine, stderr);
    place_stats_print(b->opened.engine, stderr);
    leave_receipt(b, &r);
    return check_rounds(b, r.n_round, e);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct bench_command b = {.params = {.n_prefill = 512, .n_decode = 32, .n_texts = 1, .n_round = 3}};
    const struct option options[] = {
        MODEL_OPTIONS(b.model),
        CAR_OPTIONS(b.model),
        {"--prompt,-p", OPT_INT, &b.params.n_prefill, "N", "prompt tokens (512); 0: no prefill", 0, 1 << 24, 0},
        {"-n", OPT_INT, &b.params.n_decode, "N", "tokens decoded one by one after the prompt (32); 0: none", 0, 1 << 24,
         0},
        {"--depth,-d", OPT_INT, &b.params.n_depth, "N", "tokens already in the context (0)", 0, 1 << 24, 0},
        {"--texts", OPT_INT, &b.params.n_texts, "N", "texts decoded together (1)", 1, 1024, 0},
        {"--rounds,-r", OPT_INT, &b.params.n_round, "N", "rounds (3)", 1, 10000, 0},
        {"--tokens-from", OPT_INPUT, &b.tokens_from, "FILE", "use the tokens of a text instead of random ones", 0, 0,
         0},
        {"--load", OPT_FLAG, &b.load, "", "time loading the model, beside plain reading of the file", 0, 0, 0},
        {"--ops", OPT_FLAG, &b.ops, "", "add time, bytes and work of each kind of operation", 0, 0, 0},
        {"--csv", OPT_FLAG, &b.csv, "", "print CSV", 0, 0, 0},
        {"--json", OPT_FLAG, &b.json, "", "print one JSON object", 0, 0, 0},
        RECEIPT_OPTION(b.model),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && b.csv && b.json)
        code = err_set(&e, ERR_USAGE, "--csv and --json: choose one");
    if (code == ERR_OK)
        code = b.load ? bench_loading(&b, &e) : bench(&b, &e);
    cli_close(&b.opened);
    mem_free(b.ids);
    return cli_exit(c, code, &e);
}

const struct command cmd_bench = {
    .name = "bench",
    .usage = "-m FILE [OPTIONS]",
    .summary = "measure speed, beside what the machine could reach",
    .details =
        "Times a prompt and the tokens after it. Right before and after each prompt and every 16 tokens, it measures "
        "the machine's memory and compute units. The roof is the shortest possible time of the operations: for each, "
        "its bytes over the memory bandwidth or its multiply-adds over their peak, whichever is longer; these times "
        "are summed. Of a GPU it is the bytes over its memory bandwidth alone. Prints the median and the range of the "
        "rounds. With --texts, several texts decode together after prompts of their own; only the first prompt is "
        "timed, and tokens/s are those of all texts.",
    .hint = "the model is given with -m",
    .runs_model = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
