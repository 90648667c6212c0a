#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "experts/trace.h"

/* Traces: what is refused when one is read, and replays. */

static const char head[] = "moebius trace 1\nmodel 000000000000feed\n";

static err_code parse(struct trace *t, const char *text, size_t n, struct err *e)
{
    uint64_t fingerprint;
    return trace_parse(t, text, n, "made.trace", &fingerprint, e);
}

/* The trace as a file's bytes, to be freed with free(). */
static char *print(const struct trace *t, size_t *n)
{
    char *text;
    FILE *f = open_memstream(&text, n);
    assert_non_null(f);
    trace_print(t, 0xfeed, f);
    assert_int_equal(fclose(f), 0);
    return text;
}

/* What n_tok tokens choose of one layer: n_used of n_expert, distinct, from a pattern that returns. */
static void add_choices(struct trace *t, int layer, int64_t n_tok, struct random *random)
{
    int64_t n_expert = t->layers[layer].n_expert, n_used = t->layers[layer].n_used;
    int32_t *ids = mem_calloc((size_t)n_used, sizeof *ids);
    struct err e;
    for (int64_t i = 0; i < n_tok; i++) {
        int64_t first = random_u32(random) % n_expert;
        for (int64_t r = 0; r < n_used; r++)
            ids[r] = (int32_t)((first + (n_used - r)) % n_expert);
        assert_int_equal(trace_add(t, layer, ids, 1, &e), ERR_OK);
    }
    mem_free(ids);
}

static void headers_of_absurd_models_are_refused(void **state)
{
    enum { N_LAYER = 4000 };
    size_t n;
    char *text;
    struct trace t;
    struct err e;
    FILE *f = open_memstream(&text, &n);
    fprintf(f, "%slayers %d tokens 1\n", head, N_LAYER);
    for (int i = 0; i < N_LAYER; i++)
        fprintf(f, "65536 1 1 0\n");
    for (int i = 0; i < N_LAYER; i++)
        fprintf(f, "0 ");
    assert_int_equal(fclose(f), 0);
    assert_int_equal(parse(&t, text, n, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "4000 layers of up to 65536 experts: expected 1048576 in all at most"));
    free(text);
}

static void broken_traces_are_refused(void **state)
{
    static const struct {
        const char *rest, *says;
    } cases[] = {
        {"layers 4097 tokens 1\n", "layers, a number from 1 to 4096"},
        {"layers 1 tokens 1\n65537 1 1 0\n0\n", "experts, a number from 1 to 65536"},
        {"layers 1 tokens 1\n4 5 1 0\n0 1 2 3 0\n", "chosen experts, a number from 1 to 4"},
        {"layers 1 tokens 1\n4 2 1 1\n0 1\n", "a group of slots, a number from 0 to 0"},
        {"layers 1 tokens 9000000\n4 2 1 0\n0 1\n", "too short for 9000000 tokens"},
        {"layers 1 tokens 1\n4 2 1 0\n0 4\n", "an expert, a number from 0 to 3"},
        {"layers 1 tokens 2\n4 2 1 0\n0 1\n3 3\n", "line 6: expert 3 is chosen twice"},
        {"layers 2 tokens 1\n4 1 1 0\n4 1 2 0\n0 0\n", "slots of a group differ in size"},
        {"layers 1 tokens 1\n4 2 1 0\n0 1 2\n", "the end of the file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct trace t;
        struct err e;
        int n = snprintf(text, sizeof text, "%s%s", head, cases[i].rest);
        assert_int_equal(parse(&t, text, (size_t)n, &e), ERR_FORMAT);
        if (!strstr(e.text, cases[i].says))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].says, e.text);
    }
}

static void thousands_of_chosen_experts_are_read_and_replayed(void **state)
{
    const struct trace_layer layer = {.n_expert = 4096, .n_used = 3000, .slot_bytes = 1};
    struct random random = random_seed(1);
    struct trace t, again;
    struct replay r, best;
    struct err e;
    size_t n;
    assert_int_equal(trace_create(&t, &layer, 1, &e), ERR_OK);
    add_choices(&t, 0, 3, &random);
    char *text = print(&t, &n);
    assert_int_equal(parse(&again, text, n, &e), ERR_OK);
    assert_memory_equal(again.ids, t.ids, 3 * 3000 * sizeof *t.ids);
    assert_int_equal(trace_replay_best(&again, 0.8, &best, &e), ERR_OK);
    for (int k = 0; k < POLICY_N_KIND; k++) {
        assert_int_equal(trace_replay(&again, (enum policy_kind)k, 0.8, &r, &e), ERR_OK);
        assert_in_range(r.n_hit, 1, best.n_hit);
        assert_int_equal(r.n_missed_bytes, r.n_all - r.n_hit);
    }
    trace_close(&again);
    trace_close(&t);
    free(text);
}

/* Looking at all choices before for each would take 20 times as long as the test may. */
static void reading_takes_time_by_the_file(void **state)
{
    const struct trace_layer layer = {.n_expert = 65536, .n_used = 65536, .slot_bytes = 1};
    struct random random = random_seed(2);
    struct trace t, again;
    struct err e;
    size_t n;
    assert_int_equal(trace_create(&t, &layer, 1, &e), ERR_OK);
    add_choices(&t, 0, 8, &random);
    char *text = print(&t, &n);
    clock_t start = clock();
    assert_int_equal(parse(&again, text, n, &e), ERR_OK);
    assert_in_range(clock() - start, 0, 2 * CLOCKS_PER_SEC);
    assert_int_equal(again.capacity, 8); /* no memory but for what is there */
    trace_close(&again);
    trace_close(&t);
    free(text);
}

/* Layers whose experts differ in size have slots of their own: what two such groups hit together, each hits alone. */
static void groups_do_not_meddle_with_each_other(void **state)
{
    enum { N_TOK = 200 };
    const struct trace_layer both[4] = {{.n_expert = 16, .n_used = 2, .slot_bytes = 1, .group = 0},
                                        {.n_expert = 16, .n_used = 2, .slot_bytes = 1, .group = 1},
                                        {.n_expert = 16, .n_used = 2, .slot_bytes = 1, .group = 1},
                                        {.n_expert = 16, .n_used = 2, .slot_bytes = 1, .group = 0}};
    const int layers[2][2] = {{0, 3}, {1, 2}};
    struct random random = random_seed(3);
    struct trace all, part[2];
    struct replay r, of_part;
    struct err e;
    assert_int_equal(trace_create(&all, both, 4, &e), ERR_OK);
    for (int l = 0; l < 4; l++)
        add_choices(&all, l, N_TOK, &random);
    for (int g = 0; g < 2; g++) {
        const struct trace_layer two[2] = {{.n_expert = 16, .n_used = 2, .slot_bytes = 1},
                                           {.n_expert = 16, .n_used = 2, .slot_bytes = 1}};
        assert_int_equal(trace_create(&part[g], two, 2, &e), ERR_OK);
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < N_TOK; i++)
                assert_int_equal(
                    trace_add(&part[g], k, all.ids + i * all.n_choice + all.layers[layers[g][k]].first, 1, &e), ERR_OK);
    }
    for (int k = 0; k <= POLICY_N_KIND; k++) {
        uint64_t n_hit = 0;
        for (int g = 0; g < 2; g++) {
            err_code code = k < POLICY_N_KIND ? trace_replay(&part[g], (enum policy_kind)k, 0.5, &of_part, &e)
                                              : trace_replay_best(&part[g], 0.5, &of_part, &e);
            assert_int_equal(code, ERR_OK);
            n_hit += of_part.n_hit;
        }
        err_code code = k < POLICY_N_KIND ? trace_replay(&all, (enum policy_kind)k, 0.5, &r, &e)
                                          : trace_replay_best(&all, 0.5, &r, &e);
        assert_int_equal(code, ERR_OK);
        assert_int_equal(r.n_hit, n_hit);
        assert_in_range(n_hit, 1, r.n_all - 1);
    }
    trace_close(&all);
    trace_close(&part[0]);
    trace_close(&part[1]);
}

/* Each of two groups has two slots; a token chooses another expert in each layer. */
static void experts_move_into_a_cache_after_the_token_that_missed_them(void **state)
{
    static const struct {
        int64_t n_tok, most_moves;
        uint64_t n_hit, n_moved;
    } cases[] = {
        {3, 0, 0, 0}, {3, 1, 3, 2}, /* the second layer's expert moves a token later */
        {3, 2, 4, 2}, {5, 2, 4, 6}, /* the fourth token's find a free slot, the fifth's replace the first's */
        {6, 2, 5, 7},
    };
    const struct trace_layer both[2] = {{.n_expert = 4, .n_used = 1, .slot_bytes = 1, .group = 0},
                                        {.n_expert = 4, .n_used = 1, .slot_bytes = 1, .group = 1}};
    const int32_t ids[2][6] = {{0, 0, 0, 1, 2, 0}, {3, 3, 3, 2, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace t;
        struct replay r;
        struct err e;
        assert_int_equal(trace_create(&t, both, 2, &e), ERR_OK);
        for (int l = 0; l < 2; l++)
            assert_int_equal(trace_add(&t, l, ids[l], cases[i].n_tok, &e), ERR_OK);
        assert_int_equal(trace_replay_cache(&t, POLICY_LRU, 0.5, cases[i].most_moves, &r, &e), ERR_OK);
        assert_int_equal(r.n_all, 2 * cases[i].n_tok);
        assert_int_equal(r.n_hit, cases[i].n_hit);
        assert_int_equal(r.n_moved, cases[i].n_moved);
        trace_close(&t);
    }
}

/* Of four experts each token takes one: pairs of like choices, so that neighbours share and others don't. */
static void tokens_that_choose_alike_share_experts(void **state)
{
    static const int32_t ids[] = {0, 0, 1, 1, 2, 2, 3, 3};
    const struct trace_layer layer = {.n_expert = 4, .n_used = 1, .slot_bytes = 1};
    struct trace t;
    struct err e;
    double share;
    assert_int_equal(trace_create(&t, &layer, 1, &e), ERR_OK);
    assert_int_equal(trace_add(&t, 0, ids, 8, &e), ERR_OK);
    assert_int_equal(trace_distinct(&t, 1, 1, &share, &e), ERR_OK);
    assert_true(share == 0.25);
    assert_int_equal(trace_distinct(&t, 2, 1, &share, &e), ERR_OK);
    assert_true(share > 0.35 && share < 0.36); /* 3 of 7 places see two experts, 4 one */
    assert_int_equal(trace_distinct(&t, 2, 2, &share, &e), ERR_OK);
    assert_true(share == 0.5);
    assert_int_equal(trace_distinct(&t, 4, 2, &share, &e), ERR_OK);
    assert_true(share == 1);
    trace_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_of_absurd_models_are_refused),
        cmocka_unit_test(broken_traces_are_refused),
        cmocka_unit_test(thousands_of_chosen_experts_are_read_and_replayed),
        cmocka_unit_test(reading_takes_time_by_the_file),
        cmocka_unit_test(groups_do_not_meddle_with_each_other),
        cmocka_unit_test(experts_move_into_a_cache_after_the_token_that_missed_them),
        cmocka_unit_test(tokens_that_choose_alike_share_experts),
    };
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
