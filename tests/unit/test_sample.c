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
static moebius_sampler_options plain(void)
{
    moebius_sampler_options o = sampler_default_options();
    o.temperature = 1;
    o.top_k = 0;
    o.top_p = 1;
    o.min_p = 0;
    o.seed = 7;
    return o;
}

static moebius_sampler *open_sampler(moebius_sampler_options p, int32_t n_vocab)
{
    struct err e = {0};
    moebius_sampler *s;
    if (sampler_create(&s, &p, NULL, n_vocab, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return s;
}

/* Draws N_DRAW times from N_SMALL logits. */
static void draw_many(moebius_sampler_options p, const float *logits, int *n_drawn)
{
    moebius_sampler *s = open_sampler(p, N_SMALL);
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
static void check_shares(moebius_sampler_options p, const float *logits, const double *share)
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
    for (int i = 0; i < N_SMALL; i++)
        logits[i] -= 2000; /* powers of these alone would all be 0 */
    check_shares(plain(), logits, probability);
}

static void temperature_sharpens_and_flattens(void **state)
{
    float logits[N_SMALL];
    double want[N_SMALL];
    logits_of(probability, logits);
    for (int i = 0; i < N_SMALL; i++)
        want[i] = probability[i] * probability[i];
    moebius_sampler_options p = plain();
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
    moebius_sampler_options p = plain();
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
    moebius_sampler_options p = plain();
    p.top_k = 3;
    check_shares(p, logits, (double[]){0, 1, 0, 1, 0, 1, 0, 0});
    p.top_k = 5;
    check_shares(p, logits, (double[]){exp(-1), 1, 0, 1, 0, 1, 0, 1});
}

static void top_p_keeps_the_smallest_nucleus(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
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
    moebius_sampler_options p = plain();
    p.top_k = 3;
    p.top_p = 0.75f; /* of 0.76: 0.40 + 0.20 = 0.789 of it; without top-k 0.16 would be needed, too */
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0.40, 0, 0});
}

static void min_p_drops_what_is_far_below_the_likeliest(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.min_p = 0.24f; /* from 0.096 */
    check_shares(p, logits, (double[]){0.10, 0, 0.20, 0, 0, 0.40, 0, 0.16});
    p.min_p = 1;
    check_shares(p, logits, (double[]){0, 0, 0, 0, 0, 1, 0, 0});
    const float first[N_SMALL] = {5, 4, 3, 2, 1, 0, -1, -2};
    check_shares(p, first, (double[]){1, 0, 0, 0, 0, 0, 0, 0});
}

static void top_p_is_a_share_of_what_min_p_has_not_filtered(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.min_p = 0.24f;
    p.top_p = 0.83f; /* 5 2 7 have 0.76 of all (so 0, too, stays), but 0.88 of what min-p keeps */
    check_shares(p, logits, (double[]){0.10, 0, 0.20, 0, 0, 0.40, 0, 0.16});
}

/* Descending information: 4 6 1 3 0 7 2 5. The entropy is 1.661; from it, ascending: 2 7 0 5 3 1 6 4. */
static void typical_p_keeps_what_is_nearest_to_the_entropy(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.typical_p = 0.35f; /* 0.20 + 0.16 */
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0, 0, 0.16});
    p.typical_p = 0.37f; /* the likeliest comes later */
    check_shares(p, logits, (double[]){0.10, 0, 0.20, 0, 0, 0, 0, 0.16});
    p.typical_p = 0.85f;
    check_shares(p, logits, (double[]){0.10, 0, 0.20, 0, 0, 0.40, 0, 0.16});
    p.typical_p = 0; /* one token at least */
    check_shares(p, logits, (double[]){0, 0, 1, 0, 0, 0, 0, 0});
    const float equal[N_SMALL] = {5, 5, 5, 5, 5, 5, 5, 5};
    p.typical_p = 0.5f;
    check_shares(p, equal, (double[]){1, 1, 1, 1, 0, 0, 0, 0});
}

static void typical_p_comes_after_top_k_and_before_top_p(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.top_k = 3; /* 5 2 7: the entropy of 0.526, 0.263, 0.211 is 1.017; 2 is 0.32 away, 5 0.37, 7 0.54 */
    p.typical_p = 0.7f;
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0.40, 0, 0});
    p.top_k = 0;
    p.typical_p = 0.37f; /* 2 7 0; before top-p, which then keeps 2 7 */
    p.top_p = 0.7f;
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0, 0, 0.16});
}

static void xtc_leaves_the_least_likely_of_the_top_choices(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.xtc_probability = 1;
    p.xtc_threshold = 0.15f;
    check_shares(p, logits, (double[]){0.10, 0.04, 0, 0.06, 0.01, 0, 0.03, 0.16});
    p.xtc_threshold = 0.3f; /* only one: it stays */
    check_shares(p, logits, probability);
    p.top_k = 3; /* 0.526 and 0.263 of what is left */
    p.xtc_threshold = 0.25f;
    check_shares(p, logits, (double[]){0, 0, 0.20, 0, 0, 0, 0, 0.16});
    p = plain();
    p.xtc_probability = 1;
    const float equal[N_SMALL] = {0, 5, 5, 0, 5, 0, 0, 0};
    check_shares(p, equal, (double[]){exp(-5), 0, 0, exp(-5), 1, exp(-5), exp(-5), exp(-5)});
}

static void xtc_comes_as_often_as_its_probability_says(void **state)
{
    float logits[N_SMALL];
    double want[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.xtc_probability = 0.25f;
    p.xtc_threshold = 0.15f;
    for (int i = 0; i < N_SMALL; i++)
        want[i] = probability[i] * (i == 2 || i == 5 ? 0.75 : 0.75 + 0.25 / 0.40);
    check_shares(p, logits, want);
}

/* As candidates are in the order of ids, the draws can be followed. */
static void mirostat_draws_and_corrects_itself_as_defined(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.mirostat = 2;
    p.mirostat_tau = 1.5f;
    p.mirostat_eta = 0.25f;
    p.top_k = 1; /* not asked, nor is the next one */
    p.xtc_probability = 1;
    moebius_sampler *s = open_sampler(p, N_SMALL);
    struct random r = random_seed(p.seed);
    double mu = 3, sum_of_surprise = 0;
    for (int round = 0; round < N_DRAW; round++) {
        double kept[N_SMALL], sum = 0, upto = 0;
        for (int i = 0; i < N_SMALL; i++)
            sum += kept[i] = i == 5 || -log2(probability[i]) <= mu ? probability[i] : 0;
        double at = random_unit(&r) * sum;
        int want = 0;
        while ((upto += kept[want]) <= at)
            want++;
        assert_int_equal(sampler_pick(s, logits), want);
        sum_of_surprise += -log2(kept[want] / sum);
        mu -= 0.25 * (-log2(kept[want] / sum) - 1.5);
    }
    assert_true(fabs(sum_of_surprise / N_DRAW - 1.5) < 0.01);
    sampler_close(&s);
}

static void mirostat_begins_again_with_the_text(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.mirostat = 2;
    p.mirostat_tau = 1.5f;
    moebius_sampler *s = open_sampler(p, N_SMALL), *fresh;
    for (int i = 0; i < 50; i++)
        sampler_pick(s, logits);
    sampler_forget(s);
    sampler_reseed(s, p.seed);
    fresh = open_sampler(p, N_SMALL);
    for (int i = 0; i < 50; i++)
        assert_int_equal(sampler_pick(s, logits), sampler_pick(fresh, logits));
    sampler_close(&s);
    sampler_close(&fresh);
}

static void mirostat_goes_by_the_temperature(void **state)
{
    float logits[N_SMALL];
    double want[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.mirostat = 2;
    p.mirostat_tau = 50; /* keeps all */
    p.mirostat_eta = 0;
    p.temperature = 2;
    for (int i = 0; i < N_SMALL; i++)
        want[i] = sqrt(probability[i]);
    check_shares(p, logits, want);
    p.mirostat_tau = 0; /* keeps none but the likeliest */
    check_shares(p, logits, (double[]){0, 0, 0, 0, 0, 1, 0, 0});
}

static void filters_do_not_depend_on_the_temperature(void **state)
{
    float logits[N_SMALL];
    logits_of(probability, logits);
    moebius_sampler_options p = plain();
    p.top_p = 0.61f;
    p.temperature = 1000; /* first, it would make all alike and the nucleus larger */
    check_shares(p, logits, (double[]){0, 0, 1, 0, 0, 1, 0, 1});
}

static void greedy_takes_the_lowest_of_the_likeliest(void **state)
{
    const float logits[N_SMALL] = {-3, 1, 4, 4, -INFINITY, 4, 2, 0};
    moebius_sampler_options p = plain();
    p.temperature = 0;
    moebius_sampler *s = open_sampler(p, N_SMALL);
    for (int i = 0; i < 10; i++)
        assert_int_equal(sampler_pick(s, logits), 2);
    sampler_close(&s);
}

static void penalty_divides_positive_and_multiplies_negative_logits(void **state)
{
    const float logits[N_SMALL] = {4, 3, -1, -1.5f, -9, -9, -9, -9};
    moebius_sampler_options p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    moebius_sampler *s = open_sampler(p, N_SMALL);
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
    moebius_sampler_options p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    moebius_sampler *s = open_sampler(p, N_SMALL);
    for (int i = 0; i < 5; i++)
        sampler_accept(s, 0);
    assert_int_equal(sampler_pick(s, logits), 0); /* 2 > 1.5, though 4 / 2^5 is not */
    sampler_close(&s);
}

static void penalty_looks_back_last_n_tokens(void **state)
{
    const float logits[N_SMALL] = {4, 3, -9, -9, -9, -9, -9, -9};
    moebius_sampler_options p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    p.repeat_last_n = 3;
    moebius_sampler *s = open_sampler(p, N_SMALL);
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
    sampler_forget(s);
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
    moebius_sampler_options p = plain();
    moebius_sampler *a = open_sampler(p, N_SMALL), *b = open_sampler(p, N_SMALL);
    p.seed++;
    moebius_sampler *c = open_sampler(p, N_SMALL);
    int n_different = 0;
    for (int i = 0; i < N; i++) {
        picks[i] = sampler_pick(a, logits);
        assert_int_equal(picks[i], sampler_pick(b, logits));
        n_different += picks[i] != sampler_pick(c, logits);
    }
    assert_true(n_different > N / 4);
    sampler_reseed(a, plain().seed);
    for (int i = 0; i < N; i++)
        assert_int_equal(sampler_pick(a, logits), picks[i]);
    sampler_close(&a);
    sampler_close(&b);
    sampler_close(&c);
}

/* A hash (FNV-1a) of 500 picks from changing logits, each of which is accepted. */
static uint32_t hash_of_picks(moebius_sampler_options p)
{
    enum { N = 300 };
    uint32_t hash = 2166136261u;
    struct random r = random_seed(11);
    moebius_sampler *s = open_sampler(p, N);
    for (int i = 0; i < 500; i++) {
        float logits[N];
        for (int j = 0; j < N; j++)
            logits[j] = (float)(random_u32(&r) % 4096) / 512 - 3;
        int32_t id = sampler_pick(s, logits);
        sampler_accept(s, id);
        hash = (hash ^ (uint32_t)id) * 16777619u;
    }
    sampler_close(&s);
    return hash;
}

/* The hashes are those of the first version, which had no other steps. */
static void steps_that_are_off_change_no_token(void **state)
{
    moebius_sampler_options p = sampler_default_options();
    p.seed = 1;
    assert_int_equal(hash_of_picks(p), 603877898u);
    p.repeat_penalty = 1.3f;
    assert_int_equal(hash_of_picks(p), 3480622048u);
    p.temperature = 0;
    assert_int_equal(hash_of_picks(p), 4202147127u);
    p = plain();
    p.repeat_penalty = 1.1f;
    p.repeat_last_n = 200;
    assert_int_equal(hash_of_picks(p), 486451954u);
}

static void odd_logits_are_no_candidates_and_no_crash(void **state)
{
    const float mixed[N_SMALL] = {NAN, 1, -INFINITY, 1, NAN, NAN, -INFINITY, NAN};
    const float infinite[N_SMALL] = {NAN, 1, INFINITY, 1, -INFINITY, INFINITY, 0, -1};
    const float huge[N_SMALL] = {3e38f, -3e38f, 3e38f, -3e38f, -3e38f, -3e38f, -3e38f, -3e38f};
    for (int top_k = 0; top_k <= 7; top_k += 7) {
        for (int filters = 0; filters <= 1; filters++) {
            moebius_sampler_options p = plain();
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
        moebius_sampler_options p = sampler_default_options();
        p.temperature = (float)t;
        p.repeat_penalty = 1.5f;
        moebius_sampler *s = open_sampler(p, N_SMALL);
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
    moebius_sampler_options p = sampler_default_options();
    p.repeat_penalty = 2;
    moebius_sampler *s = open_sampler(p, N_SMALL);
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
        moebius_sampler_options p = plain();
        p.seed = (uint64_t)round;
        p.top_k = 1 + (int)(random_u32(&r) % (N + 5));
        p.top_p = (float)random_unit(&r);
        moebius_sampler *s = open_sampler(p, N);
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
static uint64_t drawable(moebius_sampler_options p, const float *logits, int32_t n)
{
    uint64_t mask = 0;
    p.temperature = 1e6f;
    moebius_sampler *s = open_sampler(p, n);
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
        moebius_sampler_options p = plain();
        p.top_p = (float)random_unit(&r);
        uint64_t want = 0;
        for (int32_t i = 0; i < n && (i == 0 || inside < (double)p.top_p * sum); i++) {
            want |= (uint64_t)1 << sorted[i].id;
            inside += sorted[i].weight;
        }
        assert_int_equal(drawable(p, logits, n), want);
    }
}

static void typical_sets_of_random_logits_are_those_of_a_full_sort(void **state)
{
    enum { MAX_N = 64 };
    struct random r = random_seed(8);
    for (int round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)(random_u32(&r) % MAX_N);
        float logits[MAX_N], spread = (float)(0.01 + 3 * random_unit(&r));
        struct pair sorted[MAX_N];
        double sum = 0, entropy = 0, inside = 0;
        for (int32_t i = 0; i < n; i++)
            sum += exp((double)(logits[i] = spread * (float)(random_u32(&r) % 9)));
        for (int32_t i = 0; i < n; i++)
            entropy -= exp((double)logits[i]) / sum * (logits[i] - log(sum));
        for (int32_t i = 0; i < n; i++)
            sorted[i] = (struct pair){-fabs(log(sum) - (double)logits[i] - entropy), i};
        qsort(sorted, (size_t)n, sizeof *sorted, compare_pairs);
        moebius_sampler_options p = plain();
        p.typical_p = (float)random_unit(&r);
        uint64_t want = 0;
        for (int32_t i = 0; i < n && (i == 0 || inside < (double)p.typical_p); i++) {
            want |= (uint64_t)1 << sorted[i].id;
            inside += exp((double)logits[sorted[i].id]) / sum;
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
        float top_p, typical_p, xtc;
    } cases[] = {{40, 0.95f, 1, 0}, {0, 0.95f, 1, 0}, {0, 0.5f, 1, 0}, {0, 1, 1, 0}, {0, 1, 0.5f, 0}, {0, 1, 1, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        moebius_sampler_options p = plain();
        p.top_k = cases[c].top_k, p.top_p = cases[c].top_p;
        p.typical_p = cases[c].typical_p, p.xtc_probability = cases[c].xtc;
        moebius_sampler *s = open_sampler(p, N);
        clock_t start = clock();
        for (int i = 0; i < ROUNDS; i++)
            assert_in_range(sampler_pick(s, logits), 0, N - 1);
        double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC / ROUNDS;
        if (getenv("MOEBIUS_BENCH"))
            print_message("top-k %d, top-p %g, typical-p %g, XTC %g: %.3f ms\n", p.top_k, (double)p.top_p,
                          (double)p.typical_p, (double)p.xtc_probability, ms);
        assert_true(ms < 1000);
        sampler_close(&s);
    }
    mem_free(logits);
}

/* A sampler with these options is refused with a sentence that has this word. */
static void check_refused(moebius_sampler_options o, const char *word)
{
    struct err e = {0};
    moebius_sampler *s = NULL;
    assert_int_equal(sampler_create(&s, &o, NULL, 10, &e), ERR_USAGE);
    assert_null(s);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" doesn't say \"%s\"", e.text, word);
}

static void floats_out_of_range_are_refused(void **state)
{
    const struct {
        size_t offset; /* of the field */
        const char *word;
        float values[3];
    } cases[] = {
#define AT(field) offsetof(moebius_sampler_options, field)
        {AT(temperature), "temperature", {-0.1f, NAN, INFINITY}},
        {AT(typical_p), "typical-p", {-0.1f, 1.1f, NAN}},
        {AT(top_p), "top-p", {-0.1f, 1.1f, NAN}},
        {AT(min_p), "min-p", {-0.1f, 1.1f, NAN}},
        {AT(xtc_probability), "probability of XTC", {-0.1f, 1.1f, NAN}},
        {AT(xtc_threshold), "threshold of XTC", {-0.1f, 1.1f, NAN}},
        {AT(mirostat_tau), "tau", {-0.1f, INFINITY, NAN}},
        {AT(mirostat_eta), "eta", {-0.1f, INFINITY, NAN}},
        {AT(repeat_penalty), "repetition penalty", {0, INFINITY, NAN}},
        {AT(presence_penalty), "presence penalty", {-INFINITY, INFINITY, NAN}},
        {AT(frequency_penalty), "frequency penalty", {-INFINITY, INFINITY, NAN}},
        {AT(dry_multiplier), "multiplier", {-0.1f, INFINITY, NAN}},
        {AT(dry_base), "base", {0.9f, INFINITY, NAN}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 3; j++) {
            moebius_sampler_options o = sampler_default_options();
            *(float *)((char *)&o + cases[i].offset) = cases[i].values[j];
            check_refused(o, cases[i].word);
        }
}

static void whole_numbers_out_of_range_are_refused(void **state)
{
    const struct {
        size_t offset;
        const char *word;
        int values[2];
    } cases[] = {
        {AT(top_k), "top-k", {-1, INT32_MIN}},
        {AT(repeat_last_n), "penalties look back", {-2, SAMPLER_MAX_LAST_N + 1}},
        {AT(dry_last_n), "DRY looks back", {-2, INT32_MAX}},
        {AT(dry_allowed_length), "allowed length", {0, -1}},
        {AT(n_dry_breakers), "breakers", {-1, INT32_MIN}},
        {AT(n_logit_biases), "biases", {-1, INT32_MIN}},
        {AT(mirostat), "Mirostat", {1, -1}},
#undef AT
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 2; j++) {
            moebius_sampler_options o = sampler_default_options();
            *(int *)((char *)&o + cases[i].offset) = cases[i].values[j];
            check_refused(o, cases[i].word);
        }
}

static void biases_out_of_range_are_refused(void **state)
{
    const moebius_logit_bias bad[] = {{-1, 1}, {10, 1}, {3, NAN}, {3, INFINITY}};
    const char *const words[] = {"token -1", "tokens 0 to 9", "token 3", "token 3 is inf"};
    for (int i = 0; i < 4; i++) {
        const moebius_logit_bias biases[] = {{9, -INFINITY}, bad[i]};
        moebius_sampler_options o = sampler_default_options();
        o.logit_biases = biases;
        o.n_logit_biases = 2;
        check_refused(o, words[i]);
    }
}

/* ---- filters from outside ------------------------------------------------------------------------------------ */

/* Allows the tokens whose bits *user has. */
static bool filter_allows(void *user, int32_t id)
{
    return *(const uint64_t *)user >> id & 1;
}

static void filter_mask(void *user, uint64_t *bits)
{
    *bits = *(const uint64_t *)user;
}

static void a_filter_leaves_the_shares_of_what_it_allows(void **state)
{
    static const float logits[N_SMALL] = {0, 1, 2, 0, -1, 3, 0, 1};
    uint64_t allowed = 1 << 1 | 1 << 2 | 1 << 4;
    const struct sampler_filter filter = {.allows = filter_allows, .mask = filter_mask, .user = &allowed};
    moebius_sampler *s = open_sampler(plain(), N_SMALL);
    int n_drawn[N_SMALL] = {0};
    double sum = exp(1) + exp(2) + exp(-1);
    struct err e;
    assert_int_equal(sampler_set_filter(s, &filter, &e), ERR_OK);
    for (int i = 0; i < N_DRAW; i++)
        n_drawn[sampler_pick(s, logits)]++;
    for (int i = 0; i < N_SMALL; i++) {
        double q = allowed >> i & 1 ? exp((double)logits[i]) / sum : 0, off = fabs(n_drawn[i] - q * N_DRAW);
        assert_true(q > 0 ? off < 5 * sqrt(q * (1 - q) * N_DRAW) : n_drawn[i] == 0);
    }
    allowed = 0;
    assert_int_equal(sampler_pick(s, logits), -1);
    assert_int_equal(sampler_set_filter(s, NULL, &e), ERR_OK);
    assert_in_range(sampler_pick(s, logits), 0, N_SMALL - 1);
    sampler_close(&s);
}

static void with_a_filter_greedy_takes_the_likeliest_that_is_allowed(void **state)
{
    static const float logits[N_SMALL] = {0, 1, 2, 0, -1, 3, 0, 1};
    uint64_t allowed = 1 << 1 | 1 << 2;
    const struct sampler_filter filter = {.allows = filter_allows, .mask = filter_mask, .user = &allowed};
    moebius_sampler_options o = plain();
    struct err e;
    o.temperature = 0;
    moebius_sampler *s = open_sampler(o, N_SMALL);
    assert_int_equal(sampler_set_filter(s, &filter, &e), ERR_OK);
    assert_int_equal(sampler_pick(s, logits), 2);
    sampler_close(&s);
}

static void an_empty_vocabulary_is_refused(void **state)
{
    struct err e = {0};
    moebius_sampler *s = NULL;
    moebius_sampler_options p = sampler_default_options();
    assert_int_equal(sampler_create(&s, &p, NULL, 0, &e), ERR_USAGE);
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
        cmocka_unit_test(typical_p_keeps_what_is_nearest_to_the_entropy),
        cmocka_unit_test(typical_p_comes_after_top_k_and_before_top_p),
        cmocka_unit_test(xtc_leaves_the_least_likely_of_the_top_choices),
        cmocka_unit_test(xtc_comes_as_often_as_its_probability_says),
        cmocka_unit_test(mirostat_draws_and_corrects_itself_as_defined),
        cmocka_unit_test(mirostat_begins_again_with_the_text),
        cmocka_unit_test(mirostat_goes_by_the_temperature),
        cmocka_unit_test(filters_do_not_depend_on_the_temperature),
        cmocka_unit_test(greedy_takes_the_lowest_of_the_likeliest),
        cmocka_unit_test(penalty_divides_positive_and_multiplies_negative_logits),
        cmocka_unit_test(penalty_hits_a_repeated_token_once),
        cmocka_unit_test(penalty_looks_back_last_n_tokens),
        cmocka_unit_test(equal_seeds_give_equal_picks),
        cmocka_unit_test(steps_that_are_off_change_no_token),
        cmocka_unit_test(odd_logits_are_no_candidates_and_no_crash),
        cmocka_unit_test(without_a_candidate_the_pick_is_token_0),
        cmocka_unit_test(logits_stay_as_they_are),
        cmocka_unit_test(picks_of_many_random_sets_are_among_the_kept),
        cmocka_unit_test(nuclei_of_random_logits_are_those_of_a_full_sort),
        cmocka_unit_test(typical_sets_of_random_logits_are_those_of_a_full_sort),
        cmocka_unit_test(a_large_vocabulary_is_quick),
        cmocka_unit_test(floats_out_of_range_are_refused),
        cmocka_unit_test(whole_numbers_out_of_range_are_refused),
        cmocka_unit_test(biases_out_of_range_are_refused),
        cmocka_unit_test(a_filter_leaves_the_shares_of_what_it_allows),
        cmocka_unit_test(with_a_filter_greedy_takes_the_likeliest_that_is_allowed),
        cmocka_unit_test(an_empty_vocabulary_is_refused),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
