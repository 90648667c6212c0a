#define _GNU_SOURCE
/* What is free, of systems that are a folder of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/free_memory.h"
#include "base/mem.h"

static int make_root(void **state)
{
    char *root = strdup("/tmp/free_memory.XXXXXX");
    *state = root;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r '%s'", (char *)*state);
    free(*state);
    return system(command);
}

static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void without_proc_nothing_is_known(void **state)
{
    assert_true(free_memory_bytes(*state) == SIZE_MAX);
}

static void without_groups_it_is_what_the_system_has(void **state)
{
    put(*state, "/proc/meminfo", "MemTotal:       16000 kB\nMemFree: 9 kB\nMemAvailable:    5000 kB\n");
    assert_int_equal(free_memory_bytes(*state), 5000 * 1024);
    put(*state, "/proc/self/cgroup", "0::/\n");
    assert_int_equal(free_memory_bytes(*state), 5000 * 1024);
}

static void the_tightest_group_above_decides(void **state)
{
    put(*state, "/proc/meminfo", "MemAvailable:    5000 kB\n");
    put(*state, "/proc/self/cgroup", "0::/a.slice/b.scope\n");
    put(*state, "/sys/fs/cgroup/a.slice/memory.max", "3000000\n");
    put(*state, "/sys/fs/cgroup/a.slice/memory.current", "2500000\n");
    put(*state, "/sys/fs/cgroup/a.slice/memory.stat",
        "anon 1\nfile 1300000\ninactive_file 1000000\nactive_file 300000\n");
    put(*state, "/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    put(*state, "/sys/fs/cgroup/a.slice/b.scope/memory.current", "2000000\n");
    assert_int_equal(free_memory_bytes(*state), 3000000 - (2500000 - 1300000));
    put(*state, "/sys/fs/cgroup/a.slice/b.scope/memory.max", "2100000\n");
    assert_int_equal(free_memory_bytes(*state), 100000);
    put(*state, "/sys/fs/cgroup/a.slice/b.scope/memory.max", "1000\n");
    assert_int_equal(free_memory_bytes(*state), 0);
}

static void a_group_is_held_up_below_its_limit(void **state)
{
    put(*state, "/proc/meminfo", "MemAvailable:    5000 kB\n");
    put(*state, "/proc/self/cgroup", "0::/a.slice\n");
    put(*state, "/sys/fs/cgroup/a.slice/memory.max", "max\n");
    put(*state, "/sys/fs/cgroup/a.slice/memory.high", "3000000\n");
    put(*state, "/sys/fs/cgroup/a.slice/memory.current", "2500000\n");
    assert_int_equal(free_memory_bytes(*state), 500000);
    assert_int_equal(free_memory_limit_bytes(*state), 3000000);
    put(*state, "/sys/fs/cgroup/a.slice/memory.max", "2600000\n");
    assert_int_equal(free_memory_bytes(*state), 100000);
    put(*state, "/sys/fs/cgroup/a.slice/memory.high", "max\n");
    assert_int_equal(free_memory_limit_bytes(*state), 2600000);
}

static void groups_of_version_1_count_too(void **state)
{
    put(*state, "/proc/meminfo", "MemAvailable:    5000 kB\n");
    put(*state, "/proc/self/cgroup", "9:cpu:/x\n4:memory:/in/a/container\n0::/\n");
    put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "3000000\n"); /* the container's own: its path is not there */
    put(*state, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
    put(*state, "/sys/fs/cgroup/memory/memory.stat", "cache 7\ninactive_file 5\ntotal_inactive_file 200000\n");
    assert_int_equal(free_memory_bytes(*state), 2200000);
    put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(free_memory_bytes(*state), 5000 * 1024);
}

/* Touched memory counts, and what is given back doesn't. */
static void what_the_process_has_is_known(void **state)
{
    enum { N_BYTES = 64 << 20 };
    size_t before = resident_memory_bytes();
    void *p = mem_map(N_BYTES, MEM_SCRATCH);
    assert_non_null(p);
    memset(p, 1, N_BYTES);
    assert_in_range(resident_memory_bytes(), before + N_BYTES * 3 / 4, before + N_BYTES * 5 / 4);
    mem_unmap(p, N_BYTES, MEM_SCRATCH);
    assert_in_range(resident_memory_bytes(), 1 << 20, before + N_BYTES / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_proc_nothing_is_known, make_root, remove_root),
        cmocka_unit_test_setup_teardown(without_groups_it_is_what_the_system_has, make_root, remove_root),
        cmocka_unit_test_setup_teardown(the_tightest_group_above_decides, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_group_is_held_up_below_its_limit, make_root, remove_root),
        cmocka_unit_test_setup_teardown(groups_of_version_1_count_too, make_root, remove_root),
        cmocka_unit_test(what_the_process_has_is_known),
    };
    return cmocka_run_group_tests_name("free memory", tests, NULL, NULL);
}
