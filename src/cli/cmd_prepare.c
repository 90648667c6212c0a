#include <stdio.h>

#include "base/units_text.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/say.h"
#include "jobs/prepare.h"

static void print_result(const struct prepare_params *p, const struct prepare_result *r)
{
    if (r->n_found)
        printf("%llu experts were there already\n", (unsigned long long)r->n_found);
    if (r->n_damaged)
        printf("%llu experts were damaged, and are written again\n", (unsigned long long)r->n_damaged);
    printf("%llu experts written, %s\n", (unsigned long long)r->n_experts, units_size(r->n_bytes).s);
    for (int i = 0; i < p->n_dirs; i++)
        printf("%s: %llu experts\n", p->dirs[i], (unsigned long long)r->n_dir_experts[i]);
}

static int run(const struct command *c, int argc, char **argv)
{
    const char *model = NULL, *to = NULL;
    bool mirror = false, stripe = false, no_sandbox = false;
    int64_t n_threads = 0;
    struct dir_list dirs = {0};
    struct progress progress;
    struct prepare_result result;
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &model, "FILE", "the model, a GGUF file; may be the first word instead", 0, 0, 0},
        {"--to", OPT_OUTPUT_FOLDERS, &to, "DIR[,DIR...]",
         "target directories; with several, also give --mirror or --stripe", 0, 0, 0},
        {"--mirror", OPT_FLAG, &mirror, "", "write all experts to each directory", 0, 0, 0},
        {"--stripe", OPT_FLAG, &stripe, "", "write each expert to one directory, more to faster drives", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
        {"--threads,-t", OPT_INT, &n_threads, "N", "threads (default: all processors)", 1, 256, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && (!model || !to))
        code = err_set(&e, ERR_USAGE, "expected a GGUF file and --to DIR");
    if (code == ERR_OK)
        code = cli_split_dirs(to, &dirs, &e);
    if (code == ERR_OK && (dirs.n > 1 ? mirror == stripe : mirror || stripe))
        code = err_set(&e, ERR_USAGE,
                       dirs.n > 1 ? "several directories: expected either --mirror or --stripe"
                                  : "--mirror and --stripe are for several directories");
    if (code == ERR_OK) {
        cli_catch_interrupt();
        cli_progress_begin(&progress, "preparing");
        const struct prepare_params p = {.model = model,
                                         .dirs = dirs.dirs,
                                         .n_dirs = dirs.n,
                                         .mirror = mirror,
                                         .n_threads = (int)n_threads,
                                         .progress = cli_progress,
                                         .user = &progress};
        code = prepare_run(&p, &result, &e);
        say_progress_end();
        if (code == ERR_OK)
            print_result(&p, &result);
    }
    cli_dirs_close(&dirs);
    return cli_exit(c, code, &e);
}

const struct command cmd_prepare = {
    .name = "prepare",
    .usage = "FILE --to DIR[,DIR...] [--mirror | --stripe]",
    .summary = "lay a model's experts out on disk for fast reads (--store)",
    .details =
        "Writes each routed expert in the layout that the kernels need, with a checksum. After an interruption, run "
        "the same command again to continue. Existing data is compared with its checksums, and damaged experts are "
        "written again.",
    .group = COMMAND_MAKE,
    .run = run,
};
