/* Which experts that were stood in for come first, and which are forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "experts/backfill_queue.h"

static void assert_next(struct backfill_queue *q, int layer, int32_t expert)
{
    struct backfill_entry best;
    assert_true(backfill_queue_pop(q, &best));
    assert_int_equal(best.layer, layer);
    assert_int_equal(best.expert, expert);
}

static void the_highest_score_comes_first_and_ties_go_to_the_older(void **state)
{
    struct backfill_queue q = {.n = 0};
    struct backfill_entry none;
    backfill_queue_add(&q, 1, 5, 0.2f);
    backfill_queue_add(&q, 0, 5, 0.4f);
    backfill_queue_add(&q, 2, 3, 0.4f);
    backfill_queue_add(&q, 2, 4, 0.1f);
    assert_next(&q, 0, 5);
    assert_next(&q, 2, 3);
    assert_next(&q, 1, 5);
    assert_next(&q, 2, 4);
    assert_false(backfill_queue_pop(&q, &none));
}

static void scores_of_one_expert_add_up(void **state)
{
    struct backfill_queue q = {.n = 0};
    backfill_queue_add(&q, 0, 1, 0.5f);
    backfill_queue_add(&q, 0, 2, 0.3f);
    backfill_queue_add(&q, 0, 2, 0.3f);
    assert_next(&q, 0, 2);
    assert_next(&q, 0, 1);
    assert_int_equal(q.n, 0);
}

static void sixteen_tokens_halve_a_score(void **state)
{
    for (int more = 0; more < 2; more++) {
        struct backfill_queue q = {.n = 0};
        backfill_queue_add(&q, 0, 1, 0.8f);
        for (int i = 0; i < 16; i++)
            backfill_queue_age(&q);
        backfill_queue_add(&q, 0, 2, more ? 0.401f : 0.399f);
        assert_next(&q, 0, more ? 2 : 1);
    }
}

static void a_full_list_forgets_the_lowest(void **state)
{
    struct backfill_queue q = {.n = 0};
    for (int i = 0; i < BACKFILL_QUEUE_MAX; i++)
        backfill_queue_add(&q, 0, i, (float)(i + 1));
    backfill_queue_add(&q, 1, 0, 0.5f); /* less than all */
    assert_int_equal(q.n, BACKFILL_QUEUE_MAX);
    backfill_queue_add(&q, 1, 1, 1.5f); /* in place of (0, 0) */
    assert_int_equal(q.n, BACKFILL_QUEUE_MAX);
    for (int i = BACKFILL_QUEUE_MAX - 1; i >= 1; i--)
        assert_next(&q, 0, i);
    assert_next(&q, 1, 1);
    assert_int_equal(q.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_highest_score_comes_first_and_ties_go_to_the_older),
        cmocka_unit_test(scores_of_one_expert_add_up),
        cmocka_unit_test(sixteen_tokens_halve_a_score),
        cmocka_unit_test(a_full_list_forgets_the_lowest),
    };
    return cmocka_run_group_tests_name("backfill queue", tests, NULL, NULL);
}
