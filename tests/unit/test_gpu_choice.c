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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_comes_before_what_shares_memory_and_software_never),
        cmocka_unit_test(a_model_goes_where_it_fits),
    };
    return cmocka_run_group_tests_name("gpu_choice", tests, NULL, NULL);
}
