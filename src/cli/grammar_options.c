#include "cli/grammar_options.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "cli/input_text.h"

static void print_unenforced(const moebius_grammar *g)
{
    for (size_t i = 0; i < moebius_grammar_n_unenforced(g); i++) {
        const char *pointer, *keyword = moebius_grammar_unenforced(g, i, &pointer);
        char shown[512];
        printable_line(pointer, strlen(pointer), shown, sizeof shown);
        fprintf(stderr, "the schema's %s, at %s, is not enforced\n", keyword, shown);
    }
}

static err_code compile(const struct grammar_options *o, const moebius_vocab *vocab, moebius_grammar **out,
                        struct err *e)
{
    moebius_error error;
    const char *file = o->schema_file ? o->schema_file : o->gbnf_file;
    bool is_schema = o->schema || o->schema_file;
    if (moebius_grammar_open(out, vocab, is_schema ? MOEBIUS_GRAMMAR_SCHEMA : MOEBIUS_GRAMMAR_GBNF, o->text, o->n,
                             MOEBIUS_GRAMMAR_LENIENT, &error) == MOEBIUS_OK)
        return ERR_OK;
    err_adopt(e, &error);
    return file ? err_prefix(e, "%s", file) : e->code;
}

err_code cli_check_grammar(struct grammar_options *o, struct err *e)
{
    const char *file = o->schema_file ? o->schema_file : o->gbnf_file, *text = o->schema ? o->schema : o->gbnf;
    moebius_grammar *g = NULL;
    if (!!o->schema + !!o->schema_file + !!o->gbnf + !!o->gbnf_file > 1)
        return err_set(e, ERR_USAGE, "--json-schema, --json-schema-file, --grammar and --grammar-file: choose one");
    if (!file && !text)
        return ERR_OK;
    if (file)
        TRY(cli_read_file(file, &o->text, &o->n, e));
    else if (!(o->text = mem_strdup(text)))
        return err_nomem(e, strlen(text), "a grammar");
    else
        o->n = strlen(text);
    err_code code = compile(o, NULL, &g, e);
    moebius_grammar_close(&g);
    return code;
}

err_code cli_open_grammar(const struct grammar_options *o, const moebius_vocab *vocab, moebius_grammar **out,
                          struct err *e)
{
    *out = NULL;
    if (!o->text)
        return ERR_OK;
    TRY(compile(o, vocab, out, e));
    print_unenforced(*out);
    return ERR_OK;
}

void cli_close_grammar(struct grammar_options *o)
{
    mem_free(o->text);
    o->text = NULL;
}

err_code cli_begin_grammar(moebius_grammar *grammar, moebius_sampler *sampler, moebius_matcher **out, struct err *e)
{
    moebius_error error;
    moebius_matcher_close(out);
    if (!grammar)
        return ERR_OK;
    if (moebius_matcher_open(out, grammar, &error) != MOEBIUS_OK ||
        moebius_sampler_set_matcher(sampler, *out, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

err_code cli_grammar_end(moebius_matcher *matcher, struct err *e)
{
    moebius_error error;
    if (moebius_matcher_status(matcher, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    if (moebius_matcher_must_end(matcher))
        return ERR_OK;
    return err_set(e, ERR_FAIL, "no token of the vocabulary goes on as the grammar wants");
}
