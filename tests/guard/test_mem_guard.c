/* Between guard pages, who reads or writes beyond a piece of memory dies. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
enum { IS_WATCHED = 1 };
#else
enum { IS_WATCHED = 0 };
#endif

/* Whether a process that reads a byte there ends by it. */
static bool dies_at(const volatile char *p)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        (void)freopen("/dev/null", "w", stderr); /* the sanitizer's report */
        char c = *p;
        _exit(c == 1 ? 2 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return !WIFEXITED(status) || WEXITSTATUS(status) == 1;
}

static void mapped_memory_ends_where_it_was_asked_to(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 100, 4096, 5000, (2 << 20) + 4};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        char *p[2] = {mem_map(n, MEM_SCRATCH), mem_map(n, MEM_SCRATCH)};
        bool before = false, behind = false;
        for (int j = 0; j < 2; j++) {
            assert_non_null(p[j]);
            assert_false(dies_at(p[j]) || dies_at(p[j] + n - 1));
            if (IS_WATCHED)
                assert_true(dies_at(p[j] - 1) && dies_at(p[j] + n));
            before = before || dies_at(p[j] - 1);
            behind = behind || dies_at(p[j] + (n + 63) / 64 * 64);
        }
        assert_true(before && behind);
        mem_unmap(p[0], n, MEM_SCRATCH);
        mem_unmap(p[1], n, MEM_SCRATCH);
    }
}

static void reservations_end_with_their_pages(void **state)
{
    size_t n = 3 * 4096;
    char *p = mem_reserve(n);
    assert_non_null(p);
    assert_false(dies_at(p) || dies_at(p + n - 1));
    assert_true(dies_at(p - 1) && dies_at(p + n));
    mem_unreserve(p, n, 0, MEM_EXPERTS);
}

static void pieces_of_an_arena_are_apart(void **state)
{
    struct arena a = {0};
    char *p = arena_alloc(&a, 10), *q = arena_alloc(&a, 10);
    assert_true(p && q);
    if (IS_WATCHED)
        assert_true(dies_at(p + 10) && dies_at(q + 10));
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mapped_memory_ends_where_it_was_asked_to),
        cmocka_unit_test(reservations_end_with_their_pages),
        cmocka_unit_test(pieces_of_an_arena_are_apart),
    };
    return cmocka_run_group_tests_name("guard pages", tests, NULL, NULL);
}
