/* Grammars that were compiled for a model's requests, for the next ones that are the same: agents send the same tools
 * with every turn. With a grammar stays what its texts have met (grammar/states.h). Thread-safe. */
#ifndef SERVER_GRAMMAR_CACHE_H
#define SERVER_GRAMMAR_CACHE_H

#include "base/err.h"
#include "moebius/moebius.h"

struct grammar_cache;

struct kept_grammar {
    moebius_grammar *grammar;
    struct kept_grammar *next; /* the one that was used before it */
    char *text;                /* [n] and a NUL, what it was compiled from; owned */
    size_t n;
    moebius_grammar_kind kind;
    unsigned flags;
    size_t n_users; /* 0: it may go */
};

/* The vocabulary is borrowed. */
MUST_USE err_code grammar_cache_open(struct grammar_cache **out, const moebius_vocab *vocab, struct err *e);
void grammar_cache_close(struct grammar_cache **cache); /* all were given back; accepts a pointer to NULL */

/* As moebius_grammar_open; *out stays until it is given back; NULL after a failure. */
moebius_status grammar_cache_take(struct grammar_cache *cache, moebius_grammar_kind kind, const char *text, size_t n,
                                  unsigned flags, struct kept_grammar **out, moebius_error *error);
void grammar_cache_give_back(struct grammar_cache *cache, struct kept_grammar *kept);

#endif
