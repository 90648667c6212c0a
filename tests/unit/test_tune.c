/* Tuning: the choice of a cutoff from measured times, and the file that keeps it. */
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

#include "engine/tuning.h"
#include "jobs/tune.h"

static void the_cutoff_is_where_sorted_begins_to_win(void **state)
{
    const struct tune_row never[] = {{2, 11, 10}, {4, 30, 20}}, always[] = {{2, 9, 10}, {4, 10, 20}};
    const struct tune_row later[] = {{2, 9, 10}, {3, 14, 15}, {4, 21, 20}, {8, 50, 30}};
    assert_int_equal(tune_choose(never, 2), 1);
    assert_int_equal(tune_choose(always, 2), 4);
    assert_int_equal(tune_choose(later, 4), 3);
    assert_int_equal(tune_choose(later, 0), 1);
}

static void one_odd_row_does_not_move_the_cutoff(void **state)
{
    const struct tune_row late[] = {{2, 12, 10}, {3, 20, 15}, {4, 19, 20}, {6, 40, 30}};  /* sorted but for one */
    const struct tune_row early[] = {{2, 10, 15}, {3, 16, 15}, {4, 20, 30}, {6, 50, 30}}; /* direct but for one */
    assert_int_equal(tune_choose(late, 4), 1);
    assert_int_equal(tune_choose(early, 4), 4);
}

static err_code parse(struct tuning *t, const char *text, struct err *e)
{
    return tuning_parse(t, text, strlen(text), "file", e);
}

static void a_tuning_comes_back_from_its_file(void **state)
{
    struct err e;
    struct tuning t = {.model = 0xfeed, .machine = "Some CPU @ 3 GHz, avx2, 2 threads of 4", .sort_cutoff = 12};
    char path[] = "/tmp/moebius_tuning_XXXXXX", text[4096] = {0};
    close(mkstemp(path));
    assert_int_equal(tuning_save(&t, path, &e), ERR_OK);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    unlink(path);
    t.sort_cutoff = 0;
    assert_int_equal(parse(&t, text, &e), ERR_OK);
    assert_int_equal(t.sort_cutoff, 12);
}

static void other_tunings_are_refused(void **state)
{
#define HEAD "moebius tuning 1 model 000000000000feed machine "
    static const char *const bad[] = {
        "",
        "moebius tuning 2",
        "moebius tuning 1 model 00000000000feed0 machine a b sort_cutoff 2",
        HEAD "a c sort_cutoff 2",
        HEAD "a b sort_cutoff 0",
        HEAD "a b sort_cutoff 1048577",
        HEAD "a b sort_cutoff 2 3",
        HEAD "a b",
    };
    struct err e;
    struct tuning t = {.model = 0xfeed, .machine = "a b"};
    assert_int_equal(parse(&t, HEAD "a b sort_cutoff 2", &e), ERR_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&t, bad[i], &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "expected"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cutoff_is_where_sorted_begins_to_win),
        cmocka_unit_test(one_odd_row_does_not_move_the_cutoff),
        cmocka_unit_test(a_tuning_comes_back_from_its_file),
        cmocka_unit_test(other_tunings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
