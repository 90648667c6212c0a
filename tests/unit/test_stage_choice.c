/* Which device gets which layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/stage_choice.h"

enum { N_LAYER = 12, MOST = 8 };
static const uint64_t mb = 1000 * 1000;

struct example {
    struct stage_layer layers[N_LAYER];
    struct stage_facts facts;
    int64_t end[MOST];
    struct err e;
};

/* Layers of 100 MB, of which 10 MB are no experts. */
static int open_example(void **state)
{
    static struct example x;
    x = (struct example){.facts = {.layers = x.layers, .n_layer = N_LAYER}};
    for (int i = 0; i < N_LAYER; i++)
        x.layers[i] = (struct stage_layer){10 * mb, 90 * mb, 6 * mb, true};
    *state = &x;
    return 0;
}

static void expect_ends(struct example *x, const struct stage_device *devices, int n, const int64_t *want)
{
    assert_int_equal(stage_choose(&x->facts, devices, n, x->end, &x->e), ERR_OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(x->end[i], want[i]);
}

static struct stage_device card(uint64_t room)
{
    return (struct stage_device){.room_bytes = room};
}

static struct stage_device threads(double n)
{
    return (struct stage_device){.room_bytes = UINT64_MAX, .speed = n};
}

static void shares_are_those_of_the_number_of_layers(void **state)
{
    struct example *x = *state;
    struct stage_device two[] = {threads(1), threads(1)}, three[] = {threads(1), threads(1), threads(1)};
    two[0].share = 3;
    two[1].share = 1;
    x->layers[0].weights = 5000 * mb;
    expect_ends(x, two, 2, (int64_t[]){9, 12});
    two[1].share = 100;
    expect_ends(x, two, 2, (int64_t[]){1, 12});
    two[0].share = 100;
    two[1].share = 0.1;
    expect_ends(x, two, 2, (int64_t[]){11, 12});
    three[0].share = three[2].share = 1;
    three[1].share = 2;
    expect_ends(x, three, 3, (int64_t[]){3, 9, 12});
}

static void cards_are_filled_alike(void **state)
{
    struct example *x = *state;
    const struct stage_device alike[] = {card(2000 * mb), card(2000 * mb)},
                              one_larger[] = {card(2400 * mb), card(800 * mb)};
    expect_ends(x, alike, 2, (int64_t[]){6, 12});
    expect_ends(x, one_larger, 2, (int64_t[]){9, 12});
    x->facts.input = 200 * mb;
    x->facts.output = 200 * mb;
    expect_ends(x, alike, 2, (int64_t[]){6, 12});
    x->facts.output = 600 * mb;
    expect_ends(x, alike, 2, (int64_t[]){8, 12});
}

static void layers_need_not_be_alike(void **state)
{
    struct example *x = *state;
    const struct stage_device alike[] = {card(2000 * mb), card(2000 * mb)};
    for (int i = 0; i < 4; i++)
        x->layers[i].experts = 0;
    expect_ends(x, alike, 2, (int64_t[]){8, 12});
}

static void a_much_faster_card_comes_first_as_long_as_it_has_room(void **state)
{
    struct example *x = *state;
    struct stage_device devices[] = {card(800 * mb), card(900 * mb)};
    devices[0].speed = 100;
    devices[1].speed = 200;
    expect_ends(x, devices, 2, (int64_t[]){3, 12});
    devices[1].room_bytes = 5000 * mb;
    expect_ends(x, devices, 2, (int64_t[]){1, 12});
    devices[0].speed = 190; /* nearly as fast */
    devices[0].room_bytes = 5000 * mb;
    expect_ends(x, devices, 2, (int64_t[]){6, 12});
}

static void processors_get_what_cards_have_no_room_for(void **state)
{
    struct example *x = *state;
    const struct stage_device behind[] = {card(700 * mb), threads(8)}, before[] = {threads(8), card(700 * mb)},
                              large[] = {threads(8), card(9000 * mb)}, alone[] = {threads(3), threads(1)};
    expect_ends(x, behind, 2, (int64_t[]){7, 12});
    expect_ends(x, before, 2, (int64_t[]){5, 12});
    expect_ends(x, large, 2, (int64_t[]){1, 12});
    expect_ends(x, alone, 2, (int64_t[]){9, 12});
}

static void cards_that_are_too_small_share_in_proportion(void **state)
{
    struct example *x = *state;
    const struct stage_device devices[] = {card(300 * mb), card(100 * mb)};
    expect_ends(x, devices, 2, (int64_t[]){9, 12});
}

static void layers_that_share_a_cache_stay_together(void **state)
{
    struct example *x = *state;
    const struct stage_device alike[] = {card(2000 * mb), card(2000 * mb)};
    for (int i = 2; i < N_LAYER - 1; i++)
        x->layers[i].may_end = false;
    expect_ends(x, alike, 2, (int64_t[]){2, 12});
    for (int i = 0; i < N_LAYER - 1; i++)
        x->layers[i].may_end = false;
    assert_int_equal(stage_choose(&x->facts, alike, 2, x->end, &x->e), ERR_USAGE);
    assert_non_null(strstr(x->e.text, "12 layers can't be divided among 2 devices"));
}

static void each_device_needs_a_layer(void **state)
{
    struct example *x = *state;
    struct stage_device devices[MOST];
    for (int i = 0; i < MOST; i++)
        devices[i] = threads(1);
    x->facts.n_layer = 8;
    expect_ends(x, devices, 8, (int64_t[]){1, 2, 3, 4, 5, 6, 7, 8});
    x->facts.n_layer = 7;
    assert_int_equal(stage_choose(&x->facts, devices, 8, x->end, &x->e), ERR_USAGE);
}

static void a_stage_needs_its_layers_and_one_layers_experts(void **state)
{
    struct example *x = *state;
    x->facts.input = 3 * mb;
    x->facts.output = 5 * mb;
    x->layers[4].least_experts = 8 * mb;
    const struct gpu_need first = stage_need(&x->facts, 0, 4), last = stage_need(&x->facts, 4, N_LAYER);
    assert_int_equal(first.layers, 43 * mb);
    assert_int_equal(first.least_experts, 6 * mb);
    assert_int_equal(first.all_experts, 360 * mb);
    assert_int_equal(last.layers, 85 * mb);
    assert_int_equal(last.least_experts, 8 * mb);
}

#define TEST(name) cmocka_unit_test_setup(name, open_example)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(shares_are_those_of_the_number_of_layers),
        TEST(cards_are_filled_alike),
        TEST(layers_need_not_be_alike),
        TEST(a_much_faster_card_comes_first_as_long_as_it_has_room),
        TEST(processors_get_what_cards_have_no_room_for),
        TEST(cards_that_are_too_small_share_in_proportion),
        TEST(layers_that_share_a_cache_stay_together),
        TEST(each_device_needs_a_layer),
        TEST(a_stage_needs_its_layers_and_one_layers_experts),
    };
    return cmocka_run_group_tests_name("stage_choice", tests, NULL, NULL);
}
