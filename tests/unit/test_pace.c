/* How many tokens of prompts go beside answers: against machines whose passes take what a formula says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "texts/pace.h"

enum { MS = 1000 * 1000, N_BATCH = 512 };

/* A machine: a pass takes base_ns, each_ns for each answer, and for tokens of prompts each_prompt_ns and, as soon as
 * there are some, once_ns. */
struct machine {
    int64_t base_ns, each_ns, each_prompt_ns, once_ns;
    int noise; /* passes take up to so many hundredths more */
};

static int64_t pass_ns(const struct machine *m, size_t n_answers, size_t n_prompt)
{
    static uint32_t seed = 1;
    int64_t ns = m->base_ns + m->each_ns * (int64_t)n_answers + m->each_prompt_ns * (int64_t)n_prompt +
                 (n_prompt ? m->once_ns : 0);
    seed = seed * 1664525 + 1013904223;
    return ns + ns * (int64_t)(seed >> 16) / 65536 * m->noise / 100;
}

/* Passes with prompts that never end: how many of 500 took longer than `most`, after the first 100; and how many tokens
 * of prompts the others have. */
static int count_longer(struct pace *p, const struct machine *m, size_t n_answers, int64_t most, size_t *n_tokens)
{
    int n = 0;
    *n_tokens = 0;
    for (int i = 0; i < 500; i++) {
        size_t n_prompt = pace_tokens(p, n_answers, N_BATCH, false);
        int64_t took = pass_ns(m, n_answers, n_prompt);
        pace_note(p, n_answers, n_prompt, took, false);
        n += i >= 100 && took > most;
        *n_tokens += i >= 100 ? n_prompt : 0;
    }
    return n;
}

static void passes_with_prompts_take_twice_as_long_at_most(void **state)
{
    static const struct machine machines[] = {
        {40 * MS, 5 * MS, MS / 2, 0, 0}, {100 * MS, 0, MS, 30 * MS, 0}, {3 * MS, MS, MS / 50, 0, 0}};
    for (int i = 0; i < 3; i++)
        for (size_t n = 1; n <= 16; n *= 4) {
            struct pace p;
            size_t n_tokens;
            assert_true(pace_open(&p, 16, 0));
            int64_t bare = pass_ns(&machines[i], n, 0);
            assert_int_equal(count_longer(&p, &machines[i], n, 2 * bare + bare / 8, &n_tokens), 0);
            /* most of the time that there was is used */
            double used = (double)n_tokens * (double)machines[i].each_prompt_ns + 390.0 * (double)machines[i].once_ns;
            size_t all = 388 * N_BATCH;
            if (used < 0.8 * 388 * (double)bare && n_tokens < all)
                fail_msg("machine %d, %zu answers: %zu tokens", i, n, n_tokens);
            pace_close(&p);
        }
}

/* On a machine whose passes take up to 40% longer than others, hardly one in a hundred takes a quarter more than twice
 * what the middle one without prompts does. */
static void noise_stays_below_the_bound(void **state)
{
    const struct machine m = {40 * MS, 5 * MS, MS / 2, 5 * MS, 40};
    struct pace p;
    size_t n_tokens;
    assert_true(pace_open(&p, 8, 0));
    assert_in_range(count_longer(&p, &m, 8, 2 * 80 * MS * 5 / 4 * 6 / 5, &n_tokens), 0, 5);
    assert_true(n_tokens > 388 * 60);
    pace_close(&p);
}

static void a_bound_in_time_is_kept(void **state)
{
    const struct machine m = {20 * MS, MS, MS / 4, 10 * MS, 0};
    struct pace p;
    size_t n_tokens;
    assert_true(pace_open(&p, 8, 60 * MS));
    assert_int_equal(count_longer(&p, &m, 8, 66 * MS, &n_tokens), 0);
    assert_true(n_tokens > 388 * 70 && n_tokens < 400 * 100); /* 88 are 22 ms */
    pace_close(&p);
}

/* However much they cost. */
static void prompts_always_get_on(void **state)
{
    const struct machine m = {MS, 0, 100 * MS, 0, 0};
    struct pace p;
    size_t n_tokens;
    assert_true(pace_open(&p, 1, 1));
    (void)count_longer(&p, &m, 1, 0, &n_tokens);
    assert_true(n_tokens >= 385 * PACE_LEAST_TOKENS);
    pace_close(&p);
}

/* What a number of answers costs is looked at before there are prompts beside them, and again now and then. */
static void passes_without_prompts_come_first_and_again(void **state)
{
    struct pace p;
    int n_bare = 0;
    assert_true(pace_open(&p, 4, 0));
    for (int i = 0; i < 10 * PACE_BARE_EVERY; i++) {
        size_t n = pace_tokens(&p, 3, N_BATCH, false);
        assert_true(i > 0 || n == 0);
        n_bare += n == 0;
        pace_note(&p, 3, n, 10 * MS, false);
    }
    assert_in_range(n_bare, 9, 11);
    assert_int_equal(pace_tokens(&p, 4, N_BATCH, false), 0); /* one more text */
    pace_close(&p);
}

static void nobody_waits_no_bound(void **state)
{
    struct pace p;
    assert_true(pace_open(&p, 4, 0));
    assert_int_equal(pace_tokens(&p, 0, N_BATCH, false), N_BATCH);
    assert_int_equal(pace_tokens(&p, 0, 8 * N_BATCH, true), 8 * N_BATCH);
    pace_close(&p);
    assert_true(pace_open(&p, 4, -1));
    assert_int_equal(pace_tokens(&p, 4, N_BATCH, false), N_BATCH);
    assert_int_equal(pace_tokens(&p, 4, N_BATCH, true), N_BATCH);
    pace_close(&p);
}

/* Where experts are read passes are large, and answers have half of the time. */
static void reading_prompts_take_turns(void **state)
{
    struct pace p;
    int64_t ns[2] = {0};
    assert_true(pace_open(&p, 4, 0));
    for (int i = 0; i < 1000; i++) {
        size_t n = pace_tokens(&p, 2, 8 * N_BATCH, true);
        int64_t took = n ? 900 * MS : 70 * MS;
        assert_true(n == 0 || n == 8 * N_BATCH);
        ns[n > 0] += took;
        pace_note(&p, 2, n, took, true);
    }
    assert_true(ns[1] > ns[0] * 8 / 10 && ns[1] < ns[0] * 12 / 10);
    pace_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_with_prompts_take_twice_as_long_at_most),
        cmocka_unit_test(noise_stays_below_the_bound),
        cmocka_unit_test(a_bound_in_time_is_kept),
        cmocka_unit_test(prompts_always_get_on),
        cmocka_unit_test(passes_without_prompts_come_first_and_again),
        cmocka_unit_test(nobody_waits_no_bound),
        cmocka_unit_test(reading_prompts_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
