#define _DEFAULT_SOURCE /* struct winsize */
#include "cli/command_help.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/utf8.h"

static const char *const headings[N_OPTION_GROUP] = {
    [GROUP_COMMON] = "options",
    [GROUP_OUTPUT] = "input and output",
    [GROUP_SAMPLING] = "sampling",
    [GROUP_FORM] = "chat template and form of answers",
    [GROUP_SERVER] = "clients and limits",
    [GROUP_MACHINE] = "processors and devices",
    [GROUP_MEMORY] = "memory and drives",
    [GROUP_CAR] = "cache-aware routing (changes what the model says)",
    [GROUP_CHECKS] = "checks and sandbox",
};

int help_width(void)
{
    enum { LEAST = 40, MOST = 100, ELSEWHERE = 80 };
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return ELSEWHERE;
    return size.ws_col < LEAST ? LEAST : size.ws_col > MOST ? MOST : size.ws_col;
}

void help_wrap(FILE *out, const char *text, int column, int indent, int width)
{
    bool is_first = true; /* of its line */
    while (*(text += strspn(text, " \n"))) {
        size_t n = strcspn(text, " \n");
        int n_column = (int)utf8_count(text, n);
        if (!is_first && column + 1 + n_column > width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            is_first = true;
        }
        fprintf(out, "%s%.*s", is_first ? "" : " ", (int)n, text);
        column += n_column + !is_first;
        is_first = false;
        text += n;
        if (!strncmp(text, "\n\n", 2)) {
            fprintf(out, "\n\n%*s", indent, "");
            column = indent;
            is_first = true;
        }
    }
    fputc('\n', out);
}

static void print_option(const struct option *o, int width)
{
    enum { INDENT = 29 };
    struct option_names names = option_names(o);
    int n = printf("  %.*s%s%.*s", names.n_other, names.other, names.n_other ? ", " : "", names.n_name, names.name);
    if (!option_is_flag(o))
        n += printf("%s%s", o->kind == OPT_DETAIL ? "" : " ", o->arg);
    if (n >= INDENT)
        printf("\n%*s", INDENT, "");
    else
        printf("%*s", INDENT - n, "");
    help_wrap(stdout, o->help, INDENT, INDENT, width);
}

void help_print(const struct command *c, const struct option *options, int n_option)
{
    int width = help_width();
    int column = printf("usage: moebius %s ", c->name);
    help_wrap(stdout, c->usage, column, column, width);
    printf("\n");
    help_wrap(stdout, c->summary, 0, 0, width);
    if (c->details) {
        printf("\n");
        help_wrap(stdout, c->details, 0, 0, width);
    }
    for (int group = 0; group < N_OPTION_GROUP; group++) {
        int n = 0;
        for (int i = 0; i < n_option; i++) {
            if ((int)options[i].group != group)
                continue;
            if (n++ == 0)
                printf("\n%s:\n", headings[group]);
            print_option(&options[i], width);
        }
    }
    printf("\n`man moebius` explains the options in detail.\n");
}

const char *help_kind(const struct option *o)
{
    switch (o->kind) {
    case OPT_FLAG:
    case OPT_LISTED: return "flag";
    case OPT_DETAIL: return "detail";
    case OPT_CHOICE: return "choice";
    case OPT_INPUT:
    case OPT_INPUT_AGAIN:
    case OPT_INPUT_OLD:
    case OPT_OUTPUT:
    case OPT_MODEL: return "file";
    case OPT_MODELS:
    case OPT_FOLDERS:
    case OPT_OUTPUT_FOLDERS: return "folder";
    default: return "value";
    }
}

void help_print_table(const struct option *options, int n_option)
{
    for (int i = 0; i < n_option; i++) {
        const struct option *o = &options[i];
        struct option_names names = option_names(o);
        printf("%.*s\t%.*s\t%s\t%s\t%s\t%s\t%s\n", names.n_name, names.name, names.n_other, names.other, o->arg,
               help_kind(o), o->choices ? o->choices : "", headings[o->group], o->help);
    }
}
