/* Expert slots over a fake store: what is read, evicted, held, and what happens when a read fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/pool.h"
#include "experts/experts.h"
#include "kernels/kernels.h"
#include "store/store_fake.h"

enum { DIM = 16, N_EXPERT = 6, MATRIX_BYTES = DIM * DIM * 4, N_SLOT = 3 };

struct fixture {
    char *bytes; /* [gate, up, down][expert] */
    struct store_fake_file file;
    struct pool *pool;
    struct backend *device;
    struct store *store;
    struct experts *experts;
    struct err e;
};

static int open_with(void **state, int64_t n_slot)
{
    struct fixture *f = calloc(1, sizeof *f);
    *state = f;
    f->bytes = calloc(3 * N_EXPERT, MATRIX_BYTES);
    f->file = (struct store_fake_file){"fake.gguf", f->bytes, (size_t)3 * N_EXPERT * MATRIX_BYTES};
    const struct quant_info *q = quant_info(QUANT_F32);
    struct expert_layer l = {.index = 4, .n_expert = N_EXPERT, .shape = {q, q, q, DIM, DIM, 0}};
    struct expert_matrix *m[3] = {&l.gate, &l.up, &l.down};
    for (int i = 0; i < 3; i++)
        *m[i] = (struct expert_matrix){0, (uint64_t)(i * N_EXPERT * MATRIX_BYTES), MATRIX_BYTES, MATRIX_BYTES};
    return pool_create(&f->pool, 2, &f->e) || backend_cpu_open(&f->device, f->pool, kernels_for(CPU_SCALAR), &f->e) ||
           store_open_fake(&f->store, &f->file, 1, &f->e) ||
           experts_create(&f->experts, f->device, f->store, &l, 1, n_slot, &f->e);
}

static int open_three(void **state)
{
    return open_with(state, N_SLOT);
}

static int open_all(void **state)
{
    return open_with(state, 0);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    experts_close(&f->experts);
    store_close(&f->store);
    backend_close(&f->device);
    pool_close(&f->pool);
    free(f->bytes);
    free(f);
    return 0;
}

/* Acquires and releases; the number of misses it took. */
static uint64_t use(struct fixture *f, int32_t a, int32_t b)
{
    int32_t ids[2] = {a, b}, slots[2];
    int64_t n = b < 0 ? 1 : 2;
    uint64_t before = experts_counters(f->experts).n_miss;
    assert_int_equal(experts_acquire(f->experts, 0, ids, n, slots, &f->e), ERR_OK);
    for (int64_t i = 0; i < n; i++)
        assert_true(slots[i] >= 0 && slots[i] < N_SLOT);
    experts_release(f->experts, 0, ids, n);
    return experts_counters(f->experts).n_miss - before;
}

static void least_recently_used_goes_first(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(experts_capacity(f->experts, 0), N_SLOT);
    assert_null(experts_resident(f->experts, 0));
    assert_int_equal(use(f, 0, 1), 2);
    assert_int_equal(use(f, 2, -1), 1);
    assert_int_equal(use(f, 0, -1), 0);
    assert_int_equal(use(f, 3, -1), 1); /* in place of 1 */
    assert_int_equal(use(f, 0, 2), 0);
    assert_int_equal(use(f, 1, -1), 1); /* in place of 3 */
    assert_int_equal(use(f, 0, 2), 0);
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_evicted, 2);
    assert_int_equal(c.n_read_bytes, 5 * 3 * MATRIX_BYTES);
}

static void held_experts_keep_their_slots(void **state)
{
    struct fixture *f = *state;
    int32_t ids[2] = {0, 1}, slots[2], again[2];
    assert_int_equal(experts_acquire(f->experts, 0, ids, 2, slots, &f->e), ERR_OK);
    assert_int_not_equal(slots[0], slots[1]);
    for (int32_t i = 2; i < N_EXPERT; i++)
        assert_int_equal(use(f, i, -1), 1); /* all through the one free slot */
    assert_int_equal(experts_acquire(f->experts, 0, ids, 2, again, &f->e), ERR_OK);
    assert_memory_equal(slots, again, sizeof slots);
    experts_release(f->experts, 0, ids, 2);
    experts_release(f->experts, 0, ids, 2);
}

static void hits_are_safe_from_the_misses_of_the_same_call(void **state)
{
    struct fixture *f = *state;
    use(f, 0, 1);
    use(f, 2, -1);
    assert_int_equal(use(f, 3, 0), 1); /* 0 is the oldest, and a hit: 1 must go */
    assert_int_equal(use(f, 0, 2), 0);
}

static void failed_read_names_layer_and_expert_and_holds_nothing(void **state)
{
    struct fixture *f = *state;
    int32_t ids[3] = {0, 5, 1}, slots[3];
    use(f, 1, -1);
    store_fake_add_fault(f->store, (struct store_fault){STORE_FAULT_ERROR, 0, (N_EXPERT + 5) * MATRIX_BYTES + 7, 0, 1});
    assert_int_equal(experts_acquire(f->experts, 0, ids, 3, slots, &f->e), ERR_IO);
    assert_non_null(strstr(f->e.text, "layer 4, expert 5"));
    assert_non_null(strstr(f->e.text, "fake.gguf"));
    assert_int_equal(experts_acquire(f->experts, 0, ids, 3, slots, &f->e), ERR_OK); /* it was once only */
    experts_release(f->experts, 0, ids, 3);
    int32_t others[3] = {2, 3, 4}; /* needs every slot: nothing may still be held */
    assert_int_equal(experts_acquire(f->experts, 0, others, 3, slots, &f->e), ERR_OK);
    experts_release(f->experts, 0, others, 3);
}

static void all_experts_are_resident_after_loading(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(experts_load(f->experts, f->pool, NULL, NULL, &f->e), ERR_OK);
    const struct tensor *table = experts_resident(f->experts, 0);
    assert_non_null(table);
    int32_t slots[N_EXPERT];
    assert_int_equal(backend_read(f->device, table, slots, &f->e), ERR_OK);
    for (int32_t i = 0; i < N_EXPERT; i++)
        assert_int_equal(slots[i], i);
    assert_int_equal(experts_counters(f->experts).n_read_bytes, 3 * N_EXPERT * MATRIX_BYTES);
}

static void failed_load_is_reported(void **state)
{
    struct fixture *f = *state;
    store_fake_add_fault(f->store, (struct store_fault){STORE_FAULT_SHORT, 0, 3 * MATRIX_BYTES + 1, 0, 1});
    assert_int_equal(experts_load(f->experts, f->pool, NULL, NULL, &f->e), ERR_IO);
    assert_non_null(strstr(f->e.text, "layer 4, expert 3"));
    assert_null(experts_resident(f->experts, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(least_recently_used_goes_first, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(held_experts_keep_their_slots, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(hits_are_safe_from_the_misses_of_the_same_call, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(failed_read_names_layer_and_expert_and_holds_nothing, open_three,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(all_experts_are_resident_after_loading, open_all, close_fixture),
        cmocka_unit_test_setup_teardown(failed_load_is_reported, open_all, close_fixture),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
