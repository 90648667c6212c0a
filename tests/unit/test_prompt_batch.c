/* How many tokens of a prompt are computed together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/prompt_batch.h"

#define MB ((size_t)1 << 20)

/* Half of the experts in memory, and a tenth of a megabyte a token. */
static const struct prompt_batch_facts facts = {512, MB / 10, 2000 * MB, 4000 * MB};

static void a_prompt_that_fits_stays_as_it_is(void **state)
{
    assert_int_equal(prompt_batch_choose(&facts, 1), 512);
    assert_int_equal(prompt_batch_choose(&facts, 512), 512);
}

static void a_longer_one_is_computed_at_once(void **state)
{
    assert_int_equal(prompt_batch_choose(&facts, 513), 576);
    assert_int_equal(prompt_batch_choose(&facts, 4000), 4032);
}

static void work_space_takes_half_of_the_slots_at_most(void **state)
{
    /* (n - 512) / 10 <= 1000: chunks of up to 10,512 tokens */
    assert_int_equal(prompt_batch_choose(&facts, 10432), 10432);
    assert_int_equal(prompt_batch_choose(&facts, 10600), 5312);
    int64_t n = prompt_batch_choose(&facts, 1000000);
    assert_true(n > 5000 && n <= 10512 && n % 64 == 0);
}

static void few_missing_bytes_are_not_worth_the_slots(void **state)
{
    struct prompt_batch_facts f = facts;
    f.slot_bytes = f.expert_bytes - 10 * MB;
    assert_int_equal(prompt_batch_choose(&f, 4000), 512);
    f.slot_bytes = f.expert_bytes;
    assert_int_equal(prompt_batch_choose(&f, 4000), 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_that_fits_stays_as_it_is),
        cmocka_unit_test(a_longer_one_is_computed_at_once),
        cmocka_unit_test(work_space_takes_half_of_the_slots_at_most),
        cmocka_unit_test(few_missing_bytes_are_not_worth_the_slots),
    };
    return cmocka_run_group_tests_name("prompt_batch", tests, NULL, NULL);
}
