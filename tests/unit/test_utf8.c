/* UTF-8: what is a character, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/utf8.h"

/* The Unicode Standard, table 3-7: well-formed byte sequences; and surrogates, which are none. */
struct form {
    unsigned char lo, hi, lo2, hi2; /* the first byte and the second; those behind them are 80 to bf */
    unsigned n;
    bool is_surrogate;
};
static const struct form forms[] = {{0x00, 0x7f, 0, 0xff, 1, false},    {0xc2, 0xdf, 0x80, 0xbf, 2, false},
                                    {0xe0, 0xe0, 0xa0, 0xbf, 3, false}, {0xe1, 0xec, 0x80, 0xbf, 3, false},
                                    {0xed, 0xed, 0x80, 0x9f, 3, false}, {0xed, 0xed, 0xa0, 0xbf, 3, true},
                                    {0xee, 0xef, 0x80, 0xbf, 3, false}, {0xf0, 0xf0, 0x90, 0xbf, 4, false},
                                    {0xf1, 0xf3, 0x80, 0xbf, 4, false}, {0xf4, 0xf4, 0x80, 0x8f, 4, false}};

static const struct form *form_of(const unsigned char *s, size_t n)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct form *f = &forms[i];
        bool fits = n >= f->n && s[0] >= f->lo && s[0] <= f->hi && (f->n < 2 || (s[1] >= f->lo2 && s[1] <= f->hi2));
        for (unsigned k = 2; fits && k < f->n; k++)
            fits = s[k] >= 0x80 && s[k] <= 0xbf;
        if (fits)
            return f;
    }
    return NULL;
}

/* Every first byte, with bytes at all boundaries behind it, whole and cut off. */
static void characters_are_those_of_the_standard(void **state)
{
    static const unsigned char edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    enum { N = sizeof edges, UNTOUCHED = 0x12345678 };
    for (int i = 0; i < 256 * N * N * N; i++) {
        const unsigned char s[4] = {(unsigned char)(i / (N * N * N)), edges[i / (N * N) % N], edges[i / N % N],
                                    edges[i % N]};
        for (size_t n = 1; n <= 4; n++) {
            char text[4]; /* so that sanitizers see a read beyond n */
            memcpy(text + 4 - n, s, n);
            const struct form *f = form_of(s, n);
            unsigned want = f && !f->is_surrogate ? f->n : 0;
            uint32_t strict = UNTOUCHED, any = UNTOUCHED;
            assert_int_equal(utf8_decode(text + 4 - n, n, &strict), want);
            assert_int_equal(utf8_decode_surrogates(text + 4 - n, n, &any), f ? f->n : 0);
            assert_int_equal(utf8_length(text + 4 - n, n), want);
            assert_int_equal(strict, want ? any : UNTOUCHED);
            assert_true(f || any == UNTOUCHED);
        }
    }
}

static void every_code_point_is_read_as_it_was_written(void **state)
{
    for (uint32_t code = 0; code <= UTF8_MAX_CODE; code++) {
        char text[UTF8_MAX_BYTES];
        uint32_t got = 0;
        unsigned n = utf8_encode(code, text);
        bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
        assert_int_equal(n, code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_lead_length(text[0]), n);
        assert_int_equal(utf8_decode_surrogates(text, n, &got), n);
        assert_int_equal(got, code);
        assert_int_equal(utf8_decode(text, n, &got), is_surrogate ? 0 : n);
        assert_int_equal(utf8_is_character(code), !is_surrogate);
        for (unsigned k = 0; k < n; k++)
            assert_int_equal(utf8_is_tail(text[k]), k > 0);
    }
    assert_false(utf8_is_character(UTF8_MAX_CODE + 1));
}

static void a_text_is_valid_up_to_its_first_bad_byte(void **state)
{
    static const struct {
        const char *text;
        size_t n_valid, n_character;
    } texts[] = {{"", 0, 0},
                 {"a\xc3\xa9\xe4\xbb\x8a\xf0\x9f\x98\x80", 10, 4},
                 {"a\xff", 1, 0},
                 {"\xc0\xaf", 0, 0},                         /* overlong */
                 {"ab\xe0\x9f\xbf", 2, 0},                   /* overlong */
                 {"\xf0\x8f\xbf\xbf", 0, 0},                 /* overlong */
                 {"\xc3\xa9\xed\xa0\x80", 2, 0},             /* a surrogate */
                 {"\xf4\x8f\xbf\xbf\xf4\x90\x80\x80", 4, 0}, /* the last code point, and the one behind it */
                 {"\xf5\x80\x80\x80", 0, 0},
                 {"a\xe4\xbb", 1, 0}, /* cut off */
                 {"\x80", 0, 0}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n = strlen(texts[i].text);
        assert_int_equal(utf8_valid(texts[i].text, n), texts[i].n_valid);
        if (texts[i].n_valid == n)
            assert_int_equal(utf8_count(texts[i].text, n), texts[i].n_character);
    }
    assert_int_equal(utf8_valid("a\0b", 3), 3);
    assert_string_equal(UTF8_REPLACEMENT, "\xef\xbf\xbd");
}

static void the_beginning_of_a_character_is_known(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } ends[] = {{"", 0},
                {"a", 0},
                {"\xc3", 1},
                {"\xc3\xa9", 0},
                {"\xe4", 1},
                {"a\xe4\xbb", 2},
                {"\xe4\xbb\x8a", 0},
                {"\xf0\x9f\x98", 3},
                {"\xf0\x9f\x98\x80", 0},
                {"\xf0\x9f\x98\x80\x80", 0},
                {"\x80\x80\x80", 0},
                {"\xff", 0},
                {"\xc1", 0}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        assert_int_equal(utf8_unfinished(ends[i].text, strlen(ends[i].text)), ends[i].n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_those_of_the_standard),
        cmocka_unit_test(every_code_point_is_read_as_it_was_written),
        cmocka_unit_test(a_text_is_valid_up_to_its_first_bad_byte),
        cmocka_unit_test(the_beginning_of_a_character_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
