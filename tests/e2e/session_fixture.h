/* What tests of sessions share: golden models of each kind of layer, and a text. golden: their folder. */
#ifndef TESTS_SESSION_FIXTURE_H
#define TESTS_SESSION_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../unit/temp_folder.h"
#include "moebius/moebius.h"

static const char *golden;

/* A model of each kind of layer, and what its heads let it do. */
static const struct kind {
    const char *name;
    bool q8_0, windowed, recurrent;
} kinds[] = {
    {"qwen3moe", false, false, false},        {"q_q4_0", true, false, false},       {"gpt_oss", false, true, false},
    {"gemma4", false, true, false},           {"gemma4_shared", true, true, false}, {"deepseek2", false, false, false},
    {"deepseek2_latent", true, false, false}, {"qwen3next", true, false, true},
};
enum { N_KIND = sizeof kinds / sizeof *kinds, N_TEXT = 300, N_LONG = 1300, WINDOW = 12 };

static inline moebius_engine *open_engine_with(const char *name, const moebius_engine_options *o)
{
    char path[1024];
    moebius_error error;
    moebius_engine *e;
    snprintf(path, sizeof path, "%s/%s.gguf", golden, name);
    if (moebius_engine_open(&e, path, o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return e;
}

static inline moebius_engine *open_engine(const char *name)
{
    return open_engine_with(name, &(moebius_engine_options){.n_threads = 1});
}

static inline moebius_session *open_session(moebius_engine *e, moebius_kv_type kv, int64_t n_ctx, int64_t n_batch)
{
    moebius_error error;
    moebius_session *s;
    const moebius_session_options options = {.n_ctx = n_ctx, .n_batch = n_batch, .kv = kv};
    if (moebius_session_open(&s, e, &options, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return s;
}

/* The text that all tests feed, or its beginning. */
static inline void get_text(const moebius_engine *e, int32_t *ids)
{
    for (int i = 0; i < N_LONG; i++)
        ids[i] = (int32_t)((i * 37 + i / 11 * 5) % moebius_n_vocab(e));
}

/* Feeds tokens [from, to) of it in pieces. */
static inline void feed(moebius_session *s, const moebius_engine *e, int64_t from, int64_t to, int64_t piece)
{
    int32_t ids[N_LONG];
    get_text(e, ids);
    for (int64_t i = from; i < to; i += piece)
        assert_int_equal(moebius_session_eval(s, ids + i, (size_t)(to - i < piece ? to - i : piece), NULL), MOEBIUS_OK);
}

static inline float *copy_logits(const moebius_session *s, const moebius_engine *e)
{
    size_t n = (size_t)moebius_n_vocab(e) * sizeof(float);
    float *x = malloc(n);
    memcpy(x, moebius_session_logits(s), n);
    return x;
}

static inline void expect_logits(const moebius_session *s, const moebius_engine *e, const float *want)
{
    assert_non_null(moebius_session_logits(s));
    assert_memory_equal(moebius_session_logits(s), want, (size_t)moebius_n_vocab(e) * sizeof *want);
}

static inline void must(moebius_status status, const moebius_error *error)
{
    if (status != MOEBIUS_OK)
        fail_msg("%s", error->text);
}

#endif
