/* moebius: the command line. Each command is a file of its own (cmd_*.c); this one finds it. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "moebius/moebius.h"

static const struct command *const commands[] = {
    &cmd_chat,     &cmd_generate, &cmd_logits,     &cmd_ppl,     &cmd_profile, &cmd_trace,
    &cmd_template, &cmd_tokenize, &cmd_detokenize, &cmd_inspect, &cmd_prepare, &cmd_verify,
    &cmd_imatrix,  &cmd_quantize, &cmd_bench,      &cmd_tune,    &cmd_version,
};

static void print_usage(FILE *out)
{
    fprintf(out,
            "moebius %s: runs Mixture-of-Experts language models from GGUF files\n\n"
            "usage: moebius COMMAND [OPTIONS]\n\ncommands:\n",
            moebius_version());
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out,
            "  %-12s %s\n\n`moebius COMMAND --help` explains one. First steps:\n"
            "  moebius generate -m model.gguf -p \"Once upon a time\"\n",
            "help", "print this, or a command's help");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return ERR_USAGE;
    }
    const char *name = argv[1];
    bool help = !strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h");
    if (help && argc < 3) {
        print_usage(stdout);
        return ERR_OK;
    }
    if (!strcmp(name, "--version"))
        name = "version";
    char help_word[] = "--help", *help_argv[] = {argv[0], help_word, NULL};
    if (help)
        name = argv[2];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i]->name))
            return help ? commands[i]->run(commands[i], 2, help_argv)
                        : commands[i]->run(commands[i], argc - 1, argv + 1);
    fprintf(stderr, "moebius: there is no command %s\n\n", name);
    print_usage(stderr);
    return ERR_USAGE;
}
