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

static void mtp_guesses_as_many_as_pay(void **state)
{
    struct draft_costs c = {.ns = {[1] = 1000, [2] = 1300, [8] = 3100, [64] = 19900},
                            .n_seen = {[1] = 2, [2] = 2, [8] = 2, [64] = 2}};
    struct draft_odds good = {0}, bad = {0};
    const struct draft_odds *one[] = {&good}, *both[] = {&good, &good}, *mixed[] = {&good, &bad};
    const size_t most[] = {15, 15}, few[] = {2, 0};
    for (int i = 0; i < 20; i++) {
        draft_note(&good, DRAFT_MTP, 4, 4);
        draft_note(&bad, DRAFT_MTP, 4, 0);
    }
    assert_true(draft_share(&good, DRAFT_MTP) > 0.9 && draft_share(&bad, DRAFT_MTP) < 0.2);
    assert_true(draft_share(&good, 8) == 0.6); /* matches are another kind */
    for (int i = 0; i < 3; i++)
        draft_note_mtp(&c, 2, 200);
    size_t n = draft_choose_mtp(&c, one, most, 1, 1, 1, false);
    assert_in_range(n, 4, 15);
    assert_int_equal(draft_choose_mtp(&c, one, few, 1, 1, 1, false), 2);
    const struct draft_odds *worse[] = {&bad};
    assert_int_equal(draft_choose_mtp(&c, worse, most, 1, 1, 1, false), 0);
    assert_in_range(draft_choose_mtp(&c, worse, most, 1, 1, 1, true), 1, 15);
    assert_true(draft_choose_mtp(&c, both, most, 2, 2, 2, false) > draft_choose_mtp(&c, mixed, most, 2, 2, 2, false));
    for (int i = 0; i < 100; i++)
        draft_note_mtp(&c, 1, 5000); /* guesses take longer than tokens */
    assert_int_equal(draft_choose_mtp(&c, one, most, 1, 1, 1, false), 0);
    for (int i = 0; i < 1000; i++)
        draft_pass_over(&c, &good, DRAFT_MTP, 1); /* but they are tried again */
    assert_true(draft_choose_mtp(&c, one, most, 1, 1, 1, false) > 0);
}

static void a_guess_must_be_worth_its_token(void **state)
{
    struct draft_costs c = {.ns = {[1] = 1000, [2] = 1300}, .n_seen = {[1] = 2, [2] = 2}};
    assert_true(fabs(draft_least(&c, 1, 1) - 0.3) < 1e-9);
    c.ns[2] = 1900;
    assert_true(fabs(draft_least(&c, 1, 1) - 0.9) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_match_counts_and_of_equal_ones_the_last),
        cmocka_unit_test(what_follows_goes_on_over_the_end),
        cmocka_unit_test(passes_take_what_passes_took),
        cmocka_unit_test(odds_follow_what_was_right),
        cmocka_unit_test(mtp_guesses_as_many_as_pay),
        cmocka_unit_test(a_guess_must_be_worth_its_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
