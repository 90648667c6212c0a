/* Which GPU is taken, and how much of a model it gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/gpu_choice.h"

static const uint64_t gb = 1000 * 1000 * 1000;

static void a_card_comes_before_what_shares_memory_and_software_never(void **state)
{
    const struct vulkan_device all[] = {
        {.kind = "software", .budget_bytes = 99 * gb, .is_usable = true},
        {.kind = "integrated", .budget_bytes = 60 * gb, .is_usable = true},
        {.kind = "discrete", .budget_bytes = 24 * gb, .is_usable = false},
        {.kind = "discrete", .budget_bytes = 8 * gb, .is_usable = true},
        {.kind = "discrete", .budget_bytes = 12 * gb, .is_usable = true},
        {.kind = "other", .budget_bytes = 90 * gb, .is_usable = true},
    };
    assert_int_equal(gpu_choose(all, 6), 4);
    assert_int_equal(gpu_choose(all, 4), 3);
    assert_int_equal(gpu_choose(all, 3), 1);
    assert_int_equal(gpu_choose(all, 1), -1);
    assert_int_equal(gpu_choose(all + 5, 1), -1);
    assert_int_equal(gpu_choose(all, 0), -1);
}

static void a_model_goes_where_it_fits(void **state)
{
    const struct vulkan_device card = {.kind = "discrete", .budget_bytes = 16 * gb, .is_usable = true};
    const struct vulkan_device shared = {
        .kind = "integrated", .budget_bytes = 16 * gb, .shares_memory = true, .is_usable = true};
    const struct {
        const struct vulkan_device *device;
        struct gpu_need need;
        uint64_t max_bytes, host_bytes;
        enum gpu_part part;
    } cases[] = {
        {&card, {2 * gb, gb / 10, 11 * gb}, UINT64_MAX, 0, GPU_ALL},
        {&card, {2 * gb, gb / 10, 13 * gb}, UINT64_MAX, 0, GPU_LAYERS}, /* nothing would be left for state */
        {&card, {2 * gb, gb / 10, 11 * gb}, 8 * gb, 0, GPU_LAYERS},
        {&card, {2 * gb, gb / 10, 11 * gb}, 2 * gb, 0, GPU_NOTHING},
        {&card, {15 * gb, 0, 0}, UINT64_MAX, 0, GPU_NOTHING}, /* no experts that could be elsewhere */
        {&card, {13 * gb, 0, 0}, UINT64_MAX, 0, GPU_ALL},
        {&shared, {2 * gb, gb / 10, 11 * gb}, UINT64_MAX, 32 * gb, GPU_ALL},
        {&shared, {2 * gb, gb / 10, 11 * gb}, UINT64_MAX, 10 * gb, GPU_NOTHING},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gpu_choice c =
            gpu_place(cases[i].device, 0, &cases[i].need, cases[i].max_bytes, cases[i].host_bytes);
        assert_int_equal(c.part, cases[i].part);
        assert_true(c.room_bytes <= cases[i].max_bytes && c.room_bytes <= 16 * gb);
    }
}

static void the_fewest_cards_that_have_room_are_gathered(void **state)
{
    const struct vulkan_device all[] = {
        {.kind = "discrete", .budget_bytes = 8 * gb, .is_usable = true},
        {.kind = "discrete", .budget_bytes = 24 * gb, .is_usable = true},
        {.kind = "integrated", .budget_bytes = 60 * gb, .shares_memory = true, .is_usable = true},
        {.kind = "discrete", .budget_bytes = 16 * gb, .is_usable = true},
        {.kind = "discrete", .budget_bytes = 48 * gb, .is_usable = false},
    };
    /* 2 GB, or an eighth, are for texts: 22, 14 and 7 GB */
    const struct {
        uint64_t all_experts, layer_bytes, max_bytes;
        int most, n, cards[3];
    } cases[] = {
        {19 * gb, gb, UINT64_MAX, 8, 1, {1}},        /* 20 GB and what a layer leaves */
        {21 * gb, gb, UINT64_MAX, 8, 2, {1, 3}},     /* 21 + 13 GB in whole layers */
        {34 * gb, gb, UINT64_MAX, 8, 3, {1, 3, 0}},  /* 21 + 13 + 6 */
        {40 * gb, gb, UINT64_MAX, 8, 0, {0}},        /* never what works in the machine's memory */
        {34 * gb, gb, UINT64_MAX, 2, 0, {0}},        /* two at most */
        {17 * gb, 8 * gb, UINT64_MAX, 8, 2, {1, 3}}, /* 14 + 6 GB */
        {20 * gb, 8 * gb, UINT64_MAX, 8, 0, {0}},    /* none of its layers would fit the third */
        {12 * gb, gb, 8 * gb, 8, 3, {1, 3, 0}},      /* 6 GB of each */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gpu_need need = {gb, gb / 10, cases[i].all_experts};
        int cards[8];
        int n = gpu_gather(all, 5, &need, cases[i].layer_bytes, cases[i].max_bytes, cards, cases[i].most);
        assert_int_equal(n, cases[i].n);
        for (int k = 0; k < n; k++)
            assert_int_equal(cards[k], cases[i].cards[k]);
    }
    assert_int_equal(gpu_gather(all, 0, &(struct gpu_need){gb, 0, gb}, gb, UINT64_MAX, (int[8]){0}, 8), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_comes_before_what_shares_memory_and_software_never),
        cmocka_unit_test(a_model_goes_where_it_fits),
        cmocka_unit_test(the_fewest_cards_that_have_room_are_gathered),
    };
    return cmocka_run_group_tests_name("gpu_choice", tests, NULL, NULL);
}
