#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/say.h"
#include "jobs/doctor.h"

enum { MAX_GPU = 64 };

struct doctor_run {
    struct doctor_report report;
    struct doctor_live live;
    struct doctor_model model;
    moebius_gpu gpus[MAX_GPU];
    moebius_error no_gpu;
    struct err no_io_uring;
};

/* Tries what the sandbox would refuse later. */
static void try_machine(struct doctor_run *r)
{
    struct doctor_live *live = &r->live;
    int n = moebius_list_gpus(r->gpus, MAX_GPU, &r->no_gpu);
    live->gpus = r->gpus;
    live->n_gpu = n < MAX_GPU ? n : MAX_GPU;
    live->no_gpu = n ? NULL : r->no_gpu.text;
    live->n_processors = cpu_n_available();
    doctor_try_io_uring(live, &r->no_io_uring);
}

static err_code find_kernels(struct doctor_live *live, struct err *e)
{
    enum cpu_level level;
    const char *asked = getenv("MOEBIUS_CPU");
    TRY(cpu_level_detect(&level, e));
    live->kernels = cpu_level_name(level);
    live->is_lowered = asked && *asked;
    return ERR_OK;
}

static err_code examine(struct doctor_run *r, struct err *e)
{
    struct progress progress;
    TRY(find_kernels(&r->live, e));
    if (r->model.path)
        doctor_measure_drive(&r->live, r->model.path);
    doctor_look(&r->report, "", &r->live);
    if (!r->model.path)
        return ERR_OK;
    cli_catch_interrupt();
    cli_progress_begin(&progress, "examining");
    r->model.progress = cli_progress;
    r->model.user = &progress;
    err_code code = doctor_look_at_model(&r->report, &r->model, e);
    say_progress_end();
    return code;
}

static int run(const struct command *c, int argc, char **argv)
{
    bool json = false, no_sandbox = false;
    struct err e = {0};
    struct doctor_run *r = mem_calloc(1, sizeof *r);
    if (!r)
        return cli_exit(c, err_nomem(&e, sizeof *r, "the report"), &e);
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &r->model.path, "FILE", "also check this model and its drive", 0, 0, 0},
        {"--deep", OPT_FLAG, &r->model.deep, "", "read the whole model: check checksums, NaN and impossible scales", 0,
         0, 0},
        {"--threads,-t", OPT_INT32, &r->live.n_threads, "N", "threads that runs will use", 1, 256, 0},
        {"--json", OPT_FLAG, &json, "", "print one JSON object", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && r->model.deep && !r->model.path)
        code = err_set(&e, ERR_USAGE, "--deep reads a model: expected -m FILE");
    if (code == ERR_OK) {
        try_machine(r);
        code = cli_confine(c, options, N_OPTIONS(options), argc, argv, NULL, &e);
    }
    if (code == ERR_OK)
        code = examine(r, &e);
    if (code == ERR_OK && json)
        code = doctor_print_json(&r->report, stdout, &e);
    else if (code == ERR_OK)
        doctor_print(&r->report, stdout);
    int n_finding = doctor_n_findings(&r->report);
    mem_free(r);
    return code == ERR_OK && n_finding ? EXIT_FINDINGS : cli_exit(c, code, &e);
}

const struct command cmd_doctor = {
    .name = "doctor",
    .usage = "[-m FILE] [--deep] [--json]",
    .summary = "find what makes runs slow or fail on this machine",
    .details =
        "Prints one line for each check: ! is a finding, with its remedy; ? could not be determined. The exit status "
        "is 23 if there are findings.",
    .group = COMMAND_MEASURE,
    .run = run,
};
