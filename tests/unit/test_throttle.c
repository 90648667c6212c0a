/* When a thread rests, on a machine that is made up: a thread that always has work, on a core that is its own or that
 * another program takes away from it for a slice each time it has run for one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/throttle.h"

enum { MS = 1000000, TASK_NS = 20000, SLICE_NS = 4 * MS };

struct machine {
    struct throttle throttle;
    struct throttle_clock clock;
    int64_t slice_ns, rested_ns;
    int n_lost, n_rests;
};

/* Tasks for that many milliseconds. A rest gives the thread a new slice. */
static void work(struct machine *m, int64_t n_ms, bool is_shared)
{
    for (int64_t end_ns = m->clock.now_ns + n_ms * MS; m->clock.now_ns < end_ns;) {
        int64_t sleep_ns = throttle_is_due(&m->throttle, &m->clock) ? throttle_sleep_ns(&m->throttle, &m->clock) : 0,
                away_ns = sleep_ns;
        assert_true(sleep_ns >= 0);
        m->n_rests += sleep_ns > 0;
        m->rested_ns += sleep_ns;
        if (sleep_ns > 0) {
            m->slice_ns = 0;
        } else if (is_shared && m->slice_ns >= SLICE_NS) {
            m->slice_ns = 0;
            m->n_lost++;
            away_ns = SLICE_NS;
        }
        m->slice_ns += TASK_NS;
        m->clock.run_ns += TASK_NS;
        m->clock.now_ns += TASK_NS + away_ns;
        m->clock.loop_ns += TASK_NS + away_ns;
    }
}

static void a_thread_with_a_core_of_its_own_never_rests(void **state)
{
    struct machine m = {.clock.now_ns = 5};
    work(&m, 20000, false);
    assert_int_equal(m.n_rests, 0);
}

static void a_thread_that_shares_its_core_rests_and_loses_it_rarely(void **state)
{
    struct machine m = {0};
    work(&m, 100, true);
    assert_true(m.n_rests > 0);
    work(&m, 3000, true);
    int64_t run_ns = m.clock.run_ns, rested_ns = m.rested_ns;
    int n_lost = m.n_lost, n_rests = m.n_rests;
    work(&m, 5000, true);
    run_ns = m.clock.run_ns - run_ns;
    rested_ns = m.rested_ns - rested_ns;
    assert_in_range(run_ns / MS, 5000 * 40 / 100, 5000 * 45 / 100); /* all but half of the core */
    assert_in_range(rested_ns / MS, 5000 * 52 / 100, 5000 * 60 / 100);
    assert_in_range(m.n_lost - n_lost, 5, 5 * 5); /* while it looks, once a second, and not 600 times */
    assert_true(run_ns / (m.n_rests - n_rests) >= MS / 2);
}

static void it_works_on_within_a_second_when_the_core_is_its_own_again(void **state)
{
    struct machine m = {0};
    work(&m, 5000, true);
    work(&m, 1100, false);
    int n_rests = m.n_rests;
    work(&m, 5000, false);
    assert_int_equal(m.n_rests, n_rests);
}

static void what_lasts_a_moment_costs_little(void **state)
{
    struct machine m = {0};
    work(&m, 5000, true);
    work(&m, 2000, false);
    int64_t rested_ns = m.rested_ns;
    work(&m, 25, true);
    work(&m, 2000, false);
    assert_int_equal(m.rested_ns, rested_ns);
    work(&m, 100, true);
    work(&m, 2000, false);
    assert_in_range((m.rested_ns - rested_ns) / MS, 1, 130);
}

static void sleep_for_want_of_work_is_not_loss(void **state)
{
    struct machine m = {0};
    for (int i = 0; i < 1000; i++) {
        work(&m, 1, false);
        m.clock.now_ns += MS;
        m.clock.loop_ns += MS;
        m.throttle.slept_ns += MS;
    }
    assert_int_equal(m.n_rests, 0);
}

static void time_between_loops_is_not_loss(void **state)
{
    struct machine m = {0};
    for (int i = 0; i < 1000; i++) {
        work(&m, 1, false);
        m.clock.now_ns += 10 * MS;
    }
    assert_int_equal(m.n_rests, 0);
}

/* What the clocks said before, as while it loaded, is nothing to it. */
static void a_new_pace_begins_when_it_is_first_asked(void **state)
{
    struct machine m = {.clock = {.now_ns = 90000 * (int64_t)MS, .run_ns = 100, .loop_ns = 20000 * (int64_t)MS}};
    assert_true(throttle_is_due(&m.throttle, &m.clock));
    assert_int_equal(throttle_sleep_ns(&m.throttle, &m.clock), 0);
    assert_false(m.throttle.has_lost);
    assert_false(throttle_is_due(&m.throttle, &m.clock));
}

/* The thread comes to a loop of 50 ms near its end. */
static void time_before_a_stretch_is_not_lost_in_it(void **state)
{
    struct machine m = {0};
    for (int i = 0; i < 20; i++) {
        work(&m, 10, false);
        m.clock.loop_ns += 40 * MS;
    }
    assert_int_equal(m.n_rests, 0);
}

static void what_was_lost_is_not_rested_again(void **state)
{
    struct throttle c = {.begin.now_ns = MS, .throttled_until_ns = 1000 * MS};
    assert_int_equal(throttle_sleep_ns(&c, &(struct throttle_clock){MS * 3 / 2, MS / 2, 0}), MS * 7 / 10);
    assert_int_equal(c.begin.now_ns, MS * 22 / 10);
    assert_int_equal(throttle_sleep_ns(&c, &(struct throttle_clock){7 * MS, MS, 0}), 0);
    assert_int_equal(throttle_sleep_ns(&c, &(struct throttle_clock){900 * MS, 800 * MS, 0}),
                     10 * MS); /* a long task's */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_with_a_core_of_its_own_never_rests),
        cmocka_unit_test(a_thread_that_shares_its_core_rests_and_loses_it_rarely),
        cmocka_unit_test(it_works_on_within_a_second_when_the_core_is_its_own_again),
        cmocka_unit_test(what_lasts_a_moment_costs_little),
        cmocka_unit_test(sleep_for_want_of_work_is_not_loss),
        cmocka_unit_test(time_between_loops_is_not_loss),
        cmocka_unit_test(a_new_pace_begins_when_it_is_first_asked),
        cmocka_unit_test(time_before_a_stretch_is_not_lost_in_it),
        cmocka_unit_test(what_was_lost_is_not_rested_again),
    };
    return cmocka_run_group_tests_name("throttle", tests, NULL, NULL);
}
