/* How many threads decode, on machines that are made up: how long a token takes with each number of threads, and how
 * much of that they have nothing to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/thread_tuner.h"

enum { N = 4 };

struct machine {
    int64_t token_us[N + 1]; /* by threads */
    int idle_percent[N + 1];
};

struct run {
    struct thread_tuner thread_tuner;
    struct pool_times times;
    int64_t us;
    int n_last;
};

static void decode(struct run *r, const struct machine *m, int n_tok)
{
    for (int i = 0; i < n_tok; i++) {
        int n = r->n_last = thread_tuner_n_threads(&r->thread_tuner, N, true);
        assert_in_range(n, 1, N);
        int64_t ns = m->token_us[n] * 1000;
        if (n > 1) {
            r->times.thread_ns += n * ns;
            r->times.busy_ns += n * ns * (100 - m->idle_percent[n]) / 100;
        }
        r->us += m->token_us[n];
        thread_tuner_after_token(&r->thread_tuner, N, ns, r->times);
    }
}

static const struct machine quiet = {{0, 40, 20, 14, 10}, {0, 0, 3, 3, 5}};
static const struct machine busy = {{0, 40, 20, 14, 20}, {0, 0, 3, 5, 60}};     /* one core is somebody else's */
static const struct machine crowded = {{0, 18, 10, 12, 14}, {0, 0, 2, 40, 50}}; /* two cores */
static const struct machine uneven = {{0, 40, 20, 14, 10}, {0, 0, 3, 3, 40}};   /* idle, and still best with all */
static const struct machine disturbed = {{0, 80, 50, 50, 50}, {0, 0, 50, 50, 50}};

static void a_quiet_machine_is_left_alone(void **state)
{
    struct run r = {0};
    decode(&r, &quiet, 2000);
    assert_int_equal(r.n_last, N);
    assert_int_equal(r.us, 2000 * 10);
}

static void a_thread_that_holds_up_the_others_sleeps(void **state)
{
    struct run r = {0};
    decode(&r, &busy, 80);
    assert_int_equal(r.n_last, 3);
    assert_true(r.us < 80 * 17);
    r.us = 0;
    decode(&r, &busy, 4000);
    assert_true(r.us < 4000 * 14 * 102 / 100);
}

static void it_comes_back_when_the_machine_is_quiet(void **state)
{
    struct run r = {0};
    decode(&r, &busy, 40);
    assert_int_equal(r.n_last, 3);
    decode(&r, &quiet, 40);
    assert_int_equal(r.n_last, N);
    decode(&r, &busy, 200);
    decode(&r, &quiet, 400);
    assert_int_equal(r.n_last, N);
}

static void more_threads_than_cores_become_as_many(void **state)
{
    struct run r = {0};
    decode(&r, &crowded, 80);
    assert_int_equal(r.n_last, 2);
}

static void threads_without_a_processor_are_never_tried(void **state)
{
    struct run r = {0};
    thread_tuner_init(&r.thread_tuner, N, 2);
    decode(&r, &crowded, 4000);
    assert_int_equal(r.n_last, 2);
    assert_int_equal(r.us, 4000 * 10);
    assert_int_equal(thread_tuner_n_threads(&r.thread_tuner, N, false), N);
}

static void idle_threads_that_pay_stay(void **state)
{
    struct run r = {0};
    decode(&r, &uneven, 4000);
    assert_true(r.us < 4000 * 10 * 102 / 100);
}

static void a_disturbed_moment_decides_nothing(void **state)
{
    for (int at = 0; at < 64; at++)
        for (int n_tok = 1; n_tok < 32; n_tok++) {
            struct run r = {0};
            decode(&r, &quiet, at);
            decode(&r, &disturbed, n_tok);
            decode(&r, &quiet, 40);
            assert_int_equal(r.n_last, N);
        }
}

static void prompts_take_all(void **state)
{
    struct run r = {0};
    decode(&r, &busy, 100);
    assert_int_equal(thread_tuner_n_threads(&r.thread_tuner, N, false), N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quiet_machine_is_left_alone),
        cmocka_unit_test(a_thread_that_holds_up_the_others_sleeps),
        cmocka_unit_test(it_comes_back_when_the_machine_is_quiet),
        cmocka_unit_test(more_threads_than_cores_become_as_many),
        cmocka_unit_test(threads_without_a_processor_are_never_tried),
        cmocka_unit_test(idle_threads_that_pay_stay),
        cmocka_unit_test(a_disturbed_moment_decides_nothing),
        cmocka_unit_test(prompts_take_all),
    };
    return cmocka_run_group_tests_name("thread tuner", tests, NULL, NULL);
}
