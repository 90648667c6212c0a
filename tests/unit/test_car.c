/* Cache-aware routing: who stands in for whom, and what they weigh, worked out by hand; for each kind of router. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "backend/route.h"
#include "kernels/kernels.h"
#include "moe/car.h"

enum { MOST = 16 };

/* A token's routing: what the router chose and, after `stand_in`, what is computed. */
struct token {
    int64_t n, k;
    int32_t ids[MOST];
    float weights[MOST], scores[MOST], ratio[MOST];
};

static struct token route(const struct op *op, const float *bias, const float *factors, const float *logits, int64_t n,
                          int64_t k)
{
    struct token t = {.n = n, .k = k};
    float s[MOST], work[MOST];
    memcpy(s, logits, (size_t)n * sizeof *s);
    route_choose(kernels_for(CPU_SCALAR), &(struct route_token){.op = op,
                                                                .bias = bias,
                                                                .expert_scale = factors,
                                                                .n = n,
                                                                .k = k,
                                                                .logits = s,
                                                                .choice = work,
                                                                .ids = t.ids,
                                                                .weights = t.weights,
                                                                .scores = t.scores});
    return t;
}

/* A softmax router that gives these scores, which add up to 1. */
static struct token route_scores(bool norm, const float *scores, int64_t n, int64_t k)
{
    const struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SOFTMAX, .norm_weights = norm, .scale = 1}};
    float logits[MOST];
    for (int64_t i = 0; i < n; i++)
        logits[i] = logf(scores[i]);
    return route(&op, NULL, NULL, logits, n, k);
}

static bool weights_add_up(const struct op *op)
{
    return op->route.norm_weights || op->route.score == ROUTE_SOFTMAX_CHOSEN;
}

/* Experts named in at_hand (digits) are there, the others are not. */
static int64_t stand_in(const struct car *c, const struct op *op, const float *factors, const char *at_hand,
                        struct token *t)
{
    bool here[MOST] = {false};
    for (; *at_hand; at_hand++)
        here[*at_hand - '0'] = true;
    int64_t n = car_substitute(c, t->scores, here, t->n, t->k, t->ids, t->weights, t->ratio);
    route_weigh(weights_add_up(op), op->route.scale, factors, t->k, t->ids, t->weights);
    return n;
}

static const struct op normed = {.route = {.score = ROUTE_SOFTMAX, .norm_weights = true, .scale = 1}};

static void assert_near(float got, double want)
{
    if (!(fabs(got - want) < 1e-6))
        fail_msg("%.8f is not %.8f", got, want);
}

static void assert_token(const struct token *t, const int32_t *ids, const double *weights)
{
    for (int64_t r = 0; r < t->k; r++) {
        assert_int_equal(t->ids[r], ids[r]);
        assert_near(t->weights[r], weights[r]);
    }
}

#define IDS(...)     ((const int32_t[]){__VA_ARGS__})
#define WEIGHTS(...) ((const double[]){__VA_ARGS__})

/* ---- who stands in ---------------------------------------------------------------------------------------------- */

static const float four[] = {0.4f, 0.3f, 0.2f, 0.1f};

static void the_best_at_hand_stands_in_from_the_threshold_on(void **state)
{
    struct token t = route_scores(true, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.51f}, &normed, NULL, "123", &t), 0);
    assert_token(&t, IDS(0, 1), WEIGHTS(4. / 7, 3. / 7));
    assert_near(t.ratio[0], 1);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.49f}, &normed, NULL, "123", &t), 1);
    assert_token(&t, IDS(2, 1), WEIGHTS(0.4, 0.6));
    assert_near(t.ratio[0], 0.5);
    assert_near(t.ratio[1], 1);
    struct token exact = {.n = 3, .k = 1, .ids = {0}, .scores = {0.5f, 0.25f, 0.25f}};
    assert_int_equal(stand_in(&(struct car){.threshold = 0.5f}, &normed, NULL, "2", &exact), 1); /* r = threshold */
}

static void nothing_changes_when_all_are_at_hand_or_nobody_is(void **state)
{
    struct token t = route_scores(true, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.01f}, &normed, NULL, "0123", &t), 0);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.01f}, &normed, NULL, "", &t), 0);
    assert_token(&t, IDS(0, 1), WEIGHTS(4. / 7, 3. / 7));
}

static void ties_go_to_the_lower_id(void **state)
{
    const float scores[] = {0.1f, 0.2f, 0.4f, 0.1f, 0.2f};
    struct token t = route_scores(true, scores, 5, 1);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.1f}, &normed, NULL, "01345", &t), 1);
    assert_int_equal(t.ids[0], 1);
    t = route_scores(true, scores, 5, 1);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.1f}, &normed, NULL, "034", &t), 1);
    assert_int_equal(t.ids[0], 4);
}

static void several_misses_are_served_in_rank_order(void **state)
{
    struct token t = route_scores(true, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.3f}, &normed, NULL, "23", &t), 2);
    assert_token(&t, IDS(2, 3), WEIGHTS(2. / 3, 1. / 3));
    assert_near(t.ratio[0], 0.5);
    assert_near(t.ratio[1], 1. / 3);
}

static void one_that_is_too_far_below_the_first_may_do_for_the_second(void **state)
{
    struct token t = route_scores(true, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.6f}, &normed, NULL, "23", &t), 1);
    assert_token(&t, IDS(0, 2), WEIGHTS(2. / 3, 1. / 3));
    assert_near(t.ratio[1], 2. / 3);
}

static void nobody_stands_in_twice_and_the_rest_is_read(void **state)
{
    const float scores[] = {0.25f, 0.2f, 0.2f, 0.15f, 0.1f, 0.1f};
    struct token t = route_scores(true, scores, 6, 3);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.5f}, &normed, NULL, "3", &t), 1);
    assert_token(&t, IDS(3, 1, 2), WEIGHTS(0.15 / 0.55, 0.2 / 0.55, 0.2 / 0.55));
    t = route_scores(true, scores, 6, 3); /* 3 is chosen for itself here, so it is not to be had */
    t.ids[2] = 3;
    assert_int_equal(stand_in(&(struct car){.threshold = 0.1f}, &normed, NULL, "3", &t), 0);
}

static void experts_without_a_score_never_stand_in(void **state)
{
    struct token t = {.n = 3, .k = 1, .ids = {0}, .scores = {0, 0, 0}};
    assert_int_equal(stand_in(&(struct car){.threshold = 0.1f}, &normed, NULL, "12", &t), 0);
    t = (struct token){.n = 3, .k = 1, .ids = {0}, .scores = {NAN, 0.5f, NAN}};
    assert_int_equal(stand_in(&(struct car){.threshold = 0.1f}, &normed, NULL, "12", &t), 0);
    assert_int_equal(t.ids[0], 0);
}

/* ---- what they weigh -------------------------------------------------------------------------------------------- */

static void weights_are_on_one_scale_before_they_are_divided(void **state)
{
    const float scores[] = {0.2f, 0.16f, 0.12f, 0.52f};
    struct token t = {.n = 4, .k = 2, .ids = {0, 1}};
    memcpy(t.scores, scores, sizeof scores);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.5f}, &normed, NULL, "02", &t), 1);
    assert_token(&t, IDS(0, 2), WEIGHTS(0.625, 0.375));
}

static void damping_takes_the_ratio_off_before_they_are_divided(void **state)
{
    struct token t = route_scores(true, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.4f, .damp = true}, &normed, NULL, "13", &t), 0);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.4f, .damp = true}, &normed, NULL, "12", &t), 1);
    assert_token(&t, IDS(2, 1), WEIGHTS(0.25, 0.75)); /* 0.2 * 0.5 and 0.3 */
}

static void scores_that_are_not_divided_stay_what_they_are(void **state)
{
    struct op op = normed;
    op.route.norm_weights = false;
    op.route.scale = 2;
    struct token t = route_scores(false, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.4f}, &op, NULL, "12", &t), 1);
    assert_token(&t, IDS(2, 1), WEIGHTS(0.4, 0.6));
    t = route_scores(false, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.4f, .damp = true}, &op, NULL, "12", &t), 1);
    assert_token(&t, IDS(2, 1), WEIGHTS(0.2, 0.6));
}

static void factors_are_those_of_the_stand_in(void **state)
{
    const float factors[] = {100, 3, 0.5f, 100};
    struct token t = route_scores(true, four, 4, 2);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.4f}, &normed, factors, "12", &t), 1);
    assert_token(&t, IDS(2, 1), WEIGHTS(0.5 * 0.4, 3 * 0.6));
}

static void a_better_score_than_the_chosen_ones_counts_as_its_equal(void **state)
{
    /* a sigmoid router whose bias makes expert 3 the best choice: scores 1/2 2/3 5/6 1/2 */
    const float logits[] = {0, logf(2), logf(5), 0}, bias[] = {0, 0, 0, 1};
    const struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SIGMOID, .norm_weights = true, .scale = 2.5f}};
    struct token t = route(&op, bias, NULL, logits, 4, 1);
    assert_int_equal(t.ids[0], 3);
    assert_near(t.scores[2], 5. / 6); /* without the bias */
    assert_near(t.scores[3], 0.5);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.99f, .damp = true}, &op, NULL, "012", &t), 1);
    assert_near(t.ratio[0], 1);
    assert_token(&t, IDS(2), WEIGHTS(2.5));
    t = route(&op, bias, NULL, logits, 4, 2); /* 3 and 2; 1 stands in for 3 as if its equal, by its own score */
    assert_int_equal(stand_in(&(struct car){.threshold = 0.99f, .damp = true}, &op, NULL, "012", &t), 1);
    assert_token(&t, IDS(1, 2), WEIGHTS(2.5 * 4 / 9, 2.5 * 5 / 9));
}

static void a_softmax_of_the_chosen_is_one_of_the_stand_ins(void **state)
{
    const float logits[] = {0, logf(2), logf(6), logf(3)};
    const struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SOFTMAX_CHOSEN, .scale = 1}};
    struct token t = route(&op, NULL, NULL, logits, 4, 2);
    assert_token(&t, IDS(2, 3), WEIGHTS(2. / 3, 1. / 3));
    assert_near(t.scores[2], 0.5); /* 6 of 12 */
    assert_int_equal(stand_in(&(struct car){.threshold = 0.35f}, &op, NULL, "13", &t), 0);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.33f}, &op, NULL, "13", &t), 1);
    assert_token(&t, IDS(1, 3), WEIGHTS(0.4, 0.6));                  /* 2 and 3 of 5 */
    t = route(&op, (const float[]){5, 0, 0, 0}, NULL, logits, 4, 2); /* the bias decides: 0 and 2, of 1 and 6 */
    assert_token(&t, IDS(0, 2), WEIGHTS(1. / 7, 6. / 7));
    assert_int_equal(stand_in(&(struct car){.threshold = 0.9f}, &op, NULL, "12", &t), 1);
    assert_token(&t, IDS(1, 2), WEIGHTS(0.25, 0.75)); /* 2 and 6 of 8 */
}

static void experts_of_groups_that_were_left_out_are_not_eligible(void **state)
{
    /* groups of two are worth 0.26, 0.28, 0.29 and 0.17: the first is left out with the best expert of all */
    const float scores[] = {0.25f, 0.01f, 0.14f, 0.14f, 0.16f, 0.13f, 0.09f, 0.08f};
    const struct op op = {.kind = OP_ROUTE,
                          .route = {.score = ROUTE_SOFTMAX, .scale = 1, .n_group = 4, .n_group_used = 2}};
    float logits[8];
    for (int i = 0; i < 8; i++)
        logits[i] = logf(scores[i]);
    struct token t = route(&op, NULL, NULL, logits, 8, 2);
    assert_token(&t, IDS(4, 2), WEIGHTS(0.16, 0.14));
    assert_near(t.scores[0], 0);
    assert_near(t.scores[7], 0);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.01f}, &op, NULL, "0267", &t), 0);
    assert_int_equal(stand_in(&(struct car){.threshold = 0.01f}, &op, NULL, "0235", &t), 1);
    assert_token(&t, IDS(3, 2), WEIGHTS(0.14, 0.14));
    assert_near(t.ratio[0], 0.875);
}

/* The weights of a token that keeps its experts are the router's own; what is made anew from scores is the same. */
static void weighing_the_routers_own_choice_gives_its_weights(void **state)
{
    static const enum route_score kinds[] = {ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_SOFTMAX_CHOSEN};
    const float logits[] = {0.3f, -1, 2.5f, 0.7f, 1.1f, -0.2f, 0, 0.9f};
    for (int i = 0; i < 6; i++) {
        const struct op op = {.kind = OP_ROUTE,
                              .route = {.score = kinds[i / 2], .norm_weights = i % 2 == 1, .scale = 1.5f}};
        struct token t = route(&op, NULL, NULL, logits, 8, 3), again = t;
        assert_int_equal(stand_in(&(struct car){.threshold = 0.5f}, &op, NULL, "01234567", &again), 0);
        for (int r = 0; r < 3; r++)
            assert_near(again.weights[r], t.weights[r]);
    }
}

/* ---- where it applies ------------------------------------------------------------------------------------------- */

static void it_applies_after_the_warm_up_between_protected_layers(void **state)
{
    const struct car c = {.threshold = 0.5f, .n_warmup = 10, .n_protect = 2};
    assert_true(car_applies(&c, 10, 2, 6));
    assert_true(car_applies(&c, 10, 3, 6));
    assert_false(car_applies(&c, 9, 2, 6));
    assert_false(car_applies(&c, 10, 1, 6));
    assert_false(car_applies(&c, 10, 4, 6));
    assert_false(car_applies(&c, 10, 1, 3)); /* all are protected */
    assert_true(car_applies(&(struct car){.threshold = 0.5f}, 0, 0, 1));
    assert_false(car_applies(&(struct car){.threshold = 1}, 0, 0, 1));
    assert_false(car_applies(&(struct car){0}, 0, 0, 1));
    assert_false(car_is_on(&(struct car){.threshold = NAN}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_at_hand_stands_in_from_the_threshold_on),
        cmocka_unit_test(nothing_changes_when_all_are_at_hand_or_nobody_is),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(several_misses_are_served_in_rank_order),
        cmocka_unit_test(one_that_is_too_far_below_the_first_may_do_for_the_second),
        cmocka_unit_test(nobody_stands_in_twice_and_the_rest_is_read),
        cmocka_unit_test(experts_without_a_score_never_stand_in),
        cmocka_unit_test(weights_are_on_one_scale_before_they_are_divided),
        cmocka_unit_test(damping_takes_the_ratio_off_before_they_are_divided),
        cmocka_unit_test(scores_that_are_not_divided_stay_what_they_are),
        cmocka_unit_test(factors_are_those_of_the_stand_in),
        cmocka_unit_test(a_better_score_than_the_chosen_ones_counts_as_its_equal),
        cmocka_unit_test(a_softmax_of_the_chosen_is_one_of_the_stand_ins),
        cmocka_unit_test(experts_of_groups_that_were_left_out_are_not_eligible),
        cmocka_unit_test(weighing_the_routers_own_choice_gives_its_weights),
        cmocka_unit_test(it_applies_after_the_warm_up_between_protected_layers),
    };
    return cmocka_run_group_tests_name("car", tests, NULL, NULL);
}
