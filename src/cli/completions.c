#include "cli/completions.h"

#include <stdio.h>
#include <string.h>

#include "cli/command_help.h"

bool completions_know(const char *shell)
{
    return !strcmp(shell, "bash") || !strcmp(shell, "zsh") || !strcmp(shell, "fish");
}

/* Text within single quotes of a script; `special`: characters that get a backslash. */
static void print_text(const char *text, const char *special, bool doubles_quotes)
{
    for (; *text; text++) {
        if (*text == '\'')
            printf(doubles_quotes ? "'\\''" : "\\'");
        else
            printf("%s%c", strchr(special, *text) ? "\\" : "", *text);
    }
}

/* "a|b" as "a b". */
static void print_choices(const char *choices)
{
    for (; *choices; choices++)
        putchar(*choices == '|' ? ' ' : *choices);
}

static bool is_kind(const struct option *o, const char *kind)
{
    return !strcmp(help_kind(o), kind);
}

static bool is_bare(const struct option *o)
{
    return is_kind(o, "flag") || is_kind(o, "detail");
}

/* ---- bash ---------------------------------------------------------------------------------------------------- */

/* "--threads|-t", or with another text between. */
static void print_names(const struct option *o, const char *between)
{
    struct option_names names = option_names(o);
    printf("%.*s", names.n_name, names.name);
    if (names.n_other)
        printf("%s%.*s", between, names.n_other, names.other);
}

static void print_bash(const struct option *options, int n_option)
{
    printf("        options='--help --version");
    for (int i = 0; i < n_option; i++) {
        printf(" ");
        print_names(&options[i], " ");
    }
    printf("'\n        case $before in\n");
    for (int i = 0; i < n_option; i++) {
        const struct option *o = &options[i];
        if (is_bare(o))
            continue;
        printf("        ");
        print_names(o, "|");
        printf(") ");
        if (is_kind(o, "choice")) {
            printf("COMPREPLY=($(compgen -W '");
            print_choices(o->choices);
            printf("' -- \"$word\")); ");
        } else if (!is_kind(o, "value")) {
            printf("COMPREPLY=($(compgen %s -- \"$word\")); ", is_kind(o, "folder") ? "-d" : "-f");
        }
        printf("return ;;\n");
    }
    printf("        esac ;;\n");
}

static void begin_bash(const struct command *const *commands, int n_command)
{
    printf("# bash completion for moebius: made by `moebius completions bash`\n"
           "_moebius()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options=''\n"
           "    local commands='help");
    for (int i = 0; i < n_command; i++)
        printf(" %s", commands[i]->name);
    printf("'\n    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$word\"))\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]} in\n"
           "    help) COMPREPLY=($(compgen -W \"$commands\" -- \"$word\")); return ;;\n");
}

static const char bash_end[] = "    esac\n"
                               "    case $word in\n"
                               "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
                               "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
                               "    esac\n"
                               "}\n"
                               "complete -o filenames -F _moebius moebius\n";

/* ---- zsh ----------------------------------------------------------------------------------------------------- */

/* One form of an option; it excludes the other form. */
static void print_zsh_form(const struct option *o, const char *name, int n, const char *other, int n_other)
{
    printf(" \\\n        '");
    if (o->kind == OPT_LIST)
        printf("*");
    else if (n_other)
        printf("(%.*s)", n_other, other);
    printf("%.*s", n, name);
    if (o->kind == OPT_DETAIL)
        printf("=-");
    else if (!option_is_flag(o) && name[1] == '-')
        printf("=");
    printf("[");
    print_text(o->help, "[]:\\", true);
    printf("]");
    if (!option_is_flag(o)) {
        printf(":%s", o->kind == OPT_DETAIL ? ":" : "");
        print_text(o->arg, "[]:\\", true);
        printf(":");
    }
    if (o->choices) {
        printf("(");
        print_choices(o->choices);
        printf(")");
    } else if (is_kind(o, "file") || is_kind(o, "folder")) {
        printf(is_kind(o, "file") ? "_files" : "_files -/");
    }
    printf("'");
}

static void print_zsh(const struct option *options, int n_option)
{
    printf("        _arguments '(- *)--help[print the options]' '(- *)--version[print the version]'");
    for (int i = 0; i < n_option; i++) {
        struct option_names names = option_names(&options[i]);
        print_zsh_form(&options[i], names.name, names.n_name, names.other, names.n_other);
        if (names.n_other)
            print_zsh_form(&options[i], names.other, names.n_other, names.name, names.n_name);
    }
    printf(" \\\n        '*:file:_files' ;;\n");
}

static void begin_zsh(const struct command *const *commands, int n_command)
{
    printf(
        "#compdef moebius\n# made by `moebius completions zsh`\n_moebius()\n{\n    local -a commands\n    commands=(\n"
        "        'help:print the commands, or the help of one'\n");
    for (int i = 0; i < n_command; i++) {
        printf("        '%s:", commands[i]->name);
        print_text(commands[i]->summary, "\\", true);
        printf("'\n");
    }
    printf("    )\n"
           "    if (( CURRENT == 2 )); then\n"
           "        _describe command commands\n"
           "        return\n"
           "    fi\n"
           "    local name=$words[2]\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $name in\n"
           "    help) _describe command commands ;;\n");
}

static const char zsh_end[] = "    esac\n"
                              "}\n"
                              "if [ \"$funcstack[1]\" = _moebius ]; then\n"
                              "    _moebius \"$@\"\n"
                              "else\n"
                              "    compdef _moebius moebius\n"
                              "fi\n";

/* ---- fish ---------------------------------------------------------------------------------------------------- */

/* -l threads, -s t, or -o jf for letters behind one dash. */
static void print_fish_form(const char *name, int n)
{
    if (n)
        printf(" %s %.*s",
               name[1] == '-' ? "-l"
               : n == 2       ? "-s"
                              : "-o",
               name[1] == '-' ? n - 2 : n - 1, name + 1 + (name[1] == '-'));
}

static void print_fish(const struct command *c, const struct option *options, int n_option)
{
    for (int i = 0; i < n_option; i++) {
        const struct option *o = &options[i];
        struct option_names names = option_names(o);
        printf("complete -c moebius -n '__fish_seen_subcommand_from %s'", c->name);
        print_fish_form(names.name, names.n_name);
        print_fish_form(names.other, names.n_other);
        if (is_kind(o, "choice")) {
            printf(" -x -a '");
            print_choices(o->choices);
            printf("'");
        } else if (is_kind(o, "folder")) {
            printf(" -x -a '(__fish_complete_directories)'");
        } else if (!is_bare(o)) {
            printf(is_kind(o, "file") ? " -r -F" : " -x");
        }
        printf(" -d '");
        print_text(o->help, "\\", false);
        printf("'\n");
    }
}

static void begin_fish(const struct command *const *commands, int n_command)
{
    printf("# fish completion for moebius: made by `moebius completions fish`\n"
           "complete -c moebius -l help -d 'print the options'\n"
           "complete -c moebius -l version -d 'print the version'\n"
           "complete -c moebius -n __fish_use_subcommand -f -a help -d 'print the commands, or the help of one'\n");
    for (int i = 0; i < n_command; i++) {
        printf("complete -c moebius -n __fish_use_subcommand -f -a %s -d '", commands[i]->name);
        print_text(commands[i]->summary, "\\", false);
        printf("'\n");
    }
    printf("complete -c moebius -n '__fish_seen_subcommand_from help' -f -a '");
    for (int i = 0; i < n_command; i++)
        printf("%s%s", i ? " " : "", commands[i]->name);
    printf("'\n");
}

/* ---- all ----------------------------------------------------------------------------------------------------- */

void completions_print_options(const char *shell, const struct command *c, const struct option *options, int n_option)
{
    if (!strcmp(shell, "fish")) {
        print_fish(c, options, n_option);
        return;
    }
    printf("    %s)\n", c->name);
    if (!strcmp(shell, "zsh"))
        print_zsh(options, n_option);
    else
        print_bash(options, n_option);
}

void completions_print(const char *shell, const struct command *const *commands, int n_command)
{
    char word[32], name[] = "moebius", *argv[] = {name, word, NULL};
    bool bash = !strcmp(shell, "bash"), zsh = !strcmp(shell, "zsh");
    (bash ? begin_bash : zsh ? begin_zsh : begin_fish)(commands, n_command);
    snprintf(word, sizeof word, "--help=%s", shell);
    for (int i = 0; i < n_command; i++)
        (void)commands[i]->run(commands[i], 2, argv);
    printf("%s", bash ? bash_end : zsh ? zsh_end : "");
}
