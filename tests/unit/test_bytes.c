/* Bytes that grow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"

static void must(err_code code, const struct err *e)
{
    if (code != ERR_OK)
        fail_msg("%s", e->text);
}

static void pieces_are_put_together(void **state)
{
    struct bytes b = {0};
    struct err e;
    char want[20000];
    size_t n = 0;
    must(bytes_add(&b, NULL, 0, &e), &e);
    assert_true(b.n == 0 && b.s && !*b.s);
    for (size_t piece = 1; n + piece <= sizeof want; piece = 1 + piece * 7 % 601) {
        memset(want + n, (int)('a' + piece % 26), piece);
        must(bytes_add(&b, want + n, piece, &e), &e);
        n += piece;
        assert_true(b.n == n && b.s[n] == '\0' && !memcmp(b.s, want, n));
    }
    bytes_close(&b);
    assert_true(!b.s && b.n == 0 && b.capacity == 0);
}

static void text_is_printed_behind_what_is_there(void **state)
{
    struct bytes b = {0};
    struct err e;
    char want[5000] = "x";
    must(bytes_add_text(&b, "x", &e), &e);
    for (int i = 0; i < 300; i++) {
        must(bytes_print(&b, &e, "%d %s", i, ""), &e);
        sprintf(want + strlen(want), "%d ", i);
    }
    assert_string_equal(b.s, want);
    assert_int_equal(b.n, strlen(want));
    bytes_close(&b);
}

static void text_is_put_together_without_errors(void **state)
{
    struct bytes b = {0};
    assert_string_equal(bytes_text(&b), "");
    bytes_put(&b, "ab\0c", 4);
    bytes_put_char(&b, 'd');
    bytes_put_text(&b, "ef");
    assert_true(b.n == 7 && !memcmp(bytes_text(&b), "ab\0cdef", 8) && !b.is_short);
    size_t capacity = b.capacity;
    bytes_clear(&b);
    assert_true(b.n == 0 && b.capacity == capacity && !*bytes_text(&b));
    bytes_put(&b, "x", SIZE_MAX / 2); /* more than there can be */
    assert_true(b.is_short && b.n == 0);
    bytes_put_text(&b, "x");
    assert_true(b.is_short && b.n == 1);
    bytes_close(&b);
    assert_true(!b.is_short);
}

static void the_first_bytes_are_dropped(void **state)
{
    struct bytes b = {0};
    struct err e;
    bytes_drop(&b, 0);
    must(bytes_add(&b, "ab\0cd", 5, &e), &e);
    bytes_drop(&b, 3);
    assert_true(b.n == 2 && !strcmp(b.s, "cd"));
    bytes_drop(&b, 2);
    assert_true(b.n == 0 && !*b.s);
    must(bytes_add_text(&b, "e", &e), &e);
    assert_string_equal(b.s, "e");
    bytes_close(&b);
}

static void what_no_memory_could_hold_is_refused(void **state)
{
    struct bytes b = {0};
    struct err e;
    must(bytes_add_text(&b, "kept", &e), &e);
    assert_int_equal(bytes_add(&b, "", SIZE_MAX - 2, &e), ERR_NOMEM);
    assert_string_equal(b.s, "kept");
    bytes_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_put_together),
        cmocka_unit_test(text_is_printed_behind_what_is_there),
        cmocka_unit_test(text_is_put_together_without_errors),
        cmocka_unit_test(the_first_bytes_are_dropped),
        cmocka_unit_test(what_no_memory_could_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
