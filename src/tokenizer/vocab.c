#include "tokenizer/vocab.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

static const uint8_t attr_of_type[] = {[TYPE_NORMAL] = TOKEN_NORMAL,
                                       [TYPE_UNKNOWN] = TOKEN_UNKNOWN,
                                       [TYPE_CONTROL] = TOKEN_CONTROL,
                                       [TYPE_USER_DEFINED] = TOKEN_USER_DEFINED,
                                       [TYPE_UNUSED] = 0,
                                       [TYPE_BYTE] = TOKEN_BYTE};

#define SPACE_MARK "\u2581"
enum { SPACE_MARK_BYTES = sizeof SPACE_MARK - 1 };
#define KEY(name) "tokenizer.ggml." name

void vocab_close(struct vocab *v)
{
    symbols_close(&v->symbols);
    mem_free(v->attrs);
    mem_free(v->pieces);
    mem_free(v->scores);
    *v = (struct vocab){0};
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t n)
{
    uint32_t symbol = n <= v->max_text_bytes ? symbols_find(&v->symbols, s, n) : SYMBOL_NONE;
    return symbol < v->n_tokens ? (int32_t)symbol : TOKEN_NONE;
}

void byte_codes_fill(uint16_t code_of[256])
{
    uint16_t next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        code_of[b] = printable ? (uint16_t)b : next++;
    }
}

static err_code texts_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    const void *data;
    uint64_t n;
    TRY(gguf_opt_array(g, KEY("tokens"), GGUF_STRING, &data, &n, e));
    if (!data || n == 0)
        return err_set(e, ERR_FORMAT, "%s has no " KEY("tokens") ": it holds no vocabulary", gguf_file_path(g, 0));
    if (n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%s: " KEY("tokens") " has %llu entries, expected at most %d",
                       gguf_file_path(g, 0), (unsigned long long)n, VOCAB_MAX_TOKENS);
    const struct gguf_string *given = data;
    TRY(symbols_reserve(&v->symbols, n, e));
    for (uint64_t i = 0; i < n; i += SYMBOLS_MANY) {
        struct text texts[SYMBOLS_MANY];
        char names[SYMBOLS_MANY][sizeof "[EMPTY_4294967295]"];
        unsigned n_block = n - i < SYMBOLS_MANY ? (unsigned)(n - i) : SYMBOLS_MANY;
        for (unsigned j = 0; j < n_block; j++) {
            texts[j] = (struct text){.s = given[i + j].s, .n = given[i + j].n};
            if (texts[j].n > VOCAB_MAX_TEXT_BYTES)
                return err_set(e, ERR_LIMIT, "%s: " KEY("tokens") ": token %u has %zu bytes, expected at most %d",
                               gguf_file_path(g, 0), (unsigned)(i + j), texts[j].n, VOCAB_MAX_TEXT_BYTES);
            if (texts[j].n == 0) { /* a name that no other token has */
                texts[j].s = names[j];
                texts[j].n = (size_t)snprintf(names[j], sizeof names[j], "[EMPTY_%u]", (unsigned)(i + j));
            }
            v->max_text_bytes = texts[j].n > v->max_text_bytes ? texts[j].n : v->max_text_bytes;
        }
        TRY(symbols_add_many(&v->symbols, texts, n_block, e));
    }
    v->n_tokens = (uint32_t)n;
    return ERR_OK;
}

static err_code length_check(const struct vocab *v, const struct gguf *g, const char *key, uint64_t n, struct err *e)
{
    if (n == v->n_tokens)
        return ERR_OK;
    return err_set(e, ERR_FORMAT, "%s: %s has %llu entries, expected one for each of %u tokens", gguf_file_path(g, 0),
                   key, (unsigned long long)n, v->n_tokens);
}

static err_code attrs_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    const void *data;
    uint64_t n;
    const struct gguf_value *given = gguf_find(g, KEY("token_type"));
    bool is_unsigned = given && given->type == GGUF_ARRAY && given->arr.type == GGUF_U32;
    TRY(gguf_opt_array(g, KEY("token_type"), is_unsigned ? GGUF_U32 : GGUF_I32, &data, &n, e));
    v->attrs = mem_alloc(v->n_tokens);
    if (!v->attrs)
        return err_nomem(e, v->n_tokens, "token attributes");
    memset(v->attrs, TOKEN_NORMAL, v->n_tokens);
    if (!data)
        return ERR_OK;
    TRY(length_check(v, g, KEY("token_type"), n, e));
    const int32_t *types = data;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        v->attrs[i] = types[i] >= TYPE_NORMAL && types[i] <= TYPE_BYTE ? attr_of_type[types[i]] : 0;
    return ERR_OK;
}

static err_code scores_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    const struct gguf_value *value = gguf_find(g, KEY("scores"));
    if (!value || v->kind != VOCAB_SCORES)
        return ERR_OK;
    if (value->type != GGUF_ARRAY || (value->arr.type != GGUF_F32 && value->arr.type != GGUF_I32))
        return err_set(e, ERR_FORMAT, "%s: " KEY("scores") " is not an array of f32 or i32", gguf_file_path(g, 0));
    TRY(length_check(v, g, KEY("scores"), value->arr.n, e));
    float *scores = mem_resize(NULL, v->n_tokens, sizeof *scores);
    if (!scores)
        return err_nomem(e, v->n_tokens * sizeof *scores, "token scores");
    v->scores = scores;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        scores[i] = value->arr.type == GGUF_F32 ? ((const float *)value->arr.data)[i]
                                                : (float)((const int32_t *)value->arr.data)[i];
    return ERR_OK;
}

/* A special id; *id keeps its default (or none, if the default is no token) when the file does not name one.
 */
static err_code id_load(const struct vocab *v, const struct gguf *g, const char *key, int32_t *id, struct err *e)
{
    if (*id >= 0 && (uint32_t)*id >= v->n_tokens)
        *id = TOKEN_NONE;
    uint32_t given = UINT32_MAX;
    const struct gguf_value *value = gguf_find(g, key);
    if (!value || (value->type == GGUF_I32 && value->i == -1))
        return ERR_OK;
    TRY(gguf_opt_u32(g, key, &given, e));
    if (given == UINT32_MAX) /* -1: writers' "none" */
        return ERR_OK;
    if (given >= v->n_tokens)
        return err_set(e, ERR_FORMAT, "%s: %s is %u, expected a token below %u", gguf_file_path(g, 0), key, given,
                       v->n_tokens);
    *id = (int32_t)given;
    return ERR_OK;
}

static void mark(struct vocab *v, int32_t id, unsigned attrs)
{
    if (id != TOKEN_NONE)
        v->attrs[id] |= (uint8_t)attrs;
}

static int32_t find_name(const struct vocab *v, const char *name)
{
    return vocab_find(v, name, strlen(name));
}

static bool ends(const struct vocab *v, const char *name)
{
    int32_t id = find_name(v, name);
    return id != TOKEN_NONE && (v->attrs[id] & TOKEN_ENDS);
}

/* Replaces all attributes, "ends generation" included. */
static void set_attrs(struct vocab *v, const char *name, unsigned attrs)
{
    int32_t id = find_name(v, name);
    if (id != TOKEN_NONE)
        v->attrs[id] = (uint8_t)attrs;
}

static err_code fills_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    static const char *const keys[N_FILL][2] = {
        [FILL_PREFIX] = {KEY("fim_pre_token_id"), KEY("prefix_token_id")},
        [FILL_SUFFIX] = {KEY("fim_suf_token_id"), KEY("suffix_token_id")},
        [FILL_MIDDLE] = {KEY("fim_mid_token_id"), KEY("middle_token_id")},
        [FILL_PAD] = {KEY("fim_pad_token_id")},
        [FILL_REPOSITORY] = {KEY("fim_rep_token_id")},
        [FILL_FILE] = {KEY("fim_sep_token_id")},
    };
    static const struct {
        enum token_fill slot;
        const char *text;
    } names[] = {
#define FILL(slot, text) {FILL_##slot, text},
#include "tokenizer/special_names.def"
    };
    int32_t *ids = v->fills;
    for (int slot = 0; slot < N_FILL; slot++) {
        ids[slot] = TOKEN_NONE;
        for (int k = 0; k < 2 && keys[slot][k]; k++)
            TRY(id_load(v, g, keys[slot][k], &ids[slot], e));
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (ids[names[i].slot] != TOKEN_NONE)
            continue;
        ids[names[i].slot] = find_name(v, names[i].text);
        mark(v, ids[names[i].slot], TOKEN_CONTROL);
    }
    for (int slot = FILL_PAD; slot < N_FILL; slot++)
        mark(v, ids[slot], TOKEN_ENDS);
    return ERR_OK;
}

/* The tokens that are not to be generated; others than the vocabulary's are passed over. */
static err_code suppressed_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    const void *data;
    uint64_t n = 0;
    const struct gguf_value *given = gguf_find(g, KEY("suppress_tokens"));
    bool is_unsigned = given && given->type == GGUF_ARRAY && given->arr.type == GGUF_U32;
    TRY(gguf_opt_array(g, KEY("suppress_tokens"), is_unsigned ? GGUF_U32 : GGUF_I32, &data, &n, e));
    for (uint64_t i = 0; data && i < n; i++)
        if (((const uint32_t *)data)[i] < v->n_tokens)
            v->attrs[((const uint32_t *)data)[i]] |= TOKEN_NEVER;
    return ERR_OK;
}

static err_code specials_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    static const char *const ending[] = {
#define ENDS(text) text,
#include "tokenizer/special_names.def"
    };
    static const char *const shown[] = {
#define SHOWN(text) text,
#include "tokenizer/special_names.def"
    };
    int32_t eot = TOKEN_NONE, eom = TOKEN_NONE;
    TRY(id_load(v, g, KEY("bos_token_id"), &v->bos, e));
    TRY(id_load(v, g, KEY("eos_token_id"), &v->eos, e));
    TRY(id_load(v, g, KEY("unknown_token_id"), &v->unknown, e));
    TRY(id_load(v, g, KEY("padding_token_id"), &v->padding, e));
    TRY(id_load(v, g, KEY("eot_token_id"), &eot, e));
    TRY(id_load(v, g, KEY("eom_token_id"), &eom, e));
    TRY(fills_load(v, g, e));
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        mark(v, find_name(v, ending[i]), TOKEN_CONTROL | TOKEN_ENDS);
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        int32_t id = find_name(v, shown[i]);
        if (id != TOKEN_NONE)
            v->attrs[id] = TOKEN_USER_DEFINED | (v->attrs[id] & TOKEN_ENDS);
    }
    mark(v, v->eos, TOKEN_ENDS);
    mark(v, eot, TOKEN_ENDS);
    mark(v, eom, TOKEN_ENDS);

    /* Where messages have parts (gpt-oss, Solar), <|end|> ends a part; Gemma 4's </s> is an ordinary token.
     */
    bool calls = ends(v, "<|call|>") || ends(v, "<|calls|>"), closes = ends(v, "<|return|>") || ends(v, "<|flush|>");
    if (calls && closes && ends(v, "<|end|>"))
        set_attrs(v, "<|end|>", TOKEN_USER_DEFINED);
    if (ends(v, "<|tool_response>") && ends(v, "</s>"))
        set_attrs(v, "</s>", TOKEN_NORMAL);
    return suppressed_load(v, g, e);
}

/* White space that special tokens swallow is in no GGUF key: Phi-3's is known by the model's name. */
static err_code strips_load(struct vocab *v, const struct gguf *g, struct err *e)
{
    struct gguf_string name = {0};
    TRY(gguf_opt_string(g, "general.name", &name, e));
    bool phi3 = false;
    for (size_t i = 0; i + 4 <= name.n && !phi3; i++) {
        const char *s = name.s + i;
        size_t dash = s[3] == '-';
        phi3 = (s[0] | 32) == 'p' && (s[1] | 32) == 'h' && (s[2] | 32) == 'i' && i + 3 + dash < name.n &&
               s[3 + dash] == '3';
    }
    if (!phi3)
        return ERR_OK;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (v->attrs[i] & TOKEN_IN_TEXT)
            v->attrs[i] |= TOKEN_RSTRIP;
    static const char *const kept[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        int32_t id = find_name(v, kept[i]);
        if (id != TOKEN_NONE)
            v->attrs[id] &= (uint8_t)~TOKEN_RSTRIP;
    }
    return ERR_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* "<0x41>" to "A". */
static struct text byte_piece(struct text text, char *out)
{
    if (text.n != 6 || memcmp(text.s, "<0x", 3) != 0 || text.s[5] != '>')
        return text;
    int high = hex_digit(text.s[3]), low = hex_digit(text.s[4]);
    if (high < 0 || low < 0)
        return text;
    out[0] = (char)(high << 4 | low);
    return (struct text){.s = out, .n = 1};
}

static struct text spaced_piece(struct text text, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n;) {
        bool space = text.n - i >= SPACE_MARK_BYTES && memcmp(text.s + i, SPACE_MARK, SPACE_MARK_BYTES) == 0;
        out[n++] = space ? ' ' : text.s[i];
        i += space ? SPACE_MARK_BYTES : 1;
    }
    return (struct text){.s = out, .n = n};
}

/* Characters that stand for no byte print as themselves. */
static struct text mapped_piece(struct text text, const int16_t byte_of[BYTE_CODE_END], char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t code = BYTE_CODE_END;
        unsigned length = utf8_decode(text.s + i, text.n - i, &code), n_bytes = length ? length : 1;
        if (code < BYTE_CODE_END && byte_of[code] >= 0) {
            out[n++] = (char)byte_of[code];
        } else {
            memcpy(out + n, text.s + i, n_bytes);
            n += n_bytes;
        }
        i += n_bytes;
    }
    return (struct text){.s = out, .n = n};
}

static err_code pieces_fill(struct vocab *v, struct err *e)
{
    uint16_t code_of[256];
    int16_t byte_of[BYTE_CODE_END];
    byte_codes_fill(code_of);
    memset(byte_of, 0xff, sizeof byte_of);
    for (int b = 0; b < 256; b++)
        byte_of[code_of[b]] = (int16_t)b;

    v->pieces = mem_calloc(v->n_tokens, sizeof *v->pieces);
    char *space = mem_alloc(v->max_text_bytes);
    err_code code = v->pieces && space ? ERR_OK : err_nomem(e, v->max_text_bytes, "token pieces");
    for (uint32_t i = 0; i < v->n_tokens && code == ERR_OK; i++) {
        struct text text = v->symbols.texts[i], piece = {0};
        if (v->attrs[i] & TOKEN_IN_TEXT)
            piece = text;
        else if (v->attrs[i] & TOKEN_NORMAL)
            piece = v->kind == VOCAB_BYTE_MERGES ? mapped_piece(text, byte_of, space) : spaced_piece(text, space);
        else if (v->attrs[i] & TOKEN_BYTE)
            piece = byte_piece(text, space);
        if (piece.s == space && piece.n == text.n && memcmp(space, text.s, text.n) == 0)
            piece = text;
        else if (piece.s == space)
            piece.s = symbols_copy(&v->symbols, space, piece.n);
        if (piece.n > 0 && !piece.s)
            code = err_nomem(e, piece.n, "a token's piece");
        v->pieces[i] = piece;
    }
    mem_free(space);
    return code;
}

err_code vocab_open(struct vocab *v, const struct gguf *g, const struct vocab_defaults *d, struct err *e)
{
    *v = (struct vocab){.kind = d->kind,
                        .bos = d->bos,
                        .eos = d->eos,
                        .unknown = d->unknown,
                        .padding = TOKEN_NONE,
                        .add_bos = d->add_bos,
                        .add_space_prefix = d->kind == VOCAB_SCORES};
    TRY(texts_load(v, g, e));
    TRY(attrs_load(v, g, e));
    TRY(scores_load(v, g, e));
    TRY(specials_load(v, g, e));
    TRY(strips_load(v, g, e));
    TRY(gguf_opt_bool(g, KEY("add_bos_token"), &v->add_bos, e));
    TRY(gguf_opt_bool(g, KEY("add_eos_token"), &v->add_eos, e));
    TRY(gguf_opt_bool(g, KEY("add_space_prefix"), &v->add_space_prefix, e));
    v->add_space_prefix = v->add_space_prefix && v->kind == VOCAB_SCORES;
    v->add_bos = (v->add_bos || d->always_bos) && v->bos != TOKEN_NONE;
    v->add_eos = v->add_eos && v->eos != TOKEN_NONE;
    return pieces_fill(v, e);
}
