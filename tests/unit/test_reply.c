#define _GNU_SOURCE
/* Answers of a model, read by its template: reasoning and calls apart, the end where the template has it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "moebius/moebius.h"
#include "small_vocab.h"
#include "temp_folder.h"

static const char *const controls[] = {
    "<|im_start|>",  "<|im_end|>", "<|channel|>", "<|message|>",  "<|end|>", "<|start|>", "<|return|>",
    "<|eos|>",       "<turn>",     "<|call|>",    "[TOOL_CALLS]", "[ARGS]",  "[CALL_ID]", "<|message_sep|>\n\n",
    "<|role_sep|>\n"};

/* Bytes and a few control tokens (<|call|> and <|return|>: then <|end|> ends a part, not the answer), and a template in
 * the file. */
static moebius_vocab *open_vocab(const char *source)
{
    struct small_vocab v;
    struct err e;
    moebius_vocab *vocab;
    assert_int_equal(small_begin(&v, "gpt2", "gpt-2", &e), ERR_OK);
    small_add_bytes(&v);
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++)
        small_add(&v, controls[i], SMALL_CONTROL, 0);
    gguf_writer_add_strings(v.w, "tokenizer.ggml.merges", NULL, 0);
    gguf_writer_add_u32(v.w, "tokenizer.ggml.eos_token_id", 256 + 7);
    gguf_writer_add_string(v.w, "tokenizer.chat_template", source);
    gguf_writer_add_string(v.w, "tokenizer.chat_template.tool_use", "tools");
    struct temp_path path = temp_path(&folder, "vocab.gguf");
    assert_int_equal(small_write(&v, path.s, &e), ERR_OK);
    moebius_error error;
    if (moebius_vocab_open(&vocab, path.s, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return vocab;
}

struct answer {
    char content[200], reasoning[200];
    size_t n_fed;
    bool ended;
};

static void collect(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct answer *a = user;
    char *to = part == MOEBIUS_REPLY_CONTENT ? a->content : a->reasoning;
    strncat(to, text, n);
}

/* The answer that the model gives token by token; what arrived in pieces is what is there at the end. */
static struct answer read_answer(const char *source, const char *prompt, const char *text)
{
    moebius_vocab *vocab = open_vocab(source);
    moebius_template *tmpl;
    moebius_reply *reply;
    moebius_error error;
    struct answer a = {0};
    int32_t *ids;
    size_t n_ids, n;
    assert_string_equal(moebius_vocab_template(vocab, NULL), source);
    assert_string_equal(moebius_vocab_template(vocab, "tool_use"), "tools");
    assert_null(moebius_vocab_template(vocab, "other"));
    assert_int_equal(moebius_template_open(&tmpl, source, strlen(source), vocab, &error), MOEBIUS_OK);
    assert_int_equal(moebius_reply_open(&reply, tmpl, prompt, collect, &a, &error), MOEBIUS_OK);
    assert_int_equal(moebius_tokenize(vocab, text, strlen(text), false, true, &ids, &n_ids, &error), MOEBIUS_OK);
    while (a.n_fed < n_ids && !a.ended)
        assert_int_equal(moebius_reply_feed(reply, ids[a.n_fed++], &a.ended, &error), MOEBIUS_OK);
    moebius_reply_finish(reply);
    assert_string_equal(moebius_reply_text(reply, MOEBIUS_REPLY_CONTENT, &n), a.content);
    assert_int_equal(n, strlen(a.content));
    assert_string_equal(moebius_reply_text(reply, MOEBIUS_REPLY_REASONING, &n), a.reasoning);
    moebius_reply_close(&reply);
    moebius_template_close(&tmpl);
    moebius_vocab_close(&vocab);
    moebius_free(ids);
    return a;
}

static void is_answer(struct answer a, const char *reasoning, const char *content, bool ended)
{
    assert_string_equal(a.reasoning, reasoning);
    assert_string_equal(a.content, content);
    assert_int_equal(a.ended, ended);
}

#define CHATML "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
#define ODD                                                                                                            \
    "{%- for m in messages %}{{ m.role + ': ' + m.content }}{{ '<turn>' if m.role == 'assistant' else '\\n' }}"        \
    "{% endfor %}"

static void ends_where_the_template_ends_it(void **state)
{
    is_answer(read_answer(CHATML, "", "Hi.<|im_end|>\nmore"), "", "Hi.", true);
    is_answer(read_answer(CHATML, "", "Hi.<|eos|>more"), "", "Hi.", true);
    is_answer(read_answer(CHATML, "", "Hi.<turn>more"), "", "Hi.more", false); /* a control token says nothing */
    is_answer(read_answer(ODD, "", "Hi.<turn>more"), "", "Hi.", true);
    is_answer(read_answer("{{ raise_exception('no') }}", "", "a<turn>b<|eos|>"), "", "ab", true);
}

static void reasoning_is_apart(void **state)
{
    is_answer(read_answer(CHATML, "", "<think>\nhm <b\n</think>\n\nYes </x>.<|im_end|>"), "hm <b\n", "Yes </x>.", true);
    is_answer(read_answer(CHATML, "x <think>\n", "hm</think>Yes"), "hm", "Yes", false);
    is_answer(read_answer(CHATML, "x <think></think>", "Yes"), "", "Yes", false);
    is_answer(read_answer(CHATML, "", "The <think> tag, </think>"), "", "The <think> tag, </think>", false);
    is_answer(read_answer(CHATML, "", "cut <thin"), "", "cut <thin", false);
    is_answer(read_answer(CHATML, "", "<think>cut</thin"), "cut</thin", "", false);
    is_answer(read_answer(CHATML "{# [THINK] #}", "", "[THINK]a[/THINK]b <think>"), "a", "b <think>", false);
}

static void content_may_have_marks_around_it(void **state)
{
    static const char ernie[] = CHATML "{# <global_setting> #}";
    is_answer(read_answer(ernie, "", "<think>\nhm\n</think>\n\n<response>\nYes.\n\n</response>\n<|im_end|>"), "hm\n",
              "Yes.", true);
    is_answer(read_answer(ernie, "", "A <response> </response> tag. </respons"), "",
              "A <response> </response> tag. </respons", false);
    is_answer(read_answer(CHATML "{# <answer> #}", "", "<think>\nhm\n</think>\n<answer>\nYes.\n</answer>"), "hm\n",
              "Yes.", false);
    is_answer(read_answer(CHATML, "", "<response>Yes</response>"), "", "<response>Yes</response>", false);
}

static void channels_are_read(void **state)
{
    is_answer(read_answer(
                  CHATML "{# <|channel|>analysis #}", "",
                  "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>"),
              "hm", "Yes", true);
}

#define TOOLS  "[{\"name\": \"get\", \"parameters\": {\"type\": \"object\"}}]"
#define MARKED CHATML "{# [TOOL_CALLS] [ARGS] #}"
#define GIGACHAT                                                                                                       \
    "{%- for m in messages %}{{ m.role + '<|role_sep|>\\n' + m.content + '<|message_sep|>\\n\\n' }}{% endfor %}"
#define GIGACHAT_CALL "<|message_sep|>\n\nfunction call<|role_sep|>\n"

struct calls {
    char text[400]; /* of all parts, each in front of its text */
};

static void collect_calls(void *user, moebius_reply_part part, const char *text, size_t n)
{
    static const char *const names[] = {"content ", "reasoning ", "call ", "arguments ", "end ", "note "};
    struct calls *c = user;
    strcat(c->text, names[part]);
    strncat(c->text, part == MOEBIUS_REPLY_NOTE ? "." : text, part == MOEBIUS_REPLY_NOTE ? 1 : n);
    strcat(c->text, "|");
}

/* Whole pieces, as the tokens come: what is told, in order. */
static struct calls read_calls(const char *source, const char *text, const char *tools)
{
    moebius_vocab *vocab = open_vocab(source);
    moebius_template *tmpl;
    moebius_reply *reply;
    moebius_error error;
    struct calls c = {0};
    int32_t *ids;
    size_t n_ids, n;
    bool end = false;
    assert_int_equal(moebius_template_open(&tmpl, source, strlen(source), vocab, &error), MOEBIUS_OK);
    assert_string_equal(moebius_template_family(tmpl), strcmp(source, MARKED) ? "gigachat" : "mistral");
    assert_int_equal(moebius_reply_open(&reply, tmpl, "", collect_calls, &c, &error), MOEBIUS_OK);
    if (tools)
        assert_int_equal(moebius_reply_set_tools(reply, tools, &error), MOEBIUS_OK);
    assert_int_equal(moebius_tokenize(vocab, text, strlen(text), false, true, &ids, &n_ids, &error), MOEBIUS_OK);
    for (size_t i = 0; i < n_ids && !end; i++)
        assert_int_equal(moebius_reply_feed(reply, ids[i], &end, &error), MOEBIUS_OK);
    moebius_reply_finish(reply);
    const char *content = moebius_reply_text(reply, MOEBIUS_REPLY_CONTENT, &n);
    assert_int_equal(strlen(content), n);
    moebius_reply_close(&reply);
    moebius_template_close(&tmpl);
    moebius_vocab_close(&vocab);
    moebius_free(ids);
    return c;
}

static void calls_of_tools_are_told_when_they_are_named(void **state)
{
    struct calls c = read_calls(MARKED, "[TOOL_CALLS]get[CALL_ID]abc[ARGS]{}<|im_end|>", TOOLS);
    assert_string_equal(c.text, "call get|arguments {|arguments }|end abc|");
    c = read_calls(MARKED, "[TOOL_CALLS]set[ARGS]{}<|eos|>", TOOLS);
    assert_string_equal(c.text, "note .|content [TOOL_CALLS]set[ARGS]{|content }|");
    c = read_calls(MARKED, "[TOOL_CALLS]get[ARGS]{}", NULL); /* control tokens that are no marks say nothing */
    assert_string_equal(c.text, "content g|content e|content t|content {|content }|");
}

static void a_call_may_follow_the_token_that_ends_answers(void **state)
{
    struct calls c = read_calls(GIGACHAT, "Hi" GIGACHAT_CALL "{\"name\": \"get\", \"arguments\": {}}<|eos|>", TOOLS);
    assert_string_equal(c.text, "content H|content i|call get|arguments {|arguments }|end |");
    c = read_calls(GIGACHAT, GIGACHAT_CALL "{\"name\": \"get\", \"arguments\": {}}<|message_sep|>\n\nx", TOOLS);
    assert_string_equal(c.text, "call get|arguments {|arguments }|end |");
    static const char *const others[] = {"<|message_sep|>\n\nuser<|role_sep|>\nx", "<|message_sep|>\n\nfunction result",
                                         "<|message_sep|>\n\nfunction", "<|message_sep|>\n\n<|eos|>x"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char text[100];
        snprintf(text, sizeof text, "Hi%s", others[i]);
        c = read_calls(GIGACHAT, text, TOOLS);
        assert_string_equal(c.text, "content H|content i|");
    }
    c = read_calls(GIGACHAT, "Hi" GIGACHAT_CALL "{", NULL);
    assert_string_equal(c.text, "content H|content i|");
}

static void tools_are_checked(void **state)
{
    moebius_vocab *vocab = open_vocab(CHATML);
    moebius_template *tmpl;
    moebius_reply *reply;
    moebius_error error;
    assert_int_equal(moebius_template_open(&tmpl, CHATML, strlen(CHATML), vocab, &error), MOEBIUS_OK);
    assert_string_equal(moebius_template_family(tmpl), "generic");
    assert_string_equal(moebius_template_source(tmpl), CHATML);
    assert_int_equal(moebius_reply_open(&reply, tmpl, "", NULL, NULL, &error), MOEBIUS_OK);
    assert_int_equal(moebius_reply_set_tools(reply, "{}", &error), MOEBIUS_FORMAT);
    assert_int_equal(moebius_reply_set_tools(reply, TOOLS, &error), MOEBIUS_OK);
    moebius_reply_close(&reply);
    moebius_template_close(&tmpl);
    moebius_vocab_close(&vocab);
}

/* Whether a matcher accepts the tokens of a text, in which special tokens are such or just look so. */
static bool follows(const moebius_vocab *vocab, const char *grammar, const char *text, bool has_special)
{
    moebius_grammar *g;
    moebius_matcher *m;
    moebius_error error;
    int32_t *ids;
    size_t n;
    assert_int_equal(moebius_grammar_open(&g, vocab, MOEBIUS_GRAMMAR_GBNF, grammar, strlen(grammar), 0, &error),
                     MOEBIUS_OK);
    assert_int_equal(moebius_matcher_open(&m, g, &error), MOEBIUS_OK);
    assert_int_equal(moebius_tokenize(vocab, text, strlen(text), false, has_special, &ids, &n, &error), MOEBIUS_OK);
    bool good = true;
    for (size_t i = 0; i < n && good; i++)
        good = moebius_matcher_accept(m, ids[i]);
    good = good && moebius_matcher_may_end(m);
    moebius_free(ids);
    moebius_matcher_close(&m);
    moebius_grammar_close(&g);
    return good;
}

static void a_grammar_of_calls_begins_with_its_trigger(void **state)
{
    moebius_vocab *vocab = open_vocab(MARKED);
    moebius_template *tmpl;
    moebius_error error;
    const char *trigger;
    char *grammar;
    moebius_call_grammar_input input = {.tools = TOOLS};
    assert_int_equal(moebius_template_open(&tmpl, MARKED, strlen(MARKED), vocab, &error), MOEBIUS_OK);
    assert_int_equal(moebius_template_call_grammar(tmpl, &input, &grammar, &trigger, &error), MOEBIUS_OK);
    assert_string_equal(trigger, "[TOOL_CALLS]");
    assert_true(follows(vocab, grammar, "[TOOL_CALLS]get[ARGS]{}", true));
    assert_false(follows(vocab, grammar, "[TOOL_CALLS]get[ARGS]{}", false));
    assert_false(follows(vocab, grammar, "[TOOL_CALLS]put[ARGS]{}", true));
    moebius_free(grammar);
    input.name = "other";
    assert_int_equal(moebius_template_call_grammar(tmpl, &input, &grammar, &trigger, &error), MOEBIUS_USAGE);
    assert_null(grammar);
    moebius_template_close(&tmpl);
    moebius_vocab_close(&vocab);
}

static void a_template_without_a_vocabulary_reads_no_answers(void **state)
{
    moebius_template *tmpl;
    moebius_reply *reply;
    moebius_error error;
    assert_int_equal(moebius_template_open(&tmpl, "x", 1, NULL, &error), MOEBIUS_OK);
    assert_int_equal(moebius_reply_open(&reply, tmpl, "", NULL, NULL, &error), MOEBIUS_USAGE);
    assert_null(reply);
    moebius_template_close(&tmpl);
    assert_int_equal(moebius_template_open(&tmpl, "{{", 2, NULL, &error), MOEBIUS_FORMAT);
    assert_null(tmpl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_where_the_template_ends_it),
        cmocka_unit_test(reasoning_is_apart),
        cmocka_unit_test(content_may_have_marks_around_it),
        cmocka_unit_test(channels_are_read),
        cmocka_unit_test(calls_of_tools_are_told_when_they_are_named),
        cmocka_unit_test(a_call_may_follow_the_token_that_ends_answers),
        cmocka_unit_test(tools_are_checked),
        cmocka_unit_test(a_grammar_of_calls_begins_with_its_trigger),
        cmocka_unit_test(a_template_without_a_vocabulary_reads_no_answers),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
