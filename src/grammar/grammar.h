/* Grammars: which texts an answer may be, as masks over the tokens of a vocabulary.
 *
 * A grammar is compiled from a JSON schema, from GBNF (the notation of llama.cpp, in which %json{SCHEMA} is a JSON
 * value and %token"TEXT" a special token), or from a regular expression. It knows no model. A vocabulary is what tokens
 * are in bytes. A matcher is a place in one text: it says which tokens may come next, and moves on with each.
 *
 * Grammars and vocabularies are shared between threads and must outlive their matchers; a matcher is one thread's. What
 * matchers learn of a grammar is kept with it, for all of them.
 *
 * No input makes this crash, hang or take memory without bound: schemas and grammars have limits that are errors
 * (ERR_LIMIT), and so have the states of a text. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct grammar;
struct grammar_vocab;
struct grammar_matcher;

/* ---- grammars -------------------------------------------------------------------------------------------------- */

enum grammar_kind {
    GRAMMAR_SCHEMA, /* a JSON schema; an empty text: any JSON object */
    GRAMMAR_GBNF,   /* rules; the text is what `root` is */
    GRAMMAR_REGEX,  /* a regular expression, for the whole text */
};

/* vocab: whose tokens GBNF means by their numbers, and its matchers' one; NULL: nothing matches these. What a schema
 * asks for that can't be enforced is an error that names keyword and place; `lenient`: it is left out, and listed.
 * ERR_FORMAT: the text is none of that kind; ERR_UNSUPPORTED, ERR_LIMIT. */
MUST_USE err_code grammar_open(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind,
                               const char *text, size_t n, bool lenient, struct err *e);
void grammar_close(struct grammar **g);

/* Memory of its instructions and states, about. */
size_t grammar_bytes(struct grammar *g);

/* The i-th keyword that is not enforced, and its JSON pointer, borrowed; false: there are fewer. */
bool grammar_unenforced(const struct grammar *g, size_t i, const char **keyword, const char **pointer);

/* ---- vocabularies ---------------------------------------------------------------------------------------------- */

enum grammar_token_kind {
    GRAMMAR_TOKEN_TEXT,    /* stands for its bytes */
    GRAMMAR_TOKEN_SPECIAL, /* comes only where a grammar names it; its bytes are its name */
    GRAMMAR_TOKEN_END,     /* ends the text, and may be named as a special one is */
};

struct grammar_token {
    const char *bytes;
    uint32_t n;
    enum grammar_token_kind kind;
};

/* tokens: those of ids 0 to n - 1; what they point to is copied. ERR_NOMEM, ERR_LIMIT. */
MUST_USE err_code grammar_vocab_open(struct grammar_vocab **out, const struct grammar_token *tokens, int32_t n,
                                     struct err *e);
void grammar_vocab_close(struct grammar_vocab **v);

/* ---- matchers -------------------------------------------------------------------------------------------------- */

/* At the text's begin. vocab may be NULL: then it knows bytes only. */
MUST_USE err_code grammar_matcher_open(struct grammar_matcher **out, struct grammar *g,
                                       const struct grammar_vocab *vocab, struct err *e);
/* Another one at the same place. */
MUST_USE err_code grammar_matcher_clone(struct grammar_matcher **out, const struct grammar_matcher *m, struct err *e);
void grammar_matcher_close(struct grammar_matcher **m);
int32_t grammar_matcher_n_vocab(const struct grammar_matcher *m); /* 0 without a vocabulary */

/* Moves on by a token, or by bytes as far as they fit; *n_fit: of n. False, and stays: it does not fit. After a failure
 * (memory, or a limit on states) nothing fits; grammar_matcher_error says so. */
bool grammar_matcher_accept(struct grammar_matcher *m, int32_t token);
bool grammar_matcher_allows(struct grammar_matcher *m, int32_t token); /* the same, and stays in any case */
bool grammar_matcher_feed(struct grammar_matcher *m, const char *bytes, size_t n, size_t *n_fit);

/* Sets the bits of the tokens that may come next, in n_vocab bits of words of 64, and clears all others. */
void grammar_matcher_mask(struct grammar_matcher *m, uint64_t *bits);
bool grammar_matcher_may_end(struct grammar_matcher *m);
bool grammar_matcher_must_end(struct grammar_matcher *m); /* nothing else is possible */
/* The bytes that must come next, up to n: as many as are certain. Returns their number. */
size_t grammar_matcher_forced(struct grammar_matcher *m, char *bytes, size_t n);
err_code grammar_matcher_error(const struct grammar_matcher *m, struct err *e);

#endif
