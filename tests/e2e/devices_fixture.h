/* What the tests of several devices share: runs whose bits are compared with those of one device. */
#ifndef DEVICES_FIXTURE_H
#define DEVICES_FIXTURE_H

#include "session_fixture.h"

enum { N_PROMPT = 40, N_ALL = 46 };

static const char *demo;

static moebius_engine *open_path(const char *path, const moebius_engine_options *o)
{
    moebius_error error;
    moebius_engine *g;
    if (moebius_engine_open(&g, path, o, &error) != MOEBIUS_OK)
        fail_msg("%s: %s", path, error.text);
    return g;
}

/* The same; with more memory for experts where a layer needs more. */
static moebius_engine *open_streaming(const char *path, moebius_engine_options o)
{
    moebius_error error;
    moebius_engine *g;
    moebius_status status;
    while ((status = moebius_engine_open(&g, path, &o, &error)) == MOEBIUS_LIMIT && o.expert_ram_share < 1)
        o.expert_ram_share = o.expert_ram_share < 0.9 ? o.expert_ram_share + 0.1 : 1;
    must(status, &error);
    return g;
}

/* Evaluates a prompt in two pieces, and then tokens one by one. Returns the logits after the last one. Owned by the
 * caller (free). */
static float *run(moebius_engine *g)
{
    moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_ALL, 32);
    feed(s, g, 0, N_PROMPT, 33);
    feed(s, g, N_PROMPT, N_ALL, 1);
    float *logits = copy_logits(s, g);
    moebius_session_close(&s);
    return logits;
}

static float *run_on_one(const char *path)
{
    moebius_engine *g = open_path(path, &(moebius_engine_options){.n_threads = 1});
    float *logits = run(g);
    moebius_engine_close(&g);
    return logits;
}

static void expect_run(moebius_engine *g, const float *want, const char *what)
{
    float *got = run(g);
    if (memcmp(got, want, (size_t)moebius_n_vocab(g) * sizeof *got) != 0)
        fail_msg("%s: other bits", what);
    free(got);
}

static bool count_down(void *user)
{
    return --*(int *)user < 0;
}

/* Cancels an evaluation of the bundled model each time that it asks whether to go on, and evaluates again. */
static void expect_cancelled_goes_on(const moebius_engine_options *o, const float *want)
{
    enum { MOST = 60 };
    int32_t ids[N_LONG];
    moebius_engine *g = open_path(demo, o);
    moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_ALL, 32);
    get_text(g, ids);
    bool is_cancelled = true;
    for (int n_ask = 0; is_cancelled && n_ask < MOST; n_ask++) {
        int left = n_ask;
        moebius_session_set_cancel(s, count_down, &left);
        moebius_status status = moebius_session_eval(s, ids, 32, NULL);
        is_cancelled = status == MOEBIUS_CANCELLED;
        assert_true(is_cancelled || status == MOEBIUS_OK);
        if (!is_cancelled || moebius_session_pos(s) != 0) /* the logits may be all that was cancelled */
            assert_int_equal(moebius_session_pos(s), 32);
        moebius_session_truncate(s, 0);
    }
    moebius_session_close(&s);
    expect_run(g, want, "after an evaluation was cancelled");
    moebius_engine_close(&g);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose own memory grows by more */
static int64_t stated_bytes(const moebius_error *error)
{
    const char *p = strstr(error->text, "MiB (");
    assert_non_null(p);
    return strtoll(p + 5, NULL, 10);
}
#endif

static void note_product(void *user, const moebius_product *p)
{
    ++*(int *)user;
}

/* Refused are cache-aware routing and watched products; `where`: "with experts on several devices". */
static void expect_one_device_is_needed(moebius_engine *g, const char *where)
{
    static const char *const what[] = {"cache-aware routing", "watching products"};
    int32_t id = 1;
    int n_product = 0;
    moebius_error error;
    for (int i = 0; i < 2; i++) {
        moebius_session *s;
        const moebius_session_options o = {.n_ctx = 8, .car = {.threshold = i ? 0 : 0.5F}};
        must(moebius_session_open(&s, g, &o, &error), &error);
        if (i)
            moebius_session_trace(s, &(moebius_trace){.product = note_product, .user = &n_product});
        assert_int_equal(moebius_session_eval(s, &id, 1, &error), MOEBIUS_USAGE);
        assert_non_null(strstr(error.text, what[i]));
        assert_non_null(strstr(error.text, where));
        moebius_session_close(&s);
    }
    assert_int_equal(n_product, 0);
}

#endif
