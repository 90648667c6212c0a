#include "grammar/grammar.h"

#include <string.h>

#include "grammar/gbnf.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

enum { GRAMMAR_MAX_TEXT = 16 << 20 };

/* A JSON value of a schema, as a whole text. */
static err_code compile_schema(struct program *p, const char *text, size_t n, bool lenient, struct err *e)
{
    static const char any_object[] = "{\"type\": \"object\"}";
    uint32_t schema;
    if (n == 0) {
        text = any_object;
        n = sizeof any_object - 1;
    }
    TRY(schema_compile(p, text, n, lenient, &schema, e));
    uint32_t end = nfa_add(&p->nfa, NFA_END, 0, 0, 0);
    p->start = end == INTERN_NONE ? end : nfa_add(&p->nfa, NFA_JSON, schema, end, 0);
    return p->start == INTERN_NONE ? nfa_full(&p->nfa, e) : ERR_OK;
}

static err_code compile_regex(struct program *p, const char *text, size_t n, struct err *e)
{
    struct regex_parts parts;
    TRY(regex_compile(&p->nfa, text, n, true, &parts, e));
    p->start = parts.begin[0];
    return ERR_OK;
}

static err_code compile(struct program *p, const struct grammar_vocab *vocab, enum grammar_kind kind, const char *text,
                        size_t n, bool lenient, struct err *e)
{
    if (n > GRAMMAR_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "the grammar has %zu bytes; at most %d are read", n, GRAMMAR_MAX_TEXT);
    switch (kind) {
    case GRAMMAR_SCHEMA: return compile_schema(p, text, n, lenient, e);
    case GRAMMAR_GBNF: return gbnf_compile(p, vocab, text, n, lenient, e);
    case GRAMMAR_REGEX: return compile_regex(p, text, n, e);
    }
    return err_set(e, ERR_USAGE, "there is no such kind of grammar");
}

err_code grammar_open(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind, const char *text,
                      size_t n, bool lenient, struct err *e)
{
    struct grammar *g = *out = mem_calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, sizeof *g, "a grammar");
    g->max_states = STATES_MAX;
    err_code code = program_open(&g->program, e);
    if (code == ERR_OK)
        code = compile(&g->program, vocab, kind, text, n, lenient, e);
    if (code == ERR_OK)
        code = states_open(&g->states, &g->program, g->max_states, e);
    if (code == ERR_OK && !(g->has_mutex = pthread_mutex_init(&g->mutex, NULL) == 0))
        code = err_nomem(e, sizeof g->mutex, "a grammar");
    if (code != ERR_OK)
        grammar_close(out);
    return code;
}

void grammar_close(struct grammar **grammar)
{
    struct grammar *g = *grammar;
    if (!g)
        return;
    states_close(&g->states);
    program_close(&g->program);
    if (g->has_mutex)
        pthread_mutex_destroy(&g->mutex);
    mem_free(g);
    *grammar = NULL;
}

size_t grammar_bytes(struct grammar *g)
{
    pthread_mutex_lock(&g->mutex);
    size_t n = sizeof *g + g->program.nfa.code.capacity * sizeof *g->program.nfa.code.at + states_bytes(g->states);
    pthread_mutex_unlock(&g->mutex);
    return n;
}

bool grammar_unenforced(const struct grammar *g, size_t i, const char **keyword, const char **pointer)
{
    if (i >= g->program.unenforced.n)
        return false;
    *keyword = g->program.unenforced.at[i].keyword;
    *pointer = g->program.unenforced.at[i].pointer;
    return true;
}
