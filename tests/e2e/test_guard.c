/* Memory that becomes short while a model runs: its experts give slots back, the logits stay, and one line says so.
 * usage: test_guard MODEL */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "../unit/temp_folder.h"
#include "base/clock.h"
#include "engine/engine_internal.h"

enum { N_PROMPT = 32, N_TOK = 48, N_VOCAB = 4096 };

static const char *model_path;
static struct temp_folder root;
static int32_t ids[N_TOK];
static int n_short, n_free, n_hot; /* lines of the log */

static void count_lines(void *user, enum moebius_log_level level, const char *line)
{
    (void)user;
    (void)level;
    n_short += strstr(line, "memory is short") != NULL;
    n_free += strstr(line, "memory is free again") != NULL;
    n_hot += strstr(line, "hot: k10temp Tctl is at") != NULL;
}

static void put(const char *path, const char *fmt, long long n)
{
    char text[256];
    snprintf(text, sizeof text, fmt, n);
    write_text_below(root.path, path, text);
}

static void set_available(long long n_bytes)
{
    put("/proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: %lld kB\n", n_bytes / 1024);
}

static moebius_engine *open_engine(void)
{
    moebius_engine *g;
    moebius_error error;
    const moebius_engine_options o = {.n_threads = 2, .log = count_lines};
    n_short = n_free = n_hot = 0;
    if (moebius_engine_open(&g, model_path, &o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    assert_true(g->is_limited);
    g->guard.root = root.path;
    return g;
}

static moebius_session *open_session(moebius_engine *g)
{
    moebius_session *s;
    moebius_error error;
    const moebius_session_options o = {.n_ctx = N_TOK};
    if (moebius_session_open(&s, g, &o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return s;
}

/* The next tokens of the text, with the guard looking before each pass. */
static void eval(moebius_session *s, int n)
{
    moebius_error error;
    for (int i = 0; i < n; i++) {
        int64_t pos = moebius_session_pos(s);
        size_t n_now = pos == 0 ? N_PROMPT : 1;
        s->engine->guard.looked_ns = 0;
        if (moebius_session_eval(s, ids + pos, n_now, &error) != MOEBIUS_OK)
            fail_msg("%s", error.text);
    }
}

static void slots_are_given_back_and_the_logits_stay(void **state)
{
    (void)state;
    static float want[N_VOCAB];
    set_available((long long)8 << 30);
    moebius_engine *g = open_engine();
    moebius_session *s = open_session(g);
    eval(s, N_TOK - N_PROMPT + 1);
    memcpy(want, moebius_session_logits(s), sizeof want);
    uint64_t all = moebius_engine_counters(g).expert_bytes;
    assert_int_equal(all, moebius_engine_counters(g).expert_all_bytes);
    assert_int_equal(n_short, 0);
    moebius_session_close(&s);
    s = open_session(g);
    eval(s, 4);
    set_available(0);
    size_t before = mem_total_bytes();
    eval(s, 1);
    uint64_t left = moebius_engine_counters(g).expert_bytes;
    assert_true(left < all && mem_total_bytes() < before);
    eval(s, N_TOK - N_PROMPT - 4);
    assert_memory_equal(want, moebius_session_logits(s), sizeof want);
    assert_int_equal(n_short, 1);
    assert_true(moebius_engine_counters(g).n_expert_miss > 0);
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

/* With plenty of memory, all experts and two evaluations; returns the experts' bytes. */
static uint64_t begin(moebius_engine **g, moebius_session **s)
{
    set_available((long long)8 << 30);
    *g = open_engine();
    *s = open_session(*g);
    eval(*s, 2);
    return moebius_engine_counters(*g).expert_bytes;
}

static void a_small_lack_costs_no_more_than_it_is(void **state)
{
    (void)state;
    moebius_engine *g;
    moebius_session *s;
    uint64_t all = begin(&g, &s);
    size_t before = mem_total_bytes();
    g->bound_bytes = (size_t)64 << 22; /* a reserve of 4 MiB, whatever machine this is */
    set_available(3 << 20);
    eval(s, 1);
    uint64_t gave = all - moebius_engine_counters(g).expert_bytes;
    assert_true(gave > 0);                                         /* besides experts, state that no text needs goes */
    assert_in_range(before - mem_total_bytes(), 4 << 20, 6 << 20); /* the lack is 5, and reading takes buffers */
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

/* Memory that goes fast is given back before it is short; the same amount, slowly, is none of the guard's business. */
static void a_fast_loss_is_met_ahead(void **state)
{
    (void)state;
    moebius_engine *g;
    moebius_session *s;
    uint64_t all = begin(&g, &s);
    g->bound_bytes = (size_t)64 << 22;
    for (int is_fast = 0; is_fast < 2; is_fast++) {
        moebius_error error;
        set_available(20 << 20);
        eval(s, 1);
        set_available(12 << 20);
        g->guard.looked_ns = clock_ns() - (is_fast ? 100 : 60000) * (int64_t)1000000;
        assert_int_equal(moebius_session_eval(s, ids, 1, &error), MOEBIUS_OK);
        assert_int_equal(moebius_engine_counters(g).expert_bytes < all, is_fast);
    }
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

static void a_control_group_counts_and_memory_comes_back(void **state)
{
    (void)state;
    moebius_engine *g;
    moebius_session *s;
    uint64_t all = begin(&g, &s);
    put("/proc/self/cgroup", "0::/a\n%.0lld", 0);
    put("/sys/fs/cgroup/a/memory.max", "%lld\n", 1000000000);
    put("/sys/fs/cgroup/a/memory.current", "%lld\n", 999000000);
    eval(s, 2);
    uint64_t left = moebius_engine_counters(g).expert_bytes;
    assert_true(left < all);
    put("/sys/fs/cgroup/a/memory.max", "%lld\n", (long long)8 << 30);
    eval(s, 1);
    assert_int_equal(moebius_engine_counters(g).expert_bytes, left); /* not at once */
    g->guard.short_ns -= (int64_t)6 * 1000000000;
    eval(s, 1);
    assert_int_equal(moebius_engine_counters(g).expert_bytes, all);
    assert_int_equal(n_short, 1);
    assert_int_equal(n_free, 1);
    eval(s, 4);
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

static void set_degrees(moebius_engine *g, long long degrees)
{
    put("/sys/class/hwmon/hwmon2/temp1_input", "%lld\n", 1000 * degrees);
    g->heat.looked_ns = 0;
}

/* It is said once, and again only after the processor has cooled down; the logits stay. */
static void heat_is_told_once(void **state)
{
    (void)state;
    static float want[N_VOCAB];
    set_available((long long)8 << 30);
    moebius_engine *g = open_engine();
    moebius_session *s = open_session(g);
    eval(s, 6);
    memcpy(want, moebius_session_logits(s), sizeof want);
    moebius_session_close(&s);
    s = open_session(g);
    g->heat.root = root.path;
    put("/sys/class/hwmon/hwmon2/name", "k10temp\n%lld", 0);
    put("/sys/class/hwmon/hwmon2/temp1_label", "Tctl\n%lld", 0);
    put("/sys/class/hwmon/hwmon2/temp1_crit", "%lld\n", 95000);
    const struct {
        int degrees, n_told;
    } steps[] = {{60, 0}, {93, 1}, {94, 1}, {90, 1}, {93, 1}, {70, 1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        set_degrees(g, steps[i].degrees);
        eval(s, 1);
        assert_int_equal(n_hot, steps[i].n_told);
    }
    assert_memory_equal(want, moebius_session_logits(s), sizeof want);
    set_degrees(g, 96);
    eval(s, 1);
    assert_int_equal(n_hot, 2);
    put("/sys/class/hwmon/hwmon2/temp1_input", "%lld\n", 20000);
    eval(s, 1); /* it looks now and then, not at each token */
    put("/sys/class/hwmon/hwmon2/temp1_input", "%lld\n", 96000);
    g->heat.looked_ns = 0;
    eval(s, 1);
    assert_int_equal(n_hot, 2);
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

static int make_root(void **state)
{
    (void)state;
    return temp_folder_make(&root);
}

static int remove_root(void **state)
{
    (void)state;
    temp_folder_remove(&root);
    return 0;
}

/* On any GPU, as one with memory of its own. */
static void the_largest_session_decides_what_slots_leave_free_on_a_gpu(void **state)
{
    moebius_engine *g;
    moebius_session *s[3];
    size_t spare[3];
    static const int64_t n_ctx[] = {2048, 256, 4096};
    const moebius_engine_options o = {.devices = "vulkan:0", .expert_ram_share = 0.5};
    setenv("MOEBIUS_VULKAN_KIND", "discrete", 1);
    bool is_there = moebius_engine_open(&g, model_path, &o, NULL) == MOEBIUS_OK;
    unsetenv("MOEBIUS_VULKAN_KIND");
    if (!is_there)
        skip();
    assert_true(engine_has_own_memory(g, 0));
    for (int i = 0; i < 3; i++) {
        const moebius_session_options session = {.n_ctx = n_ctx[i]};
        assert_int_equal(moebius_session_open(&s[i], g, &session, NULL), MOEBIUS_OK);
        spare[i] = g->devices[0].spare_bytes;
    }
    assert_true(spare[0] > 0);
    assert_int_equal(spare[1], spare[0]);
    assert_true(spare[2] > spare[1]);
    for (int i = 0; i < 3; i++)
        moebius_session_close(&s[i]);
    moebius_engine_close(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slots_are_given_back_and_the_logits_stay, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_small_lack_costs_no_more_than_it_is, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_fast_loss_is_met_ahead, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_control_group_counts_and_memory_comes_back, make_root, remove_root),
        cmocka_unit_test_setup_teardown(heat_is_told_once, make_root, remove_root),
        cmocka_unit_test(the_largest_session_decides_what_slots_leave_free_on_a_gpu),
    };
    if (argc != 2)
        return 2;
    model_path = argv[1];
    for (int i = 0; i < N_TOK; i++)
        ids[i] = (i * 37 + 11) % N_VOCAB;
    return cmocka_run_group_tests_name("memory guard", tests, NULL, NULL);
}
