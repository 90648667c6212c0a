/* Answers to requests, with texts that do what a test says. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json_text.h"
#include "server/job.h"

/* ---- texts that wait for what a test does ---------------------------------------------------------------------- */

enum { MAX_TEXT = 4 };

struct texts {
    size_t n_max; /* more are refused */
    size_t n;
    struct text_sink sinks[MAX_TEXT];
    uint64_t seeds[MAX_TEXT];
    int32_t first_ids[MAX_TEXT];
    bool follows[MAX_TEXT];
    _Atomic bool is_cancelled[MAX_TEXT];
};

static struct texts texts;

err_code texts_submit(struct texts *t, const struct text_request *request, uint64_t *id, struct err *e)
{
    if (t->n == t->n_max)
        return err_set(e, ERR_LIMIT, "the queue is full");
    t->seeds[t->n] = request->sampling.seed;
    t->first_ids[t->n] = request->ids[0];
    t->follows[t->n] = request->follows;
    t->sinks[t->n++] = request->sink;
    *id = t->n;
    return ERR_OK;
}

void texts_cancel(struct texts *t, uint64_t id)
{
    assert_in_range(id, 1, t->n);
    t->is_cancelled[id - 1] = true;
}

void models_note_end(struct served_model *m)
{
}

static void say(size_t i, moebius_reply_part part, const char *text)
{
    texts.sinks[i].part(texts.sinks[i].user, part, text, strlen(text));
}

static void end(size_t i, enum text_end how)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5};
    struct err error = {0};
    err_set(&error, ERR_IO, "/models/tiny.gguf: the disk is gone");
    const struct text_result result = {
        .end = how, .error = &error, .ids = ids, .n_prompt = 2, .n_answer = 3, .n_cached = 1};
    texts.sinks[i].end(texts.sinks[i].user, &result);
}

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

static moebius_vocab *vocab;
static char model_name[] = "tiny", model_path[] = "/models/tiny.gguf";
static struct served_model model = {.name = model_name, .path = model_path, .texts = &texts, .facts = {.n_ctx = 100}};

/* How answers are told; requests are those of completions, which need no template. */
static const struct protocol *told_by = &protocol_completions;
static bool one_call;

/* What a job said in the end. */
struct heard {
    int status, n;
    struct bytes body;
};

static void on_done(void *user, int status, struct bytes *body)
{
    struct heard *h = user;
    h->status = status;
    h->n++;
    h->body = *body;
    *body = (struct bytes){0};
}

static err_code open_job(struct job **job, const char *body, struct heard *heard, struct err *e)
{
    struct server_request r;
    json_error_t error;
    texts = (struct texts){.n_max = MAX_TEXT};
    model.vocab = vocab;
    server_request_init(&r);
    err_code code = protocol_completions.parse(&r, json_read(body, strlen(body), 0, &error), e);
    const struct job_setup setup = {
        .model = &model, .protocol = told_by, .request = &r, .max_stream_bytes = 10000, .done = on_done, .user = heard};
    assert_int_equal(code, ERR_OK);
    r.one_call = one_call;
    code = job_open(job, &setup, e);
    server_request_close(&r);
    return code;
}

static struct job *start(const char *body, struct heard *heard)
{
    struct job *job;
    struct err e = {0};
    *heard = (struct heard){0};
    assert_int_equal(open_job(&job, body, heard, &e), ERR_OK);
    assert_int_equal(job_submit(job, &e), ERR_OK);
    return job;
}

static void do_nothing(void *user)
{
}

/* Takes what is in a stream; ends with how it is now. */
static enum stream_state read_all(struct stream *s, struct bytes *all)
{
    const struct stream_reader reader = {do_nothing, do_nothing, NULL};
    char text[64];
    size_t n;
    enum stream_state state;
    bytes_close(all);
    assert_int_equal(bytes_add_text(all, "", NULL), ERR_OK);
    while ((state = stream_take(s, text, sizeof text, &reader, &n)) == STREAM_BYTES)
        assert_int_equal(bytes_add(all, text, n, NULL), ERR_OK);
    return state;
}

static void has(const struct bytes *text, const char *words)
{
    if (!strstr(text->s, words))
        fail_msg("%s is not in %s", words, text->s);
}

static void has_not(const struct bytes *text, const char *words)
{
    if (strstr(text->s, words))
        fail_msg("%s is in %s", words, text->s);
}

#define PROMPT "\"prompt\": [1, 2]"

static void a_stream_tells_pieces_as_they_come(void **state)
{
    struct heard heard;
    struct job *job = start("{" PROMPT ", \"stream\": true}", &heard);
    struct stream *s = job_take_stream(job);
    struct bytes text = {0};
    assert_int_equal(read_all(s, &text), STREAM_SLEEPS);
    texts.sinks[0].prompt(texts.sinks[0].user, 1, 1, 2);
    say(0, MOEBIUS_REPLY_CONTENT, "one \xe2\x82");
    assert_int_equal(read_all(s, &text), STREAM_SLEEPS);
    has(&text, "\"one \"");
    say(0, MOEBIUS_REPLY_CONTENT, "\xac\xe2");
    assert_int_equal(read_all(s, &text), STREAM_SLEEPS);
    has(&text, "\"\xe2\x82\xac\"");
    end(0, TEXT_END_LENGTH);
    assert_int_equal(read_all(s, &text), STREAM_ENDED);
    has(&text, "\"\xef\xbf\xbd\"");
    has(&text, "\"finish_reason\":\"length\"");
    has(&text, "data: [DONE]");
    assert_int_equal(heard.n, 0);
    assert_int_equal(job_report(job).usage.n_answer, 3);
    stream_leave(&s);
    job_close(&job);
    bytes_close(&text);
}

static void a_whole_answer_waits_for_all_its_choices(void **state)
{
    struct heard heard;
    struct job *job = start("{" PROMPT ", \"n\": 2, \"seed\": 7}", &heard);
    assert_null(job_take_stream(job));
    assert_int_equal(texts.seeds[0], 7);
    assert_int_equal(texts.seeds[1], 8);
    say(1, MOEBIUS_REPLY_CONTENT, "two");
    end(1, TEXT_END_TOKEN);
    assert_int_equal(heard.n, 0);
    say(0, MOEBIUS_REPLY_CONTENT, "one");
    end(0, TEXT_END_TOKEN);
    assert_int_equal(heard.n, 1);
    assert_int_equal(heard.status, 200);
    has(&heard.body, "\"text\":\"one\",\"index\":0");
    has(&heard.body, "\"text\":\"two\",\"index\":1");
    assert_int_equal(job_report(job).usage.n_answer, 6);
    assert_int_equal(job_report(job).usage.n_prompt, 2);
    job_close(&job);
    bytes_close(&heard.body);
}

/* Each prompt is answered as if it were alone. */
static void several_prompts_have_their_answers_in_order(void **state)
{
    static const int32_t first_ids[MAX_TEXT] = {1, 1, 3, 3};
    struct heard heard;
    struct job *job = start("{\"prompt\": [[1, 2], [3]], \"n\": 2, \"seed\": 7, \"echo\": true}", &heard);
    assert_int_equal(texts.n, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(texts.first_ids[i], first_ids[i]);
        assert_int_equal(texts.seeds[i], 7 + i % 2);
        assert_int_equal(texts.follows[i], i > 0);
        say(i, MOEBIUS_REPLY_CONTENT, i % 2 ? "odd" : "even");
    }
    for (size_t i = 4; i-- > 0;)
        end(i, TEXT_END_TOKEN);
    assert_int_equal(heard.status, 200);
    has(&heard.body, "even\",\"index\":2");
    has(&heard.body, "odd\",\"index\":3");
    has(&heard.body, "\"prompt_tokens\":4,\"completion_tokens\":12");
    assert_int_equal(job_report(job).usage.n_prompt, 4);
    assert_int_equal(job_report(job).usage.n_cached, 2);
    job_close(&job);
    bytes_close(&heard.body);
}

static void prompts_have_a_bounded_number_of_scores(void **state)
{
    enum { N_PROMPT = 1000, N_TOK = 50 };
    struct err e = {0};
    struct job *job;
    struct bytes body = {0};
    bytes_put_text(&body, "{\"echo\": true, \"logprobs\": 20, \"prompt\": [");
    for (int i = 0; i < N_PROMPT * N_TOK; i++) {
        const char *before = i % N_TOK ? "," : i ? "], [" : "[";
        bytes_put_text(&body, before);
        bytes_put_text(&body, "1");
    }
    bytes_put_text(&body, "]]}");
    struct heard heard = {0};
    assert_int_equal(open_job(&job, body.s, &heard, &e), ERR_OK);
    assert_int_equal(job_submit(job, &e), ERR_USAGE);
    assert_string_equal(e.text,
                        "logprobs: 1050000 of the prompts' tokens and of the likeliest; expected at most 1000000");
    assert_int_equal(texts.n, 0);
    job_close(&job);
    bytes_close(&body);
}

static void errors_say_which_of_several_prompts(void **state)
{
    struct heard heard = {0};
    struct err e = {0};
    struct job *job;
    assert_int_equal(open_job(&job, "{\"prompt\": [[1], [1000000000]]}", &heard, &e), ERR_OK);
    assert_int_equal(job_submit(job, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "prompt[1]: token 0 is 1000000000"));
    assert_int_equal(texts.n, 0);
    job_close(&job);
    model.facts.n_ctx = 3;
    assert_int_equal(open_job(&job, "{\"prompt\": [[1], [1, 2, 3]]}", &heard, &e), ERR_OK);
    assert_int_equal(job_submit(job, &e), ERR_LIMIT);
    assert_string_equal(e.text, "prompt[1]: prompt is too long: 3 tokens > 2 maximum");
    assert_int_equal(server_http_status(&e), 400);
    model.facts.n_ctx = 100;
    job_close(&job);
    job = start("{\"prompt\": [[1], [2]]}", &heard);
    end(1, TEXT_END_FAILED);
    end(0, TEXT_END_CANCELLED);
    assert_int_equal(heard.status, 500);
    has(&heard.body, "prompt[1]: tiny.gguf: the disk is gone");
    job_close(&job);
    bytes_close(&heard.body);
}

static void say_call(const char *word)
{
    say(0, MOEBIUS_REPLY_CALL, "look_up");
    say(0, MOEBIUS_REPLY_ARGUMENTS, "{\"word\":\"\xc3");
    say(0, MOEBIUS_REPLY_ARGUMENTS, "\xa9");
    say(0, MOEBIUS_REPLY_ARGUMENTS, word);
    say(0, MOEBIUS_REPLY_ARGUMENTS, "\"}");
    say(0, MOEBIUS_REPLY_CALL_END, "");
}

static const char *id_of_call(const json_t *answer, size_t call)
{
    json_t *message = json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "message");
    return json_string_value(json_object_get(json_array_get(json_object_get(message, "tool_calls"), call), "id"));
}

static void calls_have_names_arguments_and_ids(void **state)
{
    struct heard heard;
    json_error_t error;
    told_by = &protocol_chat;
    struct job *job = start("{" PROMPT "}", &heard);
    say(0, MOEBIUS_REPLY_CONTENT, "let me see");
    say_call("one");
    say(0, MOEBIUS_REPLY_NOTE, "a note is for the log");
    say_call("two");
    end(0, TEXT_END_TOKEN);
    has(&heard.body, "let me see");
    has(&heard.body, "\"name\":\"look_up\",\"arguments\":\"{\\\"word\\\":\\\"\xc3\xa9two\\\"}\"");
    has(&heard.body, "\"finish_reason\":\"tool_calls\"");
    has_not(&heard.body, "a note");
    json_t *answer = json_read(heard.body.s, heard.body.n, 0, &error);
    const char *first = id_of_call(answer, 0), *second = id_of_call(answer, 1);
    assert_non_null(second);
    assert_int_equal(strlen(first), strlen("call_") + 32);
    assert_string_not_equal(first, second);
    json_decref(answer);
    job_close(&job);
    bytes_close(&heard.body);
    told_by = &protocol_completions;
}

static void one_call_is_enough_where_there_shall_be_one(void **state)
{
    struct heard heard;
    struct bytes text = {0};
    told_by = &protocol_chat;
    one_call = true;
    struct job *job = start("{" PROMPT ", \"stream\": true}", &heard);
    struct stream *s = job_take_stream(job);
    say_call("one");
    say(0, MOEBIUS_REPLY_CONTENT, "\n");
    assert_false(texts.is_cancelled[0]); /* it may end by itself */
    say_call("two");
    assert_true(texts.is_cancelled[0]);
    say(0, MOEBIUS_REPLY_CONTENT, "and more");
    end(0, TEXT_END_CANCELLED);
    assert_int_equal(read_all(s, &text), STREAM_ENDED);
    has(&text, "one");
    has(&text, "\"finish_reason\":\"tool_calls\"");
    has_not(&text, "two");
    has_not(&text, "and more");
    stream_leave(&s);
    job_close(&job);
    bytes_close(&text);
    told_by = &protocol_completions;
    one_call = false;
}

static void one_choice_that_is_refused_refuses_all(void **state)
{
    struct heard heard = {0};
    struct job *job;
    struct err e = {0};
    assert_int_equal(open_job(&job, "{" PROMPT ", \"n\": 3}", &heard, &e), ERR_OK);
    texts.n_max = 2;
    assert_int_equal(job_submit(job, &e), ERR_LIMIT);
    assert_true(texts.is_cancelled[0] && texts.is_cancelled[1]);
    end(0, TEXT_END_CANCELLED);
    job_close(&job);
    end(1, TEXT_END_CANCELLED);
    assert_int_equal(heard.n, 0);
}

static void failures_are_told(void **state)
{
    struct heard heard;
    struct bytes text = {0};
    struct job *job = start("{" PROMPT "}", &heard);
    end(0, TEXT_END_FAILED);
    assert_int_equal(heard.status, 500);
    has(&heard.body, "tiny.gguf: the disk is gone");
    has_not(&heard.body, "/models");
    assert_true(job_report(job).failed);
    job_close(&job);
    bytes_close(&heard.body);

    job = start("{" PROMPT ", \"stream\": true, \"n\": 2}", &heard);
    struct stream *s = job_take_stream(job);
    end(0, TEXT_END_FAILED);
    assert_true(texts.is_cancelled[1]);
    say(1, MOEBIUS_REPLY_CONTENT, "nobody hears this");
    end(1, TEXT_END_CANCELLED);
    assert_int_equal(read_all(s, &text), STREAM_ENDED);
    has(&text, "the disk is gone");
    has_not(&text, "nobody");
    stream_leave(&s);
    job_close(&job);
    bytes_close(&text);
}

static void who_leaves_ends_the_texts(void **state)
{
    struct heard heard = {0};
    struct err e = {0};
    struct job *job = start("{" PROMPT ", \"n\": 2}", &heard);
    end(1, TEXT_END_TOKEN);
    job_cancel(job);
    assert_true(texts.is_cancelled[0]);
    assert_false(texts.is_cancelled[1]);
    end(0, TEXT_END_CANCELLED);
    assert_int_equal(heard.n, 1);
    assert_int_equal(heard.status, 499);
    job_close(&job);
    bytes_close(&heard.body);

    assert_int_equal(open_job(&job, "{" PROMPT "}", &heard, &e), ERR_OK);
    job_cancel(job);
    assert_int_equal(job_submit(job, &e), ERR_OK);
    assert_true(texts.is_cancelled[0]);
    end(0, TEXT_END_CANCELLED);
    job_close(&job);
    bytes_close(&heard.body);
}

static void a_client_that_waits_hears_that_all_is_well(void **state)
{
    struct heard heard;
    struct bytes text = {0};
    struct job *job = start("{" PROMPT ", \"stream\": true}", &heard);
    struct stream *s = job_take_stream(job);
    job_tick(job, INT64_MAX);
    assert_int_equal(read_all(s, &text), STREAM_SLEEPS);
    has(&text, ": ping");
    job_tick(job, 0);
    assert_int_equal(read_all(s, &text), STREAM_SLEEPS);
    assert_string_equal(text.s, "");
    end(0, TEXT_END_TOKEN);
    stream_leave(&s);
    job_close(&job);
    bytes_close(&text);
}

static void what_does_not_fit_is_refused(void **state)
{
    struct heard heard = {0};
    struct err e = {0};
    struct job *job;
    model.facts.n_ctx = 2;
    assert_int_equal(open_job(&job, "{" PROMPT "}", &heard, &e), ERR_OK);
    assert_int_equal(job_submit(job, &e), ERR_LIMIT);
    assert_true(server_is_overflow(&e));
    job_close(&job);
    model.facts.n_ctx = 100;
    assert_int_equal(open_job(&job, "{\"prompt\": [1000000000]}", &heard, &e), ERR_OK);
    assert_int_equal(job_submit(job, &e), ERR_USAGE);
    job_close(&job);
    assert_int_equal(heard.n, 0);
}

/* As one that waits for its model. */
static void a_stream_that_is_not_submitted_pings_and_tells_why_not(void **state)
{
    struct heard heard = {0};
    struct err e = {0}, why = {0};
    struct bytes text = {0};
    struct job *job;
    for (int is_left = 0; is_left < 2; is_left++) {
        assert_int_equal(open_job(&job, "{" PROMPT ", \"stream\": true}", &heard, &e), ERR_OK);
        assert_true(job_is_streamed(job));
        struct stream *s = job_take_stream(job);
        assert_false(job_tick(job, 0));
        assert_true(job_tick(job, INT64_MAX));
        assert_int_equal(read_all(s, &text), STREAM_SLEEPS);
        has(&text, ": ping");
        if (is_left)
            job_cancel(job);
        assert_int_equal(job_tick(job, INT64_MAX), !is_left);
        err_set(&why, ERR_IO, "tiny.gguf: the disk is gone");
        job_fail(job, &why);
        job_fail(job, &why); /* is told once */
        assert_int_equal(read_all(s, &text), is_left ? STREAM_BROKEN : STREAM_ENDED);
        if (!is_left)
            has(&text, "data: {\"error\":{\"message\":\"tiny.gguf: the disk is gone\"");
        assert_false(job_tick(job, INT64_MAX));
        assert_int_equal(texts.n, 0);
        stream_leave(&s);
        job_close(&job);
    }
    assert_int_equal(heard.n, 0);
    bytes_close(&text);
}

/* ---- threads --------------------------------------------------------------------------------------------------- */

static void *drive(void *user)
{
    for (int i = 0; i < 1000 && !texts.is_cancelled[0]; i++)
        say(0, MOEBIUS_REPLY_CONTENT, "word ");
    end(0, texts.is_cancelled[0] ? TEXT_END_CANCELLED : TEXT_END_TOKEN);
    return NULL;
}

static void threads_meet_well(void **state)
{
    for (int i = 0; i < 50; i++) {
        struct heard heard;
        struct bytes text = {0};
        pthread_t driver;
        struct job *job = start("{" PROMPT ", \"stream\": true}", &heard);
        struct stream *s = job_take_stream(job);
        assert_int_equal(pthread_create(&driver, NULL, drive, NULL), 0);
        for (int k = 0; k < i; k++) {
            job_tick(job, INT64_MAX);
            (void)read_all(s, &text);
        }
        if (i % 2)
            job_cancel(job);
        stream_leave(&s);
        job_close(&job);
        pthread_join(driver, NULL);
        bytes_close(&text);
    }
}

static int open_vocab(void **state)
{
    if (replay_open(&model.replay, NULL, 0, NULL) != ERR_OK)
        return -1;
    return moebius_vocab_open(&vocab, GOLDEN "/llama_moe.gguf", NULL) == MOEBIUS_OK ? 0 : -1;
}

static int close_vocab(void **state)
{
    moebius_vocab_close(&vocab);
    replay_close(&model.replay);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_tells_pieces_as_they_come),
        cmocka_unit_test(a_whole_answer_waits_for_all_its_choices),
        cmocka_unit_test(several_prompts_have_their_answers_in_order),
        cmocka_unit_test(prompts_have_a_bounded_number_of_scores),
        cmocka_unit_test(errors_say_which_of_several_prompts),
        cmocka_unit_test(calls_have_names_arguments_and_ids),
        cmocka_unit_test(one_call_is_enough_where_there_shall_be_one),
        cmocka_unit_test(one_choice_that_is_refused_refuses_all),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(who_leaves_ends_the_texts),
        cmocka_unit_test(a_client_that_waits_hears_that_all_is_well),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_stream_that_is_not_submitted_pings_and_tells_why_not),
        cmocka_unit_test(threads_meet_well),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
