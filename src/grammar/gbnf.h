/* GBNF, llama.cpp's notation for grammars:
 *
 *     # a comment
 *     root   ::= greeting ("," ws [a-zA-Z]{1,20})* | %json{"type": "object"} | %token"<|call|>"
 *     greeting ::= "hello\n" | [^\x00-\x1F\u00e9] | .
 *
 * A literal's and a class's escapes: \" \\ \[ \] \n \r \t \xHH \uHHHH \UHHHHHHHH. %json and a schema are a JSON value
 * of it; %token and a literal are one special token, by its text; <TEXT> is one of that text, its brackets included,
 * special or not; <[ID]> is that token of the vocabulary, or its bytes where it is no special one. The text is what the
 * rule `root` is. */
#ifndef GRAMMAR_GBNF_H
#define GRAMMAR_GBNF_H

#include "grammar/grammar.h"
#include "grammar/program.h"

/* Fills an open program. vocab may be NULL: then nothing matches a token by its number. ERR_FORMAT with the line; and
 * what schema_compile returns. */
MUST_USE err_code gbnf_compile(struct program *p, const struct grammar_vocab *vocab, const char *text, size_t n,
                               bool lenient, struct err *e);

#endif
