#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/input_text.h"
#include "cli/open_model.h"
#include "cli/record_text.h"
#include "jobs/curve.h"
#include "jobs/profile.h"

struct trace_command {
    struct model_options model;
    const char *file, *out, *budgets;
    struct opened opened;
    char *text; /* of the trace that is replayed */
    size_t n_text, n_ids;
    struct profile profile;
    struct usage usage; /* of the profile */
};

static err_code record(struct trace_command *t, struct err *e)
{
    struct output_file f;
    t->file = cli_file_or_piped(t->file);
    if (!t->file || !t->out)
        return err_set(e, ERR_USAGE, "expected a text with -f FILE and an output with -o FILE, or: replay FILE");
    if (t->budgets)
        return err_set(e, ERR_USAGE, "--budgets: expected with replay FILE alone");
    TRY(output_file_check(t->out, e));
    TRY(record_text(&t->model, t->file, 0, &t->opened, &t->profile, &t->n_ids, e));
    if ((size_t)t->profile.trace.n_tok < t->n_ids)
        return err_set(e, ERR_CANCELLED, "interrupted after %lld of %zu tokens; no file is written",
                       (long long)t->profile.trace.n_tok, t->n_ids);
    TRY(profile_usage(&t->profile.trace, &t->usage, e));
    profile_print_places(&t->profile.trace, &t->usage, t->opened.engine, stderr);
    TRY(output_file_open(&f, t->out, e));
    trace_print(&t->profile.trace, moebius_fingerprint(t->opened.engine), f.stream);
    return output_file_finish(&f, e);
}

static err_code replay(struct trace_command *t, const char *path, struct err *e)
{
    uint64_t fingerprint;
    if (t->budgets)
        TRY(curve_check_budgets(t->budgets, e));
    TRY(cli_read_file(path, &t->text, &t->n_text, e));
    TRY(trace_parse(&t->profile.trace, t->text, t->n_text, path, &fingerprint, e));
    printf("%lld tokens, %d MoE layers\n", (long long)t->profile.trace.n_tok, t->profile.trace.n_layer);
    return curve_print(&t->profile.trace, t->model.policy, t->budgets, e);
}

static err_code trace(struct trace_command *t, int argc, char **argv, struct err *e)
{
    if (argc == 1)
        return record(t, e);
    if (strcmp(argv[1], "replay") != 0 || argc != 3)
        return err_set(e, ERR_USAGE, "\"%s\": expected replay FILE, or options alone to record", argv[1]);
    return replay(t, argv[2], e);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct trace_command t = {.model.n_ctx = 512};
    const struct option options[] = {
        MODEL_OPTIONS(t.model),
        {"--file,-f", OPT_INPUT, &t.file, "FILE", "the text (-: standard input)", 0, 0, 0},
        {"--ctx,-c", OPT_INT, &t.model.n_ctx, "N", "cut the text into windows of N tokens (512)", 1, 1 << 30, 0},
        {"--out,-o", OPT_OUTPUT, &t.out, "FILE", "the trace to write", 0, 0, 0},
        {"--budgets", OPT_STRING, &t.budgets, "15,25,50", "replay: memory for experts, in % of all experts", 0, 0, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = trace(&t, argc, argv, &e);
    trace_close(&t.profile.trace);
    usage_close(&t.usage);
    cli_close(&t.opened);
    mem_free(t.text);
    return cli_exit(c, code, &e);
}

const struct command cmd_trace = {
    .name = "trace",
    .usage = "-m FILE -f TEXT -o TRACE | replay TRACE [--budgets 15,25,50] [--policy NAME]",
    .summary = "record which experts a text uses, and replay it with other cache settings",
    .max_operand = 2,
    .subcommands = {{"replay", {"--budgets", "--policy", "--no-sandbox"}}},
    .operands = {OPT_STRING, OPT_INPUT}, /* of replay FILE */
    .runs_model = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
