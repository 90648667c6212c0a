#include <stdio.h>

#include "cli/commands.h"
#include "cli/confine.h"
#include "jobs/inspect.h"

static int run(const struct command *c, int argc, char **argv)
{
    bool no_sandbox = false;
    const char *model = NULL;
    struct inspect_params p = {0};
    struct option_share replicas = {0};
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &model, "FILE", "the GGUF file; may be the first word instead", 0, 0, 0},
        {"--json", OPT_FLAG, &p.json, "", "print one JSON object", 0, 0, 0},
        {"--tensor", OPT_STRING, &p.tensor_name, "NAME", "show one tensor: shape, first values, range, NaN count", 0, 0,
         0},
        {"--devices", OPT_STRING, &p.devices, "cpu:N[,cpu:N...]", "show which experts each of these devices would get",
         0, 0, 0},
        {"--split", OPT_STRING, &p.split, "HOW[:A,B...]", "experts|layers|cache|random, as in a run (experts)", 0, 0,
         0},
        {"--replicas", OPT_SHARE, &replicas, "SIZE|N%", "copies of hot experts on several devices, as in a run", 0, 0,
         0},
        {"--usage", OPT_INPUT, &p.usage, "FILE", "with --devices: use expert counts of earlier runs", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && !model)
        code = err_set(&e, ERR_USAGE, "no file: expected a GGUF file");
    p.replica_bytes = replicas.n_bytes;
    p.replica_share = replicas.share;
    if (code == ERR_OK)
        code = inspect_print(stdout, model, &p, &e);
    return cli_exit(c, code, &e);
}

const struct command cmd_inspect = {
    .name = "inspect",
    .usage = "FILE [--json] [--tensor NAME] [--devices cpu:N,cpu:N]",
    .summary = "show what is in a GGUF file and what each token reads of it",
    .group = COMMAND_LOOK,
    .run = run,
};
