/* Lines as they come through a pipe. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "cli/line_reader.h"

enum { MAX_BYTES = 8 };

struct piped {
    int fds[2];
    struct line_reader reader;
};

static void open_pipe(struct piped *p)
{
    assert_int_equal(pipe(p->fds), 0);
    line_reader_from(&p->reader, p->fds[0], "pipe", MAX_BYTES);
}

static void put(const struct piped *p, const char *text, size_t n)
{
    assert_int_equal(write(p->fds[1], text, n), n);
}

static void end_input(struct piped *p)
{
    close(p->fds[1]);
    p->fds[1] = -1;
}

static void close_pipe(struct piped *p)
{
    line_reader_close(&p->reader);
    close(p->fds[0]);
    if (p->fds[1] >= 0)
        close(p->fds[1]);
}

static enum line_status next(struct piped *p, struct line *line)
{
    struct err e;
    enum line_status status;
    assert_int_equal(line_reader_next(&p->reader, p->fds[1] < 0, line, &status, &e), ERR_OK);
    return status;
}

static void expect(struct piped *p, const char *text, bool is_whole)
{
    struct line line;
    assert_int_equal(next(p, &line), LINE_READ);
    assert_int_equal(line.is_whole, is_whole);
    if (!text) {
        assert_null(line.text);
        return;
    }
    assert_int_equal(line.n, strlen(text));
    assert_string_equal(line.text, text);
}

static void expect_none(struct piped *p, enum line_status status)
{
    struct line line;
    assert_int_equal(next(p, &line), status);
}

static void lines_come_whole_and_as_soon_as_they_are_there(void **state)
{
    struct piped p;
    open_pipe(&p);
    expect_none(&p, LINE_NOT_YET);
    put(&p, "one\n\ntw", 7);
    expect(&p, "one", true);
    expect(&p, "", true);
    expect_none(&p, LINE_NOT_YET);
    put(&p, "o\nthree", 7);
    expect(&p, "two", true);
    expect_none(&p, LINE_NOT_YET);
    end_input(&p);
    expect(&p, "three", false);
    expect_none(&p, LINE_NO_MORE);
    expect_none(&p, LINE_NO_MORE);
    close_pipe(&p);
}

static void a_line_that_is_too_long_is_left_out_alone(void **state)
{
    struct piped p;
    open_pipe(&p);
    put(&p, "12345678\n123456789\nshort\n", 25);
    expect(&p, "12345678", true);
    expect(&p, NULL, true);
    expect(&p, "short", true);
    for (int i = 0; i < 5; i++) { /* in pieces, of which none is kept */
        put(&p, "123456", 6);
        expect_none(&p, LINE_NOT_YET);
    }
    put(&p, "7\nb\n", 4);
    expect(&p, NULL, true);
    expect(&p, "b", true);
    put(&p, "123456789", 9);
    end_input(&p);
    expect(&p, NULL, false);
    expect_none(&p, LINE_NO_MORE);
    close_pipe(&p);
}

static void long_inputs_pass_through_a_short_buffer(void **state)
{
    enum { N = 5000 };
    struct piped p;
    char text[16];
    open_pipe(&p);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "%d\n", i);
        put(&p, text, strlen(text));
        if (i % 3 == 2)
            for (int k = i - 2; k <= i; k++) {
                snprintf(text, sizeof text, "%d", k);
                expect(&p, text, true);
            }
    }
    assert_true(p.reader.capacity < 1 << 18);
    close_pipe(&p);
}

static void blank_lines_have_white_space_alone(void **state)
{
    assert_true(line_is_blank(&(struct line){.text = "", .n = 0}));
    assert_true(line_is_blank(&(struct line){.text = " \t\r", .n = 3}));
    assert_false(line_is_blank(&(struct line){.text = " x", .n = 2}));
    assert_false(line_is_blank(&(struct line){.text = " \0", .n = 2}));
    assert_false(line_is_blank(&(struct line){.text = NULL}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_whole_and_as_soon_as_they_are_there),
        cmocka_unit_test(a_line_that_is_too_long_is_left_out_alone),
        cmocka_unit_test(long_inputs_pass_through_a_short_buffer),
        cmocka_unit_test(blank_lines_have_white_space_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
