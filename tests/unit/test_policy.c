/* The pure parts of the expert tiers: policies, the offline optimum, budgets, usage files. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/model_limits.h"
#include "experts/belady.h"
#include "experts/budget.h"
#include "experts/policy.h"
#include "experts/usage.h"

/* ---- policies -------------------------------------------------------------------------------------------------- */

static struct policy *new_policy(enum policy_kind kind, int n_layer, int64_t n_expert, int64_t n_used, int64_t n_slot)
{
    struct policy *p;
    struct err e;
    const struct policy_desc d = {kind, n_layer, n_expert, n_used, n_slot};
    assert_int_equal(policy_create(&p, &d, &e), ERR_OK);
    for (int64_t s; (s = policy_find_closed(p)) >= 0;)
        policy_open_slot(p, s);
    return p;
}

/* One token chooses one expert of a layer; whether it had a slot. */
static bool choose(struct policy *p, int layer, int32_t expert)
{
    bool evicted;
    policy_observe(p, layer, &expert, 1, 1);
    int64_t slot = policy_find(p, layer, expert);
    if (slot >= 0)
        return true;
    slot = policy_take(p, layer, expert, &evicted);
    assert_true(slot >= 0);
    policy_release(p, slot);
    return false;
}

static void lru_forgets_the_oldest(void **state)
{
    struct policy *p = new_policy(POLICY_LRU, 1, 8, 1, 3);
    for (int i = 0; i < 5; i++)
        choose(p, 0, 0); /* often, but long ago */
    choose(p, 0, 1);
    choose(p, 0, 2);
    choose(p, 0, 3);
    assert_false(choose(p, 0, 0));
    assert_true(choose(p, 0, 2));
    policy_close(&p);
}

/* Whether an expert that 40 tokens in a row chose is still there after 140 that chose four others one after another. */
static bool outlasts(enum policy_kind kind)
{
    struct policy *p = new_policy(kind, 1, 8, 1, 3);
    for (int i = 0; i < 40; i++)
        choose(p, 0, 0);
    for (int i = 0; i < 140; i++)
        choose(p, 0, 1 + i % 4);
    bool there = policy_find(p, 0, 0) >= 0;
    policy_close(&p);
    return there;
}

static void lfu_remembers_longer_than_lfru(void **state)
{
    assert_true(outlasts(POLICY_LFU));
    assert_false(outlasts(POLICY_LFRU));
    assert_false(outlasts(POLICY_LRU));
}

static void what_is_clearly_hotter_should_have_a_slot(void **state)
{
    struct policy *p = new_policy(POLICY_LFRU, 2, 4, 1, 2);
    int32_t expert;
    int layer;
    assert_false(policy_find_better(p, 1, &layer, &expert)); /* nothing was seen */
    policy_seed(p, 1, 2, 0.5);
    assert_true(policy_find_better(p, 1, &layer, &expert)); /* there is room */
    assert_true(layer == 1 && expert == 2);
    choose(p, 1, 2);
    choose(p, 0, 3);
    assert_false(policy_find_better(p, 1, &layer, &expert));
    policy_observe(p, 0, &(int32_t){1}, 1, 1);
    assert_true(policy_find_better(p, -1, &layer, &expert));
    assert_true(layer == 0 && expert == 1);
    assert_false(policy_find_better(p, 1, &layer, &expert)); /* it is no hotter than what is there */
    for (int i = 0; i < 3; i++)
        policy_observe(p, 0, &(int32_t){1}, 1, 1);
    assert_true(policy_find_better(p, 1, &layer, &expert));
    assert_true(layer == 0 && expert == 1);
    policy_hold(p, policy_find(p, 0, 3));
    policy_hold(p, policy_find(p, 1, 2));
    assert_false(policy_find_better(p, 1, &layer, &expert)); /* nothing can go */
    policy_close(&p);
}

static void lfru_keeps_the_frequent(void **state)
{
    struct policy *p = new_policy(POLICY_LFRU, 1, 8, 1, 3);
    for (int i = 0; i < 90; i++)
        choose(p, 0, i % 3 ? 1 + i % 7 : 0); /* every third token, the others come and go */
    assert_true(policy_find(p, 0, 0) >= 0);
    for (int32_t i = 1; i < 5; i++)
        choose(p, 0, i);
    assert_true(choose(p, 0, 0));
    policy_close(&p);
}

static void a_cycle_that_almost_fits_does_not_miss_always(void **state)
{
    /* 4 layers, each always the same 2 experts, and 7 slots for 8: a plain LRU over all would never hit */
    struct policy *p = new_policy(POLICY_LRU, 4, 8, 2, 7);
    int n_hit = 0;
    for (int t = 0; t < 100; t++)
        for (int l = 0; l < 4; l++)
            for (int32_t i = 0; i < 2; i++)
                n_hit += choose(p, l, i);
    assert_in_range(n_hit, 500, 800);
    policy_close(&p);
}

static void held_slots_are_safe_and_closed_ones_out_of_reach(void **state)
{
    struct policy *p = new_policy(POLICY_LRU, 1, 8, 1, 3);
    bool evicted;
    int64_t a = policy_take(p, 0, 0, &evicted), b = policy_take(p, 0, 1, &evicted), c = policy_take(p, 0, 2, &evicted);
    assert_false(evicted);
    assert_int_equal(policy_take(p, 0, 3, &evicted), -1);
    policy_release(p, b);
    assert_int_equal(policy_take(p, 0, 3, &evicted), b);
    assert_true(evicted);
    assert_int_equal(policy_find(p, 0, 1), -1);
    policy_release(p, a);
    policy_pin_layer(p, 0);
    assert_false(policy_can_spare(p, 1));
    policy_pin_layer(p, -1);
    assert_int_equal(policy_close_slot(p, 1), a);
    assert_int_equal(policy_find(p, 0, 0), -1);
    assert_int_equal(policy_n_open(p), 2);
    assert_int_equal(policy_take(p, 0, 4, &evicted), -1);
    policy_release(p, c);
    policy_drop(p, c);
    assert_false(policy_can_spare(p, 2)); /* the least that was asked to stay */
    assert_int_equal(policy_take(p, 0, 4, &evicted), c);
    assert_false(evicted);
    policy_close(&p);
}

static void seeds_count_until_the_text_says_otherwise(void **state)
{
    for (int kind = 0; kind < POLICY_N_KIND; kind++) {
        struct policy *p = new_policy((enum policy_kind)kind, 1, 8, 1, 2);
        bool evicted;
        policy_seed(p, 0, 6, 0.5);
        policy_seed(p, 0, 7, 0.1);
        policy_release(p, policy_take(p, 0, 6, &evicted));
        policy_release(p, policy_take(p, 0, 7, &evicted));
        assert_false(choose(p, 0, 1));
        assert_true(policy_find(p, 0, 6) >= 0); /* the hotter one stayed */
        for (int i = 0; i < 20000; i++)
            choose(p, 0, 1 + i % 2);
        assert_int_equal(policy_find(p, 0, 6), -1);
        policy_close(&p);
    }
}

static void what_is_dearer_than_what_would_go_is_preferred(void **state)
{
    struct policy *p = new_policy(POLICY_LFRU, 1, 8, 1, 2);
    assert_true(policy_prefers(p, 0, 7)); /* there is room */
    for (int i = 0; i < 3; i++)
        choose(p, 0, 0);
    for (int i = 0; i < 2; i++)
        choose(p, 0, 1);
    assert_false(policy_prefers(p, 0, 7));
    const int32_t wanted = 5; /* and stood in for, so that it has no slot */
    policy_observe(p, 0, &wanted, 1, 1);
    assert_false(policy_prefers(p, 0, 5)); /* once is less than twice */
    for (int i = 0; i < 3; i++)
        policy_observe(p, 0, &wanted, 1, 1);
    assert_true(policy_prefers(p, 0, 5));
    policy_hold(p, 0);
    policy_hold(p, 1);
    assert_false(policy_prefers(p, 0, 5)); /* nothing can go */
    policy_release(p, 0);
    policy_release(p, 1);
    policy_close(&p);
}

static void what_was_forgotten_is_as_new(void **state)
{
    struct policy *used = new_policy(POLICY_LFRU, 2, 8, 1, 3), *fresh = new_policy(POLICY_LFRU, 2, 8, 1, 3);
    for (int i = 0; i < 50; i++)
        choose(used, i % 2, (i * i) % 7);
    policy_forget(used);
    assert_int_equal(policy_n_open(used), 3);
    for (int i = 0; i < 100; i++) {
        int layer = i % 2;
        int32_t expert = (i * 5 + i / 3) % 8;
        assert_int_equal(choose(used, layer, expert), choose(fresh, layer, expert));
        assert_int_equal(policy_find(used, layer, expert), policy_find(fresh, layer, expert));
    }
    policy_close(&used);
    policy_close(&fresh);
}

static void names_are_found(void **state)
{
    enum policy_kind kind;
    for (int i = 0; i < POLICY_N_KIND; i++) {
        assert_true(policy_parse(policy_name((enum policy_kind)i), &kind));
        assert_int_equal(kind, i);
    }
    assert_false(policy_parse("fifo", &kind));
}

/* ---- the offline optimum --------------------------------------------------------------------------------------- */

static uint64_t best(const int32_t *keys, size_t n, size_t set, int64_t n_slot)
{
    size_t end[64], n_set = 0;
    uint64_t n_hit = 0;
    struct err e;
    for (size_t i = set; i <= n; i += set)
        end[n_set++] = i;
    assert_int_equal(belady_hits(keys, n, end, n_set, 8, n_slot, &n_hit, &e), ERR_OK);
    return n_hit;
}

/* The best by trying every choice of victim. `in`: bit set of keys in slots. */
static uint64_t try_all(const int32_t *keys, size_t n, size_t set, int n_slot, size_t i, unsigned in)
{
    if (i == n)
        return 0;
    unsigned wanted = 0;
    uint64_t hits = 0, most = 0;
    for (size_t j = i; j < i + set; j++) {
        wanted |= 1u << keys[j];
        hits += in >> keys[j] & 1;
    }
    for (unsigned next = 0; next < 256; next++) /* any set that holds the keys of this set and else what was there */
        if ((next & wanted) == wanted && (next & ~(in | wanted)) == 0 && __builtin_popcount(next) <= n_slot) {
            uint64_t rest = try_all(keys, n, set, n_slot, i + set, next);
            most = rest > most ? rest : most;
        }
    return hits + most;
}

static void the_optimum_is_what_trying_everything_finds(void **state)
{
    uint32_t random = 1;
    for (int round = 0; round < 60; round++) {
        int32_t keys[12];
        size_t set = 1 + (size_t)round % 2;
        for (size_t i = 0; i < 12; i++) {
            do {
                random = random * 1664525 + 1013904223;
                keys[i] = (int32_t)(random >> 20) % 5;
            } while (i % set && keys[i] == keys[i - 1]);
        }
        for (int n_slot = 2; n_slot <= 4; n_slot++)
            assert_int_equal(best(keys, 12, set, n_slot), try_all(keys, 12, set, n_slot, 0, 0));
    }
}

/* ---- budgets --------------------------------------------------------------------------------------------------- */

static void budgets_are_kept_and_used_up(void **state)
{
    const struct budget_group g[2] = {{128 * 9, 8, 2650112}, {128 * 3, 8, 3067904}};
    size_t least = budget_min_bytes(g, 2), most = budget_max_bytes(g, 2);
    assert_int_equal(least, 8 * (2650112 + 3067904));
    for (int percent = 2; percent <= 101; percent++) {
        int64_t n[2];
        size_t bytes = percent == 101 ? SIZE_MAX : most / 100 * (size_t)percent;
        budget_divide(g, 2, bytes, n);
        size_t used = (size_t)n[0] * g[0].slot_bytes + (size_t)n[1] * g[1].slot_bytes;
        assert_true(used <= bytes && n[0] >= 8 && n[1] >= 8 && n[0] <= g[0].n_expert && n[1] <= g[1].n_expert);
        assert_true(used == most || bytes - used < g[1].slot_bytes);
        assert_true(llabs(n[0] * g[1].n_expert - n[1] * g[0].n_expert) < 20 * g[0].n_expert); /* in proportion */
    }
    int64_t n[2];
    budget_divide(g, 2, least, n);
    assert_true(n[0] == 8 && n[1] == 8);
}

/* ---- usage files ----------------------------------------------------------------------------------------------- */

static void usage_comes_back_from_its_file(void **state)
{
    struct usage u, v;
    struct err e;
    const int32_t ids[] = {0, 2, 2, 1, 2, 0};
    char path[] = "/tmp/moebius_usage_XXXXXX", text[4096];
    assert_true(mkstemp(path) >= 0);
    assert_int_equal(usage_create(&u, 2, 3, &e), ERR_OK);
    usage_add(&u, 1, ids, 6);
    assert_int_equal(usage_save(&u, path, 0xfeed, &e), ERR_OK);
    FILE *f = fopen(path, "rb");
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    remove(path);
    assert_int_equal(usage_parse(&v, text, n, path, 0xfeed, 2, 3, &e), ERR_OK);
    assert_memory_equal(u.count, v.count, 6 * sizeof *u.count);
    assert_true(usage_rate(&v, 1, 2, 2) == 1.0); /* 3 of 6 choices, 2 a token */
    assert_true(usage_rate(&v, 0, 2, 2) == 0);
    usage_merge(&v, &u);
    assert_int_equal(v.count[3 + 2], 6);
    usage_close(&v);
    const int n_most = 2 + LIMIT_MTP;
    assert_int_equal(usage_parse(&v, text, n, path, 0xfeed, n_most, 3, &e), ERR_OK); /* with layers for MTP, */
    assert_int_equal(v.n_layer, n_most);
    assert_memory_equal(u.count, v.count, 6 * sizeof *u.count);
    assert_true(v.total[1] == 6 && v.total[n_most - 1] == 0 && v.count[n_most * 3 - 1] == 0);
    usage_close(&v);
    assert_int_equal(usage_parse(&v, text, n, path, 0xfeed, 1, 3, &e), ERR_OK); /* and without */
    assert_true(v.n_layer == 1 && v.count[2] == 0);
    usage_close(&v);
    usage_close(&u);
    assert_int_equal(usage_parse(&v, text, n, "counts", 0xfeed, 2 + LIMIT_MTP + 1, 3, &e), ERR_FORMAT);
    assert_int_equal(usage_parse(&v, text, n, "counts", 0xbeef, 0, 0, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "another model"));
    assert_int_equal(usage_parse(&v, text, n, "counts", 0xfeed, 2, 4, &e), ERR_FORMAT);
    assert_int_equal(usage_parse(&v, text, n - 4, "counts", 0xfeed, 0, 0, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "counts, line"));
}

static void counts_of_one_digit_are_long_enough(void **state)
{
    struct usage u, v;
    struct err e;
    char text[4096];
    FILE *f = fmemopen(text, sizeof text, "wb");
    assert_non_null(f);
    assert_int_equal(usage_create(&u, 2, 500, &e), ERR_OK);
    usage_print(&u, 0xfeed, f);
    size_t n = (size_t)ftell(f);
    fclose(f);
    assert_int_equal(usage_parse(&v, text, n, "counts", 0xfeed, 2, 500, &e), ERR_OK);
    usage_close(&v);
    usage_close(&u);
}

static void broken_usage_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "moebius usage 2\nmodel 000000000000feed\nlayers 1 experts 1\n5\n",
        "moebius usage 1\nmodel feed\nlayers 1 experts 1\n5\n",
        "moebius usage 1\nmodel 000000000000feed\nlayers 0 experts 1\n5\n",
        "moebius usage 1\nmodel 000000000000feed\nlayers 4096 experts 65536\n5\n",
        "moebius usage 1\nmodel 000000000000feed\nlayers 1 experts 2\n5 -1\n",
        "moebius usage 1\nmodel 000000000000feed\nlayers 1 experts 1\n99999999999999999999\n",
        "moebius usage 1\nmodel 000000000000feed\nlayers 1 experts 1\n5 6\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct usage u;
        struct err e;
        assert_int_equal(usage_parse(&u, bad[i], strlen(bad[i]), "bad", 0xfeed, 0, 0, &e), ERR_FORMAT);
        assert_null(u.count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_forgets_the_oldest),
        cmocka_unit_test(lfu_remembers_longer_than_lfru),
        cmocka_unit_test(what_is_clearly_hotter_should_have_a_slot),
        cmocka_unit_test(lfru_keeps_the_frequent),
        cmocka_unit_test(a_cycle_that_almost_fits_does_not_miss_always),
        cmocka_unit_test(held_slots_are_safe_and_closed_ones_out_of_reach),
        cmocka_unit_test(seeds_count_until_the_text_says_otherwise),
        cmocka_unit_test(what_is_dearer_than_what_would_go_is_preferred),
        cmocka_unit_test(what_was_forgotten_is_as_new),
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(the_optimum_is_what_trying_everything_finds),
        cmocka_unit_test(budgets_are_kept_and_used_up),
        cmocka_unit_test(usage_comes_back_from_its_file),
        cmocka_unit_test(counts_of_one_digit_are_long_enough),
        cmocka_unit_test(broken_usage_is_refused),
    };
    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
