/* Lines on standard error, which nobody may read. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "cli/say.h"

enum { PIPE_BYTES = 1 << 16, PATIENCE_S = 20 };

/* Standard error as a pipe. Nothing is asserted meanwhile, as cmocka would say it there. */
struct reader {
    int fd, stderr_before;
};

static void begin(struct reader *r)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    r->fd = fds[0];
    r->stderr_before = dup(STDERR_FILENO);
    alarm(PATIENCE_S); /* ends a test that waits for the pipe */
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
}

static void end(struct reader *r)
{
    dup2(r->stderr_before, STDERR_FILENO);
    alarm(0);
    close(r->stderr_before);
    close(r->fd);
}

/* What the pipe holds, to be freed. */
static char *take(struct reader *r)
{
    char *text = malloc(PIPE_BYTES + 1);
    const ssize_t n = text ? read(r->fd, text, PIPE_BYTES) : -1;
    if (n >= 0)
        text[n] = '\0';
    return text;
}

/* How many lines there are, which are "line 0", "line 1" and so on, and whole. */
static int count_lines(const char *text)
{
    int n = 0;
    for (char line[32]; *text; n++, text += strlen(line)) {
        snprintf(line, sizeof line, "line %d\n", n);
        assert_memory_equal(text, line, strlen(line));
    }
    return n;
}

static void lines_are_waited_for_unless_that_is_said(void **state)
{
    enum { N = 100 };
    struct reader r;
    begin(&r);
    for (int i = 0; i < N; i++)
        say(LOG_INFO, "line %d", i);
    char *text = take(&r);
    end(&r);
    assert_int_equal(count_lines(text), N);
    free(text);
}

static void lines_that_nobody_reads_are_left_out_and_counted(void **state)
{
    enum { N = 20000 };
    struct reader r;
    char expected[128];
    say_to_log(false);
    begin(&r);
    for (int i = 0; i < N; i++)
        say(LOG_INFO, "line %d", i);
    char *text = take(&r);
    say(LOG_WARN, "after %s", "that");
    char *after = take(&r);
    say_line("and then");
    char *then = take(&r);
    end(&r);
    const int n = count_lines(text);
    assert_in_range(n, 1000, N - 1);
    snprintf(expected, sizeof expected, "warning: nobody read the log: %d of its lines are lost\nwarning: after that\n",
             N - n);
    assert_string_equal(after, expected);
    assert_string_equal(then, "and then\n");
    free(text);
    free(after);
    free(then);
}

static void what_follows_a_line_that_was_cut_is_whole(void **state)
{
    struct reader r;
    char *line = malloc(2 * PIPE_BYTES);
    assert_non_null(line);
    memset(line, 'x', 2 * PIPE_BYTES);
    line[2 * PIPE_BYTES - 1] = '\0';
    say_to_log(true);
    begin(&r);
    say_line(line);
    char *text = take(&r);
    say(LOG_INFO, "\xff\"");
    char *after = take(&r);
    end(&r);
    assert_int_equal(strspn(text, "x"), PIPE_BYTES);
    const char *lost =
                   "\n{\"level\":\"warning\",\"message\":\"nobody read the log: 1 of its lines are lost\",\"time\":\"",
               *next = "Z\"}\n{\"level\":\"info\",\"message\":\"\xef\xbf\xbd\\\"\",\"time\":\"";
    assert_memory_equal(after, lost, strlen(lost));
    assert_non_null(strstr(after, next));
    free(line);
    free(text);
    free(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_waited_for_unless_that_is_said),
        cmocka_unit_test(lines_that_nobody_reads_are_left_out_and_counted),
        cmocka_unit_test(what_follows_a_line_that_was_cut_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
