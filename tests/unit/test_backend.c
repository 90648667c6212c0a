/* The device interface: routing, dispatch, slot tables, and the checking device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/backend.h"
#include "backend/route.h"
#include "base/pool.h"
#include "base/random.h"
#include "kernels/kernels.h"

enum { N_EMBD = 32, N_FF = 48, N_EXPERT = 6, N_USED = 3, M = 7 };

struct fixture {
    struct pool *pool;
    struct backend *device;
    struct random random;
};

static const struct kernels *best_kernels(void)
{
    enum cpu_level level;
    struct err e;
    assert_int_equal(cpu_level_detect(&level, &e), ERR_OK);
    return kernels_for(level);
}

static int open_cpu(void **state)
{
    struct err e;
    struct fixture *f = calloc(1, sizeof *f);
    f->random = random_seed(1);
    *state = f;
    return pool_create(&f->pool, 3, &e) || backend_cpu_open(&f->device, f->pool, best_kernels(), &e);
}

static int close_cpu(void **state)
{
    struct fixture *f = *state;
    backend_close(&f->device);
    pool_close(&f->pool);
    free(f);
    return 0;
}

static void fill(struct fixture *f, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(random_unit(&f->random) * 2 - 1);
}

static struct tensor tensor_f32(struct fixture *f, int64_t ne0, int64_t ne1, int64_t ne2, const float *values)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, ne0, ne1, ne2, MEM_SCRATCH, &t, &e), ERR_OK);
    if (values)
        backend_write(f->device, &t, values);
    return t;
}

static struct tensor tensor_i32(struct fixture *f, int64_t ne0, int64_t ne1, const int32_t *values)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, ne0, ne1, 1, MEM_SCRATCH, &t, &e), ERR_OK);
    if (values)
        backend_write(f->device, &t, values);
    return t;
}

static err_code read_floats(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    memcpy(dst, (const float *)user + row0 * N_EMBD, n * N_EMBD * sizeof(float));
    return ERR_OK;
}

static struct weight *weight_f32(struct fixture *f, int64_t n_row, float *values)
{
    struct weight *w;
    struct err e;
    const struct weight_desc d = {"test.weight", quant_info(QUANT_F32), N_EMBD, n_row};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_floats, values}, &w, &e), ERR_OK);
    return w;
}

/* ---- routing ------------------------------------------------------------------------------------------------- */

static void choose(enum route_score score, bool norm, float scale, const float *logits, int64_t n, int32_t *ids,
                   float *weights)
{
    float copy[64], work[64];
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    struct op op = {.kind = OP_ROUTE, .route = {score, norm, scale}};
    route_choose(best_kernels(), &op, NULL, copy, work, n, 2, ids, weights);
}

static void router_takes_the_best_and_ties_go_to_the_lower_id(void **state)
{
    int32_t ids[2];
    float w[2];
    const float logits[] = {0, 1, 3, 3, 2};
    choose(ROUTE_SOFTMAX, true, 1, logits, 5, ids, w);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 3);
    assert_true(fabsf(w[0] - 0.5f) < 1e-6f && fabsf(w[1] - 0.5f) < 1e-6f);
}

static void router_weights_are_those_of_the_formula(void **state)
{
    int32_t ids[2];
    float w[2];
    const float logits[] = {0, logf(2), logf(5), 0};
    choose(ROUTE_SOFTMAX, false, 1, logits, 4, ids, w); /* 1 2 5 1 of 9 */
    assert_int_equal(ids[0], 2);
    assert_true(fabsf(w[0] - 5.f / 9) < 1e-6f && fabsf(w[1] - 2.f / 9) < 1e-6f);
    choose(ROUTE_SOFTMAX, true, 2.5f, logits, 4, ids, w);
    assert_true(fabsf(w[0] - 2.5f * 5 / 7) < 1e-6f && fabsf(w[1] - 2.5f * 2 / 7) < 1e-6f);
    choose(ROUTE_SIGMOID, false, 1, logits, 4, ids, w); /* x / (1 + x) */
    assert_true(fabsf(w[0] - 5.f / 6) < 1e-6f && fabsf(w[1] - 2.f / 3) < 1e-6f);
}

static void router_survives_nan(void **state)
{
    int32_t ids[2];
    float w[2];
    const float logits[] = {NAN, 1, 2, NAN};
    choose(ROUTE_SIGMOID, true, 1, logits, 4, ids, w);
    assert_true(ids[0] >= 0 && ids[0] < 4 && ids[1] >= 0 && ids[1] < 4 && ids[0] != ids[1]);
    const float lost[] = {-INFINITY, -INFINITY, -INFINITY};
    choose(ROUTE_SOFTMAX, true, 1, lost, 3, ids, w);
    assert_true(ids[0] >= 0 && ids[0] < 3 && ids[1] >= 0 && ids[1] < 3 && ids[0] != ids[1]);
}

/* ---- experts ------------------------------------------------------------------------------------------------- */

struct moe {
    float x[M * N_EMBD], gate[N_EXPERT][N_FF * N_EMBD], up[N_EXPERT][N_FF * N_EMBD], down[N_EXPERT][N_EMBD * N_FF];
    int32_t ids[M * N_USED];
    struct bank *bank;
    struct tensor tx, tids;
};

static struct moe *open_moe(struct fixture *f)
{
    struct err e;
    struct moe *m = calloc(1, sizeof *m);
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct bank_desc d = {q, q, q, N_EMBD, N_FF, N_EXPERT};
    assert_int_equal(backend_bank_create(f->device, &d, &m->bank, &e), ERR_OK);
    fill(f, m->x, M * N_EMBD);
    for (int i = 0; i < N_EXPERT; i++) {
        fill(f, m->gate[i], N_FF * N_EMBD);
        fill(f, m->up[i], N_FF * N_EMBD);
        fill(f, m->down[i], N_EMBD * N_FF);
        /* expert i lies in slot N_EXPERT - 1 - i, so that ids and slots can't be confused */
        assert_int_equal(backend_bank_fill(f->device, m->bank, N_EXPERT - 1 - i, m->gate[i], m->up[i], m->down[i], &e),
                         ERR_OK);
    }
    for (int i = 0; i < M * N_USED; i++)
        m->ids[i] = (i % N_USED + i / N_USED * 2) % N_EXPERT; /* some experts are busy, all distinct in a token */
    m->tx = tensor_f32(f, N_EMBD, M, 1, m->x);
    m->tids = tensor_i32(f, N_USED, M, m->ids);
    return m;
}

static void close_moe(struct fixture *f, struct moe *m)
{
    backend_bank_close(f->device, &m->bank);
    backend_buffer_close(f->device, &m->tx.buffer);
    backend_buffer_close(f->device, &m->tids.buffer);
    free(m);
}

/* Row `row` of y by the definition, in double. */
static void expected_row(const struct moe *m, int row, double *y)
{
    int e = m->ids[row];
    const float *x = m->x + row / N_USED * N_EMBD;
    double h[N_FF];
    for (int i = 0; i < N_FF; i++) {
        double g = 0, u = 0;
        for (int k = 0; k < N_EMBD; k++) {
            g += (double)m->gate[e][i * N_EMBD + k] * x[k];
            u += (double)m->up[e][i * N_EMBD + k] * x[k];
        }
        h[i] = g / (1 + exp(-g)) * u;
    }
    for (int i = 0; i < N_EMBD; i++) {
        y[i] = 0;
        for (int k = 0; k < N_FF; k++)
            y[i] += (double)m->down[e][i * N_FF + k] * h[k];
    }
}

static void run_experts(struct fixture *f, const struct moe *m, const int32_t *table, int64_t sort_cutoff, float *y)
{
    struct err e;
    struct tensor slots = tensor_i32(f, N_EXPERT, 1, table), out = tensor_f32(f, N_EMBD, N_USED, M, y);
    backend_enqueue(f->device, &(struct op){.kind = OP_EXPERTS,
                                            .in = {m->tx, m->tids, slots},
                                            .out = {out},
                                            .bank = m->bank,
                                            .experts = {ACT_SILU, sort_cutoff}});
    assert_int_equal(backend_read(f->device, &out, y, &e), ERR_OK);
    backend_buffer_close(f->device, &slots.buffer);
    backend_buffer_close(f->device, &out.buffer);
}

static void experts_compute_the_formula_by_either_dispatch(void **state)
{
    struct fixture *f = *state;
    struct moe *m = open_moe(f);
    static const int32_t table[N_EXPERT] = {5, 4, 3, 2, 1, 0};
    float direct[M * N_USED * N_EMBD] = {0}, sorted[M * N_USED * N_EMBD] = {0};
    run_experts(f, m, table, M, direct);
    run_experts(f, m, table, M - 1, sorted);
    assert_memory_equal(direct, sorted, sizeof direct);
    struct backend_counters c = backend_counters(f->device);
    assert_int_equal(c.n_direct, 1); /* M == cutoff is direct */
    assert_int_equal(c.n_sorted, 1);
    assert_int_equal(c.n_expert_rows, 2 * M * N_USED);
    for (int row = 0; row < M * N_USED; row++) {
        double want[N_EMBD];
        expected_row(m, row, want);
        for (int i = 0; i < N_EMBD; i++)
            assert_true(fabs(direct[row * N_EMBD + i] - want[i]) < 1e-4);
    }
    close_moe(f, m);
}

static void experts_without_a_slot_leave_their_rows_alone(void **state)
{
    struct fixture *f = *state;
    struct moe *m = open_moe(f);
    static const int32_t waves[2][N_EXPERT] = {{5, -1, 3, -1, -1, -1}, {-1, 4, -1, 2, 1, 0}};
    static const int32_t all[N_EXPERT] = {5, 4, 3, 2, 1, 0};
    for (int64_t cutoff = 1; cutoff <= M; cutoff += M - 1) {
        float once[M * N_USED * N_EMBD] = {0}, twice[M * N_USED * N_EMBD];
        for (int i = 0; i < M * N_USED * N_EMBD; i++)
            twice[i] = 77;
        run_experts(f, m, all, cutoff, once);
        run_experts(f, m, waves[0], cutoff, twice);
        for (int row = 0; row < M * N_USED; row++)
            assert_int_equal(twice[row * N_EMBD] != 77, waves[0][m->ids[row]] >= 0);
        run_experts(f, m, waves[1], cutoff, twice);
        assert_memory_equal(once, twice, sizeof once);
    }
    close_moe(f, m);
}

static void experts_of_an_empty_wave_compute_nothing(void **state)
{
    struct fixture *f = *state;
    struct moe *m = open_moe(f);
    static const int32_t none[N_EXPERT] = {-1, -1, -1, -1, -1, -1};
    float y[M * N_USED * N_EMBD] = {0};
    run_experts(f, m, none, 1, y);
    run_experts(f, m, none, 100, y);
    assert_int_equal(backend_counters(f->device).n_expert_rows, 0);
    close_moe(f, m);
}

static void combine_adds_in_rank_order_and_shared_last(void **state)
{
    struct fixture *f = *state;
    struct err e;
    /* float addition is not associative: 1e8 + -1e8 + 1 is 1 only in this order */
    const float y[3] = {1e8f, -1e8f, 1}, w[3] = {1, 1, 1}, shared[1] = {0.25f}, gate[1] = {0};
    struct tensor ty = tensor_f32(f, 1, 3, 1, y), tw = tensor_f32(f, 3, 1, 1, w), ts = tensor_f32(f, 1, 1, 1, shared);
    struct tensor tg = tensor_f32(f, 1, 1, 1, gate), out = tensor_f32(f, 1, 1, 1, NULL);
    float got;
    backend_enqueue(f->device, &(struct op){.kind = OP_COMBINE, .in = {ty, tw, ts}, .out = {out}});
    assert_int_equal(backend_read(f->device, &out, &got, &e), ERR_OK);
    assert_true(got == 1.25f);
    backend_enqueue(f->device, &(struct op){.kind = OP_COMBINE, .in = {ty, tw, ts, tg}, .out = {out}});
    assert_int_equal(backend_read(f->device, &out, &got, &e), ERR_OK);
    assert_true(got == 1.125f); /* sigmoid(0) is a half */
    struct tensor *all[] = {&ty, &tw, &ts, &tg, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

static err_code fail_at_row_32(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    return row0 + n > 32 ? err_set(e, ERR_IO, "the disk is gone") : ERR_OK;
}

static void failed_read_fails_the_load(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct weight *w;
    const struct weight_desc d = {"test.weight", quant_info(QUANT_F32), N_EMBD, 64};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){fail_at_row_32, NULL}, &w, &e), ERR_IO);
    assert_null(w);
    assert_string_equal(e.text, "the disk is gone");
}

/* ---- the checking device ------------------------------------------------------------------------------------- */

static void off_by_a_percent(enum kernel_act_fn fn, float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + expf(-gate[i])) * up[i] * 1.01f;
}

/* Norm, product and activation over random inputs on a device; the first error it reports. */
static err_code run_three(struct fixture *f, struct err *e)
{
    float x[M * N_EMBD], v[N_EMBD * N_EMBD];
    fill(f, x, M * N_EMBD);
    fill(f, v, N_EMBD * N_EMBD);
    struct tensor a = tensor_f32(f, N_EMBD, M, 1, x), b = tensor_f32(f, N_EMBD, M, 1, NULL);
    struct weight *w = weight_f32(f, N_EMBD, v);
    backend_enqueue(f->device, &(struct op){.kind = OP_RMS_NORM, .in = {a}, .out = {b}, .norm = {N_EMBD, 1e-6f}});
    backend_enqueue(f->device, &(struct op){.kind = OP_MATMUL, .in = {b}, .out = {a}, .weight = {w}});
    backend_enqueue(f->device, &(struct op){.kind = OP_ACT_MUL, .in = {a, b}, .out = {a}});
    backend_enqueue(f->device, &(struct op){.kind = OP_ADD, .in = {a, b}, .out = {a}});
    err_code code = backend_wait(f->device, backend_fence(f->device), e);
    backend_weight_close(f->device, &w);
    backend_buffer_close(f->device, &a.buffer);
    backend_buffer_close(f->device, &b.buffer);
    return code;
}

static err_code run_checked(struct fixture *f, const struct kernels *primary, struct err *e)
{
    struct backend *a, *b;
    struct fixture checked = *f;
    assert_int_equal(backend_cpu_open(&a, f->pool, primary, e), ERR_OK);
    assert_int_equal(backend_cpu_open(&b, f->pool, kernels_reference(), e), ERR_OK);
    assert_int_equal(backend_check_open(&checked.device, a, b, e), ERR_OK);
    err_code code = run_three(&checked, e);
    backend_close(&checked.device);
    return code;
}

static void checking_device_is_content_with_equal_devices(void **state)
{
    struct err e = {0};
    assert_int_equal(run_checked(*state, best_kernels(), &e), ERR_OK);
}

static void checking_device_names_the_first_operation_that_differs(void **state)
{
    struct err e = {0};
    struct kernels wrong = *best_kernels();
    wrong.act_mul = off_by_a_percent;
    assert_int_equal(run_checked(*state, &wrong, &e), ERR_CHECK);
    assert_non_null(strstr(e.text, "operation 3, ACT_MUL"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_takes_the_best_and_ties_go_to_the_lower_id),
        cmocka_unit_test(router_weights_are_those_of_the_formula),
        cmocka_unit_test(router_survives_nan),
        cmocka_unit_test_setup_teardown(experts_compute_the_formula_by_either_dispatch, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_without_a_slot_leave_their_rows_alone, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_of_an_empty_wave_compute_nothing, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(combine_adds_in_rank_order_and_shared_last, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(failed_read_fails_the_load, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(checking_device_is_content_with_equal_devices, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(checking_device_names_the_first_operation_that_differs, open_cpu, close_cpu),
    };
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
