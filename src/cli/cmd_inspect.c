#include <stdio.h>

#include "cli/commands.h"
#include "cli/confine.h"
#include "jobs/inspect.h"

static int run(const struct command *c, int argc, char **argv)
{
    bool json = false, no_sandbox = false;
    const char *tensor = NULL;
    const struct option options[] = {
        {"--json", OPT_FLAG, &json, "", "print one JSON object", 0, 0, 0},
        {"--tensor", OPT_STRING, &tensor, "NAME", "one tensor: shape, first values, range, NaN count", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && argc != 2)
        code = err_set(&e, ERR_USAGE, "no file: expected a GGUF file");
    if (code == ERR_OK)
        code = inspect_print(stdout, argv[1], json, tensor, &e);
    return cli_exit(c, code, &e);
}

const struct command cmd_inspect = {
    .name = "inspect",
    .usage = "FILE [--json] [--tensor NAME]",
    .summary = "what is in a GGUF file, how its layers work, what a token reads",
    .max_operand = 1,
    .operands = {OPT_MODEL},
    .run = run,
};
