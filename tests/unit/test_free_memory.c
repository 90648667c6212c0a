#define _GNU_SOURCE
/* What is free, of systems that are a folder of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/free_memory.h"
#include "base/mem.h"
#include "temp_folder.h"

static void put(const char *path, const char *text)
{
    write_text_below(folder.path, path, text);
}

static void without_proc_nothing_is_known(void **state)
{
    assert_true(free_memory_bytes(folder.path) == SIZE_MAX);
}

static void without_groups_it_is_what_the_system_has(void **state)
{
    put("/proc/meminfo", "MemTotal:       16000 kB\nMemFree: 9 kB\nMemAvailable:    5000 kB\n");
    assert_int_equal(free_memory_bytes(folder.path), 5000 * 1024);
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(free_memory_bytes(folder.path), 5000 * 1024);
}

static void the_tightest_group_above_decides(void **state)
{
    put("/proc/meminfo", "MemAvailable:    5000 kB\n");
    put("/proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("/sys/fs/cgroup/a.slice/memory.max", "3000000\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "2500000\n");
    put("/sys/fs/cgroup/a.slice/memory.stat", "anon 1\nfile 1300000\ninactive_file 1000000\nactive_file 300000\n");
    put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/b.scope/memory.current", "2000000\n");
    assert_int_equal(free_memory_bytes(folder.path), 3000000 - (2500000 - 1300000));
    put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "2100000\n");
    assert_int_equal(free_memory_bytes(folder.path), 100000);
    put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "1000\n");
    assert_int_equal(free_memory_bytes(folder.path), 0);
}

static void a_group_is_held_up_below_its_limit(void **state)
{
    put("/proc/meminfo", "MemAvailable:    5000 kB\n");
    put("/proc/self/cgroup", "0::/a.slice\n");
    put("/sys/fs/cgroup/a.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/memory.high", "3000000\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "2500000\n");
    assert_int_equal(free_memory_bytes(folder.path), 500000);
    assert_int_equal(free_memory_limit_bytes(folder.path), 3000000);
    put("/sys/fs/cgroup/a.slice/memory.max", "2600000\n");
    assert_int_equal(free_memory_bytes(folder.path), 100000);
    put("/sys/fs/cgroup/a.slice/memory.high", "max\n");
    assert_int_equal(free_memory_limit_bytes(folder.path), 2600000);
}

static void groups_of_version_1_count_too(void **state)
{
    put("/proc/meminfo", "MemAvailable:    5000 kB\n");
    put("/proc/self/cgroup", "9:cpu:/x\n4:memory:/in/a/container\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n"); /* the container's own: its path is not there */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "cache 7\ninactive_file 5\ntotal_inactive_file 200000\n");
    assert_int_equal(free_memory_bytes(folder.path), 2200000);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(free_memory_bytes(folder.path), 5000 * 1024);
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
        cmocka_unit_test_setup_teardown(without_proc_nothing_is_known, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(without_groups_it_is_what_the_system_has, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(the_tightest_group_above_decides, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_group_is_held_up_below_its_limit, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(groups_of_version_1_count_too, folder_setup, folder_teardown),
        cmocka_unit_test(what_the_process_has_is_known),
    };
    return cmocka_run_group_tests_name("free memory", tests, NULL, NULL);
}
