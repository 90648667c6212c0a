#include <stdio.h>

#include "base/sandbox.h"
#include "cli/commands.h"
#include "cli/line_editor.h"
#include "moebius/moebius.h"

/* What confines commands on this system. */
static void print_sandbox(void)
{
    char landlock[32] = "no Landlock";
    if (sandbox_landlock_version())
        snprintf(landlock, sizeof landlock, "Landlock %d", sandbox_landlock_version());
    printf("sandbox: %s, %s\n", landlock, sandbox_has_seccomp() ? "seccomp" : "no seccomp");
}

static int run(const struct command *c, int argc, char **argv)
{
    struct err e = {0};
    err_code code = options_parse(c, NULL, 0, &argc, argv, &e);
    if (code == ERR_OK) {
        printf("moebius %s\n%s\nline editor: %s\n", moebius_version(), moebius_build_info(), line_editor_name());
        print_sandbox();
    }
    return cli_exit(c, code, &e);
}

const struct command cmd_version = {
    .name = "version",
    .usage = "",
    .summary = "the version and what this build contains",
    .group = COMMAND_LOOK,
    .run = run,
};
