#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"

int cli_exit(const struct command *c, err_code code, const struct err *e)
{
    if (code == ERR_OK || (code == ERR_CANCELLED && !*e->text))
        return ERR_OK;
    fprintf(stderr, "moebius %s: %s\n", c->name, *e->text ? e->text : err_code_text(code));
    if (code == ERR_USAGE)
        fprintf(stderr, "`moebius %s --help` shows what it takes.\n", c->name);
    return code;
}

/* Lines that are too long are broken at spaces. */
static void print_wrapped(const char *text)
{
    enum { WIDTH = 100 };
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n > WIDTH)
            for (n = WIDTH; n > 1 && text[n] != ' ';)
                n--;
        printf("%.*s\n", (int)n, text);
        text += n + (text[n] != '\0');
    }
}

static void print_help(const struct command *c, const struct option *o, int n)
{
    printf("usage: moebius %s %s\n\n%s\n", c->name, c->usage, c->summary);
    if (c->details) {
        printf("\n");
        print_wrapped(c->details);
    }
    printf("\noptions:\n");
    for (int i = 0; i < n; i++) {
        char left[64];
        const char *comma = strchr(o[i].name, ',');
        int length = comma ? (int)(comma - o[i].name) : (int)strlen(o[i].name);
        snprintf(left, sizeof left, "%s%s%.*s%s%s", comma ? comma + 1 : "", comma ? ", " : "", length, o[i].name,
                 o[i].kind == OPT_DETAIL ? "" : " ", o[i].kind == OPT_FLAG ? "" : o[i].arg);
        printf("  %-28s %s\n", left, o[i].help);
    }
    printf("  %-28s %s\n", "--help", "print this");
}

/* Whether `word` (n bytes) names the option, in one of its two forms. */
static bool is_named(const struct option *o, const char *word, size_t n)
{
    const char *comma = strchr(o->name, ',');
    size_t length = comma ? (size_t)(comma - o->name) : strlen(o->name);
    return (n == length && !memcmp(word, o->name, n)) ||
           (comma && n == strlen(comma + 1) && !memcmp(word, comma + 1, n));
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
    errno = 0;
    double f = o->kind == OPT_FLOAT ? strtod(value, &end) : (double)strtoll(value, &end, 10);
    if (end == value || *end || errno || isnan(f))
        return err_set(e, ERR_USAGE, "%s %s: expected %s", word, value,
                       o->kind == OPT_FLOAT ? "a number" : "a whole number");
    if (f < o->min || f > o->max)
        return err_set(e, ERR_USAGE, "%s %s: expected %.10g to %.10g", word, value, o->min, o->max);
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

err_code options_set(const struct option *o, const char *word, const char *value, struct err *e)
{
    struct option_list *list = o->out;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)o->out = true; return ERR_OK;
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

/* The option that argv[*i] names, set; a value that is the next word is stepped over. */
static err_code parse_option(const struct option *options, int n_option, int argc, char **argv, int *i, struct err *e)
{
    const char *word = argv[*i], *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    const char *value = equals ? equals + 1 : NULL;
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const struct option *o = options_find(options, n_option, word, n);
    if (!o)
        return err_set(e, ERR_USAGE, "there is no option %.*s", (int)n, word);
    if (o->kind == OPT_FLAG && value)
        return err_set(e, ERR_USAGE, "%.*s takes no value", (int)n, word);
    if (o->kind == OPT_DETAIL && !value)
        value = "";
    if (o->kind != OPT_FLAG && !value) {
        if (*i + 1 == argc)
            return err_set(e, ERR_USAGE, "%s needs a value: %s", word, o->arg);
        value = argv[++*i];
    }
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    return options_set(o, name, value, e);
}

err_code options_parse(const struct command *c, const struct option *options, int n_option, int *argc, char **argv,
                       struct err *e)
{
    int n_word = 1;
    bool options_end = false;
    for (int i = 1; i < *argc; i++) {
        const char *word = argv[i];
        if (options_end || word[0] != '-' || !word[1]) {
            argv[n_word++] = argv[i];
        } else if (!strcmp(word, "--")) {
            options_end = true;
        } else if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            print_help(c, options, n_option);
            return ERR_CANCELLED;
        } else if (!strcmp(word, "--version") || !strcmp(word, "-V")) {
            (void)cmd_version.run(&cmd_version, 1, argv);
            return ERR_CANCELLED;
        } else {
            TRY(parse_option(options, n_option, *argc, argv, &i, e));
        }
    }
    *argc = n_word;
    if (n_word - 1 > c->max_operand)
        return err_set(e, ERR_USAGE, "\"%s\" is one word too many%s%s", argv[c->max_operand + 1], c->hint ? ": " : "",
                       c->hint ? c->hint : "");
    return ERR_OK;
}
