#define _XOPEN_SOURCE 700
/* Answers that called tools come back as the tokens that were sampled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "server/call_replay.h"
#include "temp_folder.h"

enum { END = 9, N_PROMPT = 20, N_ANSWER = 4 };

/* A prompt, and the answer that was sampled: 101, 102, 103, END. */
static void fill_sampled(int32_t ids[N_PROMPT + N_ANSWER])
{
    static const int32_t answer[N_ANSWER] = {101, 102, 103, END};
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = 1000 + i;
    memcpy(ids + N_PROMPT, answer, sizeof answer);
}

static json_t *message(const char *content, const char *id, const char *arguments)
{
    return json_pack("{s:s, s:s?, s:[{s:s, s:s, s:{s:s, s:s}}]}", "role", "assistant", "content", content, "tool_calls",
                     "id", id, "type", "function", "function", "name", "read", "arguments", arguments);
}

static struct replay *open_replay(const char *path, uint64_t fingerprint)
{
    struct err e;
    struct replay *r;
    assert_int_equal(replay_open(&r, path, fingerprint, &e), ERR_OK);
    return r;
}

static void add_sampled(struct replay *r)
{
    struct err e;
    int32_t ids[N_PROMPT + N_ANSWER];
    json_t *said = message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}");
    fill_sampled(ids);
    const struct replay_answer a = {ids, N_PROMPT, N_ANSWER, said};
    assert_int_equal(replay_add(r, &a, &e), ERR_OK);
    json_decref(said);
}

/* What becomes of the prompt's first tokens but for `changed` of its last ones, then 201, END and 301, with this
 * message in the history. Returns its length. */
static size_t apply(struct replay *r, json_t *said, int changed, int32_t out[64])
{
    struct err e;
    int32_t sampled[N_PROMPT + N_ANSWER], rest[] = {201, END, 301}, *ids = mem_calloc(N_PROMPT + 3, sizeof *ids);
    size_t n = N_PROMPT + 3;
    json_t *messages = json_pack("[{s:s, s:s}, o, {s:s, s:s}]", "role", "user", "content", "look", said, "role", "tool",
                                 "content", "int x;");
    fill_sampled(sampled);
    memcpy(ids, sampled, N_PROMPT * sizeof *ids);
    for (int i = 0; i < changed; i++)
        ids[N_PROMPT - 1 - i] = 7;
    memcpy(ids + N_PROMPT, rest, sizeof rest);
    assert_int_equal(replay_apply(r, messages, &ids, &n, &e), ERR_OK);
    memcpy(out, ids, n * sizeof *ids);
    mem_free(ids);
    json_decref(messages);
    return n;
}

/* The prompt, the sampled answer, and what the template wrote behind it. */
static void assert_replayed(struct replay *r, json_t *said, int changed)
{
    int32_t out[64], expected[N_PROMPT + N_ANSWER];
    fill_sampled(expected);
    assert_int_equal(apply(r, said, changed, out), N_PROMPT + N_ANSWER + 1);
    assert_memory_equal(out, expected, sizeof expected);
    assert_int_equal(out[N_PROMPT + N_ANSWER], 301);
}

static void assert_left_alone(struct replay *r, json_t *said, int changed)
{
    int32_t out[64];
    assert_int_equal(apply(r, said, changed, out), N_PROMPT + 3);
    assert_int_equal(out[N_PROMPT], 201);
}

static void sampled_tokens_take_their_place(void **state)
{
    struct replay *r = open_replay(NULL, 1);
    add_sampled(r);
    assert_replayed(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    replay_close(&r);
}

static void a_message_that_stands_there_often_is_looked_for_once(void **state)
{
    enum { N_MESSAGE = 50000, N_TOKEN = 1 << 20, MOST_S = 5 }; /* half a minute where each copies all tokens */
    struct err e;
    struct replay *r = open_replay(NULL, 1);
    int32_t *ids = mem_calloc(N_TOKEN, sizeof *ids);
    size_t n = N_TOKEN;
    json_t *said = message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), *messages = json_array();
    add_sampled(r);
    fill_sampled(ids);
    for (int i = 0; i < N_MESSAGE; i++)
        json_array_append(messages, said);
    clock_t begin = clock();
    assert_int_equal(replay_apply(r, messages, &ids, &n, &e), ERR_OK);
    assert_true((clock() - begin) / CLOCKS_PER_SEC < MOST_S);
    assert_int_equal(n, N_TOKEN);
    assert_int_equal(ids[N_PROMPT], 101);
    mem_free(ids);
    json_decref(messages);
    json_decref(said);
    replay_close(&r);
}

static void json_and_spaces_may_be_written_in_other_ways(void **state)
{
    struct replay *r = open_replay(NULL, 1);
    add_sampled(r);
    assert_replayed(r, message(" I look.\n", "call_1", "{ \"lines\": [1, 2], \"path\": \"a\\u002ec\" }"), 0);
    json_t *said = message("I look.", "call_1", "");
    json_object_set_new(json_object_get(json_array_get(json_object_get(said, "tool_calls"), 0), "function"),
                        "arguments", json_pack("{s:s, s:[i,i]}", "path", "a.c", "lines", 1, 2));
    assert_replayed(r, said, 0);
    replay_close(&r);
}

static void a_prompt_may_end_otherwise_in_a_history(void **state)
{
    struct replay *r = open_replay(NULL, 1);
    add_sampled(r);
    assert_replayed(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 2);
    assert_left_alone(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 17);
    replay_close(&r);
}

static void what_the_client_changed_stays_as_it_is(void **state)
{
    struct replay *r = open_replay(NULL, 1);
    add_sampled(r);
    assert_left_alone(r, message("I looked.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    assert_left_alone(r, message(NULL, "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    assert_left_alone(r, message("I look.", "call_1", "{\"path\":\"b.c\",\"lines\":[1,2]}"), 0);
    assert_left_alone(r, message("I look.", "call_1", "not JSON"), 0);
    assert_left_alone(r, message("I look.", "call_2", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    replay_close(&r);
}

/* Where turns of both end alike, the end of what the user now says otherwise is not the answer's. */
static void the_end_of_another_turn_is_not_the_answers(void **state)
{
    struct err e;
    struct replay *r = open_replay(NULL, 1);
    int32_t sampled[N_PROMPT + N_ANSWER], *ids = mem_calloc(N_PROMPT + 5, sizeof *ids);
    const int32_t rest[] = {401, 402, END, 201, END};
    json_t *said = message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}");
    json_t *messages = json_pack("[o]", json_incref(said));
    size_t n = N_PROMPT + 2;
    fill_sampled(sampled);
    sampled[N_PROMPT - 3] = END; /* of the user's turn */
    const struct replay_answer a = {sampled, N_PROMPT, N_ANSWER, said};
    assert_int_equal(replay_add(r, &a, &e), ERR_OK);
    memcpy(ids, sampled, N_PROMPT * sizeof *ids);
    memcpy(ids + N_PROMPT - 5, rest, sizeof rest); /* other words before that end */
    ids[N_PROMPT] = 202;
    ids[N_PROMPT + 1] = END;
    assert_int_equal(replay_apply(r, messages, &ids, &n, &e), ERR_OK);
    assert_int_equal(n, N_PROMPT + 2);
    assert_memory_equal(ids + N_PROMPT - 5, rest, sizeof rest);
    mem_free(ids);
    json_decref(messages);
    json_decref(said);
    replay_close(&r);
}

static void long_answers_are_forgotten_earlier(void **state)
{
    enum { N = 600000 };
    struct err e;
    struct replay *r = open_replay(NULL, 1);
    int32_t *ids = mem_calloc(N_PROMPT + N, sizeof *ids);
    add_sampled(r);
    for (int i = 0; i < 2; i++) {
        json_t *said = message("I look.", i ? "call_3" : "call_2", "{}");
        const struct replay_answer a = {ids, N_PROMPT, N, said};
        assert_int_equal(replay_add(r, &a, &e), ERR_OK);
        json_decref(said);
        if (i == 0)
            assert_replayed(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    }
    assert_left_alone(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    mem_free(ids);
    replay_close(&r);
}

static void answers_outlive_the_server(void **state)
{
    const struct temp_path file = temp_path(*state, "answers");
    const char *path = file.s;
    struct replay *r = open_replay(path, 1);
    add_sampled(r);
    replay_close(&r);
    FILE *f = fopen(path, "a"); /* what a killed server may leave */
    fputs("{\"model\":\"00", f);
    fclose(f);
    r = open_replay(path, 1);
    assert_replayed(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    replay_close(&r);
    r = open_replay(path, 2);
    assert_left_alone(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    add_sampled(r); /* behind the piece of a line */
    replay_close(&r);
    r = open_replay(path, 2);
    assert_replayed(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    replay_close(&r);
}

static void lines_that_are_no_answers_are_left_out(void **state)
{
    const struct temp_path file = temp_path(*state, "lines");
    const char *path = file.s;
    write_text_file(
        path,
        "[]\n{}\nnull\n\n{\"model\":\"0000000000000001\",\"n_prompt\":-5,\"before\":\"\",\"tail\":[],\"ids\":[1],"
        "\"message\":{\"tool_calls\":[{\"id\":\"call_1\"}]}}\n"
        "{\"model\":\"0000000000000001\",\"n_prompt\":1,\"before\":\"x\",\"tail\":[1,2],\"ids\":[1],\"message\":3}\n");
    struct replay *r = open_replay(path, 1);
    assert_left_alone(r, message("I look.", "call_1", "{}"), 0);
    replay_close(&r);
}

static void the_oldest_calls_are_forgotten(void **state)
{
    struct err e;
    struct replay *r = open_replay(NULL, 1);
    int32_t ids[N_PROMPT + N_ANSWER];
    add_sampled(r);
    fill_sampled(ids);
    for (int i = 0; i < 5000; i++) {
        char id[32];
        snprintf(id, sizeof id, "more_%d", i);
        json_t *said = message("", id, "{}");
        assert_int_equal(replay_add(r, &(struct replay_answer){ids, N_PROMPT, N_ANSWER, said}, &e), ERR_OK);
        json_decref(said);
    }
    assert_left_alone(r, message("I look.", "call_1", "{\"path\":\"a.c\",\"lines\":[1,2]}"), 0);
    assert_replayed(r, message("", "more_4999", "{}"), 0);
    replay_close(&r);
}

static int make_folder(void **state)
{
    *state = &folder;
    return temp_folder_make(&folder);
}

static int remove_folder(void **state)
{
    temp_folder_remove(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled_tokens_take_their_place),
        cmocka_unit_test(a_message_that_stands_there_often_is_looked_for_once),
        cmocka_unit_test(json_and_spaces_may_be_written_in_other_ways),
        cmocka_unit_test(a_prompt_may_end_otherwise_in_a_history),
        cmocka_unit_test(what_the_client_changed_stays_as_it_is),
        cmocka_unit_test(the_end_of_another_turn_is_not_the_answers),
        cmocka_unit_test(long_answers_are_forgotten_earlier),
        cmocka_unit_test(answers_outlive_the_server),
        cmocka_unit_test(lines_that_are_no_answers_are_left_out),
        cmocka_unit_test(the_oldest_calls_are_forgotten),
    };
    return cmocka_run_group_tests_name("call replay", tests, make_folder, remove_folder);
}
