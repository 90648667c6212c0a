/* Whether a cache is used, and how fast it changes, on machines that are made up: what passes take with and without it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/cache_watch.h"

/* Nanoseconds of a token, without and with the slots, and of a move. */
struct machine {
    int64_t token_ns[2], move_ns;
};

struct run {
    struct cache_watch watch;
    int64_t n_ns, move_ns; /* of all passes, and of the moves behind them */
    int n_used, n_move;
};

/* Passes of n_tok tokens; at most one expert wants to move after each. */
static void compute(struct run *r, const struct machine *m, int n_pass, int64_t n_tok)
{
    for (int i = 0; i < n_pass; i++) {
        bool is_used = cache_watch_begin(&r->watch, n_tok);
        int64_t n_ns = m->token_ns[is_used] * n_tok;
        cache_watch_end(&r->watch, n_ns);
        r->n_ns += n_ns;
        r->n_used += is_used;
        if (!cache_watch_may_move(&r->watch))
            continue;
        cache_watch_moved(&r->watch, m->move_ns);
        r->move_ns += m->move_ns;
        r->n_move++;
    }
}

static const struct machine good = {{1000, 700}, 300}, bad = {{1000, 1300}, 300}, equal = {{1000, 1001}, 1},
                            crawling = {{1000, 950}, 100000};

static void a_cache_that_pays_is_used_but_in_trials(void **state)
{
    struct run r = {0};
    compute(&r, &good, 1024, 1);
    assert_int_equal(r.n_used, 1024 - 16);
    assert_true(cache_watch_begin(&r.watch, 1));
}

static void a_cache_that_loses_is_turned_off(void **state)
{
    struct run r = {0};
    compute(&r, &bad, 96, 1);
    assert_int_equal(r.n_used, 80); /* until the trial has ended */
    compute(&r, &bad, 1024, 1);
    assert_int_equal(r.n_used, 80 + 16); /* the next trial */
    assert_true(r.watch.trials[CACHE_WATCH_DECODE].loses);
    assert_false(r.watch.trials[CACHE_WATCH_PROMPT].loses);
}

static void a_hair_is_no_loss(void **state)
{
    struct run r = {0};
    compute(&r, &equal, 2048, 1);
    assert_false(r.watch.trials[CACHE_WATCH_DECODE].loses);
}

/* Hits save less than the moves cost that bring them about. */
static void moves_count_against_the_cache(void **state)
{
    struct run r = {0};
    const struct machine m = {{1000, 990}, 60};
    compute(&r, &m, 96, 1);
    assert_true(r.watch.trials[CACHE_WATCH_DECODE].loses);
}

static void prompts_are_judged_by_themselves(void **state)
{
    struct run r = {0};
    compute(&r, &bad, 6, 512);
    assert_true(r.watch.trials[CACHE_WATCH_PROMPT].loses);
    assert_false(r.watch.trials[CACHE_WATCH_DECODE].loses);
    assert_false(cache_watch_begin(&r.watch, 512));
    assert_true(cache_watch_begin(&r.watch, 16));
    assert_int_equal(r.n_move, 0);
}

static void what_changes_is_found_out_by_the_next_trial(void **state)
{
    struct run r = {0};
    compute(&r, &bad, 1024, 1);
    assert_true(r.watch.trials[CACHE_WATCH_DECODE].loses);
    compute(&r, &good, 96, 1);
    assert_false(r.watch.trials[CACHE_WATCH_DECODE].loses);
    compute(&r, &bad, 1024, 1);
    assert_true(r.watch.trials[CACHE_WATCH_DECODE].loses);
}

static void moves_take_a_sixteenth_of_the_time(void **state)
{
    struct run r = {0};
    compute(&r, &good, 60, 1);
    assert_in_range(r.move_ns, r.n_ns / 16 - 300, r.n_ns / 16 + 300);
    r = (struct run){0};
    compute(&r, &crawling, 4000, 1);
    assert_true(r.n_move > 0); /* what takes as long as a hundred tokens moves, too, but seldom */
    assert_in_range(r.move_ns, r.n_ns / 32, r.n_ns / 16 + 100000);
}

/* What was not used for moves for long is not made up for all at once. */
static void idle_time_is_not_saved_up(void **state)
{
    struct run r = {0};
    compute(&r, &good, 2, 1);
    for (int i = 0; i < 60; i++) {
        cache_watch_begin(&r.watch, 1);
        cache_watch_end(&r.watch, 1000000);
    }
    int n = 0;
    for (; cache_watch_may_move(&r.watch); n++)
        cache_watch_moved(&r.watch, 300);
    assert_int_equal(n, 16);
}

static void slots_that_are_not_used_are_kept_up_before_a_trial_alone(void **state)
{
    struct run r = {0};
    compute(&r, &bad, 96, 1);
    int n = r.n_move;
    compute(&r, &bad, 1024 - 96 - 1, 1);
    assert_int_equal(r.n_move, n);
    compute(&r, &bad, 65, 1);
    assert_true(r.n_move > n);
}

static void what_is_fixed_is_always_used_and_never_moves(void **state)
{
    struct run r = {.watch = {.is_fixed = true}};
    compute(&r, &bad, 2000, 1);
    compute(&r, &bad, 200, 100);
    assert_int_equal(r.n_used, 2200);
    assert_int_equal(r.n_move, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_that_pays_is_used_but_in_trials),
        cmocka_unit_test(a_cache_that_loses_is_turned_off),
        cmocka_unit_test(a_hair_is_no_loss),
        cmocka_unit_test(moves_count_against_the_cache),
        cmocka_unit_test(prompts_are_judged_by_themselves),
        cmocka_unit_test(what_changes_is_found_out_by_the_next_trial),
        cmocka_unit_test(moves_take_a_sixteenth_of_the_time),
        cmocka_unit_test(idle_time_is_not_saved_up),
        cmocka_unit_test(slots_that_are_not_used_are_kept_up_before_a_trial_alone),
        cmocka_unit_test(what_is_fixed_is_always_used_and_never_moves),
    };
    return cmocka_run_group_tests_name("cache_watch", tests, NULL, NULL);
}
