/* What text of others looks like to a person, and that errors and log lines are made so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/utf8.h"

static const struct {
    const char *text;
    size_t n;
    const char *shown;
} cases[] = {
#define CASE(text, shown)                                                                                              \
    {                                                                                                                  \
        text, sizeof text - 1, shown                                                                                   \
    }
    CASE("", ""),
    CASE("plain \\ text: \xc3\xa9\xe4\xbb\x8a\xf0\x9f\x98\x80 \xd7\x90",
         "plain \\ text: \xc3\xa9\xe4\xbb\x8a\xf0\x9f\x98\x80 \xd7\x90"),
    CASE("\x1b]0;title\x07\x1b[31m", "\\x1b]0;title\\x07\\x1b[31m"),
    CASE("a\nb\tc\rd\0e\x7f", "a\\nb\\tc\\x0dd\\x00e\\x7f"),
    CASE("\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0", "\\u0080\\u009b\\u009f\xc2\xa0"),
    CASE("\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xae\xe2\x80\xaf", "\xe2\x80\xa9\\u202a\\u202e\xe2\x80\xaf"),
    CASE("\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa", "\xe2\x81\xa5\\u2066\\u2069\xe2\x81\xaa"),
    CASE("\x9b"
         "31m\xff",
         "\\x9b"
         "31m\\xff"),                                                              /* a C1 control as a byte */
    CASE("\xc1\x9b \xe0\x80\x9b", "\\xc1\\x9b \\xe0\\x80\\x9b"),                   /* overlong */
    CASE("\xed\xa0\x80 \xf4\x90\x80\x80", "\\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80"), /* a surrogate; over U+10FFFF */
    CASE("\xe4\xbb", "\\xe4\\xbb"),
    CASE("\xe4\xbb\x1b[m", "\\xe4\\xbb\\x1b[m"),
};

enum { N_CASE = sizeof cases / sizeof *cases };

static void what_steers_or_is_not_utf8_is_spelled_out(void **state)
{
    for (int i = 0; i < N_CASE; i++) {
        char out[128];
        assert_true(printable_line(cases[i].text, cases[i].n, out, sizeof out));
        assert_string_equal(out, cases[i].shown);
        char again[128];
        assert_true(printable_line(out, strlen(out), again, sizeof again));
        assert_string_equal(again, out);
    }
}

static bool is_spelled_out(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Every code point, and every byte with every other behind it. */
static void no_line_holds_a_control_character(void **state)
{
    for (uint32_t code = 0; code < 0x110000; code++) {
        char text[4];
        size_t n = utf8_encode(code, text);
        struct printable p = printable_next(text, n);
        bool is_surrogate = utf8_is_surrogate(code);
        assert_int_equal(p.n_bytes, is_surrogate ? 1 : n);
        assert_int_equal(p.shown[0] == '\\' && p.shown[1], is_surrogate || is_spelled_out(code));
    }
    for (int code = 0; code < 0x10000; code++) {
        const char text[2] = {(char)(code >> 8), (char)code};
        char out[16];
        assert_true(printable_line(text, 2, out, sizeof out));
        for (const char *c = out; *c; c++)
            assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

static void lines_are_cut_between_characters(void **state)
{
    static const char text[] = "a\x1b\xc3\xa9z";
    static const char *const shown[] = {
        "", "", "a", "a", "a", "a", "a\\x1b", "a\\x1b", "a\\x1b\xc3\xa9", "a\\x1b\xc3\xa9z"};
    for (size_t n = 1; n < sizeof shown / sizeof *shown; n++) {
        char out[16];
        assert_int_equal(printable_line(text, sizeof text - 1, out, n), n == 9);
        assert_string_equal(out, shown[n]);
    }
}

static void errors_are_one_printable_line(void **state)
{
    struct err e;
    for (int i = 0; i < N_CASE; i++)
        if (strlen(cases[i].text) == cases[i].n) {
            char want[160];
            err_set(&e, ERR_FORMAT, "%s", cases[i].text);
            assert_string_equal(e.text, cases[i].shown);
            err_prefix(&e, "%s", cases[i].text);
            snprintf(want, sizeof want, "%s: %s", cases[i].shown, cases[i].shown);
            assert_string_equal(e.text, want);
        }
    char longest[4 * ERR_TEXT_BYTES];
    for (size_t shift = 0; shift < 4; shift++) { /* the cut goes through a character, wherever that begins */
        memset(longest, 'a', shift);
        for (size_t i = shift; i + 4 < sizeof longest; i += 4)
            memcpy(longest + i, "\xf0\x9f\x98\x80", 5);
        err_set(&e, ERR_FORMAT, "%s", longest);
        assert_true(strlen(e.text) > ERR_TEXT_BYTES - 5 && !strchr(e.text, '\\'));
        err_prefix(&e, "F");
        assert_true(strlen(e.text) > ERR_TEXT_BYTES - 5 && !strncmp(e.text, "F: ", 3));
        assert_int_equal(utf8_unfinished(e.text, strlen(e.text)), 0);
    }
    err_set(&e, ERR_FORMAT, "short");
    err_prefix(&e, "%s", longest); /* without room for a prefix there is none */
    assert_string_equal(e.text, "short");
    memset(longest, '\x1b', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    err_set(&e, ERR_FORMAT, "%s", longest);
    assert_true(strlen(e.text) > ERR_TEXT_BYTES - 5 && !strchr(e.text, '\x1b'));
}

static void keep(void *user, enum log_level level, const char *line)
{
    snprintf(user, 64, "%s", line);
}

static void log_lines_are_printable(void **state)
{
    char line[64] = "";
    const struct log log = {keep, line};
    log_line(&log, LOG_WARN, "tensor \"%s\"", "x\x1b[2J\n");
    assert_string_equal(line, "tensor \"x\\x1b[2J\\n\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_steers_or_is_not_utf8_is_spelled_out),
        cmocka_unit_test(no_line_holds_a_control_character),
        cmocka_unit_test(lines_are_cut_between_characters),
        cmocka_unit_test(errors_are_one_printable_line),
        cmocka_unit_test(log_lines_are_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
