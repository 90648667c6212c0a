/* moebius: the command line. Each command is a file of its own (cmd_*.c); this one finds it. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/near.h"
#include "cli/command_help.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/model_names.h"
#include "cli/option_hints.h"
#include "cli/rank_run.h"
#include "moebius/moebius.h"

static const struct command *const commands[] = {
    &cmd_chat,    &cmd_generate, &cmd_serve,       &cmd_batch,    &cmd_logits,     &cmd_ppl,
    &cmd_profile, &cmd_trace,    &cmd_template,    &cmd_tokenize, &cmd_detokenize, &cmd_inspect,
    &cmd_devices, &cmd_list,     &cmd_completions, &cmd_version,  &cmd_pull,       &cmd_rm,
    &cmd_alias,   &cmd_prepare,  &cmd_verify,      &cmd_imatrix,  &cmd_quantize,   &cmd_grammar,
    &cmd_plan,    &cmd_bench,    &cmd_tune,        &cmd_probe,    &cmd_doctor,     &cmd_receipts,
};

enum { N_COMMAND = sizeof commands / sizeof *commands };

const struct command *const *commands_all(int *n)
{
    *n = N_COMMAND;
    return commands;
}

static void print_usage(FILE *out)
{
    enum { INDENT = 15 };
    static const char *const headings[N_COMMAND_GROUP] = {
        [COMMAND_RUN] = "run a model",     [COMMAND_MODELS] = "manage models",     [COMMAND_LOOK] = "inspect",
        [COMMAND_MAKE] = "prepare models", [COMMAND_MEASURE] = "plan and measure",
    };
    int width = help_width();
    help_wrap(out, "runs Mixture-of-Experts language models from GGUF files",
              fprintf(out, "moebius %s: ", moebius_version()), 4, width);
    fprintf(out, "\nusage: moebius COMMAND [OPTIONS]\n");
    for (int group = 0; group < N_COMMAND_GROUP; group++) {
        fprintf(out, "\n%s:\n", headings[group]);
        for (int i = 0; i < N_COMMAND; i++) {
            if ((int)commands[i]->group != group)
                continue;
            fprintf(out, "  %-12s ", commands[i]->name);
            help_wrap(out, commands[i]->summary, INDENT, INDENT, width);
        }
    }
    fprintf(out, "\n`moebius COMMAND --help` lists its options. First steps:\n"
                 "  moebius chat model.gguf\n");
    help_wrap(out, "(fetches it first)", fprintf(out, "  moebius chat hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M   "), 6, width);
    fprintf(out, "  moebius generate -m model.gguf -p \"Once upon a time\"\n\n");
    help_wrap(out, "To run one model on several machines, see docs/machines.md.", 0, 0, width);
}

/* The command that was probably meant: one that begins so, or the most similar one; NULL: none. `rm` is never
 * suggested. */
static const char *find_near(const char *name)
{
    const char *near = hint_command(name);
    if (near)
        return near;
    for (int least = near_limit(strlen(name)), i = 0; i < N_COMMAND; i++) {
        if (commands[i] == &cmd_rm)
            continue;
        int d = strncmp(commands[i]->name, name, strlen(name)) ? near_distance(commands[i]->name, name) : 0;
        if (d < least) {
            near = commands[i]->name;
            least = d;
        }
    }
    return near;
}

/* Whether a word is an argument rather than a command: an option, a model's file or a name on the Hub. */
static bool belongs_behind(const char *word)
{
    static const char end[] = ".gguf";
    size_t n = strlen(word), n_end = strlen(end);
    return word[0] == '-' || !strncmp(word, "hf:", 3) || (n >= n_end && !strcmp(word + n - n_end, end));
}

static int refuse(const char *name)
{
    struct err e;
    const char *near = find_near(name);
    if (belongs_behind(name))
        err_set(&e, ERR_USAGE, "%s: a command comes first, as in `moebius chat model.gguf`", name);
    else
        err_set(&e, ERR_USAGE, "there is no command %s%s%s%s", name, near ? ": did you mean " : "", near ? near : "",
                near ? "?" : "");
    fprintf(stderr, "moebius: %s\n`moebius help` lists the commands.\n", e.text);
    return ERR_USAGE;
}

/* Flushes standard output. If that fails, the program fails, even if the command succeeded. */
static int check_stdout(int exit_code)
{
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (fclose(stdout) != 0 && errno != EBADF) /* EBADF: it was closed from the start, and nothing was printed */
        failed = true;
    if (!failed)
        return exit_code;
    fprintf(stderr, "moebius: standard output: not all of it could be written\n");
    return exit_code == ERR_OK || exit_code >= EXIT_REFUSED ? ERR_IO : exit_code;
}

static int run(int argc, char **argv)
{
    const char *name = argv[1];
    bool help = !strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h");
    if (help && (argc < 3 || !strcmp(argv[2], "help"))) {
        print_usage(stdout);
        return ERR_OK;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V") || !strcmp(name, "-v"))
        name = "version";
    char help_word[] = "--help", *help_argv[] = {argv[0], help_word, NULL};
    if (help)
        name = argv[2];
    for (int i = 0; i < N_COMMAND; i++)
        if (!strcmp(name, commands[i]->name))
            return help ? commands[i]->run(commands[i], 2, help_argv)
                        : commands[i]->run(commands[i], argc - 1, argv + 1);
    return refuse(name);
}

/* Replaces closed standard streams by ones on which reads or writes fail. Otherwise the first file that is opened would
 * take their place, and output would be written to it, or it would be read as a prompt. */
static void fill_standard_streams(void)
{
    static const int modes[] = {[STDIN_FILENO] = O_WRONLY, [STDOUT_FILENO] = O_RDONLY, [STDERR_FILENO] = O_RDONLY};
    for (int fd = 0; fd < (int)(sizeof modes / sizeof *modes); fd++)
        if (fcntl(fd, F_GETFD) < 0 && file_open("/dev/null", modes[fd], 0) != fd)
            _exit(ERR_IO); /* there is no stream to report it on */
}

/* Threads recurse as deep as clients' requests are nested, even if the system's default stack is small (ulimit -s,
 * musl). */
static void widen_stacks(void)
{
    enum { LEAST_BYTES = 2 << 20 };
    pthread_attr_t attr;
    size_t n_bytes;
    if (pthread_getattr_default_np(&attr) != 0)
        return;
    if (pthread_attr_getstacksize(&attr, &n_bytes) == 0 && n_bytes < LEAST_BYTES &&
        pthread_attr_setstacksize(&attr, LEAST_BYTES) == 0)
        (void)pthread_setattr_default_np(&attr);
    pthread_attr_destroy(&attr);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    widen_stacks();
    cli_catch_ends();
    signal(SIGXFSZ, SIG_IGN); /* so that writes beyond the limit on file sizes fail and are reported */
    if (argc < 2) {
        print_usage(stderr);
        return ERR_USAGE;
    }
    int exit_code = check_stdout(run(argc, argv));
    rank_run_end();
    model_names_end();
    return exit_code;
}
