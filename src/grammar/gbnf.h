/* GBNF, llama.cpp's notation for grammars:
 *
 *     # a comment
 *     root   ::= greeting ("," ws [a-zA-Z]{1,20})* | %json{"type": "object"} | %token"<|call|>"
 *     greeting ::= "hello\n" | [^\x00-\x1F\u00e9] | .
 *
 * Literals and classes have the escapes \" \\ \[ \] \n \r \t \xHH \uHHHH \UHHHHHHHH. %json{SCHEMA} matches a JSON value
 * of the schema; %token"TEXT" the special token of that text; <TEXT> the token of that text with its brackets, special
 * or not; <[ID]> the token of the vocabulary with that number, or its bytes if it is no special token. The rule `root`
 * must match the whole text. */
#ifndef GRAMMAR_GBNF_H
#define GRAMMAR_GBNF_H

#include "grammar/grammar.h"
#include "grammar/program.h"

/* Compiles the grammar into an open program. vocab may be NULL; <[ID]> matches nothing then. ERR_FORMAT: the text is no
 * grammar, with its line; and the errors of schema_compile. */
MUST_USE err_code gbnf_compile(struct program *p, const struct grammar_vocab *vocab, const char *text, size_t n,
                               bool lenient, struct err *e);

#endif
