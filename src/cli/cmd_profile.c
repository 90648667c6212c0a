#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/input_text.h"
#include "cli/open_model.h"
#include "cli/record_text.h"
#include "engine/gate_file.h"
#include "engine/planning.h"
#include "jobs/curve.h"
#include "jobs/gate_run.h"
#include "jobs/profile.h"

struct profile_command {
    struct model_options model;
    const char *file, *out, *csv, *svg, *machine;
    int64_t n_most;
    bool gate, json;
    struct option_share budget;
    bool is_held; /* the gate's decision is "hold" */
    struct opened opened;
    size_t n_ids;
    struct profile profile;
    struct usage usage;
};

/* Runs the text through the model. */
static err_code record(struct profile_command *p, struct err *e)
{
    p->file = cli_file_or_piped(p->file);
    if (!p->file)
        return err_set(e, ERR_USAGE, "no text: name one with -f FILE");
    TRY(output_file_check(p->out, e));
    TRY(output_file_check(p->csv, e));
    TRY(output_file_check(p->svg, e));
    return record_text(&p->model, p->file, p->n_most, &p->opened, &p->profile, &p->n_ids, e);
}

static err_code write_file(const struct profile_command *p, const char *path,
                           void (*print)(const struct trace *t, const struct usage *u, const moebius_engine *engine,
                                         FILE *f),
                           struct err *e)
{
    struct output_file f;
    if (!path)
        return ERR_OK;
    TRY(output_file_open(&f, path, e));
    print(&p->profile.trace, &p->usage, p->opened.engine, f.stream);
    return output_file_finish(&f, e);
}

static err_code print_layers(const struct profile_command *p, struct err *e)
{
    const struct trace *t = &p->profile.trace;
    double share = 0, entropy = 0;
    printf("layer  experts  chosen  90%% of choices by  entropy of even\n");
    for (int l = 0; l < t->n_layer; l++) {
        struct profile_skew s;
        TRY(profile_skew(&p->usage, l, t->layers[l].n_expert, &s, e));
        share += s.share_of_90 / t->n_layer;
        entropy += s.entropy / t->n_layer;
        printf("%5d %8lld %7lld %17.1f%% %16.3f\n", l, (long long)t->layers[l].n_expert, (long long)t->layers[l].n_used,
               100 * s.share_of_90, s.entropy);
    }
    printf(" mean %34.1f%% %16.3f\n\n", 100 * share, entropy);
    return ERR_OK;
}

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

enum { USUAL_PERCENT = 25 };

/* The share of all experts that the gate decides on: as given, or what a GPU has slots for, or a quarter. */
static double gate_share(const struct profile_command *p)
{
    const moebius_counters c = moebius_engine_counters(p->opened.engine);
    moebius_device d;
    double all = (double)c.expert_all_bytes;
    if (p->budget.n_bytes)
        return all > 0 ? fmin((double)p->budget.n_bytes / all, 1) : 1;
    if (p->budget.share > 0)
        return p->budget.share;
    bool is_cache = moebius_n_place(p->opened.engine) > 1 && moebius_engine_device(p->opened.engine, 0, &d) &&
                    !strncmp(d.name, "vulkan", 6);
    return is_cache && all > 0 && (double)d.expert_bytes < all ? (double)d.expert_bytes / all : USUAL_PERCENT / 100.0;
}

/* The threads of the device with slots (0: it is a GPU), and of all other devices together. */
static void count_threads(const moebius_engine *engine, int *first, int *other)
{
    moebius_device d;
    int n;
    *first = *other = 0;
    for (int i = 0; moebius_engine_device(engine, i, &d); i++)
        if (sscanf(d.name, "cpu:%d", &n) == 1)
            *(i ? other : first) += n;
    if (!*other) { /* one device: a GPU may come beside it */
        *other = *first;
        *first = 0;
    }
}

static void print_gate(const struct gate_curve *c, const struct gate *g)
{
    printf("skew: 90%% of a layer's choices fall on %.1f%% of its experts, entropy %.3f of even\n\n",
           100 * c->share_of_90, c->entropy);
    printf("slots for   found by %-5s moved a token\n", c->policy);
    for (int i = 0; i < c->n_point; i++)
        printf("%8.1f%% %14.1f%% %13.2f%s\n", 100 * c->points[i].share, 100 * c->points[i].hit, c->points[i].moved,
               c->points[i].share == g->share ? "   <- decided for" : "");
    if (c->n_count)
        printf("\nexperts that tokens choose together, of what even choices would\n"
               "tokens   of as many texts   of a prompt\n");
    for (int i = 0; i < c->n_count; i++)
        printf("%6" PRId64 " %18.1f%% %12.1f%%\n", c->counts[i].n, 100 * c->counts[i].apart, 100 * c->counts[i].in_row);
    printf("\n%s: %s\n", g->passes ? "pass" : "hold", g->reason);
}

static err_code gate(struct profile_command *p, struct err *e)
{
    struct machine m;
    struct gate_curve curve;
    struct gate g;
    char *path = NULL, *json = NULL;
    const char *name = p->model.policy ? p->model.policy : policy_name(POLICY_LFRU);
    struct gate_job job = {.trace = &p->profile.trace,
                           .usage = &p->usage,
                           .fingerprint = moebius_fingerprint(p->opened.engine),
                           .share = gate_share(p),
                           .machine = &m};
    (void)policy_parse(name, &job.policy);
    count_threads(p->opened.engine, &job.n_first_thread, &job.n_other_thread);
    TRY(planning_machine_read(&m, p->machine, e));
    if (p->machine && m.n_thread && !job.n_first_thread)
        job.n_other_thread = m.n_thread; /* all of another machine's */
    TRY(gate_run(&job, &curve, &g, e));
    p->is_held = !g.passes;
    if (p->json)
        TRY(gate_json(&g, &curve, &json, e));
    if (json)
        printf("%s\n", json);
    else
        print_gate(&curve, &g);
    mem_free(json);
    if (p->model.cold)
        return ERR_OK;
    TRY(gate_file_save(&curve, &path, e));
    if (path && !p->json)
        printf("kept in %s\n", path);
    mem_free(path);
    return ERR_OK;
}

/* ---- the profile ------------------------------------------------------------------------------------------------- */

static err_code print_profile(struct profile_command *p, struct err *e)
{
    const struct trace *t = &p->profile.trace;
    double reuse_1, reuse_8;
    TRY(profile_reuse(t, 1, &reuse_1, e));
    TRY(profile_reuse(t, 8, &reuse_8, e));
    printf("%lld tokens, %d MoE layers\n\n", (long long)t->n_tok, t->n_layer);
    TRY(print_layers(p, e));
    printf("reuse: %.1f%% of choices are those of the token before, %.1f%% of one of the 8 before\n", 100 * reuse_1,
           100 * reuse_8);
    profile_print_places(t, &p->usage, p->opened.engine, stdout);
    if (p->profile.n_predicted)
        printf("next layer's choices predicted one layer before: %.1f%% right\n",
               100 * (double)p->profile.n_right / (double)p->profile.n_predicted);
    printf("\n");
    return curve_print(t, NULL, NULL, e);
}

static err_code profile(struct profile_command *p, struct err *e)
{
    const struct trace *t = &p->profile.trace;
    if (!p->gate && (p->json || p->machine || p->budget.n_bytes || p->budget.share > 0))
        return err_set(e, ERR_USAGE, "--json, --budget and --machine are the gate's: expected --gate, too");
    TRY(record(p, e));
    TRY(profile_usage(t, &p->usage, e));
    if (!p->gate)
        TRY(print_profile(p, e));
    if ((size_t)t->n_tok < p->n_ids)
        return err_set(e, ERR_CANCELLED, "interrupted after %lld of %zu tokens; no file is written",
                       (long long)t->n_tok, p->n_ids);
    if (p->gate)
        TRY(gate(p, e));
    if (p->out)
        TRY(usage_save(&p->usage, p->out, moebius_fingerprint(p->opened.engine), e));
    TRY(write_file(p, p->csv, profile_csv, e));
    return write_file(p, p->svg, profile_svg, e);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct profile_command p = {.model.n_ctx = 512};
    const struct option options[] = {
        MODEL_OPTIONS(p.model),
        {"--file,-f", OPT_INPUT, &p.file, "FILE", "the text (-: standard input)", 0, 0, 0},
        {"--ctx,-c", OPT_INT, &p.model.n_ctx, "N", "cut the text into windows of N tokens (512)", 1, 1 << 30, 0},
        {"-n", OPT_INT, &p.n_most, "N", "use only the first N tokens", 1, 1e12, 0},
        {"--out,-o", OPT_OUTPUT, &p.out, "FILE", "write the counts, for --usage", 0, 0, 0},
        {"--csv", OPT_OUTPUT, &p.csv, "FILE", "write the counts as a table", 0, 0, 0},
        {"--svg", OPT_OUTPUT, &p.svg, "FILE", "write the counts as a picture", 0, 0, 0},
        {"--gate", OPT_FLAG, &p.gate, "", "decide between a cache of experts and whole layers on a device", 0, 0, 0},
        {"--budget", OPT_SHARE, &p.budget, "SIZE|N%", "with --gate: memory for slots (what a GPU has, or 25%)", 0, 0,
         0},
        {"--machine", OPT_INPUT, &p.machine, "FILE", "with --gate: use the machine described in FILE", 0, 0, 0},
        {"--json", OPT_FLAG, &p.json, "", "with --gate: print one JSON object", 0, 0, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = profile(&p, &e);
    trace_close(&p.profile.trace);
    usage_close(&p.usage);
    cli_close(&p.opened);
    int exit_code = cli_exit(c, code, &e);
    return exit_code == ERR_OK && p.is_held ? EXIT_HOLD : exit_code;
}

const struct command cmd_profile = {
    .name = "profile",
    .usage = "-m FILE -f TEXT [OPTIONS]",
    .summary = "show how a text uses a model's experts, and the hit rates of a cache",
    .details =
        "Prints how unevenly each layer chooses its experts, how often tokens repeat the choices of earlier tokens, "
        "how well the next layer's choice can be predicted, and hit rates for several budgets and policies. --gate "
        "decides between slots for single experts and whole layers on a device beside another one, and keeps the "
        "decision for later runs; the exit status is 21 if it says hold.",
    .hint = "the text is given with -f",
    .runs_model = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
