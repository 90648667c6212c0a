#include "cli/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command_help.h"
#include "cli/commands.h"
#include "cli/completions.h"
#include "cli/option_hints.h"

enum { MOST_OPTIONS = 128 }; /* that a command may have */

int cli_exit(const struct command *c, err_code code, const struct err *e)
{
    if (code == ERR_OK || (code == ERR_CANCELLED && !*e->text))
        return ERR_OK;
    fprintf(stderr, "moebius %s: %s\n", c->name, *e->text ? e->text : err_code_text(code));
    if (code == ERR_USAGE)
        fprintf(stderr, "`moebius %s --help` shows what it takes.\n", c->name);
    return code;
}

struct option_names option_names(const struct option *o)
{
    const char *comma = strchr(o->name, ',');
    struct option_names names = {.name = o->name, .n_name = (int)strcspn(o->name, ","), .other = ""};
    if (comma) {
        names.other = comma + 1;
        names.n_other = (int)strlen(comma + 1);
    }
    return names;
}

/* Whether `word` (n bytes) names the option, in one of its two forms. */
static bool is_named(const struct option *o, const char *word, size_t n)
{
    struct option_names names = option_names(o);
    return (n == (size_t)names.n_name && !memcmp(word, names.name, n)) ||
           (names.n_other && n == (size_t)names.n_other && !memcmp(word, names.other, n));
}

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        size_t length = strcspn(p, "|");
        if (n == length && !memcmp(p, value, n))
            return true;
    }
    return false;
}

static err_code set_number(const struct option *o, const char *word, const char *value, struct err *e)
{
    char *end;
    double f = o->kind == OPT_FLOAT ? strtod(value, &end) : (double)strtoll(value, &end, 10);
    if (end == value || *end || isnan(f)) /* numbers too large for their type are caught as out of range below */
        return err_set(e, ERR_USAGE, "%s %s: expected %s", word, value,
                       o->kind == OPT_FLOAT ? "a number" : "a whole number");
    if (f < o->min || f > o->max)
        return err_set(e, ERR_USAGE, "%s %s: expected %.16g to %.16g", word, value, o->min, o->max);
    if (o->kind == OPT_FLOAT)
        *(float *)o->out = (float)f;
    else if (o->kind == OPT_INT32)
        *(int *)o->out = (int)f;
    else
        *(int64_t *)o->out = strtoll(value, NULL, 10);
    return ERR_OK;
}

/* "1500000", "2300M", "1.5G": powers of 1024. */
static err_code set_size(const char *word, const char *value, const char *expected, int64_t *out, struct err *e)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    double f = strtod(value, &end);
    const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (unit)
        f = ldexp(f, 10 * (int)(unit - units + 1));
    const char *rest = unit ? end + 1 : end;
    if (end == value || errno || (*rest && (strcmp(rest, "iB") != 0 || !unit) && strcmp(rest, "B") != 0) ||
        !(f >= 1 && f < 0x1p62))
        return err_set(e, ERR_USAGE, "%s %s: expected %s", word, value, expected);
    *out = (int64_t)f;
    return ERR_OK;
}

static err_code set_share(const char *word, const char *value, struct option_share *out, struct err *e)
{
    static const char expected[] = "a size such as 900M or 16G, or a share such as 25%";
    size_t n = strlen(value);
    *out = (struct option_share){0};
    if (n == 0 || value[n - 1] != '%')
        return set_size(word, value, expected, &out->n_bytes, e);
    char *end;
    errno = 0;
    out->share = strtod(value, &end) / 100;
    if (end == value || end != value + n - 1 || errno || !(out->share > 0 && out->share <= 1))
        return err_set(e, ERR_USAGE, "%s %s: expected %s, of more than 0%% and at most 100%%", word, value, expected);
    return ERR_OK;
}

bool option_is_flag(const struct option *o)
{
    return o->kind == OPT_FLAG || o->kind == OPT_LISTED;
}

err_code options_set(const struct option *o, const char *word, const char *value, struct err *e)
{
    struct option_list *list = o->out;
    switch (o->kind) {
    case OPT_FLAG:
    case OPT_LISTED: *(bool *)o->out = true; return ERR_OK;
    case OPT_INT:
    case OPT_INT32:
    case OPT_FLOAT: return set_number(o, word, value, e);
    case OPT_SIZE: return set_size(word, value, "a size such as 900M or 16G", o->out, e);
    case OPT_SHARE: return set_share(word, value, o->out, e);
    case OPT_LIST:
        if (list->n == OPTION_LIST_MAX)
            return err_set(e, ERR_USAGE, "%s: at most %d of them", word, OPTION_LIST_MAX);
        list->items[list->n++] = value;
        return ERR_OK;
    case OPT_DETAIL:
    case OPT_CHOICE:
        if (!(o->kind == OPT_DETAIL && !*value) && !is_choice(o->choices, value))
            return err_set(e, ERR_USAGE, "%s %s: expected %s", word, value, o->choices);
        *(const char **)o->out = value;
        return ERR_OK;
    case OPT_OUTPUT: *(const char **)o->out = strcmp(value, "-") ? value : "/dev/stdout"; return ERR_OK;
    case OPT_STRING:
    case OPT_INPUT:
    case OPT_INPUT_AGAIN:
    case OPT_INPUT_OLD:
    case OPT_MODEL:
    case OPT_MODELS:
    case OPT_FOLDERS:
    case OPT_DEVICES:
    case OPT_GPU:
    case OPT_OUTPUT_FOLDERS: *(const char **)o->out = value; return ERR_OK;
    }
    return ERR_OK;
}

const struct option *options_find(const struct option *options, int n_option, const char *word, size_t n)
{
    for (int i = 0; i < n_option; i++)
        if (is_named(&options[i], word, n))
            return &options[i];
    return NULL;
}

/* Whether an option's value is a number, which may follow its letter directly: -n5. */
static bool takes_number(const struct option *o)
{
    return o->kind == OPT_INT || o->kind == OPT_INT32 || o->kind == OPT_FLOAT || o->kind == OPT_SIZE;
}

/* The length of the option's name in a word: up to "=", or the letter before a number. */
static size_t name_length(const struct option *options, int n_option, const char *word)
{
    size_t n = strcspn(word, "=");
    if (word[1] == '-' || n <= 2 || !strchr("-0123456789.", word[2]))
        return n;
    const struct option *o = options_find(options, n_option, word, 2);
    return o && takes_number(o) ? 2 : n;
}

/* Sets the option that argv[*i] names, and notes that it was given. If the next word is its value, *i is advanced. */
static err_code parse_option(const struct command *c, const struct option *options, int n_option, int argc, char **argv,
                             int *i, bool *is_given, struct err *e)
{
    const char *word = argv[*i];
    size_t n = name_length(options, n_option, word);
    const char *value = word[n] ? word + n + (word[n] == '=') : NULL;
    const struct option *o = options_find(options, n_option, word, n);
    if (!o)
        return hint_no_option(c, options, n_option, word, n, e);
    if (option_is_flag(o) && value)
        return err_set(e, ERR_USAGE, "%.*s takes no value", (int)n, word);
    if (o->kind == OPT_DETAIL && !value)
        value = "";
    if (!option_is_flag(o) && !value) {
        if (*i + 1 == argc)
            return err_set(e, ERR_USAGE, "%s needs a value: %s", word, o->arg);
        value = argv[++*i];
    }
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    is_given[o - options] = true;
    return options_set(o, name, value, e);
}

static bool is_taken(const struct subcommand *s, const struct option *o)
{
    for (size_t i = 0; i < sizeof s->takes / sizeof *s->takes && s->takes[i]; i++)
        if (is_named(o, s->takes[i], strlen(s->takes[i])))
            return true;
    return false;
}

/* Whether the command takes an option with its first word. */
static err_code check_taken(const struct command *c, const char *word, const struct option *o, struct err *e)
{
    for (size_t i = 0; i < sizeof c->subcommands / sizeof *c->subcommands; i++) {
        const struct subcommand *s = &c->subcommands[i];
        if (s->word && strcmp(s->word, word) == 0 && !is_taken(s, o))
            return err_set(e, ERR_USAGE, "%.*s: %s%s%s takes no such option", option_names(o).n_name, o->name, c->name,
                           *word ? " " : " alone", word);
    }
    return ERR_OK;
}

static const struct option *find_unset(const struct option *options, int n_option, const char *name)
{
    const struct option *o = options_find(options, n_option, name, strlen(name));
    return o && !*(const char **)o->out ? o : NULL;
}

static bool ends_with(const char *word, const char *end)
{
    size_t n = strlen(word), n_end = strlen(end);
    return n >= n_end && !strcmp(word + n - n_end, end);
}

static void drop_word(int *n_word, char **argv, int at)
{
    memmove(argv + at, argv + at + 1, (size_t)(*n_word - at - 1) * sizeof *argv);
    *n_word -= 1;
}

/* Sets the options that are given as plain words: the model's name, and "-" for standard input. */
static err_code take_words(const struct command *c, const struct option *options, int n_option, int *n_word,
                           char **argv, struct err *e)
{
    const struct option *model = find_unset(options, n_option, "--model");
    const struct option *file = find_unset(options, n_option, "--file");
    if (model && *n_word > 1 && (*n_word - 1 > c->max_operand || ends_with(argv[1], ".gguf")) &&
        strcmp(argv[1], "-") != 0) {
        TRY(options_set(model, "--model", argv[1], e));
        drop_word(n_word, argv, 1);
    }
    for (int i = 1; file && i < *n_word; i++)
        if (!strcmp(argv[i], "-")) {
            drop_word(n_word, argv, i);
            return options_set(file, "--file", "-", e);
        }
    return ERR_OK;
}

/* Handles --help and --version, and the forms of help for programs. */
static bool is_answered(const struct command *c, const struct option *options, int n_option, const char *word,
                        char **argv)
{
    bool known =
        options_find(options, n_option, word, strlen(word)) != NULL; /* the command has an option of this name itself */
    if (!strcmp(word, "--help") || (!known && !strcmp(word, "-h")))
        help_print(c, options, n_option);
    else if (!strcmp(word, "--help=table"))
        help_print_table(options, n_option);
    else if (!strncmp(word, "--help=", 7) && completions_know(word + 7))
        completions_print_options(word + 7, c, options, n_option);
    else if (!known && (!strcmp(word, "--version") || !strcmp(word, "-V") || !strcmp(word, "-v")))
        (void)cmd_version.run(&cmd_version, 1, argv);
    else
        return false;
    return true;
}

err_code options_parse(const struct command *c, const struct option *options, int n_option, int *argc, char **argv,
                       struct err *e)
{
    int n_word = 1;
    bool options_end = false, is_given[MOST_OPTIONS] = {false};
    assert(n_option <= MOST_OPTIONS);
    for (int i = 1; i < *argc; i++) {
        const char *word = argv[i];
        if (options_end || word[0] != '-' || !word[1])
            argv[n_word++] = argv[i];
        else if (!strcmp(word, "--"))
            options_end = true;
        else if (is_answered(c, options, n_option, word, argv))
            return ERR_CANCELLED;
        else
            TRY(parse_option(c, options, n_option, *argc, argv, &i, is_given, e));
    }
    TRY(take_words(c, options, n_option, &n_word, argv, e));
    *argc = n_word;
    for (int i = 0; i < n_option; i++)
        if (is_given[i])
            TRY(check_taken(c, n_word > 1 ? argv[1] : "", &options[i], e));
    if (n_word - 1 > c->max_operand)
        return err_set(e, ERR_USAGE, "\"%s\" is one word too many%s%s", argv[c->max_operand + 1], c->hint ? ": " : "",
                       c->hint ? c->hint : "");
    return ERR_OK;
}
