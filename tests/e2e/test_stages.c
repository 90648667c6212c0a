/* Layers on several devices: the same bits as on one, in little memory, too, and what is refused.
 * usage: test_stages MODEL GOLDEN_DIRECTORY */
#define _GNU_SOURCE
#include <glob.h>
#include <unistd.h>

#include "devices_fixture.h"

static char logged[4096];

static void keep_log(void *user, enum moebius_log_level level, const char *line)
{
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void stages_of_all_families_give_the_bits_of_one_device(void **state)
{
    char pattern[1024];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.gguf", golden);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        const moebius_engine_options o = {
            .devices = "cpu:1,cpu:1", .split = "stages", .expert_ram_share = i % 2 ? 0.4 : 0};
        if (strstr(path, "/q_")) /* which have one layer */
            continue;
        float *want = run_on_one(path);
        moebius_engine *g = open_streaming(path, o);
        expect_run(g, want, path);
        moebius_engine_close(&g);
        free(want);
    }
    globfree(&found);
}

static void stages_in_any_way_give_the_bits_of_one_device(void **state)
{
    static const struct {
        const char *devices, *split;
        double share;
        moebius_prefetch prefetch;
        bool check_ops;
    } tries[] = {
        {"cpu:1,cpu:1", "stages", 0, MOEBIUS_PREFETCH_AUTO, false},
        {"cpu:2,cpu:1", "stages:1,3", 0.3, MOEBIUS_PREFETCH_ON, false},
        {"cpu:1,cpu:2", "stages:3,1", 0.3, MOEBIUS_PREFETCH_OFF, false},
        {"cpu:1,cpu:1,cpu:1", "stages", 0.3, MOEBIUS_PREFETCH_AUTO, false},
        {"cpu:1,cpu:1", "stages", 0, MOEBIUS_PREFETCH_AUTO, true},
    };
    float *want = run_on_one(demo);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const moebius_engine_options o = {.devices = tries[i].devices,
                                          .split = tries[i].split,
                                          .expert_ram_share = tries[i].share,
                                          .prefetch = tries[i].prefetch,
                                          .check_ops = tries[i].check_ops};
        moebius_engine *g = open_path(demo, &o);
        expect_run(g, want, tries[i].split);
        moebius_engine_forget_experts(g);
        expect_run(g, want, "after a cold start");
        assert_int_equal(moebius_engine_counters(g).n_expert_miss > 0, tries[i].share > 0);
        moebius_engine_close(&g);
    }
    free(want);
}

static void saved_parked_and_forked_texts_go_on_anywhere(void **state)
{
    moebius_error error;
    const struct temp_path saved = temp_path(&folder, "saved.state");
    const moebius_engine_options on[] = {{.n_threads = 1},
                                         {.devices = "cpu:1,cpu:1", .split = "stages", .expert_ram_share = 0.4}};
    for (int i = 0; i < N_KIND; i++) {
        if (!strncmp(kinds[i].name, "q_", 2)) /* which have one layer */
            continue;
        moebius_engine *g[] = {open_engine_with(kinds[i].name, &on[0]), open_engine_with(kinds[i].name, &on[1])};
        float *want = run(g[0]);
        for (int from = 0; from < 2; from++) {
            moebius_session *s = open_session(g[from], MOEBIUS_KV_F16, N_ALL, 32), *fork;
            feed(s, g[from], 0, 20, 20);
            must(moebius_session_park(s, NULL, &error), &error);
            must(moebius_session_save(s, saved.s, &error), &error);
            must(moebius_session_fork(&fork, s, &error), &error);
            feed(s, g[from], 0, 5, 5);
            feed(fork, g[from], 20, N_ALL, 3);
            expect_logits(fork, g[from], want);
            moebius_session_close(&fork);
            moebius_session_close(&s);
            s = open_session(g[1 - from], MOEBIUS_KV_F16, N_ALL, 32);
            must(moebius_session_load(s, saved.s, &error), &error);
            feed(s, g[1 - from], 20, N_ALL, 3);
            expect_logits(s, g[1 - from], want);
            moebius_session_close(&s);
        }
        for (int k = 0; k < 2; k++)
            moebius_engine_close(&g[k]);
        free(want);
    }
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void a_text_that_was_cancelled_in_any_stage_goes_on_with_the_same_bits(void **state)
{
    float *want = run_on_one(demo);
    expect_cancelled_goes_on(
        &(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "stages", .expert_ram_share = 0.3}, want);
    free(want);
}

static void a_failed_read_in_a_later_stage_leaves_the_text_as_it_was(void **state)
{
    size_t n;
    int32_t ids[N_LONG];
    moebius_error error;
    char *bytes = read_file(demo, &n);
    const struct temp_path copy = temp_path(&folder, "model.gguf");
    write_file(copy.s, bytes, n);
    const moebius_engine_options o = {.devices = "cpu:1,cpu:1", .split = "stages", .expert_ram_share = 0.2};
    moebius_engine *g = open_path(copy.s, &o);
    float *want = run(g);
    moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_ALL, 32);
    get_text(g, ids);
    feed(s, g, 0, 10, 10);
    moebius_engine_forget_experts(g);
    assert_int_equal(truncate(copy.s, (off_t)n * 7 / 10), 0);
    assert_int_equal(moebius_session_eval(s, ids + 10, 20, &error), MOEBIUS_IO);
    assert_int_equal(moebius_session_pos(s), 10);
    write_file(copy.s, bytes, n);
    feed(s, g, 10, N_PROMPT, 33);
    feed(s, g, N_PROMPT, N_ALL, 1);
    expect_logits(s, g, want);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    unlink(copy.s);
    free(want);
    free(bytes);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose own memory grows by more */
/* Sessions and long prompts take their memory from the slots of both devices. */
static void sessions_get_their_memory_from_all_stages(void **state)
{
    moebius_error error;
    moebius_session *s;
    moebius_device d;
    moebius_engine_options o = {.ram_bytes = 1 << 20, .devices = "cpu:1,cpu:1", .split = "stages"};
    const moebius_session_options so = {.n_ctx = 2048, .n_batch = 512, .kv = MOEBIUS_KV_F32};
    float *want = run_on_one(demo);
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.n_threads = 1});
    moebius_counters all = moebius_engine_counters(g);
    moebius_engine_close(&g);
    assert_int_equal(moebius_engine_open(&g, demo, &o, &error), MOEBIUS_LIMIT);
    o.ram_bytes = stated_bytes(&error) + (int64_t)all.expert_all_bytes / 4;
    g = open_path(demo, &o);
    assert_int_equal(moebius_session_open(&s, g, &so, &error), MOEBIUS_LIMIT);
    moebius_engine_close(&g);
    o.ram_bytes = stated_bytes(&error) + (int64_t)all.expert_all_bytes / 4;
    g = open_path(demo, &o);
    expect_run(g, want, "a bound on memory");
    must(moebius_session_open(&s, g, &so, &error), &error);
    feed(s, g, 0, N_LONG, 512);
    for (int i = 0; moebius_engine_device(g, i, &d); i++)
        assert_true(d.weight_bytes > 0 && d.expert_bytes > 0 && d.context_bytes > 0 && d.work_bytes > 0);
    moebius_counters c = moebius_engine_counters(g);
    assert_true(c.expert_bytes < c.expert_all_bytes);
    assert_true(c.weight_bytes + c.expert_bytes + c.context_bytes + c.work_bytes < (uint64_t)o.ram_bytes);
    moebius_session_close(&s);
    expect_run(g, want, "after a long prompt");
    moebius_engine_close(&g);
    free(want);
}
#endif

/* ---- figures ----------------------------------------------------------------------------------------------------- */

static void devices_tell_which_layers_and_memory_they_have(void **state)
{
    moebius_error error;
    moebius_device d;
    moebius_place p;
    moebius_engine *g =
        open_path(demo, &(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "stages:1,1", .log = keep_log});
    moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_ALL, 32);
    feed(s, g, 0, N_ALL, N_ALL);
    moebius_counters c = moebius_engine_counters(g);
    int64_t n_layer = 0;
    uint64_t weights = 0, experts = 0, contexts = 0;
    int n = 0;
    for (; moebius_engine_device(g, n, &d); n++) {
        assert_int_equal(d.first_layer, n_layer);
        assert_true(d.n_layer > 0 && d.weight_bytes > 0 && d.expert_bytes > 0 && d.context_bytes > 0);
        n_layer += d.n_layer;
        weights += d.weight_bytes;
        experts += d.expert_bytes;
        contexts += d.context_bytes;
    }
    assert_int_equal(n, 2);
    assert_string_equal(d.name, "stage 1 (cpu:1)");
    assert_int_equal(n_layer, moebius_n_layer(g));
    assert_true(weights <= c.weight_bytes); /* which are whole pages */
    assert_int_equal(experts, c.expert_bytes);
    assert_true(contexts <= c.context_bytes); /* which has tokens and logits, too */
    assert_int_equal(moebius_n_place(g), 1);
    must(moebius_place_at(g, 0, &p, &error), &error);
    assert_string_equal(p.name, "all stages");
    assert_int_equal(p.bytes, c.expert_bytes);
    assert_int_equal(p.all_bytes, c.expert_all_bytes);
    assert_non_null(strstr(logged, "layers 0 to "));
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

/* What routers choose is counted in all layers, with all experts in memory, too. */
static void choices_are_counted_in_all_stages(void **state)
{
    for (int streams = 0; streams < 2; streams++) {
        const moebius_engine_options o = {
            .devices = "cpu:1,cpu:1", .split = "stages", .expert_ram_share = streams ? 0.4 : 0};
        moebius_engine *g = open_path(demo, &o);
        moebius_engine_count_experts(g, true);
        free(run(g));
        for (int l = 0; l < moebius_n_moe_layer(g); l++) {
            const moebius_moe_layer y = moebius_moe_layer_at(g, l);
            uint64_t *n_chosen = calloc((size_t)y.n_expert, sizeof *n_chosen), n = 0;
            bool *in_memory = calloc((size_t)y.n_expert, sizeof *in_memory);
            assert_true(moebius_engine_experts(g, l, n_chosen, in_memory));
            int64_t n_there = 0;
            for (int64_t i = 0; i < y.n_expert; i++) {
                n += n_chosen[i];
                n_there += in_memory[i];
            }
            if (l < moebius_n_moe_layer(g) - 1) /* which goes on with the tokens whose logits are wanted */
                assert_int_equal(n, N_ALL * y.n_used);
            assert_true(n > 0);
            assert_true(streams ? n_there > 0 && n_there < y.n_expert : n_there == y.n_expert);
            free(n_chosen);
            free(in_memory);
        }
        moebius_engine_close(&g);
    }
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void expect_refusal(const char *path, const moebius_engine_options *o, const char *says)
{
    moebius_engine *g;
    moebius_error error;
    assert_int_equal(moebius_engine_open(&g, path, o, &error), MOEBIUS_USAGE);
    if (!strstr(error.text, says))
        fail_msg("\"%s\": expected \"%s\"", error.text, says);
}

static void what_does_not_go_with_stages_is_refused(void **state)
{
    static const char two[] = "cpu:1,cpu:1";
    char path[1024];
    snprintf(path, sizeof path, "%s/gemma4_shared.gguf", golden);
    expect_refusal(demo, &(moebius_engine_options){.split = "stages"}, "one device: expected several");
    expect_refusal(demo, &(moebius_engine_options){.split = "stages", .gpu = "auto"}, "split stages, and GPU auto");
    expect_refusal(demo, &(moebius_engine_options){.devices = two, .split = "stages:1,0"}, "expected shares above 0");
    expect_refusal(demo, &(moebius_engine_options){.devices = two, .split = "stages:1"}, "1 shares for 2 devices");
    expect_refusal(demo, &(moebius_engine_options){.devices = two, .split = "stages:x"}, "shares of \"x\"");
    expect_refusal(demo, &(moebius_engine_options){.devices = two, .split = "stages", .replica_share = 0.5},
                   "replicas of experts, and split stages");
    expect_refusal(demo, &(moebius_engine_options){.devices = two, .split = "stages", .n_cpu_moe = 1},
                   "expected one of the two");
    expect_refusal(path, &(moebius_engine_options){.devices = "cpu:1,cpu:1,cpu:1,cpu:1,cpu:1", .split = "stages"},
                   "can't be divided among 5 devices");
}

static void what_one_device_alone_can_do_is_refused(void **state)
{
    moebius_error error;
    moebius_plan *plan;
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "stages"});
    expect_one_device_is_needed(g, "with layers on several devices");
    assert_int_equal(moebius_engine_plan(&plan, g, &(moebius_plan_options){0}, &error), MOEBIUS_UNSUPPORTED);
    moebius_engine_close(&g);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    demo = argv[1];
    golden = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_in_any_way_give_the_bits_of_one_device),
        cmocka_unit_test(saved_parked_and_forked_texts_go_on_anywhere),
        cmocka_unit_test(a_text_that_was_cancelled_in_any_stage_goes_on_with_the_same_bits),
        cmocka_unit_test(a_failed_read_in_a_later_stage_leaves_the_text_as_it_was),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(sessions_get_their_memory_from_all_stages),
#endif
        cmocka_unit_test(devices_tell_which_layers_and_memory_they_have),
        cmocka_unit_test(choices_are_counted_in_all_stages),
        cmocka_unit_test(what_does_not_go_with_stages_is_refused),
        cmocka_unit_test(what_one_device_alone_can_do_is_refused),
        cmocka_unit_test(stages_of_all_families_give_the_bits_of_one_device),
    };
    if (temp_folder_make(&folder) != 0)
        return 2;
    int n_failed = cmocka_run_group_tests_name("stages", tests, NULL, NULL);
    temp_folder_remove(&folder);
    return n_failed;
}
