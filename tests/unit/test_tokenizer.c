#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "small_vocab.h"

#define MERGES(v, ...)                                                                                                 \
    do {                                                                                                               \
        const char *const merges_[] = {__VA_ARGS__};                                                                   \
        gguf_writer_add_strings((v)->w, "tokenizer.ggml.merges", merges_, sizeof merges_ / sizeof merges_[0]);         \
    } while (0)

/* Encodes, and compares with a list that ends with -1. */
static void expect_bytes(const struct tokenizer *t, const char *text, size_t n, unsigned flags, const int32_t *ids)
{
    struct err e = {0};
    struct token_list list = {0};
    size_t n_ids = 0;
    while (ids[n_ids] != TOKEN_NONE)
        n_ids++;
    assert_int_equal(tokenizer_encode(t, text, n, flags, &list, &e), ERR_OK);
    assert_int_equal(list.n, n_ids);
    for (size_t i = 0; i < n_ids; i++)
        assert_int_equal(list.ids[i], ids[i]);
    token_list_close(&list);
}

#define expect(t, text, flags, ...) expect_bytes(t, text, strlen(text), flags, (int32_t[]){__VA_ARGS__, TOKEN_NONE})
#define expect_none(t, text, flags) expect_bytes(t, text, strlen(text), flags, (int32_t[]){TOKEN_NONE})

/* Encodes a prompt whose text is trusted but for what is in braces, and compares. */
static void expect_trusting(const struct tokenizer *t, const char *prompt, const int32_t *ids)
{
    struct err e = {0};
    struct token_list list = {0};
    char text[100], trusted[100];
    size_t n = 0, n_ids = 0;
    char mark = 1;
    for (; *prompt; prompt++) {
        text[n] = *prompt;
        trusted[n] = mark;
        if (strchr("{}", *prompt))
            mark = *prompt == '}';
        else
            n++;
    }
    while (ids[n_ids] != TOKEN_NONE)
        n_ids++;
    assert_int_equal(tokenizer_encode_prompt(t, text, trusted, n, &list, &e), ERR_OK);
    assert_int_equal(list.n, n_ids);
    for (size_t i = 0; i < n_ids; i++)
        assert_int_equal(list.ids[i], ids[i]);
    token_list_close(&list);
}
#define expect_prompt(t, prompt, ...) expect_trusting(t, prompt, (int32_t[]){__VA_ARGS__, TOKEN_NONE})

static void expect_decoded(const struct tokenizer *t, bool special, const char *expected, const int32_t *ids, size_t n)
{
    struct err e = {0};
    char *text;
    size_t n_text;
    assert_int_equal(tokenizer_decode(t, ids, n, special, &text, &n_text, &e), ERR_OK);
    assert_int_equal(n_text, strlen(expected));
    assert_string_equal(text, expected);
    mem_free(text);
}

static void expect_round_trip(const struct tokenizer *t, const char *text, size_t n)
{
    struct err e = {0};
    struct token_list list = {0};
    char *back;
    size_t n_back;
    assert_int_equal(tokenizer_encode(t, text, n, 0, &list, &e), ERR_OK);
    assert_int_equal(tokenizer_decode(t, list.ids, list.n, false, &back, &n_back, &e), ERR_OK);
    assert_int_equal(n_back, n);
    assert_memory_equal(back, text, n);
    assert_int_equal(back[n_back], '\0');
    mem_free(back);
    token_list_close(&list);
}

/* Ids of the byte-level vocabulary below. */
enum { LL = 256, HE, HELL, HELLO, G_H, AA, AAAA, HI_WORD, IM_START, IM_END, TOOL, IM, N_BYTE_LEVEL };

static struct tokenizer *byte_level(const char *pre)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", pre, &e), ERR_OK);
    small_add_bytes(&v);
    const char *const words[] = {"ll", "he", "hell", "hello", "\u0120h", "aa", "aaaa", "hi"};
    for (int i = 0; i < 8; i++)
        small_add(&v, words[i], SMALL_NORMAL, 0);
    small_add(&v, "<|im_start|>", SMALL_CONTROL, 0);
    small_add(&v, "<|im_end|>", SMALL_CONTROL, 0);
    small_add(&v, "<tool>", SMALL_USER_DEFINED, 0);
    small_add(&v, "<|im", SMALL_CONTROL, 0);
    assert_int_equal(v.n, N_BYTE_LEVEL);
    /* "nospace" is no merge, "x" and "zz" are no tokens; both are harmless. */
    MERGES(&v, "l l", "h e", "he ll", "hell o", "a a", "aa aa", "\u0120 h", "nospace", "x zz");
    gguf_writer_add_u32(v.w, "tokenizer.ggml.bos_token_id", IM_START);
    gguf_writer_add_u32(v.w, "tokenizer.ggml.eos_token_id", IM_END);
    gguf_writer_add_bool(v.w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_add_bool(v.w, "tokenizer.ggml.add_eos_token", true);
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    assert_string_equal(e.text, "");
    return t;
}

static void lowest_ranked_merge_goes_first(void **state)
{
    struct tokenizer *t = byte_level("gpt-2");
    assert_int_equal(tokenizer_n_vocab(t), N_BYTE_LEVEL);
    expect(t, "hello", 0, HELLO);
    expect(t, "hell", 0, HELL);
    expect(t, "helo", 0, HE, 'l', 'o');
    expect(t, "lll", 0, LL, 'l');
    expect(t, "aaaaaaa", 0, AAAA, AA, 'a');
    expect(t, " hello", 0, ' ', HELLO);
    expect(t, " ho", 0, G_H, 'o');
    expect(t, "hi", 0, 'h', 'i'); /* a token that no merge makes */
    expect_none(t, "", 0);
    tokenizer_close(&t);
    assert_null(t);
}

static void of_equal_texts_the_last_token_counts(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add_bytes(&v);
    const char *const words[] = {"ab", "cd", "abcd", "cd"};
    for (int i = 0; i < 4; i++)
        small_add(&v, words[i], SMALL_NORMAL, 0);
    MERGES(&v, "a b", "c d", "ab cd");
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "cd", 0, 259);
    expect(t, "abcd", 0, 258);
    tokenizer_close(&t);
}

static void marks_of_gaps_are_those_that_the_file_names_or_their_texts(void **state)
{
    for (int is_named = 0; is_named < 2; is_named++) {
        struct err e = {0};
        struct small_vocab v;
        struct tokenizer *t;
        assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
        small_add_bytes(&v);
        int32_t prefix = small_add(&v, "<|fim_prefix|>", SMALL_CONTROL, 0);
        int32_t suffix = small_add(&v, "<fim_suffix>", SMALL_USER_DEFINED, 0);
        int32_t file = small_add(&v, "<|file_sep|>", SMALL_CONTROL, 0);
        if (is_named)
            gguf_writer_add_u32(v.w, "tokenizer.ggml.fim_pre_token_id", 'x');
        MERGES(&v, "a b");
        assert_int_equal(small_open(&v, &t, &e), ERR_OK);
        assert_int_equal(tokenizer_fill(t, FILL_PREFIX), is_named ? 'x' : prefix);
        assert_int_equal(tokenizer_fill(t, FILL_SUFFIX), suffix);
        assert_int_equal(tokenizer_fill(t, FILL_MIDDLE), TOKEN_NONE);
        assert_int_equal(tokenizer_fill(t, FILL_FILE), file);
        assert_true(tokenizer_is_end(t, file) && !tokenizer_is_end(t, suffix));
        tokenizer_close(&t);
    }
}

/* Each makes what the next one takes, and only the last makes a token. */
static void merges_build_on_those_before(void **state)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN";
    enum { N_LETTER = sizeof letters - 1 };
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    char entries[N_LETTER - 1][N_LETTER + 2];
    const char *merges[N_LETTER - 1];
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add_bytes(&v);
    small_add(&v, letters, SMALL_NORMAL, 0);
    for (int i = 0; i < N_LETTER - 1; i++) {
        snprintf(entries[i], sizeof entries[i], "%.*s %c", i + 1, letters, letters[i + 1]);
        merges[i] = entries[i];
    }
    gguf_writer_add_strings(v.w, "tokenizer.ggml.merges", merges, N_LETTER - 1);
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, letters, 0, 256);
    expect(t, "abc", 0, 'a', 'b', 'c');
    tokenizer_close(&t);
}

static void whole_words_beat_merges_where_the_rule_says_so(void **state)
{
    struct tokenizer *t = byte_level("llama-bpe");
    expect(t, "hi", 0, HI_WORD);
    expect(t, "hill", 0, 'h', 'i', LL);
    tokenizer_close(&t);
}

static void specials_need_asking_and_user_defined_do_not(void **state)
{
    struct tokenizer *t = byte_level("qwen2");
    unsigned parse = TOKENIZE_PARSE_SPECIAL;
    expect(t, "<|im_start|>hello<|im_end|>", parse, IM_START, HELLO, IM_END);
    expect(t, "<|im_start", parse, IM, '_', 's', 't', 'a', 'r', 't');
    expect(t, "<|im", 0, '<', '|', 'i', 'm');
    expect(t, "a<tool>b", 0, 'a', TOOL, 'b');
    expect(t, "<tool<tool>", parse, '<', 't', 'o', 'o', 'l', TOOL);
    expect(t, "hello", TOKENIZE_ADD_SPECIAL, IM_START, HELLO, IM_END);
    expect(t, "", TOKENIZE_ADD_SPECIAL, IM_START, IM_END);
    assert_true(tokenizer_is_end(t, IM_END));
    assert_false(tokenizer_is_end(t, IM_START));
    assert_false(tokenizer_is_end(t, -1));
    assert_true(tokenizer_is_special(t, IM_START));
    assert_false(tokenizer_is_special(t, TOOL));
    assert_int_equal(tokenizer_bos(t), IM_START);
    assert_int_equal(tokenizer_eos(t), IM_END);
    tokenizer_close(&t);
}

static void the_longest_of_overlapping_specials_is_taken_first(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add_bytes(&v);
    int32_t ab = small_add(&v, "ab", SMALL_USER_DEFINED, 0), bcd = small_add(&v, "bcd", SMALL_USER_DEFINED, 0);
    int32_t de = small_add(&v, "de", SMALL_USER_DEFINED, 0);
    gguf_writer_add_strings(v.w, "tokenizer.ggml.merges", NULL, 0);
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "abcde", 0, 'a', bcd, 'e');
    expect(t, "abde", 0, ab, de);
    tokenizer_close(&t);
}

/* Ids of the SentencePiece vocabularies: unknown, BOS, EOS, 256 bytes, then these. */
enum { SP_UNK, SP_BOS, SP_EOS, SP_BYTES, SP_MARK = SP_BYTES + 256, SP_A, SP_B, SP_AB, SP_MARK_A, SP_BA, SP_SIGN, SP_N };

static struct tokenizer *by_scores(bool prefix, const char *name)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "llama", NULL, &e), ERR_OK);
    small_add(&v, "<unk>", SMALL_UNKNOWN, 0);
    small_add(&v, "<s>", SMALL_CONTROL, 0);
    small_add(&v, "</s>", SMALL_CONTROL, 0);
    small_add_byte_names(&v);
    small_add(&v, "\u2581", SMALL_NORMAL, -10);
    small_add(&v, "a", SMALL_NORMAL, -11);
    small_add(&v, "b", SMALL_NORMAL, -12);
    small_add(&v, "ab", SMALL_NORMAL, -1);
    small_add(&v, "\u2581a", SMALL_NORMAL, -2);
    small_add(&v, "ba", SMALL_NORMAL, -0.5f);
    small_add(&v, "<|sign|>", SMALL_CONTROL, 0);
    assert_int_equal(v.n, SP_N);
    if (!prefix)
        gguf_writer_add_bool(v.w, "tokenizer.ggml.add_space_prefix", false);
    gguf_writer_add_string(v.w, "general.name", name);
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    return t;
}

static void special_tokens_come_from_trusted_text_alone(void **state)
{
    struct tokenizer *t = byte_level("qwen2");
    expect_prompt(t, "<|im_start|>{hello}<|im_end|>", IM_START, HELLO, IM_END);
    expect_prompt(t, "{<|im}<|im_end|>{<|im}", '<', '|', 'i', 'm', IM_END, '<', '|', 'i', 'm');
    expect_prompt(t, "<|i{m}", '<', '|', 'i', 'm'); /* every byte counts, */
    expect_prompt(t, "{<}|im", '<', '|', 'i', 'm');
    expect_prompt(t, "<|im{_start|>}", IM, '_', 's', 't', 'a', 'r', 't', '|', '>'); /* and a shorter token may fit */
    expect_prompt(t, "{<tool>}<to{ol>}", TOOL, TOOL); /* user-defined tokens are ordinary text */
    expect_prompt(t, "he{llo}", HELLO);               /* words go on where trust ends */
    expect_prompt(t, "{hel}lo<|im_end|>", HELLO, IM_END);
    expect_prompt(t, "{}", TOKEN_NONE);
    tokenizer_close(&t);
    t = by_scores(true, "My Phi-3 mini");
    expect_prompt(t, "<s>{a</s>}a</s>", SP_BOS, SP_MARK_A, SP_BYTES + '<', SP_BYTES + '/', SP_BYTES + 's',
                  SP_BYTES + '>', SP_A, SP_EOS);
    expect_prompt(t, "<|sign|>{ \n}a", SP_SIGN, SP_MARK_A); /* white space goes, whose ever it is */
    tokenizer_close(&t);
}

/* gpt-oss's and DeepSeek's tokens that part messages are user-defined, the first by what engines know of their names.
 */
static void user_defined_tokens_that_part_messages_need_trust(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add_bytes(&v);
    int32_t start = small_add(&v, "<|start|>", SMALL_CONTROL, 0);
    int32_t user = small_add(&v, "<\uff5cUser\uff5c>", SMALL_USER_DEFINED, 0);
    int32_t bars = small_add(&v, "<|>", SMALL_USER_DEFINED, 0);
    MERGES(&v, "x x");
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    assert_false(tokenizer_is_special(t, start));
    expect(t, "<|start|><\uff5cUser\uff5c><|>", 0, start, user, bars);
    expect_prompt(t, "<|start|><\uff5cUser\uff5c><|>", start, user, bars);
    expect_prompt(t, "{<|start|><|>}", '<', '|', 's', 't', 'a', 'r', 't', '|', '>', bars);
    expect_prompt(t, "{<\uff5cUser\uff5c>}<\uff5cUser\uff5c>", '<', 0xef, 0xbd, 0x9c, 'U', 's', 'e', 'r', 0xef, 0xbd,
                  0x9c, '>', user);
    tokenizer_close(&t);
}

/* Vocabularies in which plain text would become the control token "ab". */
static void control_tokens_are_not_made_of_pieces(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    for (int rule = 0; rule < 2; rule++) {
        assert_int_equal(small_begin(&v, "gpt2", rule ? "llama-bpe" : "gpt-2", &e), ERR_OK);
        small_add_bytes(&v);
        small_add(&v, "ab", SMALL_CONTROL, 0);
        MERGES(&v, "a b");
        assert_int_equal(small_open(&v, &t, &e), ERR_OK);
        expect(t, "ab", 0, 'a', 'b');
        expect(t, "ab", TOKENIZE_PARSE_SPECIAL, 256);
        tokenizer_close(&t);
    }
    assert_int_equal(small_begin(&v, "llama", NULL, &e), ERR_OK);
    small_add(&v, "<unk>", SMALL_UNKNOWN, 0);
    small_add(&v, "<s>", SMALL_CONTROL, 0);
    small_add(&v, "ab", SMALL_CONTROL, 0);
    small_add_byte_names(&v);
    small_add(&v, "a", SMALL_NORMAL, -1);
    small_add(&v, "b", SMALL_CONTROL, 0);
    gguf_writer_add_bool(v.w, "tokenizer.ggml.add_space_prefix", false);
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "ab", 0, 3 + 256, 3 + 'b');
    tokenizer_close(&t);
}

static void specials_print_only_when_asked(void **state)
{
    struct tokenizer *t = byte_level("qwen2");
    const int32_t ids[] = {IM_START, HELLO, TOOL, -5, N_BYTE_LEVEL, IM_END};
    expect_decoded(t, false, "hello<tool>", ids, 6);
    expect_decoded(t, true, "<|im_start|>hello<tool><|im_end|>", ids, 6);
    expect_decoded(t, true, "", ids, 0);
    size_t n;
    assert_memory_equal(tokenizer_piece(t, G_H, false, &n), " h", 2);
    assert_int_equal(n, 2);
    tokenizer_piece(t, N_BYTE_LEVEL, true, &n);
    assert_int_equal(n, 0);
    tokenizer_close(&t);
}

static void broken_utf8_becomes_its_bytes(void **state)
{
    struct tokenizer *t = byte_level("qwen2");
    static const char broken[] = "a\xff\xc3(\xe2\x82 \xed\xa0\x80\xf4\x90\x80\x80\xc0\x80";
    expect_bytes(t, "\xff\xc3", 2, 0, (int32_t[]){0xff, 0xc3, TOKEN_NONE});
    expect_round_trip(t, broken, sizeof broken); /* with the NUL */
    expect_round_trip(t, broken, 0);
    tokenizer_close(&t);
}

static void splits_follow_each_rule(void **state)
{
    struct tokenizer *gpt2 = byte_level("gpt-2"), *qwen = byte_level("qwen2"), *falcon = byte_level("falcon");
    /* " h" joins only if the split leaves the space with the word. */
    expect(gpt2, "  ho", 0, ' ', G_H, 'o');
    expect(gpt2, "\nho", 0, '\n', 'h', 'o');
    expect(qwen, " \u00e9ho", 0, ' ', 0xc3, 0xa9, 'h', 'o');
    /* U+180E, once a space, and CJK of Unicode 15.1, a letter only in recent tables. */
    expect(qwen, "\u180eaa", 0, 0xe1, 0xa0, 0x8e, AA);
    expect(qwen, "\U0002ebf0aa", 0, 0xf0, 0xae, 0xaf, 0xb0, AA);
    expect(falcon, "hello", 0, HELLO);
    tokenizer_close(&gpt2);
    tokenizer_close(&qwen);
    tokenizer_close(&falcon);
}

/* Where digits are grouped from the right, a merge of two digits joins only within a group. */
static void expect_threes_from_the_right(const char *pre)
{
    enum { ONES = 256, THREE_ONES };
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", pre, &e), ERR_OK);
    small_add_bytes(&v);
    small_add(&v, "11", SMALL_NORMAL, 0);
    small_add(&v, "111", SMALL_NORMAL, 0);
    MERGES(&v, "1 1", "11 1");
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "1", 0, '1');
    expect(t, "11", 0, ONES);
    expect(t, "111", 0, THREE_ONES);
    expect(t, "1111", 0, '1', THREE_ONES);
    expect(t, "11111", 0, ONES, THREE_ONES);
    expect(t, "111111", 0, THREE_ONES, THREE_ONES);
    expect(t, "a1111b11", 0, 'a', '1', THREE_ONES, 'b', ONES);
    tokenizer_close(&t);
}

static void digits_are_grouped_from_the_right(void **state)
{
    expect_threes_from_the_right("afmoe");
    expect_threes_from_the_right("cohere2moe");
}

/* Marks belong to words, and a slash behind symbols to them. */
static void tiny_aya_keeps_marks_and_slashes(void **state)
{
    enum { A_MARK = 257, DOT_SLASH };
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", "tiny_aya", &e), ERR_OK);
    small_add_bytes(&v);
    small_add(&v, "\u00cc\u0123", SMALL_NORMAL, 0); /* the bytes of U+0301 */
    small_add(&v, "a\u00cc\u0123", SMALL_NORMAL, 0);
    small_add(&v, "./", SMALL_NORMAL, 0);
    MERGES(&v, "\u00cc \u0123", "a \u00cc\u0123", ". /");
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "a\u0301", 0, A_MARK);
    expect(t, "1./", 0, '1', DOT_SLASH);
    tokenizer_close(&t);
}

/* A merge of a letter and a Chinese character's first byte joins only where one piece has both. */
static void rules_that_name_scripts_split_before_them(void **state)
{
    static const char *const names[] = {"gpt-2", "kimi-k2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "afmoe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err e = {0};
        struct small_vocab v;
        struct tokenizer *t;
        assert_int_equal(small_begin(&v, "gpt2", names[i], &e), ERR_OK);
        small_add_bytes(&v);
        int32_t both = small_add(&v, "a\u00e4", SMALL_NORMAL, 0);
        MERGES(&v, "a \u00e4");
        assert_int_equal(small_open(&v, &t, &e), ERR_OK);
        if (i == 0)
            expect(t, "a\u4e2d", 0, both, 0xb8, 0xad);
        else
            expect(t, "a\u4e2d", 0, 'a', 0xe4, 0xb8, 0xad);
        tokenizer_close(&t);
    }
}

static void every_rule_keeps_every_byte(void **state)
{
    static const char *const pres[] = {
        NULL,        "default",     "gpt-2",        "qwen2",          "qwen35", "llama-bpe",   "smaug-bpe",
        "gpt-4o",    "deepseek-v3", "deepseek-llm", "deepseek-coder", "glm4",   "chatglm-bpe", "olmo",
        "command-r", "falcon",      "starcoder",    "refact",         "mpt",    "tekken",      "kimi-k2",
        "laguna",    "exaone-moe",  "bailingmoe",   "seed-coder",     "afmoe",  "tiny_aya"};
    static const char text[] =
        "It's 12345 o'CLOCK!\r\n\r\n  \u4f60\u597d \u0301a\u00a0\u3000x\u3002\t\t\xff 3\u0663\u00bd "
        "HTTPServer caf\u00e9 \U0001f469\u200d\U0001f680\n \n  ";
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++) {
        struct tokenizer *t = byte_level(pres[i]);
        expect_round_trip(t, text, sizeof text - 1);
        tokenizer_close(&t);
    }
}

static void long_words_take_n_log_n(void **state)
{
    struct tokenizer *t = byte_level("qwen2");
    struct err e = {0};
    struct token_list list = {0};
    size_t n = (size_t)1 << 20;
    char *text = mem_alloc(n);
    memset(text, 'a', n);
    assert_int_equal(tokenizer_encode(t, text, n, 0, &list, &e), ERR_OK);
    assert_int_equal(list.n, n / 4);
    memset(text, ' ', n);
    text[n - 1] = 'x';
    list.n = 0;
    assert_int_equal(tokenizer_encode(t, text, n, 0, &list, &e), ERR_OK);
    assert_int_equal(list.n, n);
    token_list_close(&list);
    mem_free(text);
    tokenizer_close(&t);
}

static void best_score_joins_first(void **state)
{
    struct tokenizer *t = by_scores(false, "x");
    expect(t, "ab", 0, SP_AB);
    expect(t, "aba", 0, SP_A, SP_BA);
    expect(t, "abab", 0, SP_A, SP_BA, SP_B);
    expect(t, "aab", 0, SP_A, SP_AB);
    expect(t, " a", 0, SP_MARK_A);
    expect(t, " ab", 0, SP_MARK, SP_AB);
    expect(t, "a", TOKENIZE_ADD_SPECIAL, SP_BOS, SP_A);
    tokenizer_close(&t);
}

static void unknown_characters_fall_back_to_bytes(void **state)
{
    struct tokenizer *t = by_scores(false, "x");
    expect(t, "\u00e9a", 0, SP_BYTES + 0xc3, SP_BYTES + 0xa9, SP_A);
    expect(t, "\n", 0, SP_BYTES + '\n');
    expect_bytes(t, "\xff\x80", 2, 0, (int32_t[]){SP_BYTES + 0xff, SP_BYTES + 0x80, TOKEN_NONE});
    expect_round_trip(t, "a\u00e9 \xff", 6);
    tokenizer_close(&t);
}

static void a_space_is_put_before_text_and_taken_off_again(void **state)
{
    struct tokenizer *t = by_scores(true, "x");
    expect(t, "a", 0, SP_MARK_A);
    expect(t, "a", TOKENIZE_ADD_SPECIAL, SP_BOS, SP_MARK_A);
    expect(t, "a</s>a", TOKENIZE_PARSE_SPECIAL, SP_MARK_A, SP_EOS, SP_MARK_A);
    expect_none(t, "", 0);
    expect_round_trip(t, " ab b\n", 6);
    const int32_t ids[] = {SP_BOS, SP_MARK_A, SP_MARK_A};
    expect_decoded(t, false, "a a", ids, 3);
    expect_decoded(t, true, "<s>a a", ids, 3);
    tokenizer_close(&t);
}

static void phi3_specials_swallow_white_space(void **state)
{
    struct tokenizer *phi = by_scores(true, "My Phi-3 mini"), *other = by_scores(true, "x");
    unsigned parse = TOKENIZE_PARSE_SPECIAL;
    expect(phi, "<|sign|> \n a", parse, SP_SIGN, SP_MARK_A);
    expect(phi, "<|sign|> \n<|sign|>", parse, SP_SIGN, SP_SIGN);
    expect(phi, "<s> a", parse, SP_BOS, SP_MARK, SP_MARK_A);
    expect(other, "<|sign|> a", parse, SP_SIGN, SP_MARK, SP_MARK_A);
    tokenizer_close(&phi);
    tokenizer_close(&other);
}

static void gemma_merges_marked_text_and_newline_runs(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gemma4", NULL, &e), ERR_OK);
    small_add(&v, "<unk>", SMALL_UNKNOWN, 0);
    small_add(&v, "<bos>", SMALL_CONTROL, 0);
    small_add(&v, "<eos>", SMALL_CONTROL, 0);
    small_add_byte_names(&v);
    const char *const words[] = {"\u2581", "a", "b", "ab", "\u2581a", "\n\n\n"};
    for (int i = 0; i < 6; i++)
        small_add(&v, words[i], SMALL_NORMAL, 0);
    MERGES(&v, "\u2581 a", "a b");
    gguf_writer_add_u32(v.w, "tokenizer.ggml.bos_token_id", SP_BOS);
    gguf_writer_add_bool(v.w, "tokenizer.ggml.add_bos_token", false); /* such files err */
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    int32_t runs = SP_MARK_A + 1, newline = SP_BYTES + '\n';
    expect(t, "ab ab", 0, SP_AB, SP_MARK_A, SP_B);
    expect(t, "a\n\n\nb", 0, SP_A, runs, SP_B);
    expect(t, "\n\n", 0, newline, newline);
    expect(t, "\u00e9", 0, SP_BYTES + 0xc3, SP_BYTES + 0xa9);
    expect(t, "a", TOKENIZE_ADD_SPECIAL, SP_BOS, SP_A);
    expect_round_trip(t, " ab\xff\u00e9 b\n\n\n", 12);
    assert_true(tokenizer_is_end(t, SP_EOS));
    tokenizer_close(&t);
}

static void bytes_without_a_token_are_dropped(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add(&v, "a", SMALL_NORMAL, 0);
    MERGES(&v, "b c");
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "abca\xff", 0, 0, 0);
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_int_equal(tokenizer_eos(t), TOKEN_NONE);
    tokenizer_close(&t);
}

/* One vocabulary with one fault each. */
enum fault {
    NO_MODEL,
    OTHER_MODEL,
    OTHER_PRE,
    NO_TOKENS,
    NO_MERGES,
    MERGES_OF_NUMBERS,
    SHORT_TYPES,
    BAD_EOS,
    TEXT_BOS
};

static err_code open_faulty(enum fault fault, struct err *e)
{
    struct small_vocab v = {0};
    struct tokenizer *t = NULL;
    assert_int_equal(gguf_writer_create(&v.w, e), ERR_OK);
    if (fault != NO_MODEL)
        gguf_writer_add_string(v.w, "tokenizer.ggml.model", fault == OTHER_MODEL ? "bert" : "gpt2");
    gguf_writer_add_string(v.w, "tokenizer.ggml.pre", fault == OTHER_PRE ? "no-such-rule" : "gpt-2");
    if (fault != NO_TOKENS)
        small_add(&v, "a", SMALL_NORMAL, 0);
    if (fault == MERGES_OF_NUMBERS)
        gguf_writer_add_array(v.w, "tokenizer.ggml.merges", GGUF_I32, v.types, 1);
    else if (fault != NO_MERGES)
        MERGES(&v, "a a");
    if (fault == BAD_EOS)
        gguf_writer_add_u32(v.w, "tokenizer.ggml.eos_token_id", 1);
    if (fault == TEXT_BOS)
        gguf_writer_add_string(v.w, "tokenizer.ggml.bos_token_id", "1");
    if (fault == SHORT_TYPES) {
        gguf_writer_add_strings(v.w, "tokenizer.ggml.tokens", (const char *const[]){"a", "b"}, 2);
        gguf_writer_add_array(v.w, "tokenizer.ggml.token_type", GGUF_I32, v.types, 1);
        v.n = 0;
    }
    err_code code = small_open(&v, &t, e);
    assert_true(code == ERR_OK || !t);
    tokenizer_close(&t);
    return code;
}

static void faulty_vocabularies_are_refused_with_the_reason(void **state)
{
    static const struct {
        enum fault fault;
        err_code code;
        const char *says;
    } cases[] = {
        {NO_MODEL, ERR_FORMAT, "tokenizer.ggml.model"},
        {OTHER_MODEL, ERR_UNSUPPORTED, "known: gpt2, llama, gemma4"},
        {OTHER_PRE, ERR_UNSUPPORTED, "no-such-rule"},
        {NO_TOKENS, ERR_FORMAT, "tokenizer.ggml.tokens"},
        {NO_MERGES, ERR_FORMAT, "tokenizer.ggml.merges"},
        {MERGES_OF_NUMBERS, ERR_FORMAT, "tokenizer.ggml.merges"},
        {SHORT_TYPES, ERR_FORMAT, "tokenizer.ggml.token_type has 1 entries"},
        {BAD_EOS, ERR_FORMAT, "tokenizer.ggml.eos_token_id is 1"},
        {TEXT_BOS, ERR_FORMAT, "tokenizer.ggml.bos_token_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        assert_int_equal(open_faulty(cases[i].fault, &e), cases[i].code);
        assert_non_null(strstr(e.text, cases[i].says));
    }
}

static void empty_token_texts_are_no_match(void **state)
{
    struct err e = {0};
    struct small_vocab v;
    struct tokenizer *t;
    assert_int_equal(small_begin(&v, "gpt2", NULL, &e), ERR_OK);
    small_add(&v, "", SMALL_CONTROL, 0);
    small_add(&v, "a", SMALL_NORMAL, 0);
    small_add(&v, "", SMALL_USER_DEFINED, 0);
    MERGES(&v, "a a", "");
    gguf_writer_add_u32(v.w, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    gguf_writer_add_u32(v.w, "tokenizer.ggml.eot_token_id", UINT32_MAX); /* -1: none */
    assert_int_equal(small_open(&v, &t, &e), ERR_OK);
    expect(t, "aa", TOKENIZE_PARSE_SPECIAL, 1, 1);
    tokenizer_close(&t);
}

/* The longest run of slots in use: what a text that is not there is compared with at worst. */
static size_t longest_run(const struct symbols *t)
{
    size_t longest = 0, run = 0;
    for (size_t i = 0; i < 2 * t->n_slots; i++) {
        run = t->slots[i & (t->n_slots - 1)].symbol == SYMBOL_NONE ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return longest;
}

/* 4,096 texts of 12 pairs of words. A hash that multiplies and shifts takes back in the second word of the other choice
 * what it did in the first, whatever its seed. */
static void texts_made_to_collide_do_not(void **state)
{
    enum { N_PAIR = 12 };
    struct symbols t = {0};
    struct err e = {0};
    char s[16 * N_PAIR];
    for (unsigned i = 0; i < 1 << N_PAIR; i++) {
        for (unsigned k = 0; k < N_PAIR; k++) {
            uint64_t pair[2] = {UINT64_C(0x3030303030303030) + k, UINT64_C(0x6867666564636261)};
            if (i >> k & 1) {
                pair[0] ^= UINT64_C(1) << 63;
                pair[1] ^= UINT64_C(1) << 63 | UINT64_C(1) << 34;
            }
            memcpy(s + 16 * (size_t)k, pair, sizeof pair);
        }
        assert_int_equal(symbols_add_many(&t, &(struct text){s, sizeof s}, 1, &e), ERR_OK);
    }
    assert_int_equal(t.n_slots, 2 << N_PAIR);
    assert_in_range(longest_run(&t), 1, 200);
    symbols_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_ranked_merge_goes_first),
        cmocka_unit_test(of_equal_texts_the_last_token_counts),
        cmocka_unit_test(marks_of_gaps_are_those_that_the_file_names_or_their_texts),
        cmocka_unit_test(merges_build_on_those_before),
        cmocka_unit_test(whole_words_beat_merges_where_the_rule_says_so),
        cmocka_unit_test(specials_need_asking_and_user_defined_do_not),
        cmocka_unit_test(the_longest_of_overlapping_specials_is_taken_first),
        cmocka_unit_test(special_tokens_come_from_trusted_text_alone),
        cmocka_unit_test(user_defined_tokens_that_part_messages_need_trust),
        cmocka_unit_test(control_tokens_are_not_made_of_pieces),
        cmocka_unit_test(specials_print_only_when_asked),
        cmocka_unit_test(broken_utf8_becomes_its_bytes),
        cmocka_unit_test(splits_follow_each_rule),
        cmocka_unit_test(digits_are_grouped_from_the_right),
        cmocka_unit_test(tiny_aya_keeps_marks_and_slashes),
        cmocka_unit_test(rules_that_name_scripts_split_before_them),
        cmocka_unit_test(every_rule_keeps_every_byte),
        cmocka_unit_test(long_words_take_n_log_n),
        cmocka_unit_test(best_score_joins_first),
        cmocka_unit_test(unknown_characters_fall_back_to_bytes),
        cmocka_unit_test(a_space_is_put_before_text_and_taken_off_again),
        cmocka_unit_test(phi3_specials_swallow_white_space),
        cmocka_unit_test(gemma_merges_marked_text_and_newline_runs),
        cmocka_unit_test(bytes_without_a_token_are_dropped),
        cmocka_unit_test(faulty_vocabularies_are_refused_with_the_reason),
        cmocka_unit_test(empty_token_texts_are_no_match),
        cmocka_unit_test(texts_made_to_collide_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
