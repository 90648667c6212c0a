/* A machine with more processors than a pool has threads, or than the C library's own sets hold: all begins with as
 * many threads as there may be. The system's answer about processors is replaced. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "engine/device_options.h"
#include "engine/planning.h"
#include "moebius/moebius.h"

static size_t n_processors = 384;

int sched_getaffinity(pid_t process, size_t n_bytes, cpu_set_t *set)
{
    size_t n = (n_processors + 63) / 64 * 8;
    if (n_bytes < n) {
        errno = EINVAL;
        return -1;
    }
    memset(set, 0, n_bytes);
    memset(set, 0xff, n_processors / 8);
    return 0;
}

static void all_processors_are_counted(void **state)
{
    assert_int_equal(cpu_n_available(), 384);
    n_processors = 2048;
    assert_int_equal(cpu_n_available(), 2048);
    n_processors = 384;
}

static void pools_have_as_many_threads_as_they_may(void **state)
{
    struct device_options o;
    struct machine m;
    struct err e;
    assert_int_equal(pool_default_threads(), POOL_MAX_THREADS);
    assert_int_equal(device_options_parse(&o, "vulkan:0", 1, 1, NULL, &e), ERR_OK);
    assert_int_equal(o.devices[0].n_threads, POOL_MAX_THREADS);
    planning_machine_look(&m);
    assert_int_equal(m.n_thread, POOL_MAX_THREADS);
}

static void an_engine_opens_without_a_number_of_threads(void **state)
{
    moebius_engine *g;
    moebius_error e;
    const moebius_engine_options o = {.reader = MOEBIUS_READER_PREAD};
    assert_int_equal(moebius_engine_open(&g, GOLDEN "/olmoe.gguf", &o, &e), MOEBIUS_OK);
    assert_int_equal(moebius_n_threads(g), POOL_MAX_THREADS);
    moebius_engine_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_processors_are_counted),
        cmocka_unit_test(pools_have_as_many_threads_as_they_may),
        cmocka_unit_test(an_engine_opens_without_a_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
