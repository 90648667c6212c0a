/* Any bytes as the file of answers that called tools, and behind a zero byte as the messages of a prompt in JSON. What
 * the file says may change the prompt's tokens; an answer that is added is found when the file is opened again. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/temp_folder.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "server/call_replay.h"

enum { FINGERPRINT = 1, N_PROMPT = 8, N_ANSWER = 3, END = 9 };

static const char some_messages[] =
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"id\":\"c\","
    "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]}]";

/* A prompt and the answer behind it. */
static const int32_t sampled[N_PROMPT + N_ANSWER] = {0, 1, 2, 3, 4, 5, 6, 7, 101, 102, END};

static struct replay *open_file(const char *path)
{
    struct replay *r;
    struct err e;
    err_code code = replay_open(&r, path, FINGERPRINT, &e);
    assert(code == ERR_OK);
    return r;
}

/* The tokens of a prompt whose template wrote 201 for the answer; *n: how many. */
static int32_t *apply(struct replay *r, const json_t *messages, size_t *n)
{
    static const int32_t rest[] = {201, END, 301};
    int32_t *ids = mem_alloc(sizeof sampled + sizeof rest);
    struct err e;
    if (!ids)
        abort();
    *n = N_PROMPT + sizeof rest / sizeof *rest;
    memcpy(ids, sampled, N_PROMPT * sizeof *ids);
    memcpy(ids + N_PROMPT, rest, sizeof rest);
    err_code code = replay_apply(r, messages, &ids, n, &e);
    assert(code == ERR_OK && *n > 0);
    for (size_t i = 0; i < *n; i++)
        assert(ids[i] >= 0);
    return ids;
}

/* Opened twice, the file says the same. */
static void read_twice(const char *path, const json_t *messages)
{
    size_t n, n_again;
    struct replay *r = open_file(path);
    int32_t *ids = apply(r, messages, &n);
    replay_close(&r);
    r = open_file(path);
    int32_t *again = apply(r, messages, &n_again);
    replay_close(&r);
    assert(n == n_again && !memcmp(ids, again, n * sizeof *ids));
    mem_free(ids);
    mem_free(again);
}

/* Whatever stands before it in the file. */
static void add_one(const char *path)
{
    struct err e;
    size_t n;
    json_error_t error;
    json_t *messages = json_read(some_messages, strlen(some_messages), 0, &error);
    const struct replay_answer a = {sampled, N_PROMPT, N_ANSWER, json_array_get(messages, 1)};
    struct replay *r = open_file(path);
    err_code code = replay_add(r, &a, &e);
    assert(code == ERR_OK);
    replay_close(&r);
    r = open_file(path);
    int32_t *ids = apply(r, messages, &n);
    assert(n == N_PROMPT + N_ANSWER + 1 && !memcmp(ids, sampled, sizeof sampled) && ids[n - 1] == 301);
    mem_free(ids);
    replay_close(&r);
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_error_t error;
    const char *zero = size ? memchr(data, 0, size) : NULL;
    size_t n_file = zero ? (size_t)(zero - (const char *)data) : size;
    json_t *messages = zero ? json_read(zero + 1, size - n_file - 1, JSON_REJECT_DUPLICATES, &error)
                            : json_read(some_messages, strlen(some_messages), 0, &error);
    if (!messages)
        return 0;
    if (temp_folder_make(&folder) != 0)
        abort();
    struct temp_path file = temp_path(&folder, "answers");
    write_file(file.s, data, n_file);
    read_twice(file.s, messages);
    add_one(file.s);
    temp_folder_remove(&folder);
    json_decref(messages);
    return 0;
}
