/* Experts on several devices: the same bits as on one, however they are divided, and whatever goes wrong there.
 * usage: test_places MODEL GOLDEN_DIRECTORY ; MOEBIUS_SPLITS: random splits for each golden model (2) */
#define _GNU_SOURCE
#include <glob.h>
#include <unistd.h>

#include "devices_fixture.h"
#include "../unit/for_threads.h"

/* ---- bits ----------------------------------------------------------------------------------------------------------
 */

static void try_splits(const char *path, int n_split)
{
    static const char *const devices[] = {"cpu:1,cpu:1", "cpu:2,cpu:1,cpu:1"}, *const slots[] = {"100", "50", "10"};
    char split[32], what[1200];
    moebius_engine *g;
    float *want = run_on_one(path);
    for (int i = 0; i < n_split; i++)
        for (int k = 0; k < 2; k++) {
            snprintf(split, sizeof split, "random:%d", i);
            snprintf(what, sizeof what, "%s on %s, %s", path, devices[k], split);
            const moebius_engine_options o = {.devices = devices[k],
                                              .split = split,
                                              .expert_ram_share = (i + k) % 2 ? 0.4 : 0,
                                              .replica_share = i % 2 ? 0 : 0.3 + 0.4 * k};
            g = open_streaming(path, o);
            expect_run(g, want, what);
            moebius_engine_close(&g);
        }
    for (int i = 0; i < 3; i++) {
        snprintf(split, sizeof split, "cache:%s%%", slots[i]);
        snprintf(what, sizeof what, "%s on %s, %s", path, devices[i % 2], split);
        const moebius_engine_options o = {
            .devices = devices[i % 2], .split = split, .expert_ram_share = n_split % 2 ? 0.4 : 0};
        g = open_streaming(path, o);
        expect_run(g, want, what);
        moebius_engine_close(&g);
    }
    free(want);
}

static void random_splits_and_caches_of_all_families_give_the_bits_of_one_device(void **state)
{
    const char *n = getenv("MOEBIUS_SPLITS");
    char pattern[1024];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.gguf", golden);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i += FOR_THREADS ? 4 : 1)
        try_splits(found.gl_pathv[i], n ? atoi(n) : 2);
    globfree(&found);
}

/* The same model, in which most things are large enough to be cut up. */
static void every_way_to_divide_gives_the_bits_of_one_device(void **state)
{
    static const struct {
        const char *devices, *split;
        double share;
        moebius_prefetch prefetch;
        double replicas;
        bool deterministic;
    } tries[] = {
        {"cpu:1,cpu:1", NULL, 0, MOEBIUS_PREFETCH_AUTO},
        {"cpu:1,cpu:1", "experts:1,3", 0.3, MOEBIUS_PREFETCH_ON},
        {"cpu:1,cpu:1", "experts:0,1", 0.2, MOEBIUS_PREFETCH_ON},
        {"cpu:1,cpu:1", "layers", 0.3, MOEBIUS_PREFETCH_OFF},
        {"cpu:3,cpu:2", "layers:1,4", 0, MOEBIUS_PREFETCH_AUTO},
        {"cpu:1,cpu:1,cpu:1", "random:9", 0.25, MOEBIUS_PREFETCH_ON},
        {"cpu:1,cpu:1", "cache", 0, MOEBIUS_PREFETCH_AUTO},
        {"cpu:1,cpu:1", "cache:50%", 0, MOEBIUS_PREFETCH_AUTO},
        {"cpu:2,cpu:1", "cache:10%", 0.3, MOEBIUS_PREFETCH_ON},
        {"cpu:1,cpu:1,cpu:2", "cache:25%", 0.2, MOEBIUS_PREFETCH_AUTO},
        {"cpu:1,cpu:1", NULL, 0, MOEBIUS_PREFETCH_AUTO, 0.1},
        {"cpu:2,cpu:1", "experts:1,3", 0, MOEBIUS_PREFETCH_AUTO, 1},
        {"cpu:1,cpu:1,cpu:1", "layers", 0, MOEBIUS_PREFETCH_AUTO, 1.5},
        {"cpu:1,cpu:1", NULL, 0, MOEBIUS_PREFETCH_AUTO, 0.5, true},
        {"cpu:1,cpu:1,cpu:1", "random:2", 0.3, MOEBIUS_PREFETCH_ON, 0.8},
        {"cpu:1,cpu:1,cpu:1", "cache:25%", 0, MOEBIUS_PREFETCH_AUTO, 0.4},
    };
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.n_threads = 2});
    float *want = run(g);
    moebius_engine_close(&g);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const moebius_engine_options o = {.devices = tries[i].devices,
                                          .split = tries[i].split,
                                          .expert_ram_share = tries[i].share,
                                          .prefetch = tries[i].prefetch,
                                          .replica_share = tries[i].replicas,
                                          .deterministic = tries[i].deterministic};
        g = open_path(demo, &o);
        expect_run(g, want, tries[i].devices);
        expect_run(g, want, "a second text");
        moebius_counters c = moebius_engine_counters(g);
        assert_int_equal(c.n_expert_miss > 0, tries[i].share > 0);
        moebius_engine_forget_experts(g);
        expect_run(g, want, "after a cold start");
        moebius_engine_close(&g);
    }
    free(want);
}

static moebius_place_stats did(const moebius_engine *g, int place)
{
    moebius_error error;
    moebius_place_stats s;
    must(moebius_place_did(g, place, -1, &s, &error), &error);
    return s;
}

/* Tokens one by one: what is chosen again is found in the cache, what is missed moves there, and the other device
 * computes the rest. */
static void a_cache_learns_what_is_hot(void **state)
{
    moebius_error error;
    moebius_place p;
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "cache:20%"});
    moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_LONG, 32);
    feed(s, g, 0, 60, 1);
    moebius_place_stats own = did(g, 0), other = did(g, 1);
    must(moebius_place_at(g, 0, &p, &error), &error);
    assert_true(p.is_cache && !p.is_off_decode && !p.is_off_prompts);
    assert_int_equal(p.n_expert * 5, moebius_n_moe_layer(g) * moebius_moe_layer_at(g, 0).n_expert);
    assert_int_equal(p.bytes, p.n_expert * moebius_moe_layer_at(g, 0).slot_bytes);
    assert_true(own.n_found > 0 && own.n_missed > 0 && own.n_read == 0);
    assert_int_equal(own.n_row + other.n_row, 60 * moebius_n_moe_layer(g) * moebius_moe_layer_at(g, 0).n_used);
    assert_int_equal(own.n_found, own.n_row); /* of single tokens each expert is a row */
    assert_int_equal(own.n_missed, other.n_found);
    assert_true(own.n_moved > p.n_expert); /* that it was filled with, and others later */
    assert_int_equal(own.moved_bytes, own.n_moved * moebius_moe_layer_at(g, 0).slot_bytes);
    assert_true(own.move_ns > 0);
    assert_int_equal(moebius_engine_counters(g).n_expert_read,
                     moebius_n_moe_layer(g) * moebius_moe_layer_at(g, 0).n_expert);
    must(moebius_place_at(g, 1, &p, &error), &error);
    assert_false(p.is_cache);
    assert_int_equal(moebius_expert_places(g, 0, 0), 2);
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

static void a_deterministic_cache_stays_as_it_was_filled(void **state)
{
    const moebius_engine_options o = {
        .devices = "cpu:1,cpu:1", .split = "cache:20%", .deterministic = true, .expert_ram_share = 0.5};
    moebius_place_stats last = {0};
    for (int i = 0; i < 2; i++) {
        moebius_engine *g = open_path(demo, &o);
        moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_LONG, 32);
        moebius_place_stats before = did(g, 0);
        feed(s, g, 0, 40, 1);
        feed(s, g, 40, 100, 30);
        moebius_place_stats after = did(g, 0);
        assert_true(before.n_moved > 0 && after.n_found > 0);
        assert_int_equal(after.n_moved, before.n_moved);
        if (i > 0)
            assert_int_equal(after.n_found, last.n_found);
        last = after;
        moebius_session_close(&s);
        moebius_engine_close(&g);
    }
}

/* What was saved on several devices goes on with the same bits on one, and the other way round. */
static void saved_and_parked_texts_go_on_anywhere(void **state)
{
    moebius_error error;
    const struct temp_path saved = temp_path(&folder, "saved.state");
    const moebius_engine_options on[] = {{.n_threads = 1},
                                         {.devices = "cpu:1,cpu:1", .split = "random:5", .expert_ram_share = 0.4}};
    moebius_engine *g[] = {open_path(demo, &on[0]), open_path(demo, &on[1])};
    float *want = run(g[0]);
    for (int from = 0; from < 2; from++) {
        moebius_session *s = open_session(g[from], MOEBIUS_KV_F16, N_ALL, 32);
        feed(s, g[from], 0, 20, 20);
        must(moebius_session_park(s, NULL, &error), &error);
        expect_run(g[from], want, "beside a parked text");
        must(moebius_session_save(s, saved.s, &error), &error);
        feed(s, g[from], 20, N_ALL, 3);
        expect_logits(s, g[from], want);
        moebius_session_close(&s);
        s = open_session(g[1 - from], MOEBIUS_KV_F16, N_ALL, 32);
        must(moebius_session_load(s, saved.s, &error), &error);
        feed(s, g[1 - from], 20, N_ALL, 3);
        expect_logits(s, g[1 - from], want);
        moebius_session_close(&s);
    }
    for (int i = 0; i < 2; i++)
        moebius_engine_close(&g[i]);
    free(want);
}

/* ---- ends ----------------------------------------------------------------------------------------------------------
 */

static void a_text_that_was_cancelled_anywhere_goes_on_with_the_same_bits(void **state)
{
    float *want = run_on_one(demo);
    for (int streams = 0; streams < 2; streams++)
        expect_cancelled_goes_on(&(moebius_engine_options){.devices = "cpu:1,cpu:1",
                                                           .split = "random:3",
                                                           .expert_ram_share = streams ? 0.2 : 0},
                                 want);
    free(want);
}

/* All experts are the second device's, whose reads find the file cut off. */
static void a_failed_read_names_the_device_and_leaves_the_text_as_it_was(void **state)
{
    size_t n;
    int32_t ids[N_LONG];
    moebius_error error;
    char *bytes = read_file(demo, &n);
    const struct temp_path copy = temp_path(&folder, "model.gguf");
    const char *path = copy.s;
    write_file(path, bytes, n);
    const moebius_engine_options o = {.devices = "cpu:1,cpu:1", .split = "experts:0,1", .expert_ram_share = 0.1};
    moebius_engine *g = open_path(path, &o);
    float *want = run(g);
    moebius_session *s = open_session(g, MOEBIUS_KV_F16, N_ALL, 32);
    get_text(g, ids);
    feed(s, g, 0, 10, 10);
    moebius_engine_forget_experts(g);
    assert_int_equal(truncate(path, 4096), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moebius_session_eval(s, ids + 10, 20, &error), MOEBIUS_IO);
        if (!strstr(error.text, "place 1 (cpu:1): ") || !strstr(error.text, path))
            fail_msg("%s", error.text);
        assert_int_equal(moebius_session_pos(s), 10);
    }
    write_file(path, bytes, n);
    feed(s, g, 10, N_PROMPT, 33);
    feed(s, g, N_PROMPT, N_ALL, 1);
    expect_logits(s, g, want);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    unlink(path);
    free(want);
    free(bytes);
}

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

static void little_memory_is_shared_and_never_exceeded(void **state)
{
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.n_threads = 1});
    float *want = run(g);
    moebius_counters all = moebius_engine_counters(g);
    moebius_engine_close(&g);
    const moebius_engine_options o = {
        .devices = "cpu:1,cpu:1", .expert_ram_bytes = (int64_t)all.expert_all_bytes / 4, .split = "experts"};
    g = open_path(demo, &o);
    expect_run(g, want, "a quarter of the experts");
    moebius_counters c = moebius_engine_counters(g);
    assert_true(c.expert_bytes <= (uint64_t)o.expert_ram_bytes);
    assert_int_equal(c.expert_all_bytes, all.expert_all_bytes);
    moebius_engine_close(&g);
    free(want);
}

/* A refusal names the number that was asked for, and one for all devices that is enough. */
static void too_little_for_experts_is_refused_with_what_is_enough(void **state)
{
    static const char *const devices[] = {"cpu:1", "cpu:1,cpu:1", "cpu:1,cpu:1,cpu:1"};
    moebius_error error;
    moebius_engine *g;
    for (int i = 0; i < 3; i++) {
        moebius_engine_options o = {.devices = devices[i], .split = i ? "layers" : NULL, .expert_ram_bytes = 4096};
        assert_int_equal(moebius_engine_open(&g, demo, &o, &error), MOEBIUS_LIMIT);
        assert_ptr_equal(strstr(error.text, "4096 bytes for routed experts are too few"), error.text);
        const char *need = strstr(error.text, " need "), *share = strstr(error.text, "MiB, ");
        assert_true(need && share);
        o.expert_ram_bytes = strtoll(need + 6, NULL, 10) - 1;
        assert_int_equal(moebius_engine_open(&g, demo, &o, NULL), MOEBIUS_LIMIT);
        o.expert_ram_bytes++;
        g = open_path(demo, &o);
        moebius_engine_close(&g);
        o.expert_ram_bytes = 0;
        o.expert_ram_share = strtod(share + 5, NULL) / 100;
        g = open_path(demo, &o);
        moebius_engine_close(&g);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose own memory grows by more */
/* Sessions and long prompts take their memory from the slots of both devices. */
static void sessions_get_their_memory_from_all_devices(void **state)
{
    moebius_error error;
    moebius_session *s;
    moebius_engine_options o = {.ram_bytes = 1 << 20, .devices = "cpu:1,cpu:1"};
    const moebius_session_options so = {.n_ctx = 2048, .n_batch = 512, .kv = MOEBIUS_KV_F32};
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.n_threads = 1});
    float *want = run(g);
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
    moebius_session_close(&s);
    expect_run(g, want, "after a long prompt");
    moebius_counters c = moebius_engine_counters(g);
    assert_true(c.weight_bytes + c.expert_bytes + c.context_bytes + c.work_bytes < (uint64_t)o.ram_bytes);
    moebius_engine_close(&g);
    free(want);
}

/* The least memory that a session is said to need, as moebius_session_open says it. */
static int64_t stated_for(moebius_engine_options o, const moebius_session_options *so)
{
    moebius_error error;
    moebius_session *s;
    o.ram_bytes = 1 << 20;
    moebius_engine *g;
    assert_int_equal(moebius_engine_open(&g, demo, &o, &error), MOEBIUS_LIMIT);
    o.ram_bytes = stated_bytes(&error);
    g = open_path(demo, &o);
    assert_int_equal(moebius_session_open(&s, g, so, &error), MOEBIUS_LIMIT);
    moebius_engine_close(&g);
    return stated_bytes(&error);
}

static void expect_enough(const moebius_engine_options *o, const moebius_session_options *so)
{
    moebius_session *s;
    moebius_error error;
    moebius_engine *g = open_path(demo, o);
    must(moebius_session_open(&s, g, so, &error), &error);
    feed(s, g, 0, 400, so->n_batch);
    feed(s, g, 400, 420, 1);
    moebius_session_close(&s);
    moebius_engine_close(&g);
}

/* Other devices' work space is counted before a session is admitted, and kept from slots afterwards. */
static void memory_that_is_said_to_be_enough_is_enough(void **state)
{
    static const struct {
        const char *devices, *split;
        int n_batch;
    } tries[] = {{"cpu:1,cpu:1,cpu:1,cpu:1", NULL, 512}, {"cpu:1,cpu:1", "layers", 512},
                 {"cpu:1,cpu:1", "last:2", 512},         {"cpu:2,cpu:1", "experts:0,1", 16},
                 {"cpu:1,cpu:1", "cache:40%", 512},      {"cpu:1,cpu:1,cpu:1", "cache:100%", 16}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        moebius_engine_options o = {.devices = tries[i].devices, .split = tries[i].split};
        const moebius_session_options so = {.n_ctx = 512, .n_batch = tries[i].n_batch};
        o.ram_bytes = stated_for(o, &so);
        for (int more = 0; more < 4; more++, o.ram_bytes += 3 << 20)
            expect_enough(&o, &so);
    }
}

/* Where memory is short the copies go first; the other device loses no more than what it needs to work with. */
static void a_cache_gives_its_memory_back_first(void **state)
{
    moebius_error error;
    moebius_session *s;
    moebius_place p[2];
    moebius_engine_options o = {.ram_bytes = 1 << 20, .devices = "cpu:1,cpu:1", .split = "cache:90%"};
    const moebius_session_options so = {.n_ctx = 2048, .n_batch = 512, .kv = MOEBIUS_KV_F32};
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.n_threads = 1});
    float *want = run(g);
    moebius_counters all = moebius_engine_counters(g);
    moebius_engine_close(&g);
    assert_int_equal(moebius_engine_open(&g, demo, &o, &error), MOEBIUS_LIMIT);
    o.ram_bytes = stated_bytes(&error) + 2 * (int64_t)all.expert_all_bytes;
    g = open_path(demo, &o);
    expect_run(g, want, "a cache and a bound on memory");
    must(moebius_session_open(&s, g, &so, &error), &error);
    feed(s, g, 0, N_LONG, 512);
    for (int i = 0; i < 2; i++)
        must(moebius_place_at(g, i, &p[i], &error), &error);
    assert_true(p[0].bytes > 0 && p[0].bytes < p[0].all_bytes * 8 / 10);
    assert_true(p[1].bytes > p[1].all_bytes * 9 / 10);
    moebius_session_close(&s);
    expect_run(g, want, "after a long prompt");
    moebius_engine_close(&g);
    free(want);
}
#endif

/* ---- what is refused -----------------------------------------------------------------------------------------------
 */

static void expect_refusal(const moebius_engine_options *o, const char *says)
{
    moebius_engine *g;
    moebius_error error;
    assert_int_equal(moebius_engine_open(&g, demo, o, &error), MOEBIUS_USAGE);
    if (!strstr(error.text, says))
        fail_msg("\"%s\": expected \"%s\"", error.text, says);
}

static void devices_and_splits_that_make_no_sense_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "cpu",
                                      "cpu:",
                                      "cpu:0",
                                      "cpu:257",
                                      "cpu:1,",
                                      "cpu:-1",
                                      "cpu:1 ,cpu:1",
                                      "gpu:1",
                                      "cpu:1,,cpu:1",
                                      "cpu:1x",
                                      "cpu:99999999999999999999",
                                      "cpu:1,cpu:1,cpu:1,cpu:1,cpu:1,cpu:1,cpu:1,cpu:1,cpu:1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refusal(&(moebius_engine_options){.devices = bad[i]}, "expected cpu:THREADS");
    expect_refusal(&(moebius_engine_options){.devices = "cpu:1,cpu:1", .n_threads = 2}, "one of the two");
    expect_refusal(&(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "evenly"}, "evenly");
    expect_refusal(&(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "experts:1,2,3"},
                   "3 shares for 2 devices");
    expect_refusal(&(moebius_engine_options){.split = "layers"}, "one device");
    expect_refusal(&(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "cache:3,1"}, "expected cache:N%");
    expect_refusal(&(moebius_engine_options){.replica_share = 0.5}, "replicas of experts, and one device");
    expect_refusal(&(moebius_engine_options){.devices = "cpu:1,cpu:1", .replica_share = -1}, "expected 0 or more");
    expect_refusal(&(moebius_engine_options){.devices = "cpu:1,cpu:1", .replica_bytes = -1}, "expected 0 or more");
}

static void what_one_device_alone_can_do_is_refused(void **state)
{
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.devices = "cpu:1,cpu:1"});
    expect_one_device_is_needed(g, "with experts on several devices");
    moebius_engine_close(&g);
}

static void what_places_are_is_told_of_those_that_there_are(void **state)
{
    moebius_error error;
    moebius_place p;
    moebius_place_stats all, one;
    moebius_engine *g = open_path(demo, &(moebius_engine_options){.devices = "cpu:1,cpu:1", .split = "layers"});
    uint64_t n_expert = 0, places = moebius_expert_places(g, 0, 0);
    free(run(g));
    assert_int_equal(moebius_n_place(g), 2);
    for (int i = 0; i < 2; i++) {
        must(moebius_place_at(g, i, &p, &error), &error);
        must(moebius_place_did(g, i, -1, &all, &error), &error);
        must(moebius_place_did(g, i, 0, &one, &error), &error);
        n_expert += p.n_expert;
        assert_int_equal(p.bytes, p.all_bytes);
        assert_true(all.n_row > 0);
        assert_int_equal(one.n_row > 0, places >> i & 1); /* the whole layer is at one of them */
    }
    assert_int_equal(n_expert, moebius_n_moe_layer(g) * moebius_moe_layer_at(g, 0).n_expert);
    assert_true(places == 1 || places == 2);
    assert_int_equal(moebius_expert_places(g, 0, moebius_moe_layer_at(g, 0).n_expert), 0);
    assert_int_equal(moebius_place_at(g, 2, &p, &error), MOEBIUS_USAGE);
    assert_string_equal(error.text, "place 2 of 2: expected 0 to 1");
    assert_int_equal(moebius_place_did(g, 0, moebius_n_moe_layer(g), &all, &error), MOEBIUS_USAGE);
    assert_int_equal(moebius_place_did(g, -1, 0, &all, &error), MOEBIUS_USAGE);
    moebius_engine_close(&g);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    demo = argv[1];
    golden = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_divide_gives_the_bits_of_one_device),
        cmocka_unit_test(a_cache_learns_what_is_hot),
        cmocka_unit_test(a_deterministic_cache_stays_as_it_was_filled),
        cmocka_unit_test(saved_and_parked_texts_go_on_anywhere),
        cmocka_unit_test(a_text_that_was_cancelled_anywhere_goes_on_with_the_same_bits),
        cmocka_unit_test(a_failed_read_names_the_device_and_leaves_the_text_as_it_was),
        cmocka_unit_test(little_memory_is_shared_and_never_exceeded),
        cmocka_unit_test(too_little_for_experts_is_refused_with_what_is_enough),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(sessions_get_their_memory_from_all_devices),
        cmocka_unit_test(memory_that_is_said_to_be_enough_is_enough),
        cmocka_unit_test(a_cache_gives_its_memory_back_first),
#endif
        cmocka_unit_test(devices_and_splits_that_make_no_sense_are_refused),
        cmocka_unit_test(what_one_device_alone_can_do_is_refused),
        cmocka_unit_test(what_places_are_is_told_of_those_that_there_are),
        cmocka_unit_test(random_splits_and_caches_of_all_families_give_the_bits_of_one_device),
    };
    if (temp_folder_make(&folder) != 0)
        return 2;
    int n_failed = cmocka_run_group_tests_name("places", tests, NULL, NULL);
    temp_folder_remove(&folder);
    return n_failed;
}
