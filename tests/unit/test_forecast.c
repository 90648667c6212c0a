#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "jobs/forecast.h"

static const struct forecast_params two = {.ranks = {{0.5, 1e-5, 0, 1}, {0.5, 1e-5, 1e-4, 1e8}},
                                           .n_rank = 2,
                                           .n_layer = 10,
                                           .n_embd = 2048,
                                           .n_used = 8,
                                           .n_tok = 1,
                                           .other_s = 0.01};

static void assert_near(double a, double b, double part)
{
    if (fabs(a - b) > part * fabs(b))
        fail_msg("%g, expected %g", a, b);
}

static void one_rank_takes_what_its_choices_and_the_rest_take(void **state)
{
    struct forecast_params p = two;
    p.n_rank = 1;
    p.ranks[0].share = 1;
    const struct forecast f = forecast_make(&p);
    assert_near(f.batch_s, 0.01 + 10 * 8 * 1e-5, 1e-9);
    assert_true(f.n_bytes == 0 && f.n_message == 0);
}

/* The formula of docs/machines.md. */
static void bytes_are_rows_there_and_results_back(void **state)
{
    const struct forecast f = forecast_make(&two);
    double p_any = 1 - pow(0.5, 8);
    assert_near(f.n_bytes, 10 * 4 * (2048 * (p_any + 4) + 8 * p_any), 0.02);
    assert_near(f.n_message, 10 * 3 * p_any, 0.02);
}

/* Of 8 choices on two equal ranks the slower one has 5.09 on average: the mean of the greater part of 8 throws. */
static void a_layer_takes_as_long_as_its_slowest_rank(void **state)
{
    struct forecast_params p = two;
    p.ranks[1].round_trip_s = 0;
    p.ranks[1].bytes_per_s = 1e18;
    assert_near(forecast_make(&p).batch_s, 0.01 + 10 * 5.09375e-5, 0.005);
    p.ranks[1].row_s = 0;
    assert_near(forecast_make(&p).batch_s, 0.01 + 10 * 4e-5, 0.005);
}

/* Where each choice may be computed by either rank, each has half of them, or by its speed. */
static void choices_of_replicas_make_the_ranks_even(void **state)
{
    struct forecast_params p = two;
    p.ranks[1].round_trip_s = 0;
    p.ranks[1].bytes_per_s = 1e18;
    p.replica_share = 1;
    p.ranks[0].share = p.ranks[1].share = 0;
    assert_near(forecast_make(&p).batch_s, 0.01 + 10 * 4e-5, 1e-9);
    p.ranks[1].row_s = 3e-5; /* one of the two has 6, the other 2 */
    assert_near(forecast_make(&p).batch_s, 0.01 + 10 * 6e-5, 1e-9);
    p = two;
    p.ranks[1].round_trip_s = 0;
    p.ranks[1].bytes_per_s = 1e18;
    p.replica_share = 0.25;
    assert_near(forecast_make(&p).batch_s, 0.01 + 10 * 4.33e-5, 0.005);
    p.n_tok = 1000;
    assert_near(forecast_make(&p).batch_s, 0.01 + 10 * 4e-5 * 1000, 0.005);
}

static void a_slow_link_is_what_the_token_takes(void **state)
{
    struct forecast_params p = two;
    p.ranks[1].bytes_per_s = 1e6;
    const struct forecast f = forecast_make(&p);
    assert_near(f.batch_s, 0.01 + f.n_bytes / 1e6 + f.n_message / 3 * 1e-4 + 10 * 4e-5, 0.01);
}

static void many_tokens_pay_for_few_round_trips(void **state)
{
    struct forecast_params p = two;
    p.n_tok = 1000;
    const struct forecast f = forecast_make(&p);
    assert_near(f.n_message, 10 * 3, 1e-9);
    assert_near(f.n_bytes, 1000 * forecast_make(&two).n_bytes, 0.02);
}

static void the_same_numbers_give_the_same_forecast(void **state)
{
    assert_true(forecast_make(&two).batch_s == forecast_make(&two).batch_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_takes_what_its_choices_and_the_rest_take),
        cmocka_unit_test(bytes_are_rows_there_and_results_back),
        cmocka_unit_test(a_layer_takes_as_long_as_its_slowest_rank),
        cmocka_unit_test(choices_of_replicas_make_the_ranks_even),
        cmocka_unit_test(a_slow_link_is_what_the_token_takes),
        cmocka_unit_test(many_tokens_pay_for_few_round_trips),
        cmocka_unit_test(the_same_numbers_give_the_same_forecast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
