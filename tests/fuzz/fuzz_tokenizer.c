/* Any bytes as text: the first chooses a small vocabulary and flags, the rest is encoded and decoded. */
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>

#include "../unit/small_vocab.h"

enum { BY_SCORES, RAW_MERGES, BYTE_MERGES, N_PRES = 8, N_VOCABS = BYTE_MERGES + N_PRES };

static const char *const pres[N_PRES] = {"default",     "gpt-2",        "llama-bpe", "qwen35",
                                         "deepseek-v3", "deepseek-llm", "gpt-4o",    "exaone-moe"};

static struct tokenizer *vocab_make(int which)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    static const char *const merges[] = {"a a", "aa aa", "\u0120 a", "\u2581 \u2581", "b a", "\u2581 a", "\n \n"};
    const char *model = which == BY_SCORES ? "llama" : which == RAW_MERGES ? "gemma4" : "gpt2";
    err_code code = small_begin(&v, model, which >= BYTE_MERGES ? pres[which - BYTE_MERGES] : NULL, &e);
    small_add(&v, "<s>", SMALL_CONTROL, 0);
    small_add(&v, "</s>", SMALL_CONTROL, 0);
    small_add(&v, "<s", SMALL_CONTROL, 0);
    small_add(&v, "<>", SMALL_USER_DEFINED, 0);
    small_add(&v, "<><s>", SMALL_CONTROL, 0);
    small_add(&v, "\n\n", SMALL_NORMAL, -3);
    static const char *const words[] = {"aa", "aaaa", "\u2581\u2581", "\u2581a", "ba", "\u2581", "\u0120a"};
    for (int i = 0; i < 7; i++)
        small_add(&v, words[i], SMALL_NORMAL, (float)-i);
    if (which >= BYTE_MERGES)
        small_add_bytes(&v);
    else
        small_add_byte_names(&v);
    gguf_writer_add_strings(v.w, "tokenizer.ggml.merges", merges, sizeof merges / sizeof merges[0]);
    gguf_writer_add_u32(v.w, "tokenizer.ggml.bos_token_id", 0);
    gguf_writer_add_u32(v.w, "tokenizer.ggml.eos_token_id", 1);
    gguf_writer_add_bool(v.w, "tokenizer.ggml.add_eos_token", true);
    gguf_writer_add_string(v.w, "general.name", which == BY_SCORES ? "phi-3" : "other");
    code = code == ERR_OK ? small_open(&v, &t, &e) : code;
    if (code != ERR_OK)
        abort();
    return t;
}

/* A prompt of which all bytes have this mark has the tokens of plain text, or of text whose specials are parsed; one of
 * mixed marks has some. (None of the user-defined tokens above has the form <|...|>.) */
static void encode_prompt(const struct tokenizer *t, const char *text, size_t n, int mark)
{
    struct err e = {0};
    struct token_list prompt = {0}, plain = {0};
    char *trusted = mem_calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        trusted[i] = mark < 2 ? (char)mark : (char)(text[i] >> 2 & 1);
    err_code code = tokenizer_encode_prompt(t, text, trusted, n, &prompt, &e);
    assert(code == ERR_OK);
    code = tokenizer_encode(t, text, n, mark ? TOKENIZE_PARSE_SPECIAL : 0, &plain, &e);
    assert(code == ERR_OK);
    assert(mark == 2 ||
           (prompt.n == plain.n && (plain.n == 0 || !memcmp(prompt.ids, plain.ids, plain.n * sizeof *plain.ids))));
    token_list_close(&prompt);
    token_list_close(&plain);
    mem_free(trusted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *made[N_VOCABS]; /* kept from input to input */
    if (size == 0)
        return 0;
    int which = data[0] % N_VOCABS;
    unsigned flags = data[0] / N_VOCABS % 4;
    if (!made[which])
        made[which] = vocab_make(which);
    const struct tokenizer *t = made[which];
    const char *text = (const char *)data + 1;
    size_t n = size - 1, n_back;
    struct err e = {0};
    struct token_list list = {0};
    char *back;
    err_code code = tokenizer_encode(t, text, n, flags, &list, &e);
    assert(code == ERR_OK);
    for (size_t i = 0; i < list.n; i++)
        assert(list.ids[i] >= 0 && list.ids[i] < tokenizer_n_vocab(t));
    code = tokenizer_decode(t, list.ids, list.n, true, &back, &n_back, &e);
    assert(code == ERR_OK);
    if (which >= BYTE_MERGES && flags == 0)
        assert(n_back == n && memcmp(back, text, n) == 0);
    mem_free(back);
    token_list_close(&list);
    for (int mark = 0; mark < 3; mark++)
        encode_prompt(t, text, n, mark);
    return 0;
}
