/* Options that make an answer follow a grammar. They have llama.cpp's names. */
#ifndef CLI_GRAMMAR_OPTIONS_H
#define CLI_GRAMMAR_OPTIONS_H

#include "cli/options.h"
#include "moebius/moebius.h"

struct grammar_options {
    const char *schema, *schema_file, *gbnf, *gbnf_file;
    char *text; /* [n] the chosen grammar, which cli_check_grammar reads; NULL: none was chosen */
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

/* Reads the grammar that the options name, and compiles it without a vocabulary, so that errors in it are reported
 * before a model is loaded. ERR_USAGE: there is more than one. cli_close_grammar frees what this keeps. */
MUST_USE err_code cli_check_grammar(struct grammar_options *o, struct err *e);
/* Compiles that grammar, and prints which parts of it are not enforced. *out NULL: the options name no grammar. */
MUST_USE err_code cli_open_grammar(const struct grammar_options *o, const moebius_vocab *vocab, moebius_grammar **out,
                                   struct err *e);
void cli_close_grammar(struct grammar_options *o);
/* Opens a matcher at the beginning of an answer, and attaches it to the sampler. */
MUST_USE err_code cli_begin_grammar(moebius_grammar *grammar, moebius_sampler *sampler, moebius_matcher **out,
                                    struct err *e);
/* Why the sampler picked no token. ERR_OK: the grammar's text has ended. */
MUST_USE err_code cli_grammar_end(moebius_matcher *matcher, struct err *e);

#endif
