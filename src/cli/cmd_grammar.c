/* grammar: compiles a schema, a grammar or a regular expression, and checks texts against it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/input_text.h"

struct grammar_command {
    const char *model, *schema, *gbnf, *regex, *check;
    bool strict, json, no_sandbox;

    moebius_vocab *vocab;
    moebius_grammar *grammar;
    int64_t compile_ns;
    char *text, *lines; /* the grammar's text; the file of --check */
    json_t *instances;
    int n_refused;
    uint64_t *mask;
    double *mask_us; /* [n_mask] */
    size_t n_mask, n_mask_max;
};

static err_code no_memory(struct err *e)
{
    return err_nomem(e, 1 << 10, "the report on a grammar");
}

/* ---- masks ----------------------------------------------------------------------------------------------------- */

static double mean_us(const struct grammar_command *j)
{
    double sum = 0;
    for (size_t i = 0; i < j->n_mask; i++)
        sum += j->mask_us[i];
    return sum / (double)j->n_mask;
}

/* Sorts the values. */
static double p99_us(struct grammar_command *j)
{
    qsort(j->mask_us, j->n_mask, sizeof *j->mask_us, compare_doubles);
    return j->mask_us[(j->n_mask - 1) * 99 / 100];
}

static size_t n_above_1ms(const struct grammar_command *j)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n_mask; i++)
        n += j->mask_us[i] > 1e3;
    return n;
}

/* Times the mask at each token of an accepted instance. */
static err_code time_masks(struct grammar_command *j, const char *text, size_t n, struct err *e)
{
    moebius_error error;
    moebius_matcher *m = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    err_code code = ERR_OK;
    if (moebius_tokenize(j->vocab, text, n, false, false, &ids, &n_ids, &error) != MOEBIUS_OK ||
        moebius_matcher_open(&m, j->grammar, &error) != MOEBIUS_OK)
        code = err_adopt(e, &error);
    for (size_t i = 0; code == ERR_OK && i < n_ids; i++) {
        code = mem_grow(&j->mask_us, &j->n_mask_max, j->n_mask + 1, sizeof *j->mask_us, "times", e);
        if (code != ERR_OK)
            break;
        int64_t start = clock_ns();
        moebius_matcher_mask(m, j->mask);
        j->mask_us[j->n_mask++] = (double)(clock_ns() - start) / 1e3;
        if (!moebius_matcher_accept(m, ids[i])) /* a tokenizer may add characters to the text */
            break;
    }
    moebius_matcher_close(&m);
    moebius_free(ids);
    return code;
}

/* ---- instances ------------------------------------------------------------------------------------------------- */

static err_code check_instance(struct grammar_command *j, int line, const char *text, size_t n, struct err *e)
{
    moebius_error error;
    moebius_matcher *m;
    size_t n_fit;
    if (moebius_matcher_open(&m, j->grammar, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    bool accepted = moebius_matcher_feed(m, text, n, &n_fit) && moebius_matcher_may_end(m);
    err_code code = moebius_matcher_status(m, &error) == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
    moebius_matcher_close(&m);
    TRY(code);
    j->n_refused += !accepted;
    json_t *instance = accepted ? json_pack("{s:b, s:n}", "accepted", 1, "byte")
                                : json_pack("{s:b, s:I}", "accepted", 0, "byte", (json_int_t)n_fit);
    if (json_array_append_new(j->instances, instance) != 0)
        return no_memory(e);
    if (!j->json && accepted)
        printf("%d: accepted\n", line);
    else if (!j->json)
        printf("%d: refused at byte %zu%s\n", line, n_fit, n_fit == n ? ", its end" : "");
    return accepted && j->vocab ? time_masks(j, text, n, e) : ERR_OK;
}

static err_code check_instances(struct grammar_command *j, struct err *e)
{
    size_t n;
    TRY(cli_read_file(j->check, &j->lines, &n, e));
    int line = 1;
    for (const char *s = j->lines, *end = s + n; s < end; line++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t length = (size_t)((stop ? stop : end) - s), text = length;
        while (text > 0 && s[text - 1] == '\r')
            text--;
        if (text > 0)
            TRY(check_instance(j, line, s, text, e));
        s += length + 1;
    }
    return ERR_OK;
}

/* ---- the report ------------------------------------------------------------------------------------------------ */

static void print_text(struct grammar_command *j)
{
    size_t n = moebius_grammar_n_unenforced(j->grammar);
    if (n == 0)
        printf("compiles\n");
    for (size_t i = 0; i < n; i++) {
        const char *pointer, *keyword = moebius_grammar_unenforced(j->grammar, i, &pointer);
        char shown[512];
        printable_line(pointer, strlen(pointer), shown, sizeof shown);
        printf("not enforced: %s, at %s\n", keyword, shown);
    }
    if (j->n_mask) {
        double mean = mean_us(j);
        printf("%zu masks: %.1f us in the mean, %.1f us in 99 of 100\n", j->n_mask, mean, p99_us(j));
    }
}

/* failed: the message that says why the grammar does not compile, or NULL. */
static err_code print_json(struct grammar_command *j, const char *failed, struct err *e)
{
    size_t n = failed ? 0 : moebius_grammar_n_unenforced(j->grammar);
    json_t *unenforced = json_array();
    bool ok = unenforced != NULL;
    for (size_t i = 0; i < n; i++) {
        const char *pointer, *keyword = moebius_grammar_unenforced(j->grammar, i, &pointer);
        ok &= json_array_append_new(unenforced, json_pack("{s:s, s:s}", "keyword", keyword, "pointer", pointer)) == 0;
    }
    json_t *report =
        json_pack("{s:b, s:b, s:o, s:O, s:f}", "compiles", !failed, "enforced_whole", !failed && n == 0, "unenforced",
                  unenforced, "instances", j->instances, "compile_us", (double)j->compile_ns / 1e3);
    if (failed)
        ok &= json_object_set_new(report, "error", json_text(failed, strlen(failed))) == 0;
    if (j->n_mask) {
        json_t *mask = json_pack("{s:I, s:f, s:f, s:I}", "n", (json_int_t)j->n_mask, "mean", mean_us(j), "p99",
                                 p99_us(j), "n_above_1ms", (json_int_t)n_above_1ms(j));
        ok &= json_object_set_new(report, "mask_us", mask) == 0;
    }
    char *text = ok ? json_write(report, JSON_INDENT(2) | JSON_REAL_PRECISION(6), NULL) : NULL;
    if (text)
        puts(text);
    ok = text != NULL;
    mem_free(text);
    json_decref(report);
    return ok ? ERR_OK : no_memory(e);
}

static err_code open_grammar(struct grammar_command *j, struct err *e)
{
    const char *file = j->schema ? j->schema : j->gbnf, *text = j->regex;
    size_t n = text ? strlen(text) : 0;
    moebius_error error;
    moebius_grammar_kind kind = j->schema ? MOEBIUS_GRAMMAR_SCHEMA
                                : j->gbnf ? MOEBIUS_GRAMMAR_GBNF
                                          : MOEBIUS_GRAMMAR_REGEX;
    if (!!j->schema + !!j->gbnf + !!j->regex != 1)
        return err_set(e, ERR_USAGE, "name one of --schema FILE, --gbnf FILE and --regex REGEX");
    if (j->model && moebius_vocab_open(&j->vocab, j->model, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    if (j->vocab) { /* the first grammar of a vocabulary also builds the vocabulary's tree, which should not count */
        moebius_grammar *any;
        if (moebius_grammar_open(&any, j->vocab, MOEBIUS_GRAMMAR_SCHEMA, "", 0, 0, &error) != MOEBIUS_OK)
            return err_adopt(e, &error);
        moebius_grammar_close(&any);
    }
    if (j->vocab && !(j->mask = mem_calloc((size_t)moebius_vocab_size(j->vocab) / 64 + 1, sizeof *j->mask)))
        return no_memory(e);
    if (file) {
        TRY(cli_read_file(file, &j->text, &n, e));
        text = j->text;
        if (j->schema && n == 0)
            return err_set(e, ERR_FORMAT, "%s is empty", file);
    }
    int64_t start = clock_ns();
    moebius_status status =
        moebius_grammar_open(&j->grammar, j->vocab, kind, text, n, j->strict ? 0 : MOEBIUS_GRAMMAR_LENIENT, &error);
    j->compile_ns = clock_ns() - start;
    if (status == MOEBIUS_OK)
        return ERR_OK;
    err_adopt(e, &error);
    return file ? err_prefix(e, "%s", file) : e->code;
}

static err_code run_grammar(struct grammar_command *j, struct err *e)
{
    if (!(j->instances = json_array()))
        return no_memory(e);
    err_code code = open_grammar(j, e);
    if (code != ERR_OK) {
        struct err unused;
        if (j->json && code != ERR_USAGE && code != ERR_NOMEM && print_json(j, e->text, &unused) != ERR_OK)
            return no_memory(e);
        return code;
    }
    if (j->check)
        TRY(check_instances(j, e));
    if (j->json)
        TRY(print_json(j, NULL, e));
    else
        print_text(j);
    return j->n_refused == 0
               ? ERR_OK
               : err_set(e, ERR_CHECK, "%d of %zu texts are refused", j->n_refused, json_array_size(j->instances));
}

static int run(const struct command *c, int argc, char **argv)
{
    struct grammar_command j = {0};
    const struct option options[] = {
        {"--schema", OPT_INPUT, &j.schema, "FILE", "a JSON schema (-: standard input)", 0, 0, 0},
        {"--gbnf", OPT_INPUT, &j.gbnf, "FILE", "a grammar in GBNF", 0, 0, 0},
        {"--regex", OPT_STRING, &j.regex, "REGEX", "a regular expression that whole texts must match", 0, 0, 0},
        {"--check", OPT_INPUT, &j.check, "FILE", "check each line of FILE against the grammar", 0, 0, 0},
        {"--strict", OPT_FLAG, &j.strict, "", "fail if anything cannot be enforced", 0, 0, 0},
        {"--json", OPT_FLAG, &j.json, "", "print the report as JSON", 0, 0, 0},
        {"--model,-m", OPT_MODEL, &j.model, "FILE",
         "with --check: time the token masks for this GGUF file's vocabulary", 0, 0, 0},
        SANDBOX_OPTION(j.no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = run_grammar(&j, &e);
    moebius_grammar_close(&j.grammar);
    moebius_vocab_close(&j.vocab);
    json_decref(j.instances);
    mem_free(j.text);
    mem_free(j.lines);
    mem_free(j.mask);
    mem_free(j.mask_us);
    return cli_exit(c, code, &e);
}

const struct command cmd_grammar = {
    .name = "grammar",
    .usage = "(--schema FILE | --gbnf FILE | --regex REGEX) [OPTIONS]",
    .summary = "compile a JSON schema or grammar, and check texts against it",
    .details =
        "Prints what cannot be enforced. With --check, it also prints which lines of a file are accepted, and at "
        "which byte the others fail. docs/grammar.md lists what is enforced.",
    .group = COMMAND_LOOK,
    .run = run,
};
