#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/units_text.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/interrupt.h"
#include "jobs/quantize.h"

struct shown {
    int64_t start_ns, last_ns; /* last_ns: when progress was last shown; 0: never */
};

/* Shows progress in a line on a terminal and leaves the cursor at its start, so that the report's lines, which are
 * longer, overwrite it. */
static bool print_progress(void *user, uint64_t done, uint64_t found, uint64_t total)
{
    enum { EVERY_NS = 200 * 1000 * 1000 };
    struct shown *s = user;
    int64_t now = clock_ns();
    if (isatty(STDERR_FILENO) && done > found && now - s->last_ns > EVERY_NS) {
        double rate = (double)(done - found) / ((double)(now - s->start_ns) * 1e-9);
        fprintf(stderr, "%5.1f %% of %s, %.0f MB/s, %s left    \r", 100 * (double)done / (double)total,
                units_size(total).s, rate * 1e-6, units_duration((double)(total - done) / rate).s);
        s->last_ns = now;
    }
    return !cli_interrupted();
}

/* Refuses to overwrite an existing file, which may have taken hours to make. */
static err_code check_absent(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        return err_set(e, ERR_USAGE, "%s is there already: --force replaces it", path);
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct shown shown = {.start_ns = clock_ns()};
    struct quantize_params p = {.progress = print_progress, .user = &shown};
    struct option_list rules = {.n = 0};
    int64_t n_threads = 0;
    bool force = false, no_sandbox = false;
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &p.in, "IN", "the GGUF file to read; may be the first word instead", 0, 0, 0},
        {"--type", OPT_STRING, &p.type, "TYPE", "a mix or a weight type, see above", 0, 0, 0},
        {"--rule", OPT_LIST, &rules, "REGEX=TYPE",
         "give TYPE to tensors whose names match; the first matching rule wins", 0, 0, 0},
        {"--pure", OPT_FLAG, &p.pure, "", "use the one type for every matrix, not a mix", 0, 0, 0},
        {"--imatrix", OPT_MODEL, &p.imatrix, "FILE", "weigh errors by this importance matrix (GGUF)", 0, 0, 0},
        {"--force", OPT_FLAG, &force, "", "replace OUT if it exists", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
        {"--threads,-t", OPT_INT, &n_threads, "N", "threads (default: all processors)", 1, 256, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && (!p.in || argc != 2))
        code = err_set(&e, ERR_USAGE, "expected two files: the GGUF file to read and the one to write");
    if (code == ERR_OK && !p.type)
        code = err_set(&e, ERR_USAGE, "no type: name one with --type, such as Q4_K_M");
    if (code == ERR_OK) {
        p.out = argv[1];
        if (!force)
            code = check_absent(p.out, &e);
    }
    if (code == ERR_OK) {
        p.rules = rules.items;
        p.n_rule = rules.n;
        p.n_threads = (int)n_threads;
        cli_catch_interrupt();
        code = quantize_run(&p, stdout, &e);
        if (shown.last_ns)
            fprintf(stderr, "%60s\r", "");
    }
    return cli_exit(c, code, &e);
}

const struct command cmd_quantize = {
    .name = "quantize",
    .usage = "IN OUT --type TYPE [OPTIONS]",
    .summary = "make a smaller GGUF file from F32, F16, BF16 or Q8_0 weights",
    .details =
        "Mixes:"
#define PRESET(name, ...) " " #name
#include "jobs/quantize_presets.def"
#undef PRESET
        ".\nMOE_* makes the routed experts small and keeps the rest at 6 to 8 bits. TYPE may also be any weight type. "
        "Prints each tensor's type and error: the root of sum (w - decoded)^2 / sum w^2. An interrupted run leaves "
        "OUT.unfinished; run the same command again to continue.",
    .max_operand = 1,
    .operands = {OPT_OUTPUT},
    .hint = "expected two files, and the type with --type",
    .group = COMMAND_MAKE,
    .run = run,
};
