#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "tokenizer/encode.h"
#include "tokenizer/merges.h"
#include "tokenizer/specials.h"
#include "tokenizer/split.h"
#include "tokenizer/vocab.h"

/* The tokenizer models of the field, with the special ids that files of each kind leave out. */
static const struct {
    const char *name;
    struct vocab_defaults defaults;
} models[] = {
    {"gpt2", {.kind = VOCAB_BYTE_MERGES, .bos = TOKEN_NONE, .eos = TOKEN_NONE, .unknown = TOKEN_NONE}},
    {"llama", {.kind = VOCAB_SCORES, .bos = 1, .eos = 2, .unknown = 0, .add_bos = true}},
    {"gemma4", {.kind = VOCAB_RAW_MERGES, .bos = TOKEN_NONE, .eos = TOKEN_NONE, .unknown = TOKEN_NONE}},
};

static bool string_equal(struct gguf_string s, const char *name)
{
    return s.n == strlen(name) && memcmp(s.s, name, s.n) == 0;
}

/* The split rule; NULL for a kind that has none. */
static err_code pre_choose(const struct gguf *g, struct vocab_defaults *d, const struct split_pre **pre, struct err *e)
{
    *pre = NULL;
    if (d->kind == VOCAB_SCORES)
        return ERR_OK;
    struct gguf_string name = {0};
    TRY(gguf_opt_string(g, "tokenizer.ggml.pre", &name, e));
    if (d->kind == VOCAB_RAW_MERGES)
        name = (struct gguf_string){.s = "gemma4", .n = strlen("gemma4")};
    else if (name.n == 0)
        name = (struct gguf_string){.s = "default", .n = strlen("default")};
    *pre = split_pre_find(name.s, name.n);
    if (!*pre) {
        split_pre_unknown(name.s, name.n, e);
        return err_prefix(e, "%s", gguf_file_path(g, 0));
    }
    d->kind = (*pre)->flags & PRE_RAW ? VOCAB_RAW_MERGES : VOCAB_BYTE_MERGES;
    d->add_bos = ((*pre)->flags & PRE_ADD_BOS) != 0;
    d->always_bos = ((*pre)->flags & PRE_ALWAYS_BOS) != 0;
    return ERR_OK;
}

static err_code model_choose(const struct gguf *g, struct vocab_defaults *d, struct err *e)
{
    struct gguf_string name;
    TRY(gguf_need_string(g, "tokenizer.ggml.model", &name, e));
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (string_equal(name, models[i].name)) {
            *d = models[i].defaults;
            return ERR_OK;
        }
    }
    return err_set(e, ERR_UNSUPPORTED, "%s: tokenizer.ggml.model is \"%.*s\"; known: gpt2, llama, gemma4",
                   gguf_file_path(g, 0), name.n < 64 ? (int)name.n : 64, name.s);
}

err_code tokenizer_open(struct tokenizer **out, const struct gguf *g, struct err *e)
{
    *out = NULL;
    struct vocab_defaults defaults;
    const struct split_pre *pre;
    TRY(model_choose(g, &defaults, e));
    TRY(pre_choose(g, &defaults, &pre, e));
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t, "the tokenizer");
    err_code code;
    TRY_OUT(vocab_open(&t->vocab, g, &defaults, e));
    TRY_OUT(specials_open(&t->specials, &t->vocab, e));
    if (pre) {
        t->pre_is_missing = defaults.kind == VOCAB_BYTE_MERGES && !gguf_find(g, "tokenizer.ggml.pre");
        t->ignore_merges = (pre->flags & PRE_IGNORE_MERGES) != 0;
        t->newline_runs = (pre->flags & PRE_NEWLINE_RUNS) != 0;
        TRY_OUT(merges_open(&t->merges, &t->vocab, g, (pre->flags & PRE_NO_MERGES) == 0, e));
        TRY_OUT(splitter_open(&t->splitter, pre, e));
    }
    TRY_OUT(encode_prepare(t, e));
out:
    if (code != ERR_OK)
        tokenizer_close(&t);
    *out = t;
    return code;
}

void tokenizer_close(struct tokenizer **t)
{
    if (!*t)
        return;
    splitter_close(&(*t)->splitter);
    merges_close(&(*t)->merges);
    specials_close(&(*t)->specials);
    vocab_close(&(*t)->vocab);
    mem_free(*t);
    *t = NULL;
}

int32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return (int32_t)t->vocab.n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->vocab.bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->vocab.eos;
}

int32_t tokenizer_unknown(const struct tokenizer *t)
{
    return t->vocab.unknown;
}

int32_t tokenizer_padding(const struct tokenizer *t)
{
    return t->vocab.padding;
}

int32_t tokenizer_fill(const struct tokenizer *t, enum token_fill fill)
{
    return t->vocab.fills[fill];
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->vocab.add_bos;
}

bool tokenizer_pre_is_missing(const struct tokenizer *t)
{
    return t->pre_is_missing;
}

static unsigned attrs_of(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab.n_tokens ? t->vocab.attrs[id] : 0;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    return (attrs_of(t, id) & TOKEN_ENDS) != 0;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return (attrs_of(t, id) & TOKEN_SPECIAL) != 0;
}

bool tokenizer_is_suppressed(const struct tokenizer *t, int32_t id)
{
    return (attrs_of(t, id) & TOKEN_NEVER) != 0;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, size_t *n)
{
    *n = 0;
    if (id < 0 || (uint32_t)id >= t->vocab.n_tokens || (!special && tokenizer_is_special(t, id)))
        return "";
    struct text piece = t->vocab.pieces[id];
    *n = piece.n;
    return piece.n > 0 ? piece.s : "";
}

err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special, char **out,
                          size_t *n_out, struct err *e)
{
    *out = NULL;
    *n_out = 0;
    size_t n_bytes = 0, n_piece;
    for (size_t i = 0; i < n; i++) {
        tokenizer_piece(t, ids[i], special, &n_piece);
        if (!mem_add(n_bytes, n_piece, &n_bytes))
            return err_set(e, ERR_LIMIT, "the text of %zu tokens is too long", n);
    }
    char *text = n_bytes < SIZE_MAX ? mem_alloc(n_bytes + 1) : NULL;
    if (!text)
        return err_nomem(e, n_bytes, "the text of tokens");
    size_t used = 0;
    bool at_start = t->vocab.add_space_prefix; /* no ordinary token yet */
    for (size_t i = 0; i < n; i++) {
        const char *piece = tokenizer_piece(t, ids[i], special, &n_piece);
        if (at_start && (attrs_of(t, ids[i]) & TOKEN_IN_TEXT) == 0) {
            at_start = false;
            bool space = n_piece > 0 && piece[0] == ' ';
            piece += space;
            n_piece -= space;
        }
        memcpy(text + used, piece, n_piece);
        used += n_piece;
    }
    text[used] = '\0';
    *out = text;
    *n_out = used;
    return ERR_OK;
}
