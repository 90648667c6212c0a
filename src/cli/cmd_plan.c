#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/model_options.h"
#include "cli/run_plan.h"
#include "moebius/moebius.h"

struct plan_command {
    const char *path, *machine, *kv, *devices, *usage, *receipts, *split, *store, *found, *svg;
    int64_t n_threads, n_ctx, n_depth, n_texts, n_prompt, n_batch, ram_bytes, vram_bytes, state_bytes, n_cpu_moe;
    float floor, car, yarn;
    struct option_list overrides;
    bool json, cold, no_receipts, no_sandbox;
};

/* The devices of the plan: GPUs, or the processors, or one GPU and the processors. */
static err_code take_devices(const struct plan_command *c, moebius_plan_options *o, struct err *e)
{
    int n = 0, n_threads = 0;
    if (!c->devices)
        return ERR_OK;
    o->n_gpu = cli_count_gpus(c->devices);
    if (o->n_gpu > 1 && !o->split)
        o->split = "stages";
    bool is_cpu = sscanf(c->devices, "cpu:%4d%n", &n_threads, &n) == 1 && !c->devices[n];
    o->gpu = !is_cpu && !strncmp(c->devices, "vulkan:0", 8);
    bool is_both = o->gpu && sscanf(c->devices, "vulkan:0,cpu:%4d%n", &n_threads, &n) == 1 && !c->devices[n];
    if (is_cpu || is_both ? n_threads < 1 || n_threads > 4096 : o->n_gpu == 0)
        return err_set(e, ERR_USAGE,
                       "--devices %s: plans know cpu:N, vulkan:0 and vulkan:0,cpu:N, of 1 to 4096 threads, and "
                       "vulkan:0,vulkan:1 and so on, which divide the layers",
                       c->devices);
    if (n_threads && c->n_threads)
        return err_set(e, ERR_USAGE, "--threads, and --devices %s: expected one of the two", c->devices);
    o->n_threads = n_threads ? n_threads : o->n_threads;
    return ERR_OK;
}

/* The option --found: percentages, such as "60,12,28". */
static err_code take_found(const struct plan_command *c, moebius_plan_options *o, struct err *e)
{
    double *const shares[] = {&o->found_vram, &o->found_ram, &o->found_drive};
    const char *at = c->found;
    if (!at)
        return ERR_OK;
    for (int i = 0; i < 3; i++) {
        char *end;
        double percent = strtod(at, &end);
        if (end == at || !(percent >= 0 && percent <= 100) || *end != (i < 2 ? ',' : '\0'))
            return err_set(e, ERR_USAGE,
                           "--found %s: expected percents of choices found in VRAM, memory and on drives, as 60,12,28",
                           c->found);
        *shares[i] = percent / 100;
        at = end + 1;
    }
    if (*shares[0] + *shares[1] + *shares[2] > 1 + 1e-9)
        return err_set(e, ERR_USAGE, "--found %s: expected at most 100 percent together", c->found);
    if (*shares[0] + *shares[1] + *shares[2] <= 0)
        return err_set(e, ERR_USAGE, "--found %s: expected more than 0 percent together", c->found);
    if (c->car > 0)
        return err_set(e, ERR_USAGE, "--found %s, and --car: what is found already says what gives way", c->found);
    return ERR_OK;
}

static err_code write_picture(const struct plan_command *c, const moebius_plan *p, struct err *e)
{
    struct output_file f;
    if (!c->svg)
        return ERR_OK;
    TRY(output_file_open(&f, c->svg, e));
    fputs(moebius_plan_svg(p), f.stream);
    return output_file_finish(&f, e);
}

static err_code plan_with(const struct plan_command *c, const moebius_plan_options *o, bool *is_refused, struct err *e)
{
    moebius_error error;
    moebius_plan *p;
    if (moebius_plan_open(&p, c->path, o, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    printf(c->json ? "%s\n" : "%s", c->json ? moebius_plan_json(p) : moebius_plan_text(p));
    *is_refused = moebius_plan_is_refused(p);
    err_code code = write_picture(c, p, e);
    moebius_plan_close(&p);
    return code;
}

static err_code plan(const struct plan_command *c, bool *is_refused, struct err *e)
{
    struct dir_list store = {0};
    moebius_plan_options o = {.machine = c->machine,
                              .n_threads = (int)c->n_threads,
                              .n_ctx = c->n_ctx,
                              .n_ctx_most = INT64_MAX,
                              .n_depth = c->n_depth || c->n_ctx ? c->n_depth : RUN_PLAN_DEPTH,
                              .n_texts = c->n_texts,
                              .n_prompt = c->n_prompt,
                              .n_batch = c->n_batch,
                              .kv = cli_kv_type(c->kv),
                              .ram_bytes = c->ram_bytes,
                              .vram_bytes = c->vram_bytes,
                              .state_bytes = c->state_bytes,
                              .n_cpu_moe = c->n_cpu_moe == 0  ? -1
                                           : c->n_cpu_moe < 0 ? 0
                                                              : c->n_cpu_moe,
                              .split = c->split,
                              .car = (double)c->car,
                              .floor = (double)c->floor,
                              .overrides = c->overrides.items,
                              .n_override = c->overrides.n,
                              .yarn = (double)c->yarn,
                              .receipts = c->receipts      ? c->receipts
                                          : c->no_receipts ? NULL
                                                           : "",
                              .usage = c->usage  ? c->usage
                                       : c->cold ? NULL
                                                 : ""};
    if (!c->path)
        return err_set(e, ERR_USAGE, "no model: name one with -m FILE");
    TRY(output_file_check(c->svg, e));
    TRY(take_devices(c, &o, e));
    TRY(take_found(c, &o, e));
    if (c->store)
        TRY(cli_split_dirs(c->store, &store, e));
    o.store_dirs = store.n ? store.dirs : NULL;
    o.n_store_dirs = store.n;
    err_code code = plan_with(c, &o, is_refused, e);
    cli_dirs_close(&store);
    return code;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct plan_command c = {.n_cpu_moe = -1};
    bool is_refused = false;
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &c.path, "FILE", "the model, or its first megabytes (any part of a split set)", 0, 0,
         0},
        {"--machine", OPT_INPUT, &c.machine, "FILE", "plan for the machine described in FILE", 0, 0, 0},
        {"--threads,-t", OPT_INT, &c.n_threads, "N", "threads (default: all processors)", 1, 4096, 0},
        {"--devices", OPT_STRING, &c.devices, "cpu:N|vulkan:0[,cpu:N]",
         "processors, a GPU with processors, or several GPUs (vulkan:0,vulkan:1)", 0, 0, 0},
        {"--n-cpu-moe", OPT_INT, &c.n_cpu_moe, "N", "layers whose experts stay in RAM (default: the fewest that fit)",
         0, 4096, 0},
        {"--ctx,-c", OPT_INT, &c.n_ctx, "N", "context of each text (default: as chat and serve choose it)", 1, 1 << 30,
         0},
        {"--depth,-d", OPT_INT, &c.n_depth, "N", "tokens in the context while decoding (4096; with --ctx: all of it)",
         1, 1 << 30, 0},
        {"--texts", OPT_INT, &c.n_texts, "N", "texts decoded together (1)", 1, 1 << 16, 0},
        {"--prompt,-p", OPT_INT, &c.n_prompt, "N", "prompt length for the prefill forecast (one batch)", 1, 1 << 30, 0},
        {"--batch,-b", OPT_INT, &c.n_batch, "N", "prompt tokens computed together (512)", 1, 1 << 20, 0},
        {"--kv", OPT_CHOICE, &c.kv, "f16|f32|q8_0", "KV cache type (f16)", 0, 0, "f16|f32|q8_0"},
        {"--ram", OPT_SIZE, &c.ram_bytes, "SIZE", "memory limit of the process (default: what is free)", 0, 0, 0},
        {"--vram", OPT_SIZE, &c.vram_bytes, "SIZE", "memory limit of each GPU (default: what is free)", 0, 0, 0},
        {"--state", OPT_SIZE, &c.state_bytes, "SIZE", "memory for texts' state; the rest of it caches prompts", 0, 0,
         0},
        {"--split", OPT_STRING, &c.split, "HOW[:A,B]",
         "with a GPU: experts, layers, last or cache; with several: stages", 0, 0, 0},
        {"--store", OPT_FOLDERS, &c.store, "DIR[,DIR...]", "read experts from prepared stores", 0, 0, 0},
        {"--car", OPT_FLOAT, &c.car, "X", "plan with cache-aware routing at this threshold", 0.001, 1, 0},
        {"--found", OPT_STRING, &c.found, "V,R,D", "measured % of choices found in VRAM, in RAM and on drives", 0, 0,
         0},
        {"--svg", OPT_OUTPUT, &c.svg, "FILE", "write a picture of where the bytes go", 0, 0, 0},
        {"--floor", OPT_FLOAT, &c.floor, "X", "refuse the plan if decoding cannot reach X tokens/s", 0.001, 1e9, 0},
        {"--usage", OPT_INPUT, &c.usage, "FILE", "use these expert counts instead of the cached ones", 0, 0, 0},
        {"--cold", OPT_FLAG, &c.cold, "", "use no expert counts", 0, 0, 0},
        {"--receipts", OPT_INPUT, &c.receipts, "FILE", "use these receipts instead of the cached ones", 0, 0, 0},
        {"--no-receipts", OPT_FLAG, &c.no_receipts, "", "use no receipts: print ceilings only", 0, 0, 0},
        {"--json", OPT_FLAG, &c.json, "", "print one JSON object", 0, 0, 0},
        OVERRIDE_OPTIONS(c.overrides, c.yarn),
        SANDBOX_OPTION(c.no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(command, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = plan(&c, &is_refused, &e);
    int exit_code = cli_exit(command, code, &e);
    return exit_code == ERR_OK && is_refused ? EXIT_REFUSED : exit_code;
}

const struct command cmd_plan = {
    .name = "plan",
    .usage = "-m FILE [OPTIONS]",
    .summary = "show what memory a model needs and how fast it can be",
    .details =
        "Prints where each byte goes, the ceilings of decode and prefill, the time to the first token, what was "
        "assumed, and the settings of a run. If a plan cannot work, it names the number that fails and what would "
        "work instead, and the exit status is 20. See docs/planner.md.",
    .hint = "the model is given with -m",
    .keeps_files = true,
    .fetches_none = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
