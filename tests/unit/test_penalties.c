/* The steps that change logits: biases, penalties, DRY. At temperature 0 the pick shows which logit is the largest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "sample/dry.h"
#include "sample/history.h"
#include "sample/sample.h"

enum { N_SMALL = 8 };

static moebius_sampler_options greedy(void)
{
    moebius_sampler_options o = sampler_default_options();
    o.temperature = 0;
    return o;
}

static moebius_sampler *open_sampler(moebius_sampler_options o, const bool *breaks, int32_t n_vocab)
{
    struct err e = {0};
    moebius_sampler *s;
    if (sampler_create(&s, &o, breaks, n_vocab, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return s;
}

/* What is picked after a text, which ends with -1. */
static int32_t pick_after(moebius_sampler_options o, const int32_t *text, const float *logits)
{
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL);
    while (*text >= 0)
        sampler_accept(s, *text++);
    int32_t id = sampler_pick(s, logits);
    sampler_close(&s);
    return id;
}

#define TEXT(...) ((const int32_t[]){__VA_ARGS__, -1})

static void presence_is_taken_off_once(void **state)
{
    const float logits[N_SMALL] = {4, 3, 2.2f, 0, 0, 0, 0, 0};
    moebius_sampler_options o = greedy();
    o.presence_penalty = 1.5f;
    assert_int_equal(pick_after(o, TEXT(7), logits), 0);
    assert_int_equal(pick_after(o, TEXT(0), logits), 1);             /* 2.5 < 3 */
    assert_int_equal(pick_after(o, TEXT(0, 0, 0, 1), logits), 0);    /* 2.5 > 2.2, 1.5 */
    assert_int_equal(pick_after(o, TEXT(0, 1, 0, 1, 2), logits), 0); /* in the same order again */
    o.presence_penalty = -2;                                         /* a reward */
    assert_int_equal(pick_after(o, TEXT(1), logits), 1);
}

static void frequency_is_taken_off_each_time(void **state)
{
    const float logits[N_SMALL] = {4, 3, 0, 0, 0, 0, 0, 0};
    moebius_sampler_options o = greedy();
    o.frequency_penalty = 0.4f;
    assert_int_equal(pick_after(o, TEXT(0, 0), logits), 0); /* 3.2 */
    assert_int_equal(pick_after(o, TEXT(0, 0, 0), logits), 1);
    assert_int_equal(pick_after(o, TEXT(0, 1, 0, 0), logits), 0); /* 2.8 and 2.6 */
    const float negative[N_SMALL] = {-4, -4.5f, -9, -9, -9, -9, -9, -9};
    assert_int_equal(pick_after(o, TEXT(0, 0), negative), 1); /* -4.8: taken off, not multiplied */
}

static void the_repetition_penalty_comes_before_the_others(void **state)
{
    const float logits[N_SMALL] = {4, 0.9f, -9, -9, -9, -9, -9, -9};
    moebius_sampler_options o = greedy();
    o.repeat_penalty = 2;
    o.presence_penalty = 0.5f;
    o.frequency_penalty = 0.5f;
    assert_int_equal(pick_after(o, TEXT(0), logits), 0); /* 4 / 2 - 1 = 1 */
    const float closer[N_SMALL] = {4, 1.2f, -9, -9, -9, -9, -9, -9};
    assert_int_equal(pick_after(o, TEXT(0), closer), 1); /* (4 - 1) / 2 would be 1.5 */
}

static void penalties_look_back_so_many_tokens(void **state)
{
    const float logits[N_SMALL] = {4, 3.9f, 0, 0, 0, 0, 0, 0};
    moebius_sampler_options o = greedy();
    o.frequency_penalty = 0.2f;
    o.repeat_last_n = 3;
    assert_int_equal(pick_after(o, TEXT(0, 5, 6), logits), 1);
    assert_int_equal(pick_after(o, TEXT(0, 5, 6, 7), logits), 0);
    assert_int_equal(pick_after(o, TEXT(0, 1, 0, 5, 6), logits), 1); /* one 0 is left, and no 1 */
    o.repeat_last_n = -1;
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL);
    sampler_accept(s, 0);
    for (int i = 0; i < 100000; i++)
        sampler_accept(s, 5);
    assert_int_equal(sampler_pick(s, logits), 1);
    sampler_forget(s);
    assert_int_equal(sampler_pick(s, logits), 0);
    sampler_close(&s);
    o.repeat_last_n = 0;
    assert_int_equal(pick_after(o, TEXT(0, 0, 0), logits), 0);
}

/* Against counting anew, in windows of all lengths. */
static void counts_are_those_of_the_window(void **state)
{
    enum { N_VOCAB = 5, N_TEXT = 200 };
    struct random r = random_seed(1);
    for (int window = 1; window < 12; window++) {
        struct history h;
        struct token_counts t;
        int32_t text[N_TEXT];
        assert_true(history_open(&h, window + window % 3));
        assert_true(token_counts_open(&t, window, N_VOCAB));
        for (int i = 0; i < N_TEXT; i++) {
            text[i] = (int32_t)(random_u32(&r) % N_VOCAB);
            token_counts_push(&t, &h, text[i]);
            history_push(&h, text[i]);
            float logits[N_VOCAB] = {0}, want[N_VOCAB] = {0};
            token_counts_penalise(&t, 1, 0, 1, logits);
            for (int j = i; j >= 0 && j > i - window; j--)
                want[text[j]]--;
            assert_memory_equal(logits, want, sizeof want);
        }
        token_counts_close(&t);
        history_close(&h);
    }
}

static void biases_are_added_before_the_penalties(void **state)
{
    const float logits[N_SMALL] = {4, 3, 2, 1, 0, 0, 0, 0};
    const moebius_logit_bias biases[] = {{2, 1.5f}, {0, -100}, {3, 1.25f}, {3, 1.5f}};
    moebius_sampler_options o = greedy();
    o.logit_biases = biases;
    o.n_logit_biases = 1;
    assert_int_equal(pick_after(o, TEXT(5), logits), 0);
    o.n_logit_biases = 2;
    assert_int_equal(pick_after(o, TEXT(5), logits), 2);
    o.n_logit_biases = 4; /* those of a token add up */
    assert_int_equal(pick_after(o, TEXT(5), logits), 3);
    o.repeat_penalty = 1.2f; /* 3.75 / 1.2 > 3, but 1 / 1.2 + 2.75 > 3.5 */
    assert_int_equal(pick_after(o, TEXT(3), logits), 2);
}

static void minus_infinity_means_never(void **state)
{
    const float logits[N_SMALL] = {INFINITY, 3, 2, 1, 0, 0, 0, 0};
    const moebius_logit_bias biases[] = {{0, -INFINITY}, {1, -INFINITY}};
    moebius_sampler_options o = greedy();
    o.logit_biases = biases;
    o.n_logit_biases = 2;
    assert_int_equal(pick_after(o, TEXT(5), logits), 2);
    o.temperature = 100;
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL);
    for (int i = 0; i < 1000; i++)
        assert_in_range(sampler_pick(s, logits), 2, N_SMALL - 1);
    sampler_close(&s);
}

static void biases_are_copied(void **state)
{
    const float logits[N_SMALL] = {4, 3, 2, 1, 0, 0, 0, 0};
    moebius_logit_bias bias = {3, 100};
    moebius_sampler_options o = greedy();
    o.logit_biases = &bias;
    o.n_logit_biases = 1;
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL), *copy;
    bias = (moebius_logit_bias){2, 100};
    assert_int_equal(sampler_clone(&copy, s, NULL), ERR_OK);
    assert_int_equal(sampler_pick(s, logits), 3);
    sampler_close(&s);
    assert_int_equal(sampler_pick(copy, logits), 3);
    sampler_close(&copy);
}

/* ---- DRY ----------------------------------------------------------------------------------------------------- */

/* What DRY takes off the logits, as its definition says: each place of the text is compared with the end. */
static void dry_by_definition(const struct dry *d, const int32_t *text, int n, float *off)
{
    int first = n > d->window ? n - d->window : 0;
    for (int i = first; i < n - 1; i++) {
        int length = 0;
        while (i - length >= first && text[i - length] == text[n - 1 - length] && !d->breaks[text[i - length]])
            length++;
        if (length < d->allowed_length || d->breaks[text[i + 1]])
            continue;
        float penalty = (float)((double)d->multiplier * pow((double)d->base, length - d->allowed_length));
        off[text[i + 1]] = fmaxf(off[text[i + 1]], penalty);
    }
}

static void check_dry(struct dry d, const bool *breaks, const int32_t *text, int n, int32_t n_vocab)
{
    struct history h;
    float *logits = mem_calloc((size_t)n_vocab, sizeof *logits), *off = mem_calloc((size_t)n_vocab, sizeof *off);
    assert_true(logits && off && history_open(&h, d.window + 3) && dry_open(&d, breaks, n_vocab));
    for (int i = 0; i < n; i++)
        history_push(&h, text[i]);
    dry_by_definition(&d, text, n, off);
    for (int round = 0; round < 2; round++) { /* nothing is left behind by the first */
        memset(logits, 0, (size_t)n_vocab * sizeof *logits);
        dry_penalise(&d, &h, logits);
        for (int i = 0; i < n_vocab; i++)
            if (logits[i] != -off[i])
                fail_msg("token %d lost %g, not %g", i, (double)-logits[i], (double)off[i]);
    }
    dry_close(&d);
    history_close(&h);
    mem_free(logits);
    mem_free(off);
}

static void dry_takes_off_what_its_definition_says(void **state)
{
    enum { N = 60 };
    struct random r = random_seed(4);
    for (int round = 0; round < 2000; round++) {
        int32_t n_vocab = 1 + (int32_t)(random_u32(&r) % 5), text[N];
        int n = (int)(random_u32(&r) % (N + 1));
        bool breaks[5];
        for (int i = 0; i < 5; i++)
            breaks[i] = random_u32(&r) % 8 == 0;
        for (int i = 0; i < n; i++)
            text[i] = (int32_t)(random_u32(&r) % (uint32_t)n_vocab);
        const struct dry d = {.multiplier = 0.5f,
                              .base = 1.25f,
                              .allowed_length = 1 + (int)(random_u32(&r) % 4),
                              .window = 1 + (int)(random_u32(&r) % (N + 5))};
        check_dry(d, round % 2 ? breaks : NULL, text, n, n_vocab);
    }
}

/* After 1 2 3 4 ... 2 3 comes no 4 again, nor a 3 after one equal token. */
static void dry_is_felt_from_the_allowed_length_on(void **state)
{
    const float logits[N_SMALL] = {0, 0, 0, 0, 5, 4.5f, 0, 0};
    moebius_sampler_options o = greedy();
    o.dry_multiplier = 0.6f;
    o.dry_base = 2;
    assert_int_equal(pick_after(o, TEXT(1, 2, 3, 4, 7, 6, 3), logits), 4);
    assert_int_equal(pick_after(o, TEXT(1, 2, 3, 4, 7, 2, 3), logits), 5); /* 5 - 0.6 < 4.5 */
    o.dry_allowed_length = 3;
    assert_int_equal(pick_after(o, TEXT(1, 2, 3, 4, 7, 2, 3), logits), 4);
    assert_int_equal(pick_after(o, TEXT(1, 2, 3, 4, 7, 1, 2, 3), logits), 5);
    o.dry_last_n = 7; /* without the first 1 */
    assert_int_equal(pick_after(o, TEXT(1, 2, 3, 4, 7, 1, 2, 3), logits), 4);
}

static void dry_doubles_with_each_token(void **state)
{
    const int32_t text[] = {1, 2, 3, 4, 0, 7, 1, 2, 3, 4};
    float logits[N_SMALL] = {0};
    moebius_sampler_options o = greedy();
    o.dry_multiplier = 0.5f;
    o.dry_base = 2;
    logits[0] = 2.001f; /* 0.5 * 2^(4 - 2) is 2 */
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        sampler_accept(s, text[i]);
    logits[5] = 0.0005f;
    assert_int_equal(sampler_pick(s, logits), 0);
    logits[5] = 0.0015f;
    assert_int_equal(sampler_pick(s, logits), 5);
    sampler_close(&s);
}

static void breakers_end_sequences_and_never_pay(void **state)
{
    const float logits[N_SMALL] = {0, 0, 0, 0, 5, 4.9f, 0, 0};
    const int32_t text[] = {1, 2, 3, 4, 7, 1, 2, 3};
    moebius_sampler_options o = greedy();
    o.dry_multiplier = 1;
    for (int breaker = 0; breaker < N_SMALL; breaker++) {
        bool breaks[N_SMALL] = {0};
        breaks[breaker] = true;
        moebius_sampler *s = open_sampler(o, breaks, N_SMALL);
        for (size_t i = 0; i < sizeof text / sizeof *text; i++)
            sampler_accept(s, text[i]);
        bool is_free = breaker == 2 || breaker == 3 || breaker == 4; /* a 1 before two equal ones changes nothing */
        assert_int_equal(sampler_pick(s, logits), is_free ? 4 : 5);
        sampler_close(&s);
    }
}

static void a_long_repetition_is_no_overflow(void **state)
{
    float logits[N_SMALL] = {0, 1, FLT_MAX, INFINITY, 0, 0, 0, 0};
    moebius_sampler_options o = greedy();
    o.dry_multiplier = FLT_MAX;
    o.dry_base = FLT_MAX;
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL);
    for (int i = 0; i < 3000; i++)
        sampler_accept(s, 3);
    assert_int_equal(sampler_pick(s, logits), 3); /* what is infinite stays */
    logits[3] = -FLT_MAX;
    assert_int_equal(sampler_pick(s, logits), 2);
    sampler_close(&s);
}

/* The bound is loose, for sanitizers and busy machines: it catches what is quadratic. */
static void dry_on_a_long_text_is_quick(void **state)
{
    enum { N = 1 << 20 };
    const float logits[N_SMALL] = {0};
    moebius_sampler_options o = greedy();
    o.dry_multiplier = 1;
    moebius_sampler *s = open_sampler(o, NULL, N_SMALL);
    for (int i = 0; i < N; i++)
        sampler_accept(s, i % 1000 ? 1 : 2);
    clock_t start = clock();
    (void)sampler_pick(s, logits);
    double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    if (getenv("MOEBIUS_BENCH"))
        print_message("DRY on %d tokens: %.3f ms\n", N, ms);
    assert_true(ms < 2000);
    sampler_close(&s);
}

/* ---- forks --------------------------------------------------------------------------------------------------- */

static moebius_sampler_options all_steps(void)
{
    static const moebius_logit_bias bias = {1, 0.5f};
    moebius_sampler_options o = sampler_default_options();
    o.repeat_penalty = 1.1f;
    o.presence_penalty = 0.2f;
    o.frequency_penalty = 0.1f;
    o.repeat_last_n = 7;
    o.dry_multiplier = 0.5f;
    o.dry_last_n = 30;
    o.typical_p = 0.98f;
    o.xtc_probability = 0.5f;
    o.logit_biases = &bias;
    o.n_logit_biases = 1;
    o.seed = 5;
    return o;
}

/* Picks and accepts n tokens of logits that depend on the step. */
static void go_on(moebius_sampler *s, int from, int n, int32_t *out)
{
    for (int i = from; i < from + n; i++) {
        struct random r = random_seed((uint64_t)i);
        float logits[N_SMALL];
        for (int j = 0; j < N_SMALL; j++)
            logits[j] = (float)(2 * random_unit(&r));
        int32_t id = sampler_pick(s, logits);
        sampler_accept(s, id);
        *out++ = id;
    }
}

static void a_clone_goes_on_as_its_original_does(void **state)
{
    enum { N = 200 };
    int32_t a[N], b[N], fork[N];
    for (int mirostat = 0; mirostat <= 2; mirostat += 2) {
        moebius_sampler_options o = all_steps();
        o.mirostat = mirostat;
        const bool breaks[N_SMALL] = {[3] = true};
        moebius_sampler *s = open_sampler(o, breaks, N_SMALL), *copy, *other;
        go_on(s, 0, 50, a);
        assert_int_equal(sampler_clone(&copy, s, NULL), ERR_OK);
        assert_int_equal(sampler_clone(&other, s, NULL), ERR_OK);
        sampler_reseed(other, 99);
        go_on(s, 50, N, a);
        go_on(copy, 50, N, b); /* later: it has nothing in common with the original */
        go_on(other, 50, N, fork);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_not_equal(a, fork, sizeof a);
        sampler_close(&s);
        sampler_close(&copy);
        sampler_close(&other);
    }
}

static void a_sampler_that_forgot_is_as_new_but_for_its_random_stream(void **state)
{
    enum { N = 100 };
    int32_t a[N], b[N];
    moebius_sampler *s = open_sampler(all_steps(), NULL, N_SMALL), *fresh = open_sampler(all_steps(), NULL, N_SMALL);
    go_on(s, 0, 50, a);
    sampler_forget(s);
    sampler_reseed(s, 3);
    sampler_reseed(fresh, 3);
    go_on(s, 0, N, a);
    go_on(fresh, 0, N, b);
    assert_memory_equal(a, b, sizeof a);
    sampler_close(&s);
    sampler_close(&fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presence_is_taken_off_once),
        cmocka_unit_test(frequency_is_taken_off_each_time),
        cmocka_unit_test(the_repetition_penalty_comes_before_the_others),
        cmocka_unit_test(penalties_look_back_so_many_tokens),
        cmocka_unit_test(counts_are_those_of_the_window),
        cmocka_unit_test(biases_are_added_before_the_penalties),
        cmocka_unit_test(minus_infinity_means_never),
        cmocka_unit_test(biases_are_copied),
        cmocka_unit_test(dry_takes_off_what_its_definition_says),
        cmocka_unit_test(dry_is_felt_from_the_allowed_length_on),
        cmocka_unit_test(dry_doubles_with_each_token),
        cmocka_unit_test(breakers_end_sequences_and_never_pay),
        cmocka_unit_test(a_long_repetition_is_no_overflow),
        cmocka_unit_test(dry_on_a_long_text_is_quick),
        cmocka_unit_test(a_clone_goes_on_as_its_original_does),
        cmocka_unit_test(a_sampler_that_forgot_is_as_new_but_for_its_random_stream),
    };
    return cmocka_run_group_tests_name("penalties", tests, NULL, NULL);
}
