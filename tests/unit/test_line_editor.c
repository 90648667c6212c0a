/* A line editor at a terminal, and Ctrl-C at the worst of times. */
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include <cmocka.h>

#include "cli/interrupt.h"
#include "cli/line_editor.h"

static int keyboard; /* the terminal's other end */
static bool interrupts_mode;

/* In place of libc's, which libedit calls between the prompt and the wait for keys. */
__attribute__((visibility("default"))) int tcsetattr(int fd, int when, const struct termios *mode)
{
    int (*real)(int, int, const struct termios *);
    *(void **)&real = dlsym(RTLD_NEXT, "tcsetattr");
    if (interrupts_mode)
        raise(SIGINT);
    interrupts_mode = false;
    return real(fd, when, mode);
}

static int open_terminal(void **state)
{
    struct err e;
    setpgid(0, 0); /* libedit passes signals on to the process group */
    setenv("TERM", "dumb", 1);
    keyboard = posix_openpt(O_RDWR | O_NOCTTY);
    if (keyboard < 0 || grantpt(keyboard) != 0 || unlockpt(keyboard) != 0)
        return -1;
    int terminal = open(ptsname(keyboard), O_RDWR | O_NOCTTY);
    if (dup2(terminal, STDIN_FILENO) < 0 || dup2(terminal, STDOUT_FILENO) < 0)
        return -1;
    close(terminal);
    return line_editor_open((struct line_editor **)state, true, &e) == ERR_OK ? 0 : -1;
}

static int close_terminal(void **state)
{
    line_editor_close((struct line_editor **)state);
    return close(keyboard);
}

static void reads(struct line_editor *editor, const char *typed, const char *expected)
{
    const char *line;
    cli_catch_interrupt();
    assert_int_equal(write(keyboard, typed, strlen(typed)), strlen(typed));
    assert_int_equal(line_editor_read(editor, "> ", &line), LINE_TEXT);
    assert_string_equal(line, expected);
    assert_false(cli_interrupted());
}

static void an_interrupt_before_the_prompt_ends_the_wait(void **state)
{
    const char *line;
    cli_catch_interrupt();
    raise(SIGINT);
    assert_int_equal(line_editor_read(*state, "> ", &line), LINE_INTERRUPTED);
    reads(*state, "first\n", "first");
}

static void an_interrupt_between_prompt_and_wait_ends_the_wait(void **state)
{
    const char *line;
    if (strcmp(line_editor_name(), "libedit") != 0)
        skip();
    cli_catch_interrupt();
    interrupts_mode = true;
    assert_int_equal(line_editor_read(*state, "> ", &line), LINE_INTERRUPTED);
    assert_false(interrupts_mode);
    reads(*state, "second\n", "second");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_interrupt_before_the_prompt_ends_the_wait),
        cmocka_unit_test(an_interrupt_between_prompt_and_wait_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, open_terminal, close_terminal);
}
