#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "moebius/moebius.h"

enum { N_SMALL = 8 };

static void check_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9))
        fail_msg("%.12g, not %.12g", got, want);
}

static void logprobs_are_logarithms_of_the_softmax(void **state)
{
    const double p[N_SMALL] = {0.10, 0.04, 0.20, 0.06, 0.01, 0.40, 0.03, 0.16};
    const int32_t order[N_SMALL] = {5, 2, 7, 0, 3, 1, 6, 4};
    float logits[N_SMALL];
    double sum = 0;
    for (int i = 0; i < N_SMALL; i++) {
        logits[i] = (float)log(p[i]) + 40; /* a common offset changes nothing */
        sum += exp((double)logits[i] - 40);
    }
    moebius_logprob top[N_SMALL];
    for (int32_t id = 0; id < N_SMALL; id++)
        check_near(moebius_logprobs(logits, N_SMALL, id, top, N_SMALL), (double)logits[id] - 40 - log(sum));
    for (int i = 0; i < N_SMALL; i++) {
        assert_int_equal(top[i].id, order[i]);
        check_near(top[i].logprob, (double)logits[order[i]] - 40 - log(sum));
    }
}

static void a_token_has_the_same_logprob_alone_and_among_the_top(void **state)
{
    enum { N = 5000, N_TOP = 20 };
    struct random r = random_seed(2);
    float *logits = mem_calloc(N, sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < N; i++)
        logits[i] = (float)(random_u32(&r) % 400) / 16; /* with ties */
    moebius_logprob top[N_TOP];
    double sum = 0;
    (void)moebius_logprobs(logits, N, 0, top, N_TOP);
    for (int i = 0; i < N_TOP; i++) {
        assert_true(top[i].logprob == moebius_logprobs(logits, N, top[i].id, NULL, 0));
        int n_before = 0;
        for (int j = 0; j < N; j++)
            n_before += logits[j] > logits[top[i].id] || (logits[j] == logits[top[i].id] && j < top[i].id);
        assert_int_equal(n_before, i);
    }
    for (int i = 0; i < N; i++)
        sum += exp(moebius_logprobs(logits, N, i, NULL, 0));
    check_near(sum, 1);
    mem_free(logits);
}

static void sums_are_right_to_the_last_digits(void **state)
{
    enum { N = 20011 };
    static const float spreads[] = {0, 1, 30, 700, 100000};
    struct random r = random_seed(3);
    float *logits = mem_calloc(N, sizeof *logits);
    assert_non_null(logits);
    for (size_t k = 0; k < sizeof spreads / sizeof *spreads; k++) {
        long double sum = 0;
        float most = -INFINITY;
        for (int i = 0; i < N; i++) {
            logits[i] = spreads[k] * (float)random_u32(&r) / 4294967296.0f;
            most = logits[i] > most ? logits[i] : most;
        }
        for (int i = 0; i < N; i++)
            sum += expl((long double)logits[i] - (long double)most);
        for (int i = 0; i < 100; i++) {
            double want = (double)((long double)logits[i] - (long double)most - logl(sum));
            assert_true(fabs(moebius_logprobs(logits, N, i, NULL, 0) - want) <= 4e-15 + 3e-16 * fabs(want));
        }
    }
    mem_free(logits);
}

static void impossible_tokens_are_never_among_the_top(void **state)
{
    const float logits[N_SMALL] = {NAN, 1, -INFINITY, 2, NAN, -INFINITY, 1, NAN};
    moebius_logprob top[5];
    assert_true(moebius_logprobs(logits, N_SMALL, 0, top, 5) == -INFINITY);
    assert_true(moebius_logprobs(logits, N_SMALL, 2, NULL, 0) == -INFINITY);
    assert_true(moebius_logprobs(logits, N_SMALL, -1, NULL, 0) == -INFINITY);
    assert_true(moebius_logprobs(logits, N_SMALL, N_SMALL, NULL, 0) == -INFINITY);
    const int32_t want[5] = {3, 1, 6, -1, -1};
    for (int i = 0; i < 5; i++)
        assert_int_equal(top[i].id, want[i]);
    check_near(top[0].logprob, -log(1 + 2 * exp(-1)));
    assert_true(top[1].logprob == top[2].logprob && top[4].logprob == -INFINITY);
}

static void infinite_and_huge_logits_share_all(void **state)
{
    const float infinite[N_SMALL] = {0, INFINITY, -FLT_MAX, INFINITY, 0, 0, 0, 1};
    check_near(moebius_logprobs(infinite, N_SMALL, 3, NULL, 0), -log(2));
    assert_true(moebius_logprobs(infinite, N_SMALL, 7, NULL, 0) < -1e38);
    const float none[2] = {NAN, -INFINITY};
    moebius_logprob top;
    assert_true(moebius_logprobs(none, 2, 0, &top, 1) == -INFINITY);
    assert_int_equal(top.id, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_are_logarithms_of_the_softmax),
        cmocka_unit_test(a_token_has_the_same_logprob_alone_and_among_the_top),
        cmocka_unit_test(sums_are_right_to_the_last_digits),
        cmocka_unit_test(impossible_tokens_are_never_among_the_top),
        cmocka_unit_test(infinite_and_huge_logits_share_all),
    };
    return cmocka_run_group_tests_name("logprobs", tests, NULL, NULL);
}
