#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "jobs/ppl.h"

struct ppl {
    struct model_options model;
    const char *file;
    int64_t n_window;
    struct opened opened;
    int32_t *ids;
    size_t n_ids;
    int64_t start_ns;
};

static bool print_progress(void *user, const struct ppl_result *r, int64_t n_window)
{
    const struct ppl *p = user;
    double seconds = (double)(clock_ns() - p->start_ns) / 1e9;
    fprintf(stderr, "%s[%lld/%lld] perplexity %.4f +- %.4f, %.0f tokens/s, %.0f s left%s",
            isatty(STDERR_FILENO) ? "\r" : "", (long long)r->n_window, (long long)n_window, r->ppl, r->ppl_error,
            (double)(r->n_window * p->model.n_ctx) / seconds,
            seconds / (double)r->n_window * (double)(n_window - r->n_window), isatty(STDERR_FILENO) ? "   " : "\n");
    return !cli_interrupted();
}

static err_code ppl(struct ppl *p, struct err *e)
{
    struct ppl_result r;
    if (!p->file)
        return err_set(e, ERR_USAGE, "no text: name one with -f FILE");
    if (p->model.n_ctx < 4)
        return err_set(e, ERR_USAGE, "--ctx %lld: expected at least 4", (long long)p->model.n_ctx);
    TRY(cli_open_engine(&p->model, &p->opened, e));
    TRY(cli_read_tokens(p->file, moebius_engine_vocab(p->opened.engine), &p->ids, &p->n_ids, e));
    TRY(cli_open_session(&p->model, p->model.n_ctx, &p->opened, e));
    cli_catch_interrupt();
    p->start_ns = clock_ns();
    TRY(ppl_run(p->opened.session, p->opened.engine, p->ids, p->n_ids, p->model.n_ctx, p->n_window, print_progress, p,
                &r, e));
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\n");
    printf("perplexity %.4f +- %.4f (nll %.5f +- %.5f, %zu tokens, %lld windows of %lld, %lld scored)\n", r.ppl,
           r.ppl_error, r.nll, r.nll_error, p->n_ids, (long long)r.n_window, (long long)p->model.n_ctx,
           (long long)r.n_scored);
    return cli_interrupted() ? err_set(e, ERR_CANCELLED, "interrupted after %lld windows", (long long)r.n_window)
                             : ERR_OK;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct ppl p = {.model.n_ctx = 512};
    const struct option options[] = {
        MODEL_OPTIONS(p.model),
        CAR_OPTIONS(p.model),
        {"--file,-f", OPT_STRING, &p.file, "FILE", "the text (-: standard input)", 0, 0, 0},
        {"--ctx,-c", OPT_INT, &p.model.n_ctx, "N", "tokens in a window (512)", 1, 1 << 30, 0},
        {"--chunks", OPT_INT, &p.n_window, "N", "score the first N windows only", 1, 1e12, 0},
    };
    struct err e = {0};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = ppl(&p, &e);
    cli_close(&p.opened);
    mem_free(p.ids);
    return cli_exit(c, code, &e);
}

const struct command cmd_ppl = {
    .name = "ppl",
    .usage = "-m FILE -f TEXT [OPTIONS]",
    .summary = "perplexity on a text, comparable with llama.cpp's",
    .details = "The text is cut into windows of --ctx tokens; the second half of each is scored. Line ends\n"
               "of CR LF count as LF.",
    .hint = "the text is given with -f",
    .run = run,
};
