#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "jobs/tune.h"

struct tune_command {
    struct model_options model;
    const char *tokens_from;
    struct opened opened;
    moebius_session *sorted; /* the other one is the opened */
    int32_t *ids;
};

static bool print_progress(void *user, int64_t n_tok)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%lld tokens at once ", (long long)n_tok);
    return !cli_interrupted();
}

static err_code open_sessions(struct tune_command *c, struct err *e)
{
    c->model.n_batch = TUNE_MAX_TOK;
    c->model.sort_cutoff = 1;
    TRY(cli_open_session(&c->model, TUNE_MAX_TOK, &c->opened, e));
    c->sorted = c->opened.session;
    c->model.sort_cutoff = TUNE_MAX_TOK;
    c->opened.session = NULL;
    return cli_open_session(&c->model, TUNE_MAX_TOK, &c->opened, e);
}

/* As many tokens as are computed at once, from a text or random. */
static err_code choose_ids(struct tune_command *c, struct err *e)
{
    size_t n;
    TRY(cli_bench_tokens(c->tokens_from, c->opened.engine, &c->ids, &n, e));
    if (n < TUNE_MAX_TOK)
        return err_set(e, ERR_USAGE, "%s: holds %zu tokens, expected at least %d", c->tokens_from, n, TUNE_MAX_TOK);
    return ERR_OK;
}

static void print_result(const struct tune_command *c, const struct tune_result *r)
{
    const moebius_engine *g = c->opened.engine;
    printf("%s, %d MoE layers, %d threads; microseconds in the experts of all layers, best of some rounds\n\n",
           moebius_arch(g), moebius_n_moe_layer(g), moebius_n_threads(g));
    printf("%6s %12s %12s %15s\n", "tokens", "direct us", "sorted us", "direct/sorted");
    for (int i = 0; i < r->n_row; i++)
        printf("%6lld %12.1f %12.1f %15.2f\n", (long long)r->rows[i].n_tok, r->rows[i].direct_ns / 1e3,
               r->rows[i].sorted_ns / 1e3, r->rows[i].direct_ns / r->rows[i].sorted_ns);
    printf("\nsort cutoff %lld (was %lld)\n", (long long)r->sort_cutoff, (long long)moebius_engine_sort_cutoff(g));
}

static err_code tune(struct tune_command *c, struct err *e)
{
    struct tune_result r;
    moebius_error error;
    char *path;
    if (c->model.sort_cutoff)
        return err_set(e, ERR_USAGE, "--sort-cutoff is what tune finds out");
    TRY(cli_open_engine(&c->model, &c->opened, e));
    TRY(choose_ids(c, e));
    TRY(open_sessions(c, e));
    cli_catch_interrupt();
    err_code code = tune_run(c->opened.engine, c->opened.session, c->sorted, c->ids, print_progress, c, &r, e);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%30s\r", "");
    TRY(code);
    print_result(c, &r);
    if (moebius_engine_keep_sort_cutoff(c->opened.engine, r.sort_cutoff, &path, &error) != MOEBIUS_OK)
        return cli_error(e, &error);
    printf("kept in %s\n", path);
    moebius_free(path);
    return ERR_OK;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct tune_command c = {0};
    const struct option options[] = {
        MODEL_OPTIONS(c.model),
        {"--tokens-from", OPT_INPUT, &c.tokens_from, "FILE", "tokens of a text instead of random ones", 0, 0, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(command, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = tune(&c, &e);
    moebius_session_close(&c.sorted);
    cli_close(&c.opened);
    mem_free(c.ids);
    return cli_exit(command, code, &e);
}

const struct command cmd_tune = {
    .name = "tune",
    .usage = "-m FILE [OPTIONS]",
    .summary = "measure what this machine does best with a model, for later runs",
    .details = "Times the experts by direct and by sorted dispatch and keeps the number of tokens up to which direct\n"
               "is the faster one. Runs with the same model, processor and number of threads use it; --sort-cutoff\n"
               "overrides it.",
    .hint = "the model is given with -m",
    .runs_model = true,
    .run = run,
};
