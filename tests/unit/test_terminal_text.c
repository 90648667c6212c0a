#define _POSIX_C_SOURCE 200809L
/* Answers on a terminal (cli/terminal_text.h): what the screen gets, with escape sequences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "base/units_text.h"
#include "cli/terminal_text.h"

#define PLAIN  "\033[0m"
#define BOLD   "\033[0m\033[1m"
#define ITALIC "\033[0m\033[3m"
#define CODE   "\033[0m\033[36m"
#define QUOTE  "\033[0m\033[2m"

static void put(struct terminal_text *t, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        char character[8] = {0};
        size_t length = utf8_length(text, n);
        memcpy(character, text, length);
        terminal_text_put(t, character);
        text += length;
        n -= length;
    }
}

static void expect(const char *text, int n_columns, bool has_markdown, const char *want)
{
    char *got = NULL;
    size_t n;
    struct terminal_text t;
    FILE *f = open_memstream(&got, &n);
    assert_non_null(f);
    terminal_text_open(&t, f, n_columns);
    t.has_markdown = has_markdown;
    put(&t, text);
    terminal_text_end(&t);
    fclose(f);
    assert_string_equal(got, want);
    free(got);
}

static void test_lines_break_between_words(void **state)
{
    expect("one two three", 10, false, "one two\nthree");
    expect("one two three", 80, false, "one two three");
    expect("a\n  b\n\nc", 80, false, "a\n  b\n\nc");
    expect("abcdefghijklmnopqrstuvwxyz", 11, false, "abcdefghij\nklmnopqrst\nuvwxyz");
    expect("x abcdefghijkl", 11, false, "x\nabcdefghij\nkl");
    expect("今天天气很好吧", 11, false, "今天天气很\n好吧"); /* two columns each */
    expect("e\u0301e\u0301e\u0301 e\u0301", 6, false, "e\u0301e\u0301e\u0301 e\u0301");
    expect("**not styled**", 80, false, "**not styled**");
}

static void test_markdown_becomes_style(void **state)
{
    expect("a **b** c", 80, true, "a " BOLD "b" PLAIN " c");
    expect("an *i* and _j_.", 80, true, "an " ITALIC "i" PLAIN " and " ITALIC "j" PLAIN ".");
    expect("call `f(*x)` now", 80, true, "call " CODE "f(*x)" PLAIN " now");
    expect("# A title\ntext", 80, true, BOLD "A title" PLAIN "\ntext");
    expect("- one\n- two three four\n", 14, true, "\u2022 one\n\u2022 two three\n  four\n");
    expect("1. one two three\n", 12, true, "1. one two\n   three\n");
    expect("> said", 80, true, "\u2502 " QUOTE "said" PLAIN);
    expect("---\nx", 9, true, "\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\nx");
    expect("**- no list**", 80, true, BOLD "- no list" PLAIN);
}

static void test_what_is_no_markdown_stays(void **state)
{
    static const char *const same[] = {"2 * 3 * 4", "snake_case_name", "a # b",     "#tag",     "-5", "1.5 and 3",
                                       "__",        "a ** b",          "| a | b |", "12345. x", "x*"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        expect(same[i], 80, true, same[i]);
    expect("**open\nnext", 80, true, BOLD "open" PLAIN "\nnext"); /* style ends with its line */
}

static void test_fenced_code_keeps_its_lines(void **state)
{
    expect("```c\n  a  *b*;\n- c\n```\nd", 80, true, CODE "  a  *b*;\n- c\n" PLAIN "d");
    expect("```\nabcdefghijkl\n```\n", 9, true, CODE "abcdefgh\nijkl\n" PLAIN);
    expect("```\nnever closed", 80, true, CODE "never closed" PLAIN);
}

static void test_parts_have_their_style_and_lines(void **state)
{
    char *got = NULL;
    size_t n;
    struct terminal_text t;
    FILE *f = open_memstream(&got, &n);
    terminal_text_open(&t, f, 80);
    terminal_text_part(&t, "\033[2m", false);
    put(&t, "so **be** it");
    terminal_text_part(&t, "", true);
    put(&t, "**yes**");
    terminal_text_end(&t);
    fclose(f);
    assert_string_equal(got, "\033[2mso **be** it" PLAIN "\n" BOLD "yes" PLAIN);
    free(got);
}

static void test_a_status_stands_below_and_goes(void **state)
{
    char *got = NULL;
    size_t n;
    struct terminal_text t;
    FILE *f = open_memstream(&got, &n);
    terminal_text_open(&t, f, 12);
    put(&t, "one two ");
    terminal_text_status(&t, "fast, and more than fits");
    put(&t, "three");
    terminal_text_end(&t); /* on the line where the status was, which is cleared first */
    terminal_text_status(&t, NULL);
    fclose(f);
    assert_string_equal(got, "one two\n\033[1A\r\033[7C\0337\n\r\033[K\033[0m\033[2mfast, and m\0338\n\033[Kthree");
    free(got);
}

static void test_quantities_are_readable(void **state)
{
    assert_string_equal(units_size(1023).s, "1023 B");
    assert_string_equal(units_size(28611872).s, "27.29 MiB");
    assert_string_equal(units_size((uint64_t)3 << 40).s, "3.00 TiB");
    assert_string_equal(units_figure(4.987).s, "4.99");
    assert_string_equal(units_figure(999.6).s, "1000");
    assert_string_equal(units_figure(12345.6).s, "12346");
    assert_string_equal(units_duration(0.4).s, "0 s");
    assert_string_equal(units_duration(59.4).s, "59 s");
    assert_string_equal(units_duration(768).s, "12 min 48 s");
    assert_string_equal(units_duration(11100).s, "3 h 5 min");
    assert_string_equal(units_duration(1e300).s, "277777777777 h 46 min");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_break_between_words),        cmocka_unit_test(test_markdown_becomes_style),
        cmocka_unit_test(test_what_is_no_markdown_stays),        cmocka_unit_test(test_fenced_code_keeps_its_lines),
        cmocka_unit_test(test_parts_have_their_style_and_lines), cmocka_unit_test(test_a_status_stands_below_and_goes),
        cmocka_unit_test(test_quantities_are_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
