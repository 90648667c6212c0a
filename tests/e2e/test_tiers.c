/* Expert tiers on the bundled model: the same logits whatever is in memory, counters that agree with a replay, warm
 * starts, bounds on memory. usage: test_tiers MODEL */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "experts/trace.h"
#include "moebius/moebius.h"
#include "../unit/for_threads.h"

enum { N_PROMPT = 96, N_TOK = 160, N_VOCAB = 4096 };

static const char *model_path;
static int32_t ids[N_TOK];

static moebius_engine *open_engine(const moebius_engine_options *o)
{
    moebius_engine *g;
    moebius_error error;
    if (moebius_engine_open(&g, model_path, o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return g;
}

static moebius_session *open_session(moebius_engine *g)
{
    moebius_session *s;
    moebius_error error;
    const moebius_session_options o = {.n_ctx = N_TOK, .n_batch = 64};
    if (moebius_session_open(&s, g, &o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return s;
}

/* A prompt in chunks and then tokens one by one; the logits after each of those. */
static void run(moebius_session *s, float *logits)
{
    moebius_error error;
    for (int i = 0; i < N_TOK; i++) {
        int n = i == 0 ? N_PROMPT : 1;
        if (moebius_session_eval(s, ids + i, (size_t)n, &error) != MOEBIUS_OK)
            fail_msg("%s", error.text);
        i += n - 1;
        memcpy(logits + (size_t)(i + 1 - N_PROMPT) * N_VOCAB, moebius_session_logits(s), N_VOCAB * sizeof *logits);
    }
}

static float *logits_of(const moebius_engine_options *o, moebius_counters *c)
{
    float *logits = calloc((size_t)(N_TOK + 1 - N_PROMPT) * N_VOCAB, sizeof *logits);
    moebius_engine *g = open_engine(o);
    moebius_session *s = open_session(g);
    run(s, logits);
    *c = moebius_engine_counters(g);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    return logits;
}

static void logits_are_the_same_for_every_budget(void **state)
{
    static const double shares[] = {0.75, 0.5, 0.25, 0.1, 0.02};
    static const char *const policies[] = {"lfru", "lru", "lfu"};
    moebius_counters c;
    float *want = logits_of(&(moebius_engine_options){.n_threads = 2}, &c);
    assert_int_equal(c.n_expert_miss, 0);
    for (int i = 0; i < 5; i++) {
        const moebius_engine_options o = {.n_threads = 1 + i % 2,
                                          .expert_ram_share = shares[i],
                                          .policy = policies[i % 3],
                                          .reader = i % 2 ? MOEBIUS_READER_PREAD : MOEBIUS_READER_AUTO,
                                          .prefetch = (moebius_prefetch)(i % 3)};
        float *got = logits_of(&o, &c);
        assert_memory_equal(want, got, (size_t)(N_TOK + 1 - N_PROMPT) * N_VOCAB * sizeof *got);
        assert_true(c.expert_bytes <= (uint64_t)(shares[i] * (double)c.expert_all_bytes));
        assert_true(c.n_expert_miss > 0 && c.n_expert_evicted > 0);
        /* what was read and not evicted is in the slots, all of them but those that guesses are still on their way to
         */
        uint64_t n_slot = c.expert_bytes / (c.expert_all_bytes / 120);
        assert_in_range(c.n_expert_read - c.n_expert_evicted, o.prefetch == MOEBIUS_PREFETCH_OFF ? n_slot : n_slot / 2,
                        n_slot);
        free(got);
    }
    free(want);
}

/* A long prompt at once; the logits after it. */
static float *prompt_logits(double share, int64_t n_batch, moebius_counters *c, int64_t *n_chunk)
{
    enum { N = 1300 };
    static int32_t text[N];
    moebius_session *s;
    moebius_error error;
    moebius_engine *g = open_engine(&(moebius_engine_options){.n_threads = 2, .expert_ram_share = share});
    const moebius_session_options o = {.n_ctx = N + 8, .n_batch = n_batch};
    assert_int_equal(moebius_session_open(&s, g, &o, &error), MOEBIUS_OK);
    for (int i = 0; i < N; i++)
        text[i] = ids[(i * 13 + i / 40) % N_TOK];
    *n_chunk = moebius_session_batch(s, N);
    uint64_t work_bytes = moebius_engine_counters(g).work_bytes;
    assert_int_equal(moebius_session_eval(s, text, N, &error), MOEBIUS_OK);
    *c = moebius_engine_counters(g);
    assert_int_equal(moebius_session_batch(s, N), *n_chunk);
    float *logits = calloc(N_VOCAB, sizeof *logits);
    memcpy(logits, moebius_session_logits(s), N_VOCAB * sizeof *logits);
    if (*n_chunk > 512) /* what the long prompt took is given back */
        assert_true(c->work_bytes <= work_bytes);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    return logits;
}

static void long_prompts_read_experts_less_often(void **state)
{
    moebius_counters resident, fixed, free_to_choose;
    int64_t n_chunk[3];
    float *want = prompt_logits(0, 0, &resident, &n_chunk[0]);
    float *got = prompt_logits(0.25, 512, &fixed, &n_chunk[1]);
    assert_memory_equal(want, got, N_VOCAB * sizeof *want);
    free(got);
    got = prompt_logits(0.25, 0, &free_to_choose, &n_chunk[2]);
    assert_memory_equal(want, got, N_VOCAB * sizeof *want);
    assert_int_equal(n_chunk[0], 512);
    assert_int_equal(n_chunk[1], 512);
    assert_true(n_chunk[2] > 512);
    assert_true(free_to_choose.n_expert_read < fixed.n_expert_read);
    free(want);
    free(got);
}

static bool count_down(void *user)
{
    return --*(int *)user < 0;
}

static void cancelled_reads_leave_the_rest_of_the_text_the_same(void **state)
{
    moebius_counters c;
    moebius_error error;
    float *want = logits_of(&(moebius_engine_options){.n_threads = 2}, &c);
    float *got = calloc((size_t)(N_TOK + 1 - N_PROMPT) * N_VOCAB, sizeof *got);
    moebius_engine *g = open_engine(&(moebius_engine_options){.n_threads = 2, .expert_ram_share = 0.1});
    moebius_session *s = open_session(g);
    int n_ask = 0;
    /* in each layer, and between its reads */
    for (bool is_cancelled = true; is_cancelled; n_ask += FOR_THREADS ? 5 : 1) {
        int left = n_ask;
        moebius_session_set_cancel(s, count_down, &left);
        moebius_status status = moebius_session_eval(s, ids, N_PROMPT, &error);
        moebius_session_set_cancel(s, NULL, NULL);
        is_cancelled = status == MOEBIUS_CANCELLED;
        assert_int_equal(moebius_session_pos(s), !is_cancelled ? N_PROMPT : moebius_session_pos(s) < 64 ? 0 : 64);
        moebius_session_truncate(s, 0);
    }
    assert_true(n_ask > 2 * 2 * moebius_n_layer(g)); /* of two chunks; experts come in several waves */
    run(s, got);
    assert_memory_equal(want, got, (size_t)(N_TOK + 1 - N_PROMPT) * N_VOCAB * sizeof *got);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    free(want);
    free(got);
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

static void record(void *user, int layer, int64_t n_tok, int64_t n_used, const int32_t *chosen)
{
    struct err e;
    if (trace_add(user, layer, chosen, n_tok, &e) != ERR_OK)
        abort();
}

static void a_replay_hits_what_the_run_hit(void **state)
{
    for (int k = 0; k < POLICY_N_KIND; k++) {
        const moebius_engine_options o = {.n_threads = 1,
                                          .expert_ram_share = 0.3,
                                          .policy = policy_name((enum policy_kind)k),
                                          .prefetch = MOEBIUS_PREFETCH_OFF};
        moebius_engine *g = open_engine(&o);
        struct trace_layer layers[64];
        struct trace t;
        struct err e;
        struct replay r;
        moebius_error error;
        for (int i = 0; i < moebius_n_moe_layer(g); i++) {
            moebius_moe_layer l = moebius_moe_layer_at(g, i);
            layers[i] = (struct trace_layer){l.n_expert, l.n_used, l.slot_bytes, l.group, 0, 0};
        }
        assert_int_equal(trace_create(&t, layers, moebius_n_moe_layer(g), &e), ERR_OK);
        moebius_session *s = open_session(g);
        moebius_session_trace(s, &(moebius_trace){.routed = record, .user = &t});
        for (int i = 0; i < N_TOK; i++)
            assert_int_equal(moebius_session_eval(s, ids + i, 1, &error), MOEBIUS_OK);
        moebius_counters c = moebius_engine_counters(g);
        moebius_session_close(&s);
        moebius_engine_close(&g);
        assert_int_equal(t.n_tok, N_TOK);
        assert_int_equal(trace_replay(&t, (enum policy_kind)k, 0.3, &r, &e), ERR_OK);
        assert_int_equal(r.n_all, c.n_decode_hit + c.n_decode_miss);
        assert_int_equal(r.n_hit, c.n_decode_hit);
        struct replay best;
        assert_int_equal(trace_replay_best(&t, 0.3, &best, &e), ERR_OK);
        assert_true(best.n_hit > r.n_hit);
        trace_close(&t);
    }
}

static double hit_rate(const moebius_counters *c)
{
    return (double)c->n_decode_hit / (double)(c->n_decode_hit + c->n_decode_miss);
}

static void a_second_run_starts_warm(void **state)
{
    char path[] = "/tmp/moebius_tiers_XXXXXX";
    moebius_counters first, second;
    assert_true(mkstemp(path) >= 0);
    remove(path);
    const moebius_engine_options o = {.n_threads = 1, .expert_ram_share = 0.25, .usage = path};
    free(logits_of(&o, &first));
    moebius_engine *g = open_engine(&o);
    moebius_session *s = open_session(g);
    moebius_error error;
    moebius_counters loaded = moebius_engine_counters(g);
    assert_int_equal(loaded.n_expert_read, 30); /* a quarter of 5 layers of 24 */
    for (int i = 0; i < 48; i++)
        assert_int_equal(moebius_session_eval(s, ids + N_PROMPT + i, 1, &error), MOEBIUS_OK);
    second = moebius_engine_counters(g);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    remove(path);
    assert_true(hit_rate(&second) >= 0.9 * hit_rate(&first));
}

static void a_broken_usage_file_is_refused_and_kept(void **state)
{
    char path[] = "/tmp/moebius_tiers_XXXXXX", text[32] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "not mine\n", 9) == 9);
    close(fd);
    moebius_engine *g = open_engine(&(moebius_engine_options){.n_threads = 1, .expert_ram_share = 0.25, .usage = path});
    moebius_session *s;
    moebius_error error;
    assert_int_equal(moebius_session_open(&s, g, NULL, &error), MOEBIUS_FORMAT);
    assert_non_null(strstr(error.text, path));
    moebius_engine_close(&g);
    FILE *f = fopen(path, "rb");
    assert_true(f && fgets(text, sizeof text, f));
    fclose(f);
    remove(path);
    assert_string_equal(text, "not mine\n");
}

/* ---- bounds on memory -------------------------------------------------------------------------------------------- */

/* "... needs at least 1.0 MiB (1048576 bytes)" */
static int64_t stated_bytes(const moebius_error *error)
{
    const char *p = strstr(error->text, "MiB (");
    assert_non_null(strstr(error->text, "at least "));
    assert_non_null(p);
    return strtoll(p + 5, NULL, 10);
}

static void too_little_memory_is_refused_with_the_number(void **state)
{
    moebius_engine *g;
    moebius_session *s;
    moebius_error error;
    moebius_engine_options o = {.n_threads = 1, .ram_bytes = 1 << 20};
    moebius_session_options so = {.n_ctx = 16 * 1024};
    assert_int_equal(moebius_engine_open(&g, model_path, &o, &error), MOEBIUS_LIMIT);
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its own memory grows by more than what is at stake */
#endif
    o.ram_bytes = stated_bytes(&error) + (1 << 20); /* the process has grown meanwhile */
    g = open_engine(&o);                            /* now the model fits, and the context does not */
    assert_int_equal(moebius_session_open(&s, g, &so, &error), MOEBIUS_LIMIT);
    moebius_engine_close(&g);
    o.ram_bytes = stated_bytes(&error) + (1 << 20);
    g = open_engine(&o);
    assert_int_equal(moebius_session_open(&s, g, &so, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_eval(s, ids, N_TOK, &error), MOEBIUS_OK);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    o = (moebius_engine_options){.n_threads = 1, .expert_ram_share = 0.001};
    assert_int_equal(moebius_engine_open(&g, model_path, &o, &error), MOEBIUS_LIMIT);
    assert_non_null(strstr(error.text, "% of all"));
}

static void a_bound_is_kept_and_lifted(void **state)
{
    moebius_counters c;
    moebius_engine *other;
    moebius_error error;
    const moebius_engine_options o = {.n_threads = 2, .ram_bytes = 512 << 20};
    float *want = logits_of(&(moebius_engine_options){.n_threads = 2}, &c);
    float *got = logits_of(&o, &c);
    assert_memory_equal(want, got, (size_t)(N_TOK + 1 - N_PROMPT) * N_VOCAB * sizeof *got);
    assert_true(c.weight_bytes + c.expert_bytes + c.context_bytes + c.work_bytes < (uint64_t)o.ram_bytes);
    free(want);
    free(got);
    moebius_engine *g = open_engine(&o);
    assert_int_equal(moebius_engine_open(&other, model_path, &o, &error), MOEBIUS_USAGE); /* one bound a process */
    moebius_engine_close(&g);
    g = open_engine(&o);
    moebius_engine_close(&g);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose own memory grows by more */
/* Neither what it would have taken nor its work space stays. */
static void a_refused_session_burdens_no_later_one(void **state)
{
    static const moebius_session_options wrong[] = {{.n_ctx = 60000, .n_batch = 64}, {.n_ctx = 8192, .n_batch = 8192}};
    moebius_error error;
    moebius_engine *g;
    moebius_session *s;
    moebius_engine_options o = {.n_threads = 1, .ram_bytes = 1 << 20};
    assert_int_equal(moebius_engine_open(&g, model_path, &o, &error), MOEBIUS_LIMIT);
    o.ram_bytes = stated_bytes(&error) + (24 << 20);
    g = open_engine(&o);
    s = open_session(g);
    assert_int_equal(moebius_session_eval(s, ids, N_TOK, &error), MOEBIUS_OK);
    uint64_t work_bytes = moebius_engine_counters(g).work_bytes;
    moebius_session_close(&s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moebius_session_open(&s, g, &wrong[i], &error), MOEBIUS_LIMIT);
        assert_true(moebius_engine_counters(g).work_bytes <= work_bytes);
        s = open_session(g);
        assert_int_equal(moebius_session_eval(s, ids, N_TOK, &error), MOEBIUS_OK);
        moebius_session_close(&s);
    }
    moebius_engine_close(&g);
}

enum { N_TEXT = 600 };

static const moebius_session_options text_options = {.n_ctx = N_TEXT, .n_batch = 512};

/* n of a text's tokens, in one piece or one by one. */
static void feed(moebius_session *s, int from, int n, int n_at_once)
{
    moebius_error error;
    int32_t text[N_TEXT];
    for (int i = 0; i < N_TEXT; i++)
        text[i] = ids[(i * 13 + i / 40) % N_TOK];
    for (int i = from; i < from + n; i += n_at_once)
        if (moebius_session_eval(s, text + i, (size_t)n_at_once, &error) != MOEBIUS_OK)
            fail_msg("%s", error.text);
}

/* A prompt and an answer, and both again. The counters after each; the last logits. */
static float *two_turns(const moebius_engine_options *o, moebius_counters *prompt, moebius_counters *decode)
{
    enum { N_PROMPT_TOK = 256, N_MORE = 16 };
    moebius_session *s;
    moebius_error error;
    float *logits = calloc(N_VOCAB, sizeof *logits);
    moebius_engine *g = open_engine(o);
    assert_int_equal(moebius_session_open(&s, g, &text_options, &error), MOEBIUS_OK);
    for (int i = 0; i < 2; i++) {
        int pos = i * (N_PROMPT_TOK + N_MORE);
        feed(s, pos, N_PROMPT_TOK, N_PROMPT_TOK);
        prompt[i] = moebius_engine_counters(g);
        feed(s, pos + N_PROMPT_TOK, N_MORE, 1);
        decode[i] = moebius_engine_counters(g);
    }
    memcpy(logits, moebius_session_logits(s), N_VOCAB * sizeof *logits);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    return logits;
}

/* Texts that decode leave the experts what a prompt took; the next prompt takes it back. */
static void experts_have_the_memory_that_no_prompt_needs(void **state)
{
    moebius_engine_options o = {.n_threads = 2, .ram_bytes = 1 << 20};
    moebius_session *s;
    moebius_engine *g;
    moebius_error error;
    moebius_counters prompt[2], decode[2];
    assert_int_equal(moebius_engine_open(&g, model_path, &o, &error), MOEBIUS_LIMIT);
    o.ram_bytes = stated_bytes(&error) + (1 << 20);
    g = open_engine(&o);
    assert_int_equal(moebius_session_open(&s, g, &text_options, &error), MOEBIUS_LIMIT);
    moebius_engine_close(&g);
    o.ram_bytes = stated_bytes(&error) + (2 << 20);
    float *want = two_turns(&(moebius_engine_options){.n_threads = 2}, prompt, decode);
    float *got = two_turns(&o, prompt, decode);
    assert_memory_equal(want, got, N_VOCAB * sizeof *got);
    free(want);
    free(got);
    for (int i = 0; i < 2; i++) {
        assert_true(decode[i].expert_bytes > prompt[i].expert_bytes && decode[i].work_bytes < prompt[i].work_bytes);
        assert_true(prompt[i].weight_bytes + prompt[i].expert_bytes + prompt[i].context_bytes + prompt[i].work_bytes <
                    (uint64_t)o.ram_bytes);
    }
    assert_true(prompt[1].expert_bytes < decode[0].expert_bytes);
}
#endif

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    model_path = argv[1];
    for (int i = 0; i < N_TOK; i++)
        ids[i] = (i * i * 31 + i * 7) % 1021 + 300;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_the_same_for_every_budget),
        cmocka_unit_test(long_prompts_read_experts_less_often),
        cmocka_unit_test(cancelled_reads_leave_the_rest_of_the_text_the_same),
        cmocka_unit_test(a_replay_hits_what_the_run_hit),
        cmocka_unit_test(a_second_run_starts_warm),
        cmocka_unit_test(a_broken_usage_file_is_refused_and_kept),
        cmocka_unit_test(too_little_memory_is_refused_with_the_number),
        cmocka_unit_test(a_bound_is_kept_and_lifted),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(a_refused_session_burdens_no_later_one),
        cmocka_unit_test(experts_have_the_memory_that_no_prompt_needs),
#endif
    };
    return cmocka_run_group_tests_name("tiers", tests, NULL, NULL);
}
