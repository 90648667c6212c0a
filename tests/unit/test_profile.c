#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/random.h"
#include "jobs/profile.h"

/* What a recorded text tells about its experts. */

enum { N_TOK = 60 };

static struct trace random_trace(void)
{
    const struct trace_layer layers[2] = {{.n_expert = 9, .n_used = 2, .slot_bytes = 1},
                                          {.n_expert = 5, .n_used = 3, .slot_bytes = 1}};
    struct random random = random_seed(4);
    struct trace t;
    struct err e;
    assert_int_equal(trace_create(&t, layers, 2, &e), ERR_OK);
    for (int64_t i = 0; i < N_TOK; i++)
        for (int l = 0; l < 2; l++) {
            int32_t ids[3], first = (int32_t)(random_u32(&random) % (uint32_t)layers[l].n_expert);
            for (int r = 0; r < 3; r++)
                ids[r] = (first + 2 * r) % (int32_t)layers[l].n_expert;
            assert_int_equal(trace_add(&t, l, ids, 1, &e), ERR_OK);
        }
    return t;
}

/* By looking at all tokens before. */
static double reuse(const struct trace *t, int64_t within)
{
    uint64_t n = 0;
    for (int64_t i = 1; i < t->n_tok; i++)
        for (int l = 0; l < t->n_layer; l++)
            for (int64_t r = 0; r < t->layers[l].n_used; r++) {
                bool found = false;
                int64_t first = t->layers[l].first, from = i > within ? i - within : 0;
                for (int64_t j = from; j < i; j++)
                    for (int64_t k = 0; k < t->layers[l].n_used; k++)
                        found = found || t->ids[j * t->n_choice + first + k] == t->ids[i * t->n_choice + first + r];
                n += found;
            }
    return (double)n / (double)((t->n_tok - 1) * t->n_choice);
}

static void reuse_is_that_of_the_tokens_before(void **state)
{
    struct trace t = random_trace();
    struct err e;
    double found;
    for (int64_t within = 1; within <= 8; within++) {
        assert_int_equal(profile_reuse(&t, within, &found, &e), ERR_OK);
        assert_true(found == reuse(&t, within));
        assert_true(found > 0 && found < 1);
    }
    t.n_tok = 1;
    assert_int_equal(profile_reuse(&t, 1, &found, &e), ERR_OK);
    assert_true(found == 0);
    trace_close(&t);
}

static void rates_of_a_layer_add_up_to_its_choices(void **state)
{
    struct trace t = random_trace();
    struct usage u;
    struct err e;
    assert_int_equal(profile_usage(&t, &u, &e), ERR_OK);
    for (int l = 0; l < t.n_layer; l++) {
        double sum = 0;
        for (int32_t i = 0; i < t.layers[l].n_expert; i++)
            sum += usage_rate(&u, l, i, t.layers[l].n_used);
        assert_true(sum > (double)t.layers[l].n_used - 1e-9 && sum < (double)t.layers[l].n_used + 1e-9);
    }
    usage_close(&u);
    trace_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reuse_is_that_of_the_tokens_before),
        cmocka_unit_test(rates_of_a_layer_add_up_to_its_choices),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
