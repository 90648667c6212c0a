/* A cache of compiled grammars, since agents send the same tools with every turn. A grammar also keeps the automaton
 * states that earlier texts reached (grammar/states.h). Thread-safe. */
#ifndef SERVER_GRAMMAR_CACHE_H
#define SERVER_GRAMMAR_CACHE_H

#include "base/err.h"
#include "moebius/moebius.h"

struct grammar_cache;

struct kept_grammar {
    moebius_grammar *grammar;
    struct kept_grammar *next; /* the next less recently used one */
    char *text;                /* [n] and a NUL: the source that it was compiled from; owned */
    size_t n;
    moebius_grammar_kind kind;
    unsigned flags;
    size_t n_users; /* takers who have not given it back; 0: it may be dropped */
};

/* vocab: borrowed until the cache is closed. */
MUST_USE err_code grammar_cache_open(struct grammar_cache **out, const moebius_vocab *vocab, struct err *e);
/* All grammars must have been given back. Accepts a pointer to NULL. */
void grammar_cache_close(struct grammar_cache **cache);

/* Finds a grammar, or compiles it as moebius_grammar_open does. *out is valid until it is given back; NULL after a
 * failure. */
moebius_status grammar_cache_take(struct grammar_cache *cache, moebius_grammar_kind kind, const char *text, size_t n,
                                  unsigned flags, struct kept_grammar **out, moebius_error *error);
void grammar_cache_give_back(struct grammar_cache *cache, struct kept_grammar *kept);

#endif
