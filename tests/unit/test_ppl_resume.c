/* The file that a measurement of perplexity goes on from. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "jobs/ppl_resume.h"
#include "temp_folder.h"

static const struct ppl_identity mine = {0x1234, 0xfeed, "ctx 512 kv f16"};

static const char whole[] = "moebius ppl 1\nmodel 0000000000001234\ntext 000000000000feed\nsettings ctx 512 kv f16\n"
                            "windows 2 scored 510 same 500\nsums 3ff0000000000000 4000000000000000 bff0000000000000 "
                            "3fe0000000000000 0000000000000000 3fd5555555555555\n";

static void sums_come_back_to_the_last_bit(void **state)
{
    struct err e;
    struct ppl_sums s = {3, 765, 701, 1.0 / 3, 1e-300, -0.1, 0.2 + 0.1, 5e-324, 1e300}, got;
    assert_int_equal(temp_folder_make(&folder), 0);
    struct temp_path path = temp_path(&folder, "a.ppl");
    assert_int_equal(ppl_resume_load(&mine, path.s, &got, &e), ERR_OK); /* not there: nothing done yet */
    assert_int_equal(got.n_window, 0);
    assert_int_equal(ppl_resume_save(&mine, path.s, &s, &e), ERR_OK);
    assert_int_equal(ppl_resume_load(&mine, path.s, &got, &e), ERR_OK);
    assert_memory_equal(&got, &s, sizeof s);
    assert_int_equal(ppl_resume_load(&mine, folder.path, &got, &e), ERR_IO);
    temp_folder_remove(&folder);
}

static void other_models_texts_and_settings_are_refused(void **state)
{
    const struct ppl_identity others[] = {
        {0x1235, 0xfeed, "ctx 512 kv f16"}, {0x1234, 0xfeee, "ctx 512 kv f16"},
        {0x1234, 0xfeed, "ctx 256 kv f16"}, {0x1234, 0xfeed, "ctx 512 kv f16 car 0.5"},
        {0x1234, 0xfeed, "ctx 512"},
    };
    static const char *const words[] = {"another model", "another text", "other settings", "other settings", "line 4"};
    struct ppl_sums s;
    struct err e;
    assert_int_equal(ppl_resume_parse(&mine, whole, sizeof whole - 1, "a.ppl", &s, &e), ERR_OK);
    assert_true(s.n_window == 2 && s.n_scored == 510 && s.n_same == 500 && s.nll == 1 && s.difference == -1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ppl_resume_parse(&others[i], whole, sizeof whole - 1, "a.ppl", &s, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, words[i]));
        assert_non_null(strstr(e.text, "a.ppl"));
    }
}

static void broken_files_are_refused(void **state)
{
    static const struct {
        const char *from, *to;
    } breaks[] = {
        {"ppl 1", "ppl 2"},
        {"windows 2", "windows 0"},
        {"scored 510", "scored -1"},
        {"same 500", "same 511"},
        {"3ff0000000000000", "3ff"},
        {"3fd5555555555555\n", ""},
        {"55\n", "55 1\n"},
        {"3ff0000000000000", "7ff0000000000000"},
        {"4000000000000000", "fff8000000000000"},
    };
    struct ppl_sums s;
    struct err e;
    for (size_t n = 0; n + 1 < sizeof whole - 1; n += 5)
        assert_int_equal(ppl_resume_parse(&mine, whole, n, "a.ppl", &s, &e), ERR_FORMAT);
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        char text[sizeof whole + 16];
        const char *at = strstr(whole, breaks[i].from);
        int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, breaks[i].to,
                         at + strlen(breaks[i].from));
        assert_int_equal(ppl_resume_parse(&mine, text, (size_t)n, "a.ppl", &s, &e), ERR_FORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_come_back_to_the_last_bit),
        cmocka_unit_test(other_models_texts_and_settings_are_refused),
        cmocka_unit_test(broken_files_are_refused),
    };
    return cmocka_run_group_tests_name("ppl resume", tests, NULL, NULL);
}
