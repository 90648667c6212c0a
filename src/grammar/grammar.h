/* Grammars constrain answers: they give masks over the tokens of a vocabulary.
 *
 * A grammar is compiled from a JSON schema, from GBNF (the notation of llama.cpp, in which %json{SCHEMA} is a JSON
 * value and %token"TEXT" a special token), or from a regular expression. It knows no model. A vocabulary gives the
 * bytes of each token. A matcher is a position in one text: it says which tokens may come next, and advances with each
 * token.
 *
 * Grammars and vocabularies can be shared between threads and must outlive their matchers; a matcher belongs to one
 * thread. States that a matcher has computed are kept with the grammar, for all matchers.
 *
 * No input makes this room crash, hang or take memory without bound: schemas, grammars and the states of a text have
 * limits, and exceeding one is an error (ERR_LIMIT). */
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
    GRAMMAR_GBNF,   /* rules; `root` must match the whole text */
    GRAMMAR_REGEX,  /* a regular expression that must match the whole text */
};

/* vocab: the vocabulary of the tokens that GBNF names by number; the matchers must use the same one. NULL: such tokens
 * match nothing. A keyword of a schema that can't be enforced is an error that names it and its place
 * (ERR_UNSUPPORTED); if `lenient`, it is left out and listed (grammar_unenforced). ERR_FORMAT: the text is not of that
 * kind. ERR_LIMIT. */
MUST_USE err_code grammar_open(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind,
                               const char *text, size_t n, bool lenient, struct err *e);
void grammar_close(struct grammar **g);

/* The approximate memory of its instructions and states. */
size_t grammar_bytes(struct grammar *g);

/* The i-th keyword that is not enforced, and its JSON pointer, both borrowed; false: there are no more. */
bool grammar_unenforced(const struct grammar *g, size_t i, const char **keyword, const char **pointer);

/* ---- vocabularies ---------------------------------------------------------------------------------------------- */

enum grammar_token_kind {
    GRAMMAR_TOKEN_TEXT,    /* stands for its bytes */
    GRAMMAR_TOKEN_SPECIAL, /* allowed only where a grammar names it; its bytes are its name */
    GRAMMAR_TOKEN_END,     /* ends the text; a grammar may also name it like a special token */
};

struct grammar_token {
    const char *bytes;
    uint32_t n;
    enum grammar_token_kind kind;
};

/* tokens [n]: by id; their bytes are copied. ERR_NOMEM, ERR_LIMIT. */
MUST_USE err_code grammar_vocab_open(struct grammar_vocab **out, const struct grammar_token *tokens, int32_t n,
                                     struct err *e);
void grammar_vocab_close(struct grammar_vocab **v);

/* ---- matchers -------------------------------------------------------------------------------------------------- */

/* Opens a matcher at the beginning of a text. vocab may be NULL: then it takes bytes only. */
MUST_USE err_code grammar_matcher_open(struct grammar_matcher **out, struct grammar *g,
                                       const struct grammar_vocab *vocab, struct err *e);
/* Opens another matcher at the same position. */
MUST_USE err_code grammar_matcher_clone(struct grammar_matcher **out, const struct grammar_matcher *m, struct err *e);
void grammar_matcher_close(struct grammar_matcher **m);
int32_t grammar_matcher_n_vocab(const struct grammar_matcher *m); /* 0 without a vocabulary */

/* Advances by a token. False: the grammar does not allow it, and the matcher stays where it is. After a failure
 * (memory, or a limit on states) nothing is allowed; grammar_matcher_error reports it. */
bool grammar_matcher_accept(struct grammar_matcher *m, int32_t token);
/* Whether grammar_matcher_accept would take the token; the matcher stays where it is. */
bool grammar_matcher_allows(struct grammar_matcher *m, int32_t token);
/* Advances by bytes as far as the grammar allows them; *n_fit is set to their number. False: not all n. */
bool grammar_matcher_feed(struct grammar_matcher *m, const char *bytes, size_t n, size_t *n_fit);

/* Sets the bits of the tokens that may come next and clears all others. bits: one for each token of the vocabulary. */
void grammar_matcher_mask(struct grammar_matcher *m, uint64_t *bits);
bool grammar_matcher_may_end(struct grammar_matcher *m);  /* the text may end here */
bool grammar_matcher_must_end(struct grammar_matcher *m); /* the text may end here, and can't go on */
/* Writes the bytes that must come next, as many as are certain, n at most. Returns their number. */
size_t grammar_matcher_forced(struct grammar_matcher *m, char *bytes, size_t n);
err_code grammar_matcher_error(const struct grammar_matcher *m, struct err *e);

#endif
