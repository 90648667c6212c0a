#include "tokenizer/encode.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/merge.h"
#include "tokenizer/tokenizer.h"

#define SPACE_MARK "\u2581"
enum { SPACE_MARK_BYTES = sizeof SPACE_MARK - 1 };

/* Work space of one call. */
struct encode_work {
    struct merge_work merge;
    struct special_work special;
    struct split_work split;
    char *text; /* of a fragment, with marks for spaces; or a word in mapped bytes */
    size_t text_capacity;
};

static void work_close(struct encode_work *w)
{
    merge_work_close(&w->merge);
    special_work_close(&w->special);
    split_work_close(&w->split);
    mem_free(w->text);
}

void token_list_close(struct token_list *l)
{
    mem_free(l->ids);
    *l = (struct token_list){0};
}

static err_code token_append(struct token_list *l, int32_t id, struct err *e)
{
    if (id == TOKEN_NONE)
        return ERR_OK;
    TRY(mem_grow(&l->ids, &l->capacity, l->n + 1, sizeof *l->ids, "tokens", e));
    l->ids[l->n++] = id;
    return ERR_OK;
}

/* The token with this text that ordinary text may become: a control token is never made of pieces. */
static int32_t find_plain(const struct vocab *v, const char *s, size_t n)
{
    int32_t id = vocab_find(v, s, n);
    return id != TOKEN_NONE && v->attrs[id] & TOKEN_SPECIAL ? TOKEN_NONE : id;
}

err_code encode_prepare(struct tokenizer *t, struct err *e)
{
    uint16_t code_of[256];
    byte_codes_fill(code_of);
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b, name[8], mapped[UTF8_MAX_BYTES];
        int32_t plain = find_plain(&t->vocab, &c, 1);
        int32_t named = find_plain(&t->vocab, name, (size_t)snprintf(name, sizeof name, "<0x%02X>", b));
        if (t->vocab.kind == VOCAB_BYTE_MERGES) {
            t->byte_tokens[b] = plain;
            TRY(symbols_intern(&t->vocab.symbols, mapped, utf8_encode(code_of[b], mapped), &t->byte_symbols[b], e));
        } else if (t->vocab.kind == VOCAB_RAW_MERGES) {
            t->byte_tokens[b] = named;
        } else {
            t->byte_tokens[b] = named != TOKEN_NONE ? named : plain != TOKEN_NONE ? plain : t->vocab.unknown;
        }
    }
    return ERR_OK;
}

/* The tokens of what merging left. */
static err_code nodes_emit(const struct tokenizer *t, const struct merge_work *w, const char *text,
                           struct token_list *out, struct err *e)
{
    for (size_t i = 0; i < w->n; i++) {
        const struct merge_node *node = &w->nodes[i];
        if (node->n_bytes == 0)
            continue;
        if (node->symbol < t->vocab.n_tokens && !(t->vocab.attrs[node->symbol] & TOKEN_SPECIAL)) {
            TRY(token_append(out, (int32_t)node->symbol, e));
            continue;
        }
        /* No such token: byte by byte, the bytes being those of the mapped text where there is one. */
        struct text bytes = {.s = text + node->off, .n = node->n_bytes};
        if (t->vocab.kind == VOCAB_BYTE_MERGES)
            bytes = t->vocab.symbols.texts[node->symbol];
        for (size_t j = 0; j < bytes.n; j++)
            TRY(token_append(out, t->byte_tokens[(unsigned char)bytes.s[j]], e));
    }
    return ERR_OK;
}

static bool pair_by_merges(const void *user, const char *text, const struct merge_node *left,
                           const struct merge_node *right, uint32_t *rank, uint32_t *merged)
{
    const struct tokenizer *t = user;
    if (left->symbol == SYMBOL_NONE || right->symbol == SYMBOL_NONE)
        return false;
    const struct merge_rule *rule = merges_find(&t->merges, left->symbol, right->symbol);
    if (!rule)
        return false;
    *rank = rule->rank;
    *merged = rule->merged;
    return true;
}

/* Maps floats to integers whose order is the reverse: the highest score is the lowest rank. */
static uint32_t score_rank(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 to 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : 0x7fffffffu - bits;
}

static bool pair_by_scores(const void *user, const char *text, const struct merge_node *left,
                           const struct merge_node *right, uint32_t *rank, uint32_t *merged)
{
    const struct tokenizer *t = user;
    int32_t id = find_plain(&t->vocab, text + left->off, left->n_bytes + right->n_bytes);
    if (id == TOKEN_NONE)
        return false;
    *rank = score_rank(t->vocab.scores ? t->vocab.scores[id] : 0.0f);
    *merged = (uint32_t)id;
    return true;
}

/* Copies a fragment into the work space with U+2581 for spaces. */
static err_code spaces_mark(struct encode_work *w, const char *text, size_t n, bool prefix, size_t *n_out,
                            struct err *e)
{
    size_t n_spaces = prefix, capacity;
    for (size_t i = 0; i < n; i++)
        n_spaces += text[i] == ' ';
    if (!mem_mul(n_spaces, SPACE_MARK_BYTES - 1, &capacity) || !mem_add(capacity, n, &capacity) ||
        !mem_add(capacity, prefix, &capacity))
        return err_set(e, ERR_LIMIT, "a text of %zu bytes is too long to tokenise", n);
    TRY(mem_grow(&w->text, &w->text_capacity, capacity, 1, "a piece of text", e));
    char *out = w->text;
    for (size_t i = 0; i < n + prefix; i++) {
        char c = prefix && i == 0 ? ' ' : text[i - prefix];
        if (c != ' ') {
            *out++ = c;
            continue;
        }
        memcpy(out, SPACE_MARK, SPACE_MARK_BYTES);
        out += SPACE_MARK_BYTES;
    }
    *n_out = capacity;
    return ERR_OK;
}

/* SentencePiece: one chain over the whole fragment. Characters are told by their first byte alone, as that
 * tokenizer does; a broken one ends where it does not become a token, in bytes. */
static err_code fragment_by_scores(const struct tokenizer *t, struct encode_work *w, const char *text, size_t n,
                                   bool prefix, struct token_list *out, struct err *e)
{
    static const uint8_t length_of[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    TRY(spaces_mark(w, text, n, prefix, &n, e));
    merge_start(&w->merge);
    for (size_t i = 0; i < n;) {
        size_t len = length_of[(unsigned char)w->text[i] >> 4];
        len = len < n - i ? len : n - i;
        int32_t id = find_plain(&t->vocab, w->text + i, len);
        TRY(merge_append(&w->merge, i, len, id == TOKEN_NONE ? SYMBOL_NONE : (uint32_t)id, e));
        i += len;
    }
    TRY(merge_run(&w->merge, pair_by_scores, t, w->text, e));
    return nodes_emit(t, &w->merge, w->text, out, e);
}

/* The token that a whole word is, in mapped bytes. */
static err_code word_find(const struct tokenizer *t, struct encode_work *w, const char *word, size_t n, int32_t *id,
                          struct err *e)
{
    *id = TOKEN_NONE;
    if (n > t->vocab.max_text_bytes)
        return ERR_OK;
    TRY(mem_grow(&w->text, &w->text_capacity, 2 * n, 1, "a piece of text", e)); /* a mapped byte has at most two */
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        struct text mapped = t->vocab.symbols.texts[t->byte_symbols[(unsigned char)word[i]]];
        memcpy(w->text + used, mapped.s, mapped.n);
        used += mapped.n;
    }
    *id = find_plain(&t->vocab, w->text, used);
    return ERR_OK;
}

static err_code word_of_bytes(const struct tokenizer *t, struct encode_work *w, const char *word, size_t n,
                              struct token_list *out, struct err *e)
{
    if (t->ignore_merges) {
        int32_t id;
        TRY(word_find(t, w, word, n, &id, e));
        if (id != TOKEN_NONE)
            return token_append(out, id, e);
    }
    merge_start(&w->merge);
    for (size_t i = 0; i < n; i++)
        TRY(merge_append(&w->merge, i, 1, t->byte_symbols[(unsigned char)word[i]], e));
    TRY(merge_run(&w->merge, pair_by_merges, t, word, e));
    return nodes_emit(t, &w->merge, word, out, e);
}

static err_code word_of_chars(const struct tokenizer *t, struct encode_work *w, const char *word, size_t n,
                              const uint8_t *char_bytes, struct token_list *out, struct err *e)
{
    if (t->ignore_merges || (t->newline_runs && word[0] == '\n')) {
        int32_t id = find_plain(&t->vocab, word, n);
        if (id != TOKEN_NONE)
            return token_append(out, id, e);
    }
    merge_start(&w->merge);
    for (size_t i = 0; i < n; i += *char_bytes++)
        TRY(merge_append(&w->merge, i, *char_bytes, symbols_find(&t->vocab.symbols, word + i, *char_bytes), e));
    TRY(merge_run(&w->merge, pair_by_merges, t, word, e));
    return nodes_emit(t, &w->merge, word, out, e);
}

static err_code fragment_by_merges(const struct tokenizer *t, struct encode_work *w, const char *text, size_t n,
                                   struct token_list *out, struct err *e)
{
    bool raw = t->vocab.kind == VOCAB_RAW_MERGES;
    if (raw) {
        TRY(spaces_mark(w, text, n, false, &n, e));
        text = w->text;
    }
    TRY(splitter_run(t->splitter, &w->split, text, n, e));
    for (size_t i = 0; i < w->split.n_chars;) {
        const uint8_t *char_bytes = w->split.char_bytes + i;
        size_t n_word = 0;
        do
            n_word += w->split.char_bytes[i++];
        while (!w->split.starts[i]);
        if (raw)
            TRY(word_of_chars(t, w, text, n_word, char_bytes, out, e));
        else
            TRY(word_of_bytes(t, w, text, n_word, out, e));
        text += n_word;
    }
    return ERR_OK;
}

static err_code text_encode(const struct tokenizer *t, struct encode_work *w, const struct special_text *text,
                            struct token_list *out, struct err *e)
{
    TRY(specials_find(&t->specials, &t->vocab, &w->special, text, e));
    bool after_special = true; /* so is the start */
    for (size_t i = 0, at = 0; i <= w->special.n; i++) {
        const struct special_hit *hit = i < w->special.n ? &w->special.hits[i] : NULL;
        size_t end = hit ? hit->start : text->n;
        if (at < end && t->vocab.kind == VOCAB_SCORES)
            TRY(fragment_by_scores(t, w, text->s + at, end - at, after_special && t->vocab.add_space_prefix, out, e));
        else if (at < end)
            TRY(fragment_by_merges(t, w, text->s + at, end - at, out, e));
        if (hit) {
            TRY(token_append(out, hit->id, e));
            at = hit->end;
        }
        after_special = hit != NULL;
    }
    return ERR_OK;
}

static err_code encode(const struct tokenizer *t, const struct special_text *text, bool add, struct token_list *out,
                       struct err *e)
{
    struct encode_work w = {0};
    size_t n_before = out->n;
    err_code code;
    if (add && t->vocab.add_bos)
        TRY_OUT(token_append(out, t->vocab.bos, e));
    if (text->n > 0)
        TRY_OUT(text_encode(t, &w, text, out, e));
    code = ERR_OK;
    if (add && t->vocab.add_eos)
        code = token_append(out, t->vocab.eos, e);
out:
    work_close(&w);
    if (code != ERR_OK)
        out->n = n_before;
    return code;
}

err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, struct token_list *out,
                          struct err *e)
{
    const struct special_text all = {.s = text, .n = n, .parse = (flags & TOKENIZE_PARSE_SPECIAL) != 0};
    return encode(t, &all, (flags & TOKENIZE_ADD_SPECIAL) != 0, out, e);
}

err_code tokenizer_encode_prompt(const struct tokenizer *t, const char *text, const char *trusted, size_t n,
                                 struct token_list *out, struct err *e)
{
    const struct special_text prompt = {.s = text, .n = n, .parse = true, .trusted = trusted};
    return encode(t, &prompt, false, out, e);
}
