/* Operations that take rows apart or change them number by number, against what they are by definition. */
#include <math.h>

#include "device_fixture.h"

enum { M = 5 };

/* ---- EMBED --------------------------------------------------------------------------------------------------- */

static void embedding_rows_are_decoded_and_scaled(void **state)
{
    enum { K = 96, N_ROW = 37 }; /* not a multiple of the 16 rows that layouts put together */
    static const int32_t ids[M] = {36, 0, 17, 36, 15};
    struct fixture *f = *state;
    float values[N_ROW * K], want[N_ROW * K], got[M * K];
    char blocks[N_ROW * K / 32 * 34];
    fill(f, values, N_ROW * K);
    best_kernels()->f32_to_q8_0(blocks, values, N_ROW * K);
    for (int quantised = 0; quantised < 2; quantised++) {
        memcpy(want, values, sizeof want);
        if (quantised)
            quant_info(QUANT_Q8_0)->decode(blocks, want, N_ROW * K);
        struct weight *w =
            weight_from(f, quantised ? QUANT_Q8_0 : QUANT_F32, K, N_ROW, quantised ? (void *)blocks : (void *)values);
        struct tensor tids = tensor_i32(f, M, 1, ids), out = tensor_f32(f, K, M, 1, NULL);
        static const float scales[] = {1, 6.9282f, 0.25f};
        for (int s = 0; s < 3; s++) {
            backend_enqueue(
                f->device,
                &(struct op){.kind = OP_EMBED, .in = {tids}, .out = {out}, .weight = {w}, .scale = scales[s]});
            read_back(f, &out, got);
            for (int t = 0; t < M; t++)
                for (int i = 0; i < K; i++)
                    assert_true(got[t * K + i] == want[ids[t] * K + i] * scales[s]);
        }
        backend_weight_close(f->device, &w);
        backend_buffer_close(f->device, &tids.buffer);
        backend_buffer_close(f->device, &out.buffer);
    }
}

/* ---- many rows ------------------------------------------------------------------------------------------------- */

/* More than a GPU has workgroups in one dimension. */
static void batches_may_have_very_many_rows(void **state)
{
    enum { MANY = 70001, K = 32, N_ROW = 40 };
    static int32_t list[MANY];
    static float got[MANY * K], got_some[MANY * 3], weight[K];
    struct fixture *f = *state;
    float values[N_ROW * K];
    fill(f, values, N_ROW * K);
    for (int i = 0; i < MANY; i++)
        list[i] = i * 7 % N_ROW;
    for (int i = 0; i < K; i++)
        weight[i] = 2;
    struct weight *w = weight_from(f, QUANT_F32, K, N_ROW, values);
    struct tensor ids = tensor_i32(f, MANY, 1, list), rows = tensor_f32(f, K, MANY, 1, NULL);
    struct tensor y = tensor_f32(f, K, MANY, 1, NULL), some = tensor_f32(f, 3, MANY, 1, NULL);
    struct tensor ones = tensor_f32(f, K, 1, 1, weight);
    backend_enqueue(f->device, &(struct op){.kind = OP_EMBED, .in = {ids}, .out = {rows}, .weight = {w}, .scale = 1});
    read_back(f, &rows, got);
    for (int i = 0; i < MANY * K; i++)
        assert_true(got[i] == values[list[i / K] * K + i % K]);
    backend_enqueue(f->device, &(struct op){.kind = OP_SLICE, .in = {rows, ids}, .out = {some}, .slice_off = 5});
    read_back(f, &some, got_some);
    for (int i = 0; i < MANY * 3; i++)
        assert_true(got_some[i] == values[list[list[i / 3]] * K + 5 + i % 3]);
    struct tensor one_each = rows; /* an expert for each token */
    one_each.ne[1] = 1;
    one_each.ne[2] = MANY;
    backend_enqueue(f->device, &(struct op){.kind = OP_COMBINE, .in = {one_each}, .out = {y}});
    backend_enqueue(f->device,
                    &(struct op){.kind = OP_RMS_NORM, .in = {y}, .out = {rows}, .vec = {ones}, .norm = {K, 0}});
    read_back(f, &y, got);
    for (int i = 0; i < MANY * K; i++)
        assert_true(got[i] == values[list[i / K] * K + i % K]);
    read_back(f, &rows, got);
    for (int t = 0; t < MANY; t++) {
        float sum = 0;
        for (int i = 0; i < K; i++)
            sum += got[t * K + i] * got[t * K + i];
        assert_true(fabsf(sum - 4 * K) < 0.01f);
    }
    struct tensor *tensors[] = {&ids, &rows, &y, &some, &ones};
    for (int i = 0; i < 5; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
    backend_weight_close(f->device, &w);
}

/* ---- SCALE, SOFTCAP, CLAMP, SLICE, SCATTER --------------------------------------------------------------------------
 */

static void scale_multiplies_by_a_constant_and_a_number_of_the_device(void **state)
{
    enum { N = 301 };
    struct fixture *f = *state;
    float x[M * N], got[M * N];
    const float factor = -3.5f;
    fill(f, x, M * N);
    for (int with = 0; with < 2; with++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct tensor tx = tensor_f32(f, N, M, 1, x), ty = tensor_f32(f, N, M, 1, NULL);
            struct tensor tf = tensor_f32(f, 1, 1, 1, &factor), out = in_place ? tx : ty;
            struct op op = {.kind = OP_SCALE, .in = {tx}, .out = {out}, .scale = 0.75f};
            if (with)
                op.vec[0] = tf;
            backend_enqueue(f->device, &op);
            read_back(f, &out, got);
            for (int i = 0; i < M * N; i++)
                assert_true(got[i] == x[i] * (with ? 0.75f * factor : 0.75f));
            backend_buffer_close(f->device, &tx.buffer);
            backend_buffer_close(f->device, &ty.buffer);
            backend_buffer_close(f->device, &tf.buffer);
        }
}

static void softcap_bends_towards_its_cap(void **state)
{
    enum { N = 600 }; /* more than is done at once */
    struct fixture *f = *state;
    float x[M * N], got[M * N];
    fill(f, x, M * N);
    for (int i = 0; i < M * N; i++)
        x[i] *= i % 3 ? 100 : 0.5f; /* far beyond the cap, and where it does next to nothing */
    x[0] = 1e30f;
    x[1] = -INFINITY;
    struct tensor tx = tensor_f32(f, N, M, 1, x), ty = tensor_f32(f, N, M, 1, NULL);
    for (int in_place = 0; in_place < 2; in_place++) {
        struct tensor out = in_place ? tx : ty;
        backend_enqueue(f->device, &(struct op){.kind = OP_SOFTCAP, .in = {tx}, .out = {out}, .scale = 30});
        read_back(f, &out, got);
        for (int i = 0; i < M * N; i++)
            assert_true(fabs((double)got[i] - 30 * tanh((double)x[i] / 30)) < 1e-5);
    }
    backend_buffer_close(f->device, &tx.buffer);
    backend_buffer_close(f->device, &ty.buffer);
}

static void clamp_leaves_what_is_within_its_limit(void **state)
{
    enum { N = 70 };
    struct fixture *f = *state;
    float x[M * N], got[M * N];
    fill(f, x, M * N);
    x[0] = 1e30f;
    x[1] = -INFINITY;
    x[2] = NAN;
    x[3] = 0.75f;
    x[4] = -0.75f;
    struct tensor tx = tensor_f32(f, N, M, 1, x), ty = tensor_f32(f, N, M, 1, NULL);
    for (int in_place = 0; in_place < 2; in_place++) {
        struct tensor out = in_place ? tx : ty;
        backend_enqueue(f->device, &(struct op){.kind = OP_CLAMP, .in = {tx}, .out = {out}, .scale = 0.75f});
        read_back(f, &out, got);
        for (int i = 0; i < M * N; i++)
            assert_true(isnan(x[i]) ? isnan(got[i]) : got[i] == fmaxf(-0.75f, fminf(0.75f, x[i])));
    }
    backend_buffer_close(f->device, &tx.buffer);
    backend_buffer_close(f->device, &ty.buffer);
}

static void slice_takes_the_same_elements_of_each_row(void **state)
{
    enum { N = 50 };
    static const int64_t cuts[][2] = {{0, N}, {0, 1}, {N - 1, 1}, {7, 20}}; /* first element, how many */
    struct fixture *f = *state;
    float x[M * N], got[M * N];
    fill(f, x, M * N);
    struct tensor tx = tensor_f32(f, N, M, 1, x);
    for (int c = 0; c < 4; c++) {
        int64_t k = cuts[c][1];
        struct tensor out = tensor_f32(f, k, M, 1, NULL);
        backend_enqueue(f->device, &(struct op){.kind = OP_SLICE, .in = {tx}, .out = {out}, .slice_off = cuts[c][0]});
        read_back(f, &out, got);
        for (int64_t t = 0; t < M; t++)
            assert_memory_equal(got + t * k, x + t * N + cuts[c][0], (size_t)k * sizeof *x);
        backend_buffer_close(f->device, &out.buffer);
    }
    backend_buffer_close(f->device, &tx.buffer);
}

/* ---- HEADS --------------------------------------------------------------------------------------------------- */

/* Heads of 40 with 32 in use from element 5 on, into heads of 50 from element 9 on, 20 each. */
enum { H_M = 45, N_HEAD = 3, IN_DIM = 40, IN_OFF = 5, N_IN = 32, OUT_DIM = 50, OUT_OFF = 9, N_OUT = 20, N_OUT16 = 32 };

struct heads_data {
    float x[H_M * N_HEAD * IN_DIM], y[H_M * N_HEAD * OUT_DIM], w[N_HEAD * N_OUT16 * N_IN];
};

/* The operation on the first m tokens, over an output full of 7. */
static void run_heads(struct fixture *f, struct heads_data *d, struct weight *w, int64_t m, int64_t n_out)
{
    for (int i = 0; i < H_M * N_HEAD * OUT_DIM; i++)
        d->y[i] = 7;
    struct tensor x = tensor_f32(f, N_HEAD * IN_DIM, m, 1, d->x), y = tensor_f32(f, N_HEAD * OUT_DIM, m, 1, d->y);
    backend_enqueue(f->device, &(struct op){.kind = OP_HEADS,
                                            .in = {x},
                                            .out = {y},
                                            .weight = {w},
                                            .heads = {.n_head = N_HEAD,
                                                      .in_dim = IN_DIM,
                                                      .in_off = IN_OFF,
                                                      .n_in = N_IN,
                                                      .out_dim = OUT_DIM,
                                                      .out_off = OUT_OFF,
                                                      .n_out = n_out}});
    read_back(f, &y, d->y);
    backend_buffer_close(f->device, &x.buffer);
    backend_buffer_close(f->device, &y.buffer);
}

/* Each output is what `w` (NULL: a copy) says, and what lies around it untouched. */
static void expect_heads(const struct heads_data *d, const float *w, int64_t m, int64_t n_out, double bound)
{
    for (int64_t i = 0; i < m * N_HEAD * OUT_DIM; i++) {
        int64_t head = i / OUT_DIM, r = i % OUT_DIM - OUT_OFF;
        const float *x = d->x + head * IN_DIM + IN_OFF;
        double want = 7;
        if (r >= 0 && r < n_out && !w)
            want = (double)x[r];
        for (int64_t k = 0; r >= 0 && r < n_out && w && k < N_IN; k++)
            want = (k ? want : 0) + (double)w[(head % N_HEAD * N_OUT16 + r) * N_IN + k] * (double)x[k];
        assert_true(fabs((double)d->y[i] - want) <= bound);
    }
}

static void heads_pass_through_matrices_of_their_own_or_are_copied(void **state)
{
    struct fixture *f = *state;
    struct heads_data *d = calloc(1, sizeof *d);
    float decoded[N_HEAD * N_OUT16 * N_IN], first[N_HEAD * OUT_DIM];
    char blocks[N_HEAD * N_OUT16 * N_IN / 32 * 34];
    fill(f, d->x, H_M * N_HEAD * IN_DIM);
    fill(f, d->w, N_HEAD * N_OUT16 * N_IN);
    best_kernels()->f32_to_q8_0(blocks, d->w, N_HEAD * N_OUT16 * N_IN);
    quant_info(QUANT_Q8_0)->decode(blocks, decoded, N_HEAD * N_OUT16 * N_IN);
    run_heads(f, d, NULL, H_M, N_IN);
    expect_heads(d, NULL, H_M, N_IN, 0);
    for (int quantised = 0; quantised < 2; quantised++) {
        struct weight *w = weight_from(f, quantised ? QUANT_Q8_0 : QUANT_F32, N_IN, N_HEAD * N_OUT16,
                                       quantised ? (void *)blocks : (void *)d->w);
        run_heads(f, d, w, 1, N_OUT);
        memcpy(first, d->y, sizeof first);
        run_heads(f, d, w, H_M, N_OUT); /* more tokens than are done at once */
        assert_memory_equal(first, d->y, sizeof first);
        /* inputs rounded to int8 err by half of 1/127 of the largest, each */
        expect_heads(d, quantised ? decoded : d->w, H_M, N_OUT, quantised ? N_IN * 0.5 / 127 : 1e-5);
        backend_weight_close(f->device, &w);
    }
    free(d);
}

static void a_scatter_writes_the_rows_that_are_listed_and_no_others(void **state)
{
    enum { N = 70, N_ROW = 3000, STEP = 7 };
    struct fixture *f = *state;
    static float x[N * N_ROW], y[N * N_ROW], want[N * N_ROW];
    static int32_t rows[N_ROW];
    fill(f, x, N * N_ROW);
    for (int64_t m = 1; m <= N_ROW / STEP; m += N_ROW / STEP - 1) { /* one row, and as many as run in parallel */
        fill(f, want, N * N_ROW);
        struct tensor tx = tensor_f32(f, N, m, 1, x), ty = tensor_f32(f, N, N_ROW, 1, want);
        for (int64_t i = 0; i < m; i++) { /* not in order */
            rows[i] = (int32_t)((m - 1 - i) * STEP + 3);
            memcpy(want + rows[i] * N, x + i * N, N * sizeof *x);
        }
        struct tensor list = tensor_i32(f, m, 1, rows);
        backend_enqueue(f->device, &(struct op){.kind = OP_SCATTER, .in = {tx, list}, .out = {ty}});
        read_back(f, &ty, y);
        assert_memory_equal(y, want, sizeof want);
        backend_buffer_close(f->device, &list.buffer);
        backend_buffer_close(f->device, &tx.buffer);
        backend_buffer_close(f->device, &ty.buffer);
    }
}

/* ---- ACT_MUL ------------------------------------------------------------------------------------------------- */

/* act(x) * up, either factor within a limit, if there is one */
static double multiplied(double act, double up, double limit)
{
    return limit > 0 ? fmin(act, limit) * fmax(-limit, fmin(limit, up)) : act * up;
}

static double activated(enum act_fn act, double x)
{
    switch (act) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_RELU: return fmax(x, 0);
    case ACT_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    default: return x;
    }
}

static void a_gate_may_be_one_for_several_elements(void **state)
{
    enum { N = 120 };
    static const struct {
        enum act_fn fn;
        float limit;
    } acts[] = {{ACT_SILU, 0}, {ACT_SILU, 0.5f}, {ACT_SIGMOID, 0}, {ACT_NONE, 0}, {ACT_RELU, 0}, {ACT_SOFTPLUS, 0}};
    struct fixture *f = *state;
    float gate[M * N], x[M * N], got[M * N];
    fill(f, gate, M * N);
    fill(f, x, M * N);
    for (int i = 0; i < M * N; i++)
        gate[i] *= i % 5 ? 3 : 40; /* some are where softplus is nothing, or its argument */
    for (int64_t each = 1; each <= N; each *= each == 1 ? 24 : 5)
        for (size_t k = 0; k < sizeof acts / sizeof *acts; k++)
            for (int in_place = acts[k].limit > 0 && each > 1 ? 2 : 0; in_place < 2; in_place++) {
                struct tensor tg = tensor_f32(f, N / each, M, 1, gate), tx = tensor_f32(f, N, M, 1, x);
                struct tensor ty = tensor_f32(f, N, M, 1, NULL), out = in_place ? tx : ty;
                backend_enqueue(f->device, &(struct op){.kind = OP_ACT_MUL,
                                                        .in = {tg, tx},
                                                        .out = {out},
                                                        .act = acts[k].fn,
                                                        .act_limit = acts[k].limit});
                read_back(f, &out, got);
                for (int i = 0; i < M * N; i++) {
                    double by = activated(acts[k].fn, (double)gate[i / each]);
                    double want = multiplied(by, (double)x[i], (double)acts[k].limit);
                    if (!(fabs(got[i] - want) <= 1e-5 * fabs(want) + 1e-30))
                        fail_msg("act %d, limit %g, %d each, element %d: %g, expected %g", acts[k].fn,
                                 (double)acts[k].limit, (int)each, i, (double)got[i], want);
                }
                struct tensor *all[] = {&tg, &tx, &ty};
                for (int i = 0; i < 3; i++)
                    backend_buffer_close(f->device, &all[i]->buffer);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(embedding_rows_are_decoded_and_scaled, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(batches_may_have_very_many_rows, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(scale_multiplies_by_a_constant_and_a_number_of_the_device, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(softcap_bends_towards_its_cap, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(clamp_leaves_what_is_within_its_limit, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(slice_takes_the_same_elements_of_each_row, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(a_scatter_writes_the_rows_that_are_listed_and_no_others, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(a_gate_may_be_one_for_several_elements, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(heads_pass_through_matrices_of_their_own_or_are_copied, open_cpu, close_cpu),
    };
    return cmocka_run_group_tests_name("row ops", tests, NULL, NULL);
}
