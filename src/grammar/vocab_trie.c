#include "grammar/vocab_trie.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/states_view.h"

/* ---- building -------------------------------------------------------------------------------------------------- */

struct sorted_token {
    uint64_t head; /* the first eight bytes, so that they compare as a number */
    const uint8_t *bytes;
    uint32_t n;
    int32_t id;
};

static int compare_tokens(const void *a, const void *b)
{
    const struct sorted_token *x = a, *y = b;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    int c = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (c != 0)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static uint64_t head_of(const uint8_t *bytes, uint32_t n)
{
    uint64_t head = 0;
    for (uint32_t i = 0; i < 8; i++)
        head = head << 8 | (i < n ? bytes[i] : 0);
    return head;
}

/* Copies the tokens' bytes; special ones get a mark before them. */
static err_code copy_tokens(struct grammar_vocab *v, const struct grammar_token *tokens, struct err *e)
{
    size_t n_byte = 1;
    for (int32_t i = 0; i < v->n_token; i++)
        n_byte += tokens[i].n + 1u;
    v->offsets = mem_calloc((size_t)v->n_token + 1, sizeof *v->offsets);
    v->kinds = mem_calloc((size_t)v->n_token + 1, 1);
    v->twins = mem_calloc((size_t)v->n_token + 1, sizeof *v->twins);
    v->bytes = n_byte < UINT32_MAX ? mem_alloc(n_byte) : NULL;
    if (!v->offsets || !v->kinds || !v->twins || !v->bytes)
        return err_nomem(e, n_byte, "a vocabulary for grammars");
    uint32_t at = 0, n_end = 0;
    for (int32_t i = 0; i < v->n_token; i++)
        n_end += tokens[i].kind == GRAMMAR_TOKEN_END;
    if (!(v->ends = mem_calloc(n_end + 1u, sizeof *v->ends)))
        return err_nomem(e, n_end * sizeof *v->ends, "a vocabulary for grammars");
    for (int32_t i = 0; i < v->n_token; i++) {
        if (tokens[i].kind == GRAMMAR_TOKEN_END)
            v->ends[v->n_end++] = i;
        v->offsets[i] = at;
        v->kinds[i] = (uint8_t)tokens[i].kind;
        v->twins[i] = -1;
        if (tokens[i].kind != GRAMMAR_TOKEN_TEXT && tokens[i].n)
            v->bytes[at++] = NFA_TOKEN_MARK;
        if (tokens[i].n)
            memcpy(v->bytes + at, tokens[i].bytes, tokens[i].n);
        at += tokens[i].n;
    }
    v->offsets[v->n_token] = at;
    return ERR_OK;
}

/* Adds the nodes of one token to those of the tokens before it; path[d]: the node of its first d bytes. */
static err_code add_token(struct grammar_vocab *v, const struct sorted_token *t, const struct sorted_token *before,
                          uint32_t *path, uint32_t *capacity, struct err *e)
{
    uint32_t same = 0;
    while (before && same < t->n && same < before->n && t->bytes[same] == before->bytes[same])
        same++;
    if (before && same == t->n && same == before->n) {
        v->twins[before->id] = t->id;
        return ERR_OK;
    }
    if (v->n_node + t->n >= 1u << 24)
        return err_set(e, ERR_LIMIT, "the vocabulary's tokens have too many bytes");
    if (v->n_node + t->n > *capacity) {
        void *larger = list_enlarge(v->nodes, capacity, v->n_node + t->n, sizeof *v->nodes);
        if (!larger)
            return err_nomem(e, v->n_node * sizeof *v->nodes, "a vocabulary for grammars");
        v->nodes = larger;
    }
    for (uint32_t d = same; d < t->n; d++) {
        path[d + 1] = v->n_node;
        v->nodes[v->n_node++] = (struct trie_node){.byte = t->bytes[d], .size = 1};
    }
    for (uint32_t d = 0; d < t->n; d++)
        v->nodes[path[d]].size = v->n_node - path[d];
    v->nodes[path[t->n]].token = (uint32_t)t->id + 1;
    v->depth = t->n > v->depth ? t->n : v->depth;
    return ERR_OK;
}

static err_code build(struct grammar_vocab *v, struct err *e)
{
    struct sorted_token *sorted = mem_calloc((size_t)v->n_token + 1, sizeof *sorted);
    uint32_t path[TRIE_MAX_DEPTH + 1] = {0}, capacity = 0, n = 0;
    err_code code = sorted ? ERR_OK : err_nomem(e, (size_t)v->n_token * sizeof *sorted, "a vocabulary for grammars");
    for (int32_t i = 0; code == ERR_OK && i < v->n_token; i++) {
        struct sorted_token t = {.bytes = v->bytes + v->offsets[i], .n = v->offsets[i + 1] - v->offsets[i], .id = i};
        t.head = head_of(t.bytes, t.n);
        if (t.n > 0 && t.n <= TRIE_MAX_DEPTH) /* none that is longer is worth having */
            sorted[n++] = t;
    }
    if (n)
        qsort(sorted, n, sizeof *sorted, compare_tokens);
    v->nodes = list_enlarge(NULL, &capacity, (size_t)v->n_token * 2 + 16, sizeof *v->nodes);
    if (code == ERR_OK && !v->nodes)
        code = err_nomem(e, (size_t)v->n_token * 2 * sizeof *v->nodes, "a vocabulary for grammars");
    if (code == ERR_OK)
        v->nodes[v->n_node++] = (struct trie_node){.size = 1};
    for (uint32_t i = 0; code == ERR_OK && i < n; i++)
        code = add_token(v, &sorted[i], i ? &sorted[i - 1] : NULL, path, &capacity, e);
    mem_free(sorted);
    return code;
}

/* ---- strings --------------------------------------------------------------------------------------------------- */

typedef LIST(struct trie_long) long_list;

static bool add_free(struct grammar_vocab *v, long_list *longs, uint32_t token, uint32_t n_char)
{
    bool ok = true;
    for (int32_t t = (int32_t)token - 1; t >= 0 && ok; t = v->twins[t]) {
        if (n_char < TRIE_MAX_CHARS)
            v->free_chars[(size_t)n_char * v->n_word + (uint32_t)t / 64] |= (uint64_t)1 << t % 64;
        else
            ok = LIST_PUSH(longs, (struct trie_long){(uint32_t)t, n_char});
    }
    return ok;
}

/* A token below a node: any will do. */
static uint32_t token_below(const struct grammar_vocab *v, uint32_t node)
{
    while (!v->nodes[node].token)
        node++;
    return v->nodes[node].token - 1;
}

/* Walks all tokens through a string without conditions. */
static err_code find_free(struct grammar_vocab *v, struct err *e)
{
    uint32_t phase[TRIE_MAX_DEPTH + 1] = {LEX_PLAIN}, n_char[TRIE_MAX_DEPTH + 1] = {0}, end[TRIE_MAX_DEPTH + 1], d = 0;
    LIST(struct trie_exit) exits = {0};
    long_list longs = {0};
    bool ok;
    v->n_word = ((uint32_t)v->n_token + 63) / 64;
    ok = (v->free_chars = mem_calloc((size_t)TRIE_MAX_CHARS * v->n_word + 1, sizeof *v->free_chars)) != NULL;
    end[0] = v->n_node;
    for (uint32_t i = 1; ok && i < v->n_node;) {
        struct lexed lex;
        while (d > 0 && i >= end[d])
            d--;
        bool fits = lex_string(phase[d], v->nodes[i].byte, &lex);
        if (fits && lex.ends)
            ok = LIST_PUSH(&exits, (struct trie_exit){i, token_below(v, i), (uint16_t)(d + 1), (uint16_t)n_char[d]});
        if (!fits || lex.ends) {
            i += v->nodes[i].size;
            continue;
        }
        phase[d + 1] = lex.next;
        n_char[d + 1] = n_char[d] + lex.begins;
        end[d + 1] = i + v->nodes[i].size;
        if (v->nodes[i].token)
            ok = add_free(v, &longs, v->nodes[i].token, n_char[d + 1]);
        d++;
        i++;
    }
    for (size_t i = v->n_word; ok && i < (size_t)TRIE_MAX_CHARS * v->n_word; i++)
        v->free_chars[i] |= v->free_chars[i - v->n_word];
    v->exits = exits.at;
    v->n_exit = exits.n;
    v->longs = longs.at;
    v->n_long = longs.n;
    return ok ? ERR_OK
              : err_nomem(e, (size_t)TRIE_MAX_CHARS * v->n_word * sizeof *v->free_chars, "a vocabulary for grammars");
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

err_code grammar_vocab_open(struct grammar_vocab **out, const struct grammar_token *tokens, int32_t n, struct err *e)
{
    struct grammar_vocab *v = *out = mem_calloc(1, sizeof *v);
    if (!v)
        return err_nomem(e, sizeof *v, "a vocabulary for grammars");
    v->n_token = n;
    err_code code = copy_tokens(v, tokens, e);
    if (code == ERR_OK)
        code = build(v, e);
    if (code == ERR_OK)
        code = find_free(v, e);
    if (code != ERR_OK)
        grammar_vocab_close(out);
    return code;
}

void grammar_vocab_close(struct grammar_vocab **vocab)
{
    struct grammar_vocab *v = *vocab;
    if (!v)
        return;
    mem_free(v->offsets);
    mem_free(v->kinds);
    mem_free(v->ends);
    mem_free(v->twins);
    mem_free(v->bytes);
    mem_free(v->nodes);
    mem_free(v->free_chars);
    mem_free(v->exits);
    mem_free(v->longs);
    mem_free(v);
    *vocab = NULL;
}
