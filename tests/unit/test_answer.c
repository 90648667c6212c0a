#define _GNU_SOURCE
/* Answers as commands read them: what a mark held back may be long, and stop strings are found in it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "texts/answer.h"
#include "small_vocab.h"
#include "temp_folder.h"

#define SOURCE "{{ messages }} {# <|channel|>analysis #}"

static moebius_vocab *open_vocab(void)
{
    struct small_vocab v;
    struct err e;
    moebius_vocab *vocab;
    moebius_error error;
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add_bytes(&v);
    gguf_writer_add_strings(v.w, "tokenizer.ggml.merges", NULL, 0);
    struct temp_path path = temp_path(&folder, "vocab.gguf");
    assert_int_equal(small_write(&v, path.s, &e), ERR_OK);
    assert_int_equal(moebius_vocab_open(&vocab, path.s, &error), MOEBIUS_OK);
    return vocab;
}

static void collect(void *user, moebius_reply_part part, const char *text, size_t n)
{
    assert_int_equal(part, MOEBIUS_REPLY_CONTENT);
    strncat(user, text, n);
}

/* Reads the answer with a stop string; returns whether that ended it. What was said is added to `said`. */
static bool read_answer(const char *text, const char *stop, char *said)
{
    moebius_vocab *vocab = open_vocab();
    moebius_template *tmpl;
    moebius_error error;
    struct answer a;
    struct err e;
    int32_t *ids;
    size_t n_ids;
    bool end = false;
    assert_int_equal(moebius_template_open(&tmpl, SOURCE, sizeof SOURCE - 1, vocab, &error), MOEBIUS_OK);
    const struct answer_params params = {.vocab = vocab,
                                         .max_piece = answer_longest_piece(vocab),
                                         .stops = &stop,
                                         .n_stops = 1,
                                         .tmpl = tmpl,
                                         .prompt = "",
                                         .fn = collect,
                                         .user = said};
    assert_int_equal(answer_open(&a, &params, &e), ERR_OK);
    assert_false(answer_is_reasoning(&a));
    assert_int_equal(moebius_tokenize(vocab, text, strlen(text), false, true, &ids, &n_ids, &error), MOEBIUS_OK);
    for (size_t i = 0; i < n_ids && !end; i++)
        assert_int_equal(answer_feed(&a, ids[i], &end, &e), ERR_OK);
    answer_finish(&a);
    answer_close(&a);
    moebius_free(ids);
    moebius_template_close(&tmpl);
    moebius_vocab_close(&vocab);
    return end;
}

static void long_text_after_a_mark_is_content(void **state)
{
    char text[1000] = "<|channel|>", said[1000] = "", want[1000];
    memset(text + strlen(text), 'x', 600);
    strcat(text, "STOP and more");
    assert_true(read_answer(text, "STOP", said));
    snprintf(want, sizeof want, "%.*s", (int)(strstr(text, "STOP") - text), text);
    assert_string_equal(said, want);
    *said = '\0';
    assert_false(read_answer(text, "HALT", said));
    assert_string_equal(said, text);
}

static void plain_text_needs_no_template_and_no_listener(void **state)
{
    moebius_vocab *vocab = open_vocab();
    const char *stop = "bc";
    const struct answer_params params = {
        .vocab = vocab, .max_piece = answer_longest_piece(vocab), .stops = &stop, .n_stops = 1};
    struct answer a;
    struct err e;
    bool end = false;
    assert_int_equal(answer_open(&a, &params, &e), ERR_OK);
    assert_false(answer_is_reasoning(&a) || answer_is_mark(&a, 'a'));
    for (const char *p = "aabc"; *p; p++) {
        assert_false(end);
        assert_int_equal(answer_feed(&a, *p, &end, &e), ERR_OK);
    }
    assert_true(end);
    assert_string_equal(answer_stop(&a), "bc");
    answer_finish(&a);
    answer_close(&a);
    moebius_vocab_close(&vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_text_after_a_mark_is_content),
        cmocka_unit_test(plain_text_needs_no_template_and_no_listener),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
