/* Tuning: the file that keeps it, the race that chooses, times of products, and the choice of a cutoff. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "device_fixture.h"
#include "engine/engine_internal.h"
#include "engine/race.h"
#include "jobs/tune.h"

/* ---- cutoffs --------------------------------------------------------------------------------------------------- */

static void the_cutoff_is_where_sorted_begins_to_win(void **state)
{
    const struct tune_row never[] = {{2, 11, 10}, {4, 30, 20}}, always[] = {{2, 9, 10}, {4, 10, 20}};
    const struct tune_row later[] = {{2, 9, 10}, {3, 14, 15}, {4, 21, 20}, {8, 50, 30}};
    assert_int_equal(tune_choose(never, 2, 1), 1);
    assert_int_equal(tune_choose(always, 2, 1), 4);
    assert_int_equal(tune_choose(later, 4, 1), 3);
    assert_int_equal(tune_choose(later, 0, 1), 1);
}

/* 3% over the rows that change. */
static void the_cutoff_in_force_stays_unless_another_wins(void **state)
{
    const struct tune_row little[] = {{2, 100, 102}, {4, 100, 102}}, enough[] = {{2, 100, 104}, {4, 100, 104}};
    const struct tune_row against[] = {{2, 102, 100}, {4, 102, 100}, {8, 200, 100}};
    assert_int_equal(tune_choose(little, 2, 1), 1);
    assert_int_equal(tune_choose(little, 2, 4), 4);
    assert_int_equal(tune_choose(enough, 2, 1), 4);
    assert_int_equal(tune_choose(enough, 2, 2), 4);
    assert_int_equal(tune_choose(against, 3, 4), 4);
    assert_int_equal(tune_choose(against, 3, 8), 1);
    assert_int_equal(tune_choose(little, 0, 7), 7);
}

static void one_odd_row_does_not_move_the_cutoff(void **state)
{
    const struct tune_row late[] = {{2, 12, 10}, {3, 20, 15}, {4, 19, 20}, {6, 40, 30}};  /* sorted but for one */
    const struct tune_row early[] = {{2, 10, 15}, {3, 16, 15}, {4, 20, 30}, {6, 50, 30}}; /* direct but for one */
    assert_int_equal(tune_choose(late, 4, 1), 1);
    assert_int_equal(tune_choose(early, 4, 1), 4);
}

static void each_model_has_its_cutoff_until_others_crowd_it_out(void **state)
{
    struct tuning t = {0};
    assert_int_equal(tuning_cutoff(&t, 7), TUNING_DEFAULT_CUTOFF);
    assert_int_equal(tuning_measured_cutoff(&t, 7), 0);
    for (uint64_t model = 0; model < TUNING_MAX_MODEL; model++)
        tuning_set_cutoff(&t, model, 2);
    tuning_set_cutoff(&t, 0, 3); /* makes it the youngest */
    tuning_set_cutoff(&t, 1000, 4);
    assert_int_equal(t.n_cutoff, TUNING_MAX_MODEL);
    assert_int_equal(tuning_cutoff(&t, 0), 3);
    assert_int_equal(tuning_cutoff(&t, 1), TUNING_DEFAULT_CUTOFF);
    assert_int_equal(tuning_cutoff(&t, 2), 2);
    assert_int_equal(tuning_cutoff(&t, 1000), 4);
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

#define HEAD    "moebius tuning 7\nmachine Some CPU @ 3 GHz, avx2\nbuild 1.2, 3\n"
#define NUMBERS "task_weights 4096 spins 0 prefetch_several 0 L1 "

static err_code parse(struct tuning *t, const char *text, struct err *e)
{
    return tuning_parse(t, text, strlen(text), "file", e);
}

static void a_tuning_comes_back_from_its_file(void **state)
{
    struct err e;
    struct tuning t, back;
    char text[4096], again[4096];
    const char *whole =
        HEAD "task_weights 65536\nspins 77\nprefetch_several 512 NTA\nproducts 3\nQ8_0 8192 L2+L1 2 0 0\n"
             "Q4_K 4096 L2 3 16 24\nQ6_K 0 L1 5 32 1\nsort_cutoff 1\n000000000000feed 12\n";
    assert_int_equal(parse(&t, whole, &e), ERR_OK);
    FILE *f = fmemopen(text, sizeof text, "w");
    tuning_print(&t, f);
    fclose(f);
    assert_string_equal(text, whole);
    assert_int_equal(parse(&back, text, &e), ERR_OK);
    f = fmemopen(again, sizeof again, "w");
    tuning_print(&back, f);
    fclose(f);
    assert_string_equal(again, whole);
    assert_string_equal(t.machine, "Some CPU @ 3 GHz, avx2");
    assert_int_equal(t.cpu.one[QUANT_Q4_K].ahead_bytes, 4096);
    assert_int_equal(t.cpu.one[QUANT_Q4_K].to, KERNEL_CACHE_L2);
    assert_int_equal(t.cpu.several_from[QUANT_Q4_K], 3);
    assert_int_equal(t.cpu.tiles_from[QUANT_Q4_K], 16);
    assert_int_equal(t.cpu.panels_from[QUANT_Q4_K], 24);
    assert_int_equal(t.cpu.panels_from[QUANT_Q8_0], 0);
    assert_int_equal(t.cpu.n_spin, 77);
    assert_int_equal(tuning_cutoff(&t, 0xfeed), 12);
    assert_false(t.is_measured[QUANT_Q5_K]);
    assert_int_equal(t.cpu.one[QUANT_Q5_K].ahead_bytes, cpu_tuning_default().one[QUANT_Q5_K].ahead_bytes);
}

static void other_tunings_are_refused(void **state)
{
#define TYPES NUMBERS "products "
    static const char *const bad[] = {
        "",
        "moebius tuning 1",
        "moebius tuning 7 machine",
        "moebius tuning 7 machine a\nbuild",
        HEAD,
        HEAD "task_weights 4095 spins 0 prefetch_several 0 L1 products 0 sort_cutoff 0",
        HEAD "task_weights 1073741825 spins 0 prefetch_several 0 L1 products 0 sort_cutoff 0",
        HEAD "task_weights 4096 spins 1048577 prefetch_several 0 L1 products 0 sort_cutoff 0",
        HEAD "task_weights 4096 spins 0 prefetch_several 1048577 L1 products 0 sort_cutoff 0",
        HEAD "task_weights 4096 spins 0 prefetch_several 64 L3 products 0 sort_cutoff 0",
        HEAD "task_weights 4096 spins 0 prefetch_several -64 L1 products 0 sort_cutoff 0",
        HEAD "task_weights 4096 spins 0 prefetch_several 64 products 0 sort_cutoff 0",
        HEAD TYPES "161 sort_cutoff 0",
        HEAD TYPES "1 sort_cutoff 0",
        HEAD TYPES "1 Q4_Z 64 L1 2 0 1 sort_cutoff 0",
        HEAD TYPES "1 A_TYPE_WITH_SO_LONG_A_NAME 64 L1 2 0 1 sort_cutoff 0",
        HEAD TYPES "1 Q4_K 64 L1 2 0 1",
        HEAD TYPES "1 Q4_K 64 L1 2 0 sort_cutoff 0",
        HEAD TYPES "1 Q4_K 64 L1 1 0 1 sort_cutoff 0",
        HEAD TYPES "1 Q4_K 64 L1 2 0 1048577 sort_cutoff 0",
        HEAD TYPES "1 Q4_K 64 L1 sort_cutoff 0",
        HEAD TYPES "1 Q4_K 64 L1 2 1048577 1 sort_cutoff 0",
        HEAD TYPES "0 sort_cutoff 65",
        HEAD TYPES "0 sort_cutoff 1 feed 2",
        HEAD TYPES "0 sort_cutoff 1 000000000000feed 0",
        HEAD TYPES "0 sort_cutoff 1 000000000000feed 1048577",
        HEAD TYPES "0 sort_cutoff 0 more",
    };
    struct err e;
    struct tuning t = {.n_cutoff = 5};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&t, bad[i], &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "file, line"));
        assert_non_null(strstr(e.text, "expected"));
        assert_int_equal(t.n_cutoff, 5);
    }
    assert_int_equal(parse(&t, HEAD TYPES "0 sort_cutoff 0", &e), ERR_OK);
}

/* ---- races ----------------------------------------------------------------------------------------------------- */

/* A machine whose choices take times[], and what disturbs it. */
struct fake {
    double times[RACE_MAX_CHOICE];
    int n_call, calls[RACE_MAX_CHOICE];
    int phase;     /* all is three times slower in every other stretch of so many calls; 0: never */
    int interrupt; /* every so many calls take ten times as long; 0: none */
    int fail_at;   /* the call that can't be timed; 0: none */
};

static int64_t fake_ns(void *user, int choice)
{
    struct fake *f = user;
    double ns = f->times[choice] * 1000;
    f->calls[choice]++;
    f->n_call++;
    if (f->phase && f->n_call / f->phase % 2)
        ns *= 3;
    if (f->interrupt && f->n_call % f->interrupt == 0)
        ns *= 10;
    return f->n_call == f->fail_at ? 0 : (int64_t)ns;
}

static int run_fake(struct race *r, struct fake *f, int n, int64_t budget_ns)
{
    *r = (struct race){.n_choice = n, .budget_ns = budget_ns, .time_ns = fake_ns, .user = f};
    return race_run(r);
}

enum { LONG_NS = 1000 * 1000 * 1000 };

static void the_fastest_choice_wins(void **state)
{
    struct race r;
    struct fake f = {.times = {100, 98, 120, 95, 96.5, 200}};
    assert_int_equal(run_fake(&r, &f, 6, LONG_NS), 3);
    assert_true(r.score[0] / r.score[3] > 1.05 && r.score[0] / r.score[3] < 1.06);
    assert_int_equal(r.best_ns[3], 95000);
}

static void a_machine_that_changes_its_speed_misleads_nobody(void **state)
{
    for (int phase = 10; phase < 100; phase++) {
        struct race r;
        struct fake f = {.times = {100, 98, 120, 95, 99, 200, 97}, .phase = phase, .interrupt = 5 + phase % 9};
        assert_int_equal(run_fake(&r, &f, 7, LONG_NS), 3);
    }
}

static void what_is_in_force_stays_unless_another_is_faster(void **state)
{
    struct race r;
    struct fake f = {.times = {100, 97.5, 100}}, faster = {.times = {100, 96.5, 100}}, alone = {.times = {100}};
    assert_int_equal(run_fake(&r, &f, 3, LONG_NS), 0);
    assert_int_equal(run_fake(&r, &faster, 3, LONG_NS), 1);
    assert_int_equal(run_fake(&r, &alone, 1, LONG_NS), 0);
}

static void slow_choices_drop_out_but_for_the_one_in_force(void **state)
{
    struct race r;
    struct fake f = {.times = {200, 100, 150, 105}};
    assert_int_equal(run_fake(&r, &f, 4, LONG_NS), 1);
    assert_int_equal(f.calls[0], RACE_MAX_ROUND);
    assert_int_equal(f.calls[3], RACE_MAX_ROUND);
    assert_true(f.calls[2] < 10 && r.score[2] == 0);
    assert_true(r.score[0] / r.score[1] > 1.99);
}

static void a_race_without_time_is_one_round(void **state)
{
    struct race r;
    struct fake f = {.times = {100, 90}}, broken = {.times = {100, 90}, .fail_at = 4};
    assert_int_equal(run_fake(&r, &f, 2, 0), 1);
    assert_int_equal(f.n_call, 2);
    assert_int_equal(run_fake(&r, &broken, 2, LONG_NS), -1);
}

/* ---- products -------------------------------------------------------------------------------------------------- */

enum { K = 512, ROWS = 300, N_WEIGHT = 4 };

static void types_are_found_and_their_products_timed(void **state)
{
    struct fixture *f = *state;
    struct model_weight weights[N_WEIGHT];
    struct tune_type types[TUNE_MAX_TYPE];
    struct tune_product p;
    char *bytes = calloc(ROWS, K * sizeof(float));
    for (int i = 0; i < N_WEIGHT; i++)
        weights[i] = (struct model_weight){
            f->device, weight_from(f, i ? QUANT_Q8_0 : QUANT_Q4_K, i == 3 ? 2 * K : K, i == 3 ? 16 : ROWS, bytes)};
    struct model m = {.weights = weights, .n_weights = N_WEIGHT};
    moebius_engine g = {.model = &m,
                        .pool = f->pool,
                        .device = f->device,
                        .devices = {{.pool = f->pool, .device = f->device, .cpu = f->device}},
                        .n_device = 1};
    engine_use_tuning(&g, &(struct tuning){.cpu = cpu_tuning_default()});

    assert_int_equal(tune_types(&g, 1, types), 2);
    assert_int_equal(types[0].type->type, QUANT_Q8_0);
    assert_int_equal(types[0].k, K); /* not of the small one */
    assert_int_equal(types[0].n_bytes, 2 * ROWS * K / 32 * 34);
    assert_int_equal(types[1].type->type, QUANT_Q4_K);
    assert_int_equal(tune_types(&g, types[0].n_bytes, types), 1);
    assert_int_equal(tune_types(&g, types[0].n_bytes + 1, types), 0);

    tune_types(&g, 1, types);
    for (int64_t n_tok = 1; n_tok < 10; n_tok += 8)
        for (int effort = TUNE_QUICK; effort <= TUNE_THOROUGH; effort++) {
            assert_true(tune_product(&g, types, n_tok, (enum tune_effort)effort, 1000, &p));
            assert_int_equal(p.type->type, QUANT_Q8_0);
            assert_true(p.gain >= 1 && p.bytes_per_s > 0);
            assert_in_range(p.chosen.ahead_bytes, 0, CPU_TUNING_MAX_AHEAD);
        }
    assert_int_equal(pool_n_used(f->pool), 3);
    for (int i = 0; i < N_WEIGHT; i++)
        backend_weight_close(f->device, &weights[i].weight);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cutoff_is_where_sorted_begins_to_win),
        cmocka_unit_test(the_cutoff_in_force_stays_unless_another_wins),
        cmocka_unit_test(one_odd_row_does_not_move_the_cutoff),
        cmocka_unit_test(each_model_has_its_cutoff_until_others_crowd_it_out),
        cmocka_unit_test(a_tuning_comes_back_from_its_file),
        cmocka_unit_test(other_tunings_are_refused),
        cmocka_unit_test(the_fastest_choice_wins),
        cmocka_unit_test(a_machine_that_changes_its_speed_misleads_nobody),
        cmocka_unit_test(what_is_in_force_stays_unless_another_is_faster),
        cmocka_unit_test(slow_choices_drop_out_but_for_the_one_in_force),
        cmocka_unit_test(a_race_without_time_is_one_round),
        cmocka_unit_test_setup_teardown(types_are_found_and_their_products_timed, open_cpu, close_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
