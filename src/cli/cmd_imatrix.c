#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/input_text.h"
#include "cli/interrupt.h"
#include "cli/open_model.h"
#include "cli/prompt_options.h"
#include "cli/say.h"
#include "jobs/imatrix_gather.h"

struct imatrix_command {
    struct model_options model;
    const char *file, *out;
    int64_t n_window;
    struct opened opened;
    int32_t *ids;
    size_t n_ids;
    struct imatrix_gather *gather;
};

static bool print_progress(void *user, int64_t n_done, int64_t n_window)
{
    say_progress("%lld of %lld windows ", (long long)n_done, (long long)n_window);
    return !cli_interrupted();
}

static err_code imatrix(struct imatrix_command *c, struct err *e)
{
    c->file = cli_file_or_piped(c->file);
    if (!c->file)
        return err_set(e, ERR_USAGE, "no text: name one with -f FILE");
    TRY(output_file_check(c->out, e));
    if (!c->model.gpu && !c->model.devices) /* the file is the same on each machine unless a GPU is asked for */
        c->model.gpu = "none";
    TRY(cli_open_engine(&c->model, &c->opened, e));
    TRY(cli_read_tokens(c->file, moebius_engine_vocab(c->opened.engine), &c->ids, &c->n_ids, e));
    TRY(cli_open_session(&c->model, c->model.n_ctx, &c->opened, e));
    cli_catch_interrupt();
    const struct imatrix_gather_params p = {
        .n_ctx = c->model.n_ctx, .n_window = c->n_window, .progress = print_progress};
    err_code code = imatrix_gather_run(&c->gather, c->opened.session, c->opened.engine, c->ids, c->n_ids, &p, e);
    say_progress_end();
    TRY(code);
    if (cli_interrupted())
        return err_set(e, ERR_CANCELLED, "interrupted; %s is as it was", c->out);
    TRY(imatrix_gather_save(c->gather, c->out, c->file, e));
    imatrix_gather_report(c->gather, strcmp(c->out, "/dev/stdout") ? stdout : stderr);
    return ERR_OK;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct imatrix_command c = {.model.n_ctx = 512, .out = "imatrix.gguf"};
    const struct option options[] = {
        MODEL_BASE_OPTIONS(c.model),
        MODEL_ONE_DEVICE_OPTIONS(c.model),
        MODEL_KERNEL_OPTIONS(c.model),
        OVERRIDE_OPTIONS(c.model.overrides, c.model.yarn),
        {"--file,-f", OPT_INPUT, &c.file, "FILE", "the text (-: standard input)", 0, 0, 0},
        {"--out,-o", OPT_OUTPUT, &c.out, "FILE", "the file to write (imatrix.gguf)", 0, 0, 0},
        {"--ctx,-c", OPT_INT, &c.model.n_ctx, "N", "cut the text into windows of N tokens (512)", 1, 1 << 30, 0},
        {"--chunks", OPT_INT, &c.n_window, "N", "use only the first N windows", 1, 1e12, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(command, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = imatrix(&c, &e);
    imatrix_gather_close(&c.gather);
    cli_close(&c.opened);
    mem_free(c.ids);
    return cli_exit(command, code, &e);
}

const struct command cmd_imatrix = {
    .name = "imatrix",
    .usage = "-m FILE -f TEXT [OPTIONS]",
    .summary = "compute an importance matrix from a text, for quantize --imatrix",
    .details =
        "Sums the squares of the inputs of each matrix, separately for each routed expert, and writes them in "
        "llama.cpp's format. Layers whose experts saw few tokens are listed; quantize pulls the importances of those "
        "experts towards the mean.",
    .hint = "the text is given with -f",
    .runs_model = true,
    .group = COMMAND_MAKE,
    .run = run,
};
