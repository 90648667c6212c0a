#include "cli/commands.h"
#include "cli/completions.h"

static int run(const struct command *c, int argc, char **argv)
{
    struct err e = {0};
    int n_command;
    err_code code = options_parse(c, NULL, 0, &argc, argv, &e);
    if (code == ERR_OK && (argc != 2 || !completions_know(argv[1])))
        code = err_set(&e, ERR_USAGE, "%s%sexpected a shell: bash, zsh or fish", argc == 2 ? argv[1] : "",
                       argc == 2 ? ": " : "");
    if (code == ERR_OK) {
        const struct command *const *commands = commands_all(&n_command);
        completions_print(argv[1], commands, n_command);
    }
    return cli_exit(c, code, &e);
}

const struct command cmd_completions = {
    .name = "completions",
    .usage = "bash|zsh|fish",
    .summary = "print shell completions",
    .details =
        "Installed packages include completions. Otherwise add `source <(moebius completions bash)` to ~/.bashrc, the "
        "same with zsh to ~/.zshrc, or run `moebius completions fish > ~/.config/fish/completions/moebius.fish`.",
    .max_operand = 1,
    .group = COMMAND_LOOK,
    .run = run,
};
