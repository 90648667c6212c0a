#include <stdio.h>

#include "base/units_text.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/say.h"
#include "jobs/verify.h"

static void print_damaged(void *user, const char *sentence)
{
    say_line(sentence);
}

static int run(const struct command *c, int argc, char **argv)
{
    bool write = false, no_sandbox = false;
    const char *path = NULL;
    int64_t n_threads = 0;
    struct progress progress;
    struct verify_result r;
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &path, "FILE|DIR", "GGUF file or prepared store; may be the first word instead", 0, 0,
         0},
        {"--write", OPT_FLAG, &write, "", "write a GGUF file's checksums to FILE.crc32c", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
        {"--threads,-t", OPT_INT, &n_threads, "N", "threads (default: all processors)", 1, 256, 0},
    };
    struct err e = {0};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && !path)
        code = err_set(&e, ERR_USAGE, "expected a GGUF file or the directory of a prepared store");
    if (code == ERR_OK) /* checksums go beside the model */
        code = cli_confine(c, options, N_OPTIONS(options), argc, argv, write ? path : NULL, &e);
    if (code == ERR_OK) {
        cli_catch_interrupt();
        cli_progress_begin(&progress, write ? "reading" : "verifying");
        const struct verify_params p = {.path = path,
                                        .write = write,
                                        .n_threads = (int)n_threads,
                                        .damaged = print_damaged,
                                        .progress = cli_progress,
                                        .user = &progress};
        code = verify_run(&p, &r, &e);
        say_progress_end();
        if (code == ERR_OK)
            printf("%s: %llu experts and %llu other tensors, %s: %s\n", path, (unsigned long long)r.n_experts,
                   (unsigned long long)r.n_tensors, units_size(r.n_bytes).s,
                   write ? "checksums written" : "all as written");
    }
    return cli_exit(c, code, &e);
}

const struct command cmd_verify = {
    .name = "verify",
    .usage = "FILE [--write] | DIR",
    .summary = "check a prepared store or a GGUF file against checksums",
    .details =
        "A prepared store contains checksums. A GGUF file does not: --write stores them in a file beside it, and from "
        "then on damage is noticed whenever the model runs.",
    .group = COMMAND_MAKE,
    .run = run,
};
