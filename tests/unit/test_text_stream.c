/* Text before stop strings goes out, whatever pieces it comes in, and nothing behind them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/random.h"
#include "texts/text_stream.h"

struct out {
    char s[4096];
    size_t n;
};

static void take(void *user, const char *text, size_t n)
{
    struct out *o = user;
    assert_true(n > 0);
    memcpy(o->s + o->n, text, n);
    o->n += n;
    o->s[o->n] = '\0';
}

enum { N_STOP = 6 };
static const char *const stops[N_STOP] = {"abc", "bca!", "", "cc", "dbb!", "bb"};

/* Feeds a text in pieces of 1 to `longest` bytes; returns which stop string ended it. */
static const char *feed(const char *text, size_t longest, size_t max_piece, struct random *r, struct out *o)
{
    struct text_stream s;
    struct err e;
    assert_int_equal(text_stream_open(&s, take, o, stops, N_STOP, max_piece, &e), ERR_OK);
    for (size_t at = 0, n = strlen(text), piece; at < n; at += piece) {
        piece = 1 + random_u32(r) % longest;
        piece = piece < n - at ? piece : n - at;
        bool is_stopped = text_stream_feed(&s, text + at, piece);
        assert_true(is_stopped == (s.stop != NULL));
    }
    text_stream_flush(&s);
    const char *stop = s.stop;
    text_stream_close(&s);
    return stop;
}

/* Where the stop string begins that is complete first. */
static const char *find(const char *text, size_t *at)
{
    const char *found = NULL;
    size_t end = SIZE_MAX;
    for (int i = 0; i < N_STOP; i++) {
        const char *p = *stops[i] ? strstr(text, stops[i]) : NULL;
        if (p && (size_t)(p - text) + strlen(stops[i]) < end) {
            end = (size_t)(p - text) + strlen(stops[i]);
            *at = (size_t)(p - text);
            found = stops[i];
        }
    }
    return found;
}

static void text_ends_before_stop_strings_in_any_pieces(void **state)
{
    struct random r = random_seed(1);
    for (int round = 0; round < 20000; round++) {
        char text[40] = "";
        size_t n = random_u32(&r) % 39, at = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = "aaabbbcd!"[random_u32(&r) % 9];
        struct out by_byte = {.s = ""}, whole = {.s = ""}, plain = {.s = ""};
        const char *stop = feed(text, 1, 1, &r, &by_byte), *want = find(text, &at);
        assert_true(feed(text, 9, 9, &r, &whole) == stop && feed(text, 39, 1, &r, &plain) == stop);
        assert_string_equal(whole.s, by_byte.s);
        assert_string_equal(plain.s, by_byte.s);
        assert_ptr_equal(stop, want);
        text[want ? at : n] = '\0';
        assert_string_equal(by_byte.s, text);
    }
}

static void long_pieces_are_taken_in_parts(void **state)
{
    struct random r = random_seed(2);
    char text[3000];
    struct out o = {.s = ""};
    memset(text, 'x', sizeof text - 1);
    memcpy(text + 2000, "abcx", 4);
    text[sizeof text - 1] = '\0';
    assert_string_equal(feed(text, sizeof text, 3, &r, &o), "abc");
    assert_int_equal(o.n, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_ends_before_stop_strings_in_any_pieces),
        cmocka_unit_test(long_pieces_are_taken_in_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
