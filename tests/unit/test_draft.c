/* Guessing how texts go on: matches, what follows them, and how many guesses pay. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "texts/draft.h"

#define MATCH(always, next, ...)                                                                                       \
    draft_match((const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), always, next)

static void the_longest_match_counts_and_of_equal_ones_the_last(void **state)
{
    size_t next;
    assert_int_equal(MATCH(false, &next, 1, 2, 3, 9, 1, 2, 3), 3);
    assert_int_equal(next, 3);
    assert_int_equal(MATCH(false, &next, 7, 1, 2, 3, 5, 1, 2, 3, 6, 7, 1, 2, 3), 4); /* not the nearer three */
    assert_int_equal(next, 4);
    assert_int_equal(MATCH(false, &next, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3), 3);
    assert_int_equal(next, 7);
    assert_int_equal(MATCH(false, &next, 1, 2, 9, 1, 2), 0); /* two say too little */
    assert_int_equal(MATCH(true, &next, 1, 2, 9, 1, 2), 2);
    assert_int_equal(MATCH(true, &next, 1), 0);
    assert_int_equal(MATCH(true, &next, 1, 2), 0);
    assert_int_equal(MATCH(true, &next, 2, 2), 1);
    assert_int_equal(next, 1);
}

static void what_follows_goes_on_over_the_end(void **state)
{
    static const int32_t ids[] = {4, 1, 2, 3, 1, 2, 3, 1, 2, 3}, want[] = {1, 2, 3, 1, 2, 3, 1, 2};
    int32_t guesses[8];
    size_t next;
    assert_int_equal(draft_match(ids, 10, false, &next), 6);
    assert_int_equal(next, 7);
    draft_fill(guesses, 8, ids, 10, next);
    assert_memory_equal(guesses, want, sizeof want);
}

static void passes_take_what_passes_took(void **state)
{
    struct draft_costs c = {0};
    assert_true(draft_pass_ns(&c, 4) == 0);
    draft_note_pass(&c, 1, 5000);
    assert_true(draft_pass_ns(&c, 1) == 0); /* one pass says nothing */
    draft_note_pass(&c, 1, 1000);
    assert_true(draft_pass_ns(&c, 1) == 1000);
    assert_true(draft_pass_ns(&c, 2) > 1000 && draft_pass_ns(&c, 3) > draft_pass_ns(&c, 2));
    draft_note_pass(&c, 4, 9000);
    assert_true(draft_pass_ns(&c, 4) < 2000);
    draft_note_pass(&c, 4, 1600);
    assert_true(draft_pass_ns(&c, 2) == 1200 && draft_pass_ns(&c, 4) == 1600); /* between them on a line, */
    assert_true(draft_pass_ns(&c, 6) == 2000);                                 /* and beyond */
    draft_note_pass(&c, 4, 2000);
    assert_true(draft_pass_ns(&c, 4) > 1600 && draft_pass_ns(&c, 4) < 2000); /* one pass is not all */
    draft_note_pass(&c, DRAFT_MOST_ROWS + 1, 1);
    assert_true(draft_pass_ns(&c, DRAFT_MOST_ROWS) > 2000);
    c = (struct draft_costs){0};
    for (int i = 0; i < 2; i++)
        draft_note_pass(&c, 1, 1000);
    for (int i = 0; i < 2; i++)
        draft_note_pass(&c, 2, 900); /* disturbed: more tokens are never taken to be cheaper beyond */
    assert_true(draft_pass_ns(&c, 8) >= 900);
}

static void odds_follow_what_was_right(void **state)
{
    struct draft_odds o = {0};
    struct draft_costs c = {.ns = {[1] = 1000, [2] = 4000}, .n_seen = {[1] = 2, [2] = 2}};
    double at_first = draft_expected(&o, 8, 4);
    assert_true(at_first > 0 && at_first < 4 && draft_expected(&o, 30, 4) > at_first); /* long matches say more */
    assert_true(draft_expected(&o, 8, 8) > at_first);
    for (int i = 0; i < 50; i++)
        draft_note(&o, 8, 4, 0);
    assert_true(draft_expected(&o, 8, 4) < 0.1);
    assert_true(draft_expected(&o, 30, 4) > 2); /* another kind */
    for (int i = 0; i < 1000; i++)
        draft_pass_over(&c, &o, 8, 1);
    assert_true(fabs(draft_expected(&o, 8, 4) - at_first) < 0.05);            /* they are tried again, */
    assert_true(draft_pass_ns(&c, 1) == 1000 && draft_pass_ns(&c, 2) < 1000); /* whatever they took */
    for (int i = 0; i < 100; i++)
        draft_note(&o, 8, 15, 15);
    assert_true(draft_expected(&o, 8, 15) > 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_match_counts_and_of_equal_ones_the_last),
        cmocka_unit_test(what_follows_goes_on_over_the_end),
        cmocka_unit_test(passes_take_what_passes_took),
        cmocka_unit_test(odds_follow_what_was_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
