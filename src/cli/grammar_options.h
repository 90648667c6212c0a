/* The options of commands whose answers follow a grammar, with the names that llama.cpp's have. */
#ifndef CLI_GRAMMAR_OPTIONS_H
#define CLI_GRAMMAR_OPTIONS_H

#include "cli/options.h"
#include "moebius/moebius.h"

struct grammar_options {
    const char *schema, *schema_file, *gbnf, *gbnf_file;
    char *text; /* [n] of the one that was chosen, from cli_check_grammar on; NULL: none was */
    size_t n;
};

/* clang-format off */
/* Rows for a command's option table. */
#define GRAMMAR_OPTIONS(g)                                                                                             \
    {"--json-schema,-j", OPT_STRING, &(g).schema, "JSON", "the answer is JSON that follows this schema", 0, 0, 0,      \
     GROUP_FORM},                                                                                                      \
    {"--json-schema-file,-jf", OPT_INPUT, &(g).schema_file, "FILE", "the same, from a file", 0, 0, 0, GROUP_FORM},     \
    {"--grammar", OPT_STRING, &(g).gbnf, "GBNF", "the answer follows this grammar", 0, 0, 0, GROUP_FORM},              \
    {"--grammar-file", OPT_INPUT, &(g).gbnf_file, "FILE", "the same, from a file", 0, 0, 0, GROUP_FORM}
/* clang-format on */

/* Reads the grammar that the options ask for and compiles it without a vocabulary, so that what is wrong with it is
 * said before a model is loaded. ERR_USAGE where there is more than one. cli_close_grammar frees what it keeps. */
MUST_USE err_code cli_check_grammar(struct grammar_options *o, struct err *e);
/* Opens that grammar, and prints what of it is not enforced; *out NULL: the options ask for none. */
MUST_USE err_code cli_open_grammar(const struct grammar_options *o, const moebius_vocab *vocab, moebius_grammar **out,
                                   struct err *e);
void cli_close_grammar(struct grammar_options *o);
/* A matcher at the begin of an answer, which the sampler follows from now on. */
MUST_USE err_code cli_begin_grammar(moebius_grammar *grammar, moebius_sampler *sampler, moebius_matcher **out,
                                    struct err *e);
/* Why nothing was picked: ERR_OK where the grammar's text has ended. */
MUST_USE err_code cli_grammar_end(moebius_matcher *matcher, struct err *e);

#endif
