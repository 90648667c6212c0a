/* The public face of grammar/, and a vocabulary's tokens as grammars need them. */
#include <pthread.h>

#include "engine/engine_vocab.h"
#include "engine/status.h"
#include "grammar/grammar.h"

/* ---- vocabularies -------------------------------------------------------------------------------------------- */

struct vocab_bytes {
    pthread_mutex_t mutex;
    struct grammar_vocab *vocab; /* NULL until a grammar needs it; then it stays */
};

err_code vocab_bytes_open(struct vocab_bytes **out, struct err *e)
{
    struct vocab_bytes *b = *out = mem_calloc(1, sizeof *b);
    if (b && pthread_mutex_init(&b->mutex, NULL) == 0)
        return ERR_OK;
    mem_free(b);
    *out = NULL;
    return err_nomem(e, sizeof *b, "the vocabulary");
}

void vocab_bytes_close(struct vocab_bytes **b)
{
    if (!*b)
        return;
    grammar_vocab_close(&(*b)->vocab);
    pthread_mutex_destroy(&(*b)->mutex);
    mem_free(*b);
    *b = NULL;
}

static err_code make_vocab(const struct tokenizer *t, struct grammar_vocab **out, struct err *e)
{
    int32_t n = tokenizer_n_vocab(t);
    struct grammar_token *tokens = mem_calloc((size_t)n + 1, sizeof *tokens);
    if (!tokens)
        return err_nomem(e, (size_t)n * sizeof *tokens, "a vocabulary for grammars");
    for (int32_t id = 0; id < n; id++) {
        bool end = tokenizer_is_end(t, id), special = end || tokenizer_is_special(t, id);
        size_t n_piece;
        tokens[id].bytes = tokenizer_piece(t, id, special, &n_piece);
        tokens[id].n = (uint32_t)n_piece;
        tokens[id].kind = end ? GRAMMAR_TOKEN_END : special ? GRAMMAR_TOKEN_SPECIAL : GRAMMAR_TOKEN_TEXT;
    }
    err_code code = grammar_vocab_open(out, tokens, n, e);
    mem_free(tokens);
    return code;
}

static err_code vocab_for_grammars(const moebius_vocab *v, const struct grammar_vocab **out, struct err *e)
{
    err_code code = ERR_OK;
    pthread_mutex_lock(&v->bytes->mutex);
    if (!v->bytes->vocab)
        code = make_vocab(v->tokenizer, &v->bytes->vocab, e);
    *out = v->bytes->vocab;
    pthread_mutex_unlock(&v->bytes->mutex);
    return code;
}

/* ---- grammars ------------------------------------------------------------------------------------------------ */

struct moebius_grammar {
    struct grammar *grammar;
    const struct grammar_vocab *vocab; /* borrowed from the vocabulary; NULL: bytes only */
};

struct moebius_matcher {
    struct grammar_matcher *matcher;
};

static err_code open_grammar(moebius_grammar *g, const moebius_vocab *vocab, moebius_grammar_kind kind,
                             const char *text, size_t n, unsigned flags, struct err *e)
{
    static const enum grammar_kind kinds[] = {GRAMMAR_SCHEMA, GRAMMAR_GBNF, GRAMMAR_REGEX};
    if ((unsigned)kind > MOEBIUS_GRAMMAR_REGEX)
        return err_set(e, ERR_USAGE, "%d is no kind of grammar", (int)kind);
    if (flags & ~(unsigned)MOEBIUS_GRAMMAR_LENIENT)
        return err_set(e, ERR_USAGE, "flags of a grammar that are not known: %x", flags);
    if (vocab)
        TRY(vocab_for_grammars(vocab, &g->vocab, e));
    return grammar_open(&g->grammar, g->vocab, kinds[kind], text, n, flags & MOEBIUS_GRAMMAR_LENIENT, e);
}

moebius_status moebius_grammar_open(moebius_grammar **out, const moebius_vocab *vocab, moebius_grammar_kind kind,
                                    const char *text, size_t n, unsigned flags, moebius_error *error)
{
    struct err e = {0};
    moebius_grammar *g = *out = mem_calloc(1, sizeof *g);
    err_code code = g ? open_grammar(g, vocab, kind, text, n, flags, &e) : err_nomem(&e, sizeof *g, "a grammar");
    if (code != ERR_OK)
        moebius_grammar_close(out);
    return engine_status(code, &e, error);
}

void moebius_grammar_close(moebius_grammar **grammar)
{
    if (!*grammar)
        return;
    grammar_close(&(*grammar)->grammar);
    mem_free(*grammar);
    *grammar = NULL;
}

size_t moebius_grammar_bytes(const moebius_grammar *grammar)
{
    return sizeof *grammar + grammar_bytes(grammar->grammar);
}

const char *moebius_grammar_unenforced(const moebius_grammar *grammar, size_t i, const char **pointer)
{
    const char *keyword = NULL;
    *pointer = NULL;
    grammar_unenforced(grammar->grammar, i, &keyword, pointer);
    return keyword;
}

size_t moebius_grammar_n_unenforced(const moebius_grammar *grammar)
{
    const char *keyword, *pointer;
    size_t n = 0;
    while (grammar_unenforced(grammar->grammar, n, &keyword, &pointer))
        n++;
    return n;
}

/* ---- matchers ------------------------------------------------------------------------------------------------ */

int32_t matcher_n_vocab(const moebius_matcher *m)
{
    return grammar_matcher_n_vocab(m->matcher);
}

moebius_status moebius_matcher_open(moebius_matcher **out, moebius_grammar *grammar, moebius_error *error)
{
    struct err e = {0};
    moebius_matcher *m = *out = mem_calloc(1, sizeof *m);
    err_code code = m ? grammar_matcher_open(&m->matcher, grammar->grammar, grammar->vocab, &e)
                      : err_nomem(&e, sizeof *m, "a matcher");
    if (code != ERR_OK)
        moebius_matcher_close(out);
    return engine_status(code, &e, error);
}

moebius_status moebius_matcher_clone(moebius_matcher **out, const moebius_matcher *matcher, moebius_error *error)
{
    struct err e = {0};
    moebius_matcher *m = *out = mem_calloc(1, sizeof *m);
    err_code code =
        m ? grammar_matcher_clone(&m->matcher, matcher->matcher, &e) : err_nomem(&e, sizeof *m, "a matcher");
    if (code != ERR_OK)
        moebius_matcher_close(out);
    return engine_status(code, &e, error);
}

void moebius_matcher_close(moebius_matcher **matcher)
{
    if (!*matcher)
        return;
    grammar_matcher_close(&(*matcher)->matcher);
    mem_free(*matcher);
    *matcher = NULL;
}

bool moebius_matcher_accept(moebius_matcher *matcher, int32_t id)
{
    return grammar_matcher_accept(matcher->matcher, id);
}

bool moebius_matcher_allows(moebius_matcher *matcher, int32_t id)
{
    return grammar_matcher_allows(matcher->matcher, id);
}

bool moebius_matcher_feed(moebius_matcher *matcher, const char *bytes, size_t n, size_t *n_fit)
{
    return grammar_matcher_feed(matcher->matcher, bytes, n, n_fit);
}

void moebius_matcher_mask(moebius_matcher *matcher, uint64_t *bits)
{
    grammar_matcher_mask(matcher->matcher, bits);
}

bool moebius_matcher_may_end(moebius_matcher *matcher)
{
    return grammar_matcher_may_end(matcher->matcher);
}

bool moebius_matcher_must_end(moebius_matcher *matcher)
{
    return grammar_matcher_must_end(matcher->matcher);
}

size_t moebius_matcher_forced(moebius_matcher *matcher, char *bytes, size_t n)
{
    return grammar_matcher_forced(matcher->matcher, bytes, n);
}

moebius_status moebius_matcher_status(const moebius_matcher *matcher, moebius_error *error)
{
    struct err e = {0};
    return engine_status(grammar_matcher_error(matcher->matcher, &e), &e, error);
}
