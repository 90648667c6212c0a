/* Text and tokens, for engines and for vocabularies that come alone. */
#include <assert.h>

#include "engine/engine_internal.h"

const moebius_vocab *moebius_engine_vocab(const moebius_engine *engine)
{
    return &engine->vocab;
}

moebius_status moebius_vocab_open(moebius_vocab **out, const char *path, moebius_error *error)
{
    struct err e = {0};
    struct gguf *g = NULL;
    *out = NULL;
    moebius_vocab *v = mem_calloc(1, sizeof *v);
    if (!v)
        return engine_status(err_nomem(&e, sizeof *v, "the vocabulary"), &e, error);
    err_code code = gguf_open(&g, path, &e);
    if (code == ERR_OK)
        code = vocab_fill(v, g, &e);
    gguf_close(&g);
    if (code != ERR_OK)
        moebius_vocab_close(&v);
    *out = v;
    return engine_status(code, &e, error);
}

void moebius_vocab_close(moebius_vocab **vocab)
{
    if (!*vocab)
        return;
    vocab_empty(*vocab);
    mem_free(*vocab);
    *vocab = NULL;
}

moebius_status moebius_tokenize(const moebius_vocab *vocab, const char *text, size_t n, bool add_special,
                                bool parse_special, int32_t **ids, size_t *n_ids, moebius_error *error)
{
    struct err e = {0};
    struct token_list list = {0};
    unsigned flags = (add_special ? TOKENIZE_ADD_SPECIAL : 0u) | (parse_special ? TOKENIZE_PARSE_SPECIAL : 0u);
    err_code code = tokenizer_encode(vocab->tokenizer, text, n, flags, &list, &e);
    if (code != ERR_OK)
        token_list_close(&list);
    *ids = list.ids;
    *n_ids = list.n;
    return engine_status(code, &e, error);
}

moebius_status moebius_detokenize(const moebius_vocab *vocab, const int32_t *ids, size_t n, bool special, char **text,
                                  size_t *n_text, moebius_error *error)
{
    struct err e = {0};
    size_t length = 0;
    *text = NULL;
    err_code code = tokenizer_decode(vocab->tokenizer, ids, n, special, text, &length, &e);
    if (n_text)
        *n_text = length;
    return engine_status(code, &e, error);
}

const char *moebius_token_piece(const moebius_vocab *vocab, int32_t id, bool special, size_t *n)
{
    return tokenizer_piece(vocab->tokenizer, id, special, n);
}

bool moebius_token_is_end(const moebius_vocab *vocab, int32_t id)
{
    return tokenizer_is_end(vocab->tokenizer, id);
}

int32_t moebius_vocab_size(const moebius_vocab *vocab)
{
    return tokenizer_n_vocab(vocab->tokenizer);
}

int32_t moebius_token_bos(const moebius_vocab *vocab)
{
    return tokenizer_bos(vocab->tokenizer);
}

int32_t moebius_token_eos(const moebius_vocab *vocab)
{
    return tokenizer_eos(vocab->tokenizer);
}

int32_t moebius_token_fill(const moebius_vocab *vocab, moebius_fill fill)
{
    static_assert((int)MOEBIUS_FILL_FILE == (int)FILL_FILE, "the two lists are one");
    return (int)fill >= 0 && (int)fill < N_FILL ? tokenizer_fill(vocab->tokenizer, (enum token_fill)fill) : TOKEN_NONE;
}

bool moebius_vocab_adds_bos(const moebius_vocab *vocab)
{
    return tokenizer_adds_bos(vocab->tokenizer);
}

void moebius_free(void *p)
{
    mem_free(p);
}
