#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "sample/sample.h"

enum { N_DRAW = 20000, N_SMALL = 8 };

/* No filter, no penalty, temperature 1. */
static struct sampler_params plain(void)
{
    return (struct sampler_params){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last_n = 64, .seed = 7};
}

static struct sampler *open_sampler(struct sampler_params p, int32_t n_vocab)
{
    struct err e = {0};
    struct sampler *s;
    if (sampler_create(&s, &p, n_vocab, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return s;
}

/* Draws N_DRAW times from N_SMALL logits. */
static void draw_many(struct sampler_params p, const float *logits, int *n_drawn)
{
    struct sampler *s = open_sampler(p, N_SMALL);
    memset(n_drawn, 0, N_SMALL * sizeof *n_drawn);
    for (int i = 0; i < N_DRAW; i++) {
        int32_t id = sampler_pick(s, logits);
        assert_in_range(id, 0, N_SMALL - 1);
        n_drawn[id]++;
    }
    sampler_close(&s);
}

/* Counts agree with probabilities (which need not sum to 1) within five standard deviations; 0 means never.
 */
static void check_shares(struct sampler_params p, const float *logits, const double *share)
{
    int n_drawn[N_SMALL];
    double sum = 0;
    draw_many(p, logits, n_drawn);
    for (int i = 0; i < N_SMALL; i++)
        sum += share[i];
    for (int i = 0; i < N_SMALL; i++) {
        double q = share[i] / sum, want = q * N_DRAW, off = fabs(n_drawn[i] - want);
        if (off > 5 * sqrt(N_DRAW * q * (1 - q)))
            fail_msg("token %d was drawn %d times, not about %.1f", i, n_drawn[i], want);
    }
}

static void logits_of(const double *probability, float *logits)
{
    for (int i = 0; i < N_SMALL; i++)
        logits[i] = (float)log(probability[i]) + 3; /* a common offset changes nothing */
}

/* Shuffled on purpose: no filter may rely on the order. Descending: 5 2 7 0 3 1 6 4. */
static const double probability[N_SMALL] = {0.10, 0.04, 0.20, 0.06, 0.01, 0.40, 0.03, 0.16};

static void draws_follow_the_probabilities(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    check_shares(plain(), logits, probability);
}

static void temperature_sharpens_and_flattens(void **state)
{
    float logits[N_SMALL];
    double want[N_SMALL];
    logits_of(probability, logits);
    for (int i = 0; i < N_SMALL; i++)
        want[i] = probability[i] * probability[i];
    struct sampler_params p = plain();
    p.temperature = 0.5f;
    check_shares(p, logits, want);
    for (int i = 0; i < N_SMALL; i++)
        want[i] = sqrt(probability[i]);
    p.temperature = 2;
    check_shares(p, logits, want);
}

static void top_k_keeps_the_k_likeliest(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    p.top_k = 3;
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0.40, 0, 0.16});
    p.top_k = 1;
    check_shares(p, logits, (double[]){0, 0, 0, 0, 0, 1, 0, 0});
    p.top_k = 100;
    check_shares(p, logits, probability);
}

static void top_k_prefers_the_lower_id_of_equals(void **state)
{
    const float logits[N_SMALL] = {1, 2, 1, 2, 1, 2, 0, 2};
    struct sampler_params p = plain();
    p.top_k = 3;
    check_shares(p, logits, (double[]){0, 1, 0, 1, 0, 1, 0, 0});
    p.top_k = 5;
    check_shares(p, logits, (double[]){exp(-1), 1, 0, 1, 0, 1, 0, 1});
}

static void top_p_keeps_the_smallest_nucleus(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    p.top_p = 0.59f; /* 0.40 + 0.20 */
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0.40, 0, 0});
    p.top_p = 0.61f; /* 0.60 is not enough */
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0.40, 0, 0.16});
    p.top_p = 0.985f;
    check_shares(p, logits, (double[]){0.10, 0.04, 0.20, 0.06, 0, 0.40, 0.03, 0.16});
    p.top_p = 0; /* one token at least */
    check_shares(p, logits, (double[]){0, 0, 0, 0, 0, 1, 0, 0});
    const float equal[N_SMALL] = {5, 5, 5, 5, 5, 5, 5, 5};
    p.top_p = 0.5f; /* reached exactly: nothing beyond */
    check_shares(p, equal, (double[]){1, 1, 1, 1, 0, 0, 0, 0});
}

static void top_p_counts_within_top_k(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    p.top_k = 3;
    p.top_p = 0.75f; /* of 0.76: 0.40 + 0.20 = 0.789 of it; without top-k 0.16 would be needed, too */
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0.40, 0, 0});
}

static void min_p_drops_what_is_far_below_the_likeliest(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    p.min_p = 0.24f; /* from 0.096 */
    check_shares(p, logits, (double[]){0.10, 0, 0.20, 0, 0, 0.40, 0, 0.16});
    p.min_p = 1;
    check_shares(p, logits, (double[]){0, 0, 0, 0, 0, 1, 0, 0});
}

static void top_p_is_a_share_of_what_min_p_has_not_filtered(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    p.min_p = 0.24f;
    p.top_p = 0.83f; /* 5 2 7 have 0.76 of all (so 0, too, stays), but 0.88 of what min-p keeps */
    check_shares(p, logits, (double[]){0.10, 0, 0.20, 0, 0, 0.40, 0, 0.16});
}

static void filters_do_not_depend_on_the_temperature(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    p.top_p = 0.61f;
    p.temperature = 1000; /* first, it would make all alike and the nucleus larger */
    check_shares(p, logits, (double[]){0, 0, 1, 0, 0, 1, 0, 1});
}

static void greedy_takes_the_lowest_of_the_likeliest(void **state)
{
    const float logits[N_SMALL] = {-3, 1, 4, 4, -INFINITY, 4, 2, 0};
    struct sampler_params p = plain();
    p.temperature = 0;
    struct sampler *s = open_sampler(p, N_SMALL);
    for (int i = 0; i < 10; i++)
        assert_int_equal(sampler_pick(s, logits), 2);
    sampler_close(&s);
}

static void penalty_divides_positive_and_multiplies_negative_logits(void **state)
{
    const float logits[N_SMALL] = {4, 3, -1, -1.5f, -9, -9, -9, -9};
    struct sampler_params p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    struct sampler *s = open_sampler(p, N_SMALL);
    assert_int_equal(sampler_pick(s, logits), 0);
    sampler_accept(s, 0);
    assert_int_equal(sampler_pick(s, logits), 1); /* 4 / 2 < 3 */
    const float negative[N_SMALL] = {-9, -9, -1, -1.5f, -9, -9, -9, -9};
    assert_int_equal(sampler_pick(s, negative), 2);
    sampler_accept(s, 2);
    assert_int_equal(sampler_pick(s, negative), 3); /* -1 * 2 < -1.5 */
    sampler_close(&s);
}

static void penalty_hits_a_repeated_token_once(void **state)
{
    const float logits[N_SMALL] = {4, 1.5f, -9, -9, -9, -9, -9, -9};
    struct sampler_params p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    struct sampler *s = open_sampler(p, N_SMALL);
    for (int i = 0; i < 5; i++)
        sampler_accept(s, 0);
    assert_int_equal(sampler_pick(s, logits), 0); /* 2 > 1.5, though 4 / 2^5 is not */
    sampler_close(&s);
}

static void penalty_looks_back_last_n_tokens(void **state)
{
    const float logits[N_SMALL] = {4, 3, -9, -9, -9, -9, -9, -9};
    struct sampler_params p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    p.repeat_last_n = 3;
    struct sampler *s = open_sampler(p, N_SMALL);
    sampler_accept(s, 0);
    sampler_accept(s, 5);
    sampler_accept(s, 6);
    assert_int_equal(sampler_pick(s, logits), 1);
    sampler_accept(s, 7);
    assert_int_equal(sampler_pick(s, logits), 0);
    sampler_accept(s, 0);
    sampler_accept(s, -1); /* no tokens: not counted */
    sampler_accept(s, N_SMALL);
    sampler_accept(s, 5);
    sampler_accept(s, 6);
    assert_int_equal(sampler_pick(s, logits), 1);
    sampler_reset(s);
    assert_int_equal(sampler_pick(s, logits), 0);
    sampler_close(&s);

    p.repeat_last_n = 0;
    s = open_sampler(p, N_SMALL);
    sampler_accept(s, 0);
    assert_int_equal(sampler_pick(s, logits), 0);
    sampler_close(&s);
}

static void equal_seeds_give_equal_picks(void **state)
{
    enum { N = 200 };
    float logits[N_SMALL];
    int32_t picks[N];
    logits_of(probability, logits);
    struct sampler_params p = plain();
    struct sampler *a = open_sampler(p, N_SMALL), *b = open_sampler(p, N_SMALL);
    p.seed++;
    struct sampler *c = open_sampler(p, N_SMALL);
    int n_different = 0;
    for (int i = 0; i < N; i++) {
        picks[i] = sampler_pick(a, logits);
        assert_int_equal(picks[i], sampler_pick(b, logits));
        n_different += picks[i] != sampler_pick(c, logits);
    }
    assert_true(n_different > N / 4);
    sampler_reset(a);
    for (int i = 0; i < N; i++)
        assert_int_equal(sampler_pick(a, logits), picks[i]);
    sampler_close(&a);
    sampler_close(&b);
    sampler_close(&c);
}

static void odd_logits_are_no_candidates_and_no_crash(void **state)
{
    const float mixed[N_SMALL] = {NAN, 1, -INFINITY, 1, NAN, NAN, -INFINITY, NAN};
    const float infinite[N_SMALL] = {NAN, 1, INFINITY, 1, -INFINITY, INFINITY, 0, -1};
    const float huge[N_SMALL] = {3e38f, -3e38f, 3e38f, -3e38f, -3e38f, -3e38f, -3e38f, -3e38f};
    for (int top_k = 0; top_k <= 7; top_k += 7) {
        for (int filters = 0; filters <= 1; filters++) {
            struct sampler_params p = plain();
            p.top_k = top_k;
            p.top_p = filters ? 0.99f : 1;
            p.min_p = filters ? 0.01f : 0;
            check_shares(p, mixed, (double[]){0, 1, 0, 1, 0, 0, 0, 0});
            check_shares(p, infinite, (double[]){0, 0, 1, 0, 0, 1, 0, 0});
            p.temperature = 1e-40f;
            check_shares(p, huge, (double[]){1, 0, 1, 0, 0, 0, 0, 0});
        }
    }
}

static void without_a_candidate_the_pick_is_token_0(void **state)
{
    const float nan[N_SMALL] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    const float none[N_SMALL] = {-INFINITY, NAN, -INFINITY, NAN, -INFINITY, NAN, -INFINITY, NAN};
    for (int t = 0; t <= 1; t++) {
        struct sampler_params p = sampler_default_params();
        p.temperature = (float)t;
        p.repeat_penalty = 1.5f;
        struct sampler *s = open_sampler(p, N_SMALL);
        sampler_accept(s, 0);
        assert_int_equal(sampler_pick(s, nan), 0);
        assert_int_equal(sampler_pick(s, none), 0);
        sampler_close(&s);
    }
}

static void logits_stay_as_they_are(void **state)
{
    float logits[N_SMALL], before[N_SMALL];
    logits_of(probability, logits);
    memcpy(before, logits, sizeof before);
    struct sampler_params p = sampler_default_params();
    p.repeat_penalty = 2;
    struct sampler *s = open_sampler(p, N_SMALL);
    for (int i = 0; i < 20; i++)
        sampler_accept(s, sampler_pick(s, logits));
    assert_memory_equal(logits, before, sizeof before);
    sampler_close(&s);
}

/* Whether `id` is among the k likeliest and in the nucleus, by counting who is before it. */
static bool is_kept(const float *logits, int32_t n, int32_t id, int top_k, double top_p)
{
    double before = 0, total = 0;
    int n_before = 0;
    for (int32_t i = 0; i < n; i++) {
        int rank = 0;
        for (int32_t j = 0; j < n; j++)
            rank += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
        total += rank < top_k ? exp(logits[i]) : 0;
        if (logits[i] > logits[id] || (logits[i] == logits[id] && i < id)) {
            n_before++;
            before += exp(logits[i]);
        }
    }
    return n_before < top_k && before < top_p * total;
}

static void picks_of_many_random_sets_are_among_the_kept(void **state)
{
    enum { N = 97 };
    struct random r = random_seed(3);
    for (int round = 0; round < 300; round++) {
        float logits[N];
        for (int i = 0; i < N; i++)
            logits[i] = (float)(random_u32(&r) % 24) / 4; /* with ties */
        struct sampler_params p = plain();
        p.seed = (uint64_t)round;
        p.top_k = 1 + (int)(random_u32(&r) % (N + 5));
        p.top_p = (float)random_unit(&r);
        struct sampler *s = open_sampler(p, N);
        for (int i = 0; i < 10; i++)
            assert_true(is_kept(logits, N, sampler_pick(s, logits), p.top_k, p.top_p * (1 + 1e-9)));
        sampler_close(&s);
    }
}

/* A nucleus by sorting, for comparison with the selection. */
struct pair {
    double weight;
    int32_t id;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight ? 1 : -1) : x->id - y->id;
}

/* Which of up to 64 tokens can be drawn: a high temperature makes all that are left about equally likely. */
static uint64_t drawable(struct sampler_params p, const float *logits, int32_t n)
{
    uint64_t mask = 0;
    p.temperature = 1e6f;
    struct sampler *s = open_sampler(p, n);
    for (int i = 0; i < 40 * n; i++) /* misses one with a probability below n * exp(-40) */
        mask |= (uint64_t)1 << sampler_pick(s, logits);
    sampler_close(&s);
    return mask;
}

static void nuclei_of_random_logits_are_those_of_a_full_sort(void **state)
{
    enum { MAX_N = 64 };
    struct random r = random_seed(5);
    for (int round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)(random_u32(&r) % MAX_N);
        float logits[MAX_N], spread = (float)(0.001 + 6 * random_unit(&r) * (round % 2));
        struct pair sorted[MAX_N];
        double sum = 0, inside = 0;
        for (int32_t i = 0; i < n; i++) {
            logits[i] = spread * (float)(random_u32(&r) % 9); /* few values: many ties */
            sum += sorted[i].weight = exp((double)logits[i]);
            sorted[i].id = i;
        }
        qsort(sorted, (size_t)n, sizeof *sorted, compare_pairs);
        struct sampler_params p = plain();
        p.top_p = (float)random_unit(&r);
        uint64_t want = 0;
        for (int32_t i = 0; i < n && (i == 0 || inside < (double)p.top_p * sum); i++) {
            want |= (uint64_t)1 << sorted[i].id;
            inside += sorted[i].weight;
        }
        assert_int_equal(drawable(p, logits, n), want);
    }
}

/* A vocabulary of 256k with bell-shaped logits. The bound is loose, for sanitizers
 * and busy machines: it catches what is quadratic. MOEBIUS_BENCH=1 prints the times. */
static void a_large_vocabulary_is_quick(void **state)
{
    enum { N = 256000, ROUNDS = 20 };
    float *logits = mem_calloc(N, sizeof *logits);
    assert_non_null(logits);
    struct random r = random_seed(3);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 4; j++)
            logits[i] += (float)(5 * random_unit(&r));
    const struct {
        int top_k;
        float top_p;
    } cases[] = {{40, 0.95f}, {0, 0.95f}, {0, 0.5f}, {0, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct sampler_params p = plain();
        p.top_k = cases[c].top_k, p.top_p = cases[c].top_p;
        struct sampler *s = open_sampler(p, N);
        clock_t start = clock();
        for (int i = 0; i < ROUNDS; i++)
            assert_in_range(sampler_pick(s, logits), 0, N - 1);
        double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC / ROUNDS;
        if (getenv("MOEBIUS_BENCH"))
            print_message("top-k %d, top-p %g: %.3f ms\n", p.top_k, (double)p.top_p, ms);
        assert_true(ms < 1000);
        sampler_close(&s);
    }
    mem_free(logits);
}

static void parameters_out_of_range_are_refused(void **state)
{
    struct {
        struct sampler_params p;
        const char *word;
    } cases[12];
    for (int i = 0; i < 12; i++)
        cases[i].p = sampler_default_params();
    cases[0].p.temperature = -0.1f, cases[0].word = "temperature";
    cases[1].p.temperature = NAN, cases[1].word = "temperature";
    cases[2].p.temperature = INFINITY, cases[2].word = "temperature";
    cases[3].p.top_k = -1, cases[3].word = "top-k";
    cases[4].p.top_p = -0.1f, cases[4].word = "top-p";
    cases[5].p.top_p = 1.1f, cases[5].word = "top-p";
    cases[6].p.top_p = NAN, cases[6].word = "top-p";
    cases[7].p.min_p = 1.1f, cases[7].word = "min-p";
    cases[8].p.repeat_penalty = 0, cases[8].word = "penalty";
    cases[9].p.repeat_penalty = NAN, cases[9].word = "penalty";
    cases[10].p.repeat_last_n = -1, cases[10].word = "penalty";
    cases[11].p.repeat_last_n = INT32_MAX, cases[11].word = "penalty";
    for (int i = 0; i < 12; i++) {
        struct err e = {0};
        struct sampler *s = NULL;
        assert_int_equal(sampler_create(&s, &cases[i].p, 10, &e), ERR_USAGE);
        assert_null(s);
        assert_non_null(strstr(e.text, cases[i].word));
    }
    struct err e = {0};
    struct sampler *s = NULL;
    struct sampler_params p = sampler_default_params();
    assert_int_equal(sampler_create(&s, &p, 0, &e), ERR_USAGE);
    sampler_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(temperature_sharpens_and_flattens),
        cmocka_unit_test(top_k_keeps_the_k_likeliest),
        cmocka_unit_test(top_k_prefers_the_lower_id_of_equals),
        cmocka_unit_test(top_p_keeps_the_smallest_nucleus),
        cmocka_unit_test(top_p_counts_within_top_k),
        cmocka_unit_test(min_p_drops_what_is_far_below_the_likeliest),
        cmocka_unit_test(top_p_is_a_share_of_what_min_p_has_not_filtered),
        cmocka_unit_test(filters_do_not_depend_on_the_temperature),
        cmocka_unit_test(greedy_takes_the_lowest_of_the_likeliest),
        cmocka_unit_test(penalty_divides_positive_and_multiplies_negative_logits),
        cmocka_unit_test(penalty_hits_a_repeated_token_once),
        cmocka_unit_test(penalty_looks_back_last_n_tokens),
        cmocka_unit_test(equal_seeds_give_equal_picks),
        cmocka_unit_test(odd_logits_are_no_candidates_and_no_crash),
        cmocka_unit_test(without_a_candidate_the_pick_is_token_0),
        cmocka_unit_test(logits_stay_as_they_are),
        cmocka_unit_test(picks_of_many_random_sets_are_among_the_kept),
        cmocka_unit_test(nuclei_of_random_logits_are_those_of_a_full_sort),
        cmocka_unit_test(a_large_vocabulary_is_quick),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
