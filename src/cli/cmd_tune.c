#include <stdio.h>

#include "base/mem.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/open_model.h"
#include "cli/prompt_options.h"
#include "cli/say.h"
#include "engine/tuning.h"
#include "jobs/tune.h"

struct tune_command {
    struct model_options model;
    const char *tokens_from, *out;
    struct opened opened;
    moebius_session *sorted; /* the session that sorts tokens; `opened` has the other one */
    int32_t *ids;
};

static bool print_progress(void *user, const char *what)
{
    say_progress("%s ", what);
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

static void print_products(const struct tune_result *r)
{
    char before[TUNING_PREFETCH_BYTES], chosen[TUNING_PREFETCH_BYTES];
    if (r->n_product == 0)
        printf("no type of weights has the 256 MiB in memory that measuring its products takes\n");
    else
        printf("%-8s %6s  %-24s %-24s %10s %7s\n", "weights", "tokens", "prefetch", "before", "GB/s", "faster");
    for (int i = 0; i < r->n_product; i++) {
        const struct tune_product *p = &r->products[i];
        printf("%-8s %6lld  %-24s %-24s %10.2f %6.1f%%\n", p->type->name, (long long)p->n_tok,
               tuning_prefetch_name(p->chosen, chosen), tuning_prefetch_name(p->before, before), p->bytes_per_s / 1e9,
               100 * (p->gain - 1));
    }
}

/* of: a type's number of tokens, or 0 */
static void print_from(const struct tune_result *r, const char *what, int32_t (*of)(const struct tune_product *))
{
    bool any = false;
    for (int i = 0; i < r->n_product; i++)
        if (r->products[i].n_tok == 1 && of(&r->products[i])) {
            printf("%s%s from %d", any ? ", " : what, r->products[i].type->name, (int)of(&r->products[i]));
            any = true;
        }
    if (any)
        printf(" tokens on\n");
}

static int32_t several_from(const struct tune_product *p)
{
    return p->several_from;
}

static int32_t tiles_from(const struct tune_product *p)
{
    return p->tiles_from;
}

static int32_t panels_from(const struct tune_product *p)
{
    return p->panels_from;
}

static void print_numbers(const struct tune_result *r)
{
    printf("\n%-24s %12s %12s %7s\n", "one token at a time", "now", "before", "faster");
    for (int i = 0; i < TUNE_N_NUMBER; i++)
        printf("%-24s %12lld %12lld %6.1f%%\n", r->numbers[i].name, (long long)r->numbers[i].chosen,
               (long long)r->numbers[i].before, 100 * (r->numbers[i].gain - 1));
}

static void print_cutoff(const struct tune_result *r, int64_t before)
{
    if (r->n_row == 0)
        return;
    printf("\nmicroseconds in the experts of all layers, best of some rounds\n");
    printf("%6s %12s %12s %15s\n", "tokens", "direct us", "sorted us", "direct/sorted");
    for (int i = 0; i < r->n_row; i++)
        printf("%6lld %12.1f %12.1f %15.2f\n", (long long)r->rows[i].n_tok, r->rows[i].direct_ns / 1e3,
               r->rows[i].sorted_ns / 1e3, r->rows[i].direct_ns / r->rows[i].sorted_ns);
    printf("sort cutoff %lld (was %lld)\n", (long long)r->sort_cutoff, (long long)before);
}

static err_code measure(struct tune_command *c, struct tune_result *r, struct err *e)
{
    const struct tune_params params = {
        .direct = c->opened.session, .sorted = c->sorted, .ids = c->ids, .progress = print_progress, .user = c};
    cli_catch_interrupt();
    err_code code = tune_run(c->opened.engine, &params, r, e);
    say_progress_end();
    return code;
}

static err_code tune(struct tune_command *c, struct err *e)
{
    struct tune_result r;
    char *path;
    TRY(output_file_check(c->out, e));
    TRY(cli_open_engine(&c->model, &c->opened, e));
    TRY(choose_ids(c, e));
    TRY(open_sessions(c, e));
    const moebius_engine *g = c->opened.engine;
    int64_t cutoff = moebius_engine_sort_cutoff(g);
    TRY(measure(c, &r, e));
    printf("%s, %d MoE layers, %d threads\n\n", moebius_arch(g), moebius_n_moe_layer(g), moebius_n_threads(g));
    print_products(&r);
    print_from(&r, "\nprefetch as with several tokens: ", several_from);
    print_from(&r, "\nmatrix unit: ", tiles_from);
    print_from(&r, "\nunpacked once for all tokens: ", panels_from);
    print_numbers(&r);
    print_cutoff(&r, cutoff);
    TRY(engine_save_tuning(g, c->out, &path, e));
    printf("\nkept in %s\n", path);
    mem_free(path);
    return ERR_OK;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct tune_command c = {0};
    const struct option options[] = {
        MODEL_BASE_OPTIONS(c.model),
        MODEL_DEVICE_OPTIONS(c.model),
        OVERRIDE_OPTIONS(c.model.overrides, c.model.yarn),
        {"--tokens-from", OPT_INPUT, &c.tokens_from, "FILE", "use the tokens of a text instead of random ones", 0, 0,
         0},
        {"--out,-o", OPT_OUTPUT, &c.out, "FILE", "write the result to FILE for --tuning, not to the cache", 0, 0, 0},
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
    .summary = "measure the fastest settings for a model on this machine",
    .details =
        "Measures settings that affect speed but never results: how far ahead products prefetch weights, from how "
        "many tokens on they use a matrix unit, the size of decode tasks, how long threads spin before they sleep, "
        "and up to how many tokens direct expert dispatch is faster than sorted. Candidates take turns, and a "
        "candidate is kept if it wins by 3%. Later runs of this build on the same processor with the same number of "
        "threads use the result. A run with a weight type that was never measured measures the prefetch itself, in "
        "0.1 s.",
    .hint = "the model is given with -m",
    .runs_model = true,
    .group = COMMAND_MAKE,
    .run = run,
};
