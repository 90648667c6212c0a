#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/interrupt.h"
#include "cli/say.h"
#include "moebius/moebius.h"

struct probe_command {
    const char *file, *out, *gpus;
    int64_t n_threads;
    bool json, no_sandbox;
};

static bool show_progress(void *user, const char *what, double done)
{
    say_progress("%3.0f%% %.60s", 100 * done, what);
    return !cli_interrupted();
}

static err_code probe(struct probe_command *c, struct err *e)
{
    moebius_error error;
    moebius_machine *machine;
    const moebius_probe_options o = {.n_threads = (int)c->n_threads,
                                     .files = &c->file,
                                     .n_files = c->file ? 1 : 0,
                                     .gpus = !strcmp(c->gpus, "vulkan"),
                                     .progress = show_progress,
                                     .user = c};
    if (!o.gpus && strcmp(c->gpus, "none") != 0)
        return err_set(e, ERR_USAGE, "--gpus %s: expected vulkan or none", c->gpus);
    TRY(output_file_check(c->out, e));
    cli_catch_interrupt();
    moebius_status status = moebius_machine_probe(&machine, &o, &error);
    say_progress_end();
    if (status != MOEBIUS_OK)
        return err_adopt(e, &error);
    if (!c->out || c->json)
        printf("%s\n", moebius_machine_json(machine));
    status = moebius_machine_save(machine, c->out, &error);
    moebius_machine_close(&machine);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

static int run(const struct command *command, int argc, char **argv)
{
    struct probe_command c = {.gpus = "vulkan"};
    const struct option options[] = {
        {"--model,-m", OPT_INPUT, &c.file, "FILE", "a large file on the drive to measure, such as a model", 0, 0, 0},
        {"--threads,-t", OPT_INT, &c.n_threads, "N", "threads (default: all processors)", 1, 256, 0},
        {"--out,-o", OPT_OUTPUT, &c.out, "FILE", "write the result to FILE for --machine, not to the cache", 0, 0, 0},
        {"--gpus", OPT_DEVICES, &c.gpus, "vulkan|none", "whether to measure GPUs (vulkan)", 0, 0, 0},
        {"--json", OPT_FLAG, &c.json, "", "also print the result with --out", 0, 0, 0},
        SANDBOX_OPTION(c.no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(command, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = probe(&c, &e);
    return cli_exit(command, code, &e);
}

const struct command cmd_probe = {
    .name = "probe",
    .usage = "[-m FILE] [OPTIONS]",
    .summary = "measure what this machine can do, for plans",
    .details =
        "Measures memory by number of threads and in small pages, the peaks of the processors, matrix products of "
        "each weight type, random reads of a drive by size and depth, and each GPU's memory and transfers. Prints the "
        "result as JSON and keeps it in the cache directory. What was not measured is null. Takes a few seconds.",
    .hint = "a file on the drive is given with -m",
    .keeps_files = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
