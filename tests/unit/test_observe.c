/* What observers are shown of products, on any device: rows of the right tensors, in the order of the tokens. */
#include <math.h>

#include "device_fixture.h"

enum { N_EMBD = 32, N_FF = 48, N_EXPERT = 6, N_USED = 3, M = 7, N_HEAD = 3, IN_DIM = 40, IN_OFF = 4, HEAD_ROWS = 16 };

struct shown {
    const char *tensor;
    int64_t matrix, n_matrix, n;
    float scale, x[N_FF];
};

/* Rows in the order in which they came. */
struct seen {
    struct shown rows[256];
    int n;
};

static void observer(void *user, const struct observed *o)
{
    struct seen *s = user;
    for (int64_t t = 0; t < o->n_row; t++) {
        assert_true(s->n < (int)(sizeof s->rows / sizeof *s->rows) && o->k <= N_FF);
        struct shown *r = &s->rows[s->n++];
        *r = (struct shown){o->tensor, o->matrix, o->n_matrix, o->k, o->scale};
        memcpy(r->x, o->x + t * o->stride, (size_t)o->k * sizeof *r->x);
    }
}

static void begin(struct fixture *f, struct seen *s)
{
    struct err e;
    *s = (struct seen){0};
    assert_int_equal(backend_observe(f->device, observer, s, &e), ERR_OK);
}

static struct weight *observed_weight(struct fixture *f, const char *name, int64_t k, int64_t n_row, const float *x,
                                      bool is_observed)
{
    struct err e;
    struct weight *w;
    struct weight_rows r = {(const char *)x, (size_t)k * sizeof *x};
    const struct weight_desc d = {name, quant_info(QUANT_F32), k, n_row, is_observed};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_weight_rows, &r}, &w, &e), ERR_OK);
    return w;
}

static void products_show_their_input_under_each_name(void **state)
{
    struct fixture *f = *state;
    struct seen *s = malloc(sizeof *s);
    float x[M * N_EMBD], w[N_EMBD * N_EMBD];
    fill(f, x, M * N_EMBD);
    fill(f, w, N_EMBD * N_EMBD);
    struct weight *q = observed_weight(f, "q", N_EMBD, 16, w, true),
                  *part = observed_weight(f, "k", N_EMBD, 16, w, false),
                  *v = observed_weight(f, "v", N_EMBD, 32, w, true);
    struct op op = {
        .kind = OP_MATMUL,
        .in = {tensor_f32(f, N_EMBD, M, 1, x)},
        .out = {tensor_f32(f, 16, M, 1, NULL), tensor_f32(f, 16, M, 1, NULL), tensor_f32(f, 32, M, 1, NULL)},
        .weight = {q, part, v}};
    float without[16 * M], with[16 * M];
    backend_enqueue(f->device, &op);
    read_back(f, &op.out[0], without);
    begin(f, s);
    backend_enqueue(f->device, &op);
    read_back(f, &op.out[0], with);
    backend_observe_end(f->device);
    assert_memory_equal(with, without, sizeof with);
    backend_enqueue(f->device, &op); /* nobody looks any more */
    assert_int_equal(s->n, 2 * M);
    for (int i = 0; i < s->n; i++) {
        assert_string_equal(s->rows[i].tensor, i < M ? "q" : "v");
        assert_true(s->rows[i].n == N_EMBD && s->rows[i].n_matrix == 1 && s->rows[i].matrix == 0);
        assert_true(s->rows[i].scale == 1);
        assert_memory_equal(s->rows[i].x, x + i % M * N_EMBD, N_EMBD * sizeof *x);
    }
    for (int i = 0; i < 3; i++) {
        backend_weight_close(f->device, &op.weight[i]);
        backend_buffer_close(f->device, &op.out[i].buffer);
    }
    backend_buffer_close(f->device, &op.in[0].buffer);
    free(s);
}

static void heads_show_what_each_takes_of_the_row(void **state)
{
    struct fixture *f = *state;
    struct seen *s = malloc(sizeof *s);
    float x[M * N_HEAD * IN_DIM], w[N_HEAD * HEAD_ROWS * N_EMBD];
    fill(f, x, M * N_HEAD * IN_DIM);
    fill(f, w, N_HEAD * HEAD_ROWS * N_EMBD);
    struct op op = {.kind = OP_HEADS,
                    .in = {tensor_f32(f, N_HEAD * IN_DIM, M, 1, x)},
                    .out = {tensor_f32(f, N_HEAD * HEAD_ROWS, M, 1, NULL)},
                    .weight = {observed_weight(f, "k_b", N_EMBD, N_HEAD * HEAD_ROWS, w, true)},
                    .heads = {N_HEAD, IN_DIM, IN_OFF, N_EMBD, HEAD_ROWS, 0, HEAD_ROWS}};
    begin(f, s);
    backend_enqueue(f->device, &op);
    backend_observe_end(f->device);
    assert_int_equal(s->n, N_HEAD * M);
    for (int i = 0; i < s->n; i++) {
        int head = i / M, t = i % M;
        assert_true(s->rows[i].n == N_EMBD && s->rows[i].n_matrix == N_HEAD && s->rows[i].matrix == head);
        assert_memory_equal(s->rows[i].x, x + (t * N_HEAD + head) * IN_DIM + IN_OFF, N_EMBD * sizeof *x);
    }
    backend_weight_close(f->device, &op.weight[0]);
    backend_buffer_close(f->device, &op.in[0].buffer);
    backend_buffer_close(f->device, &op.out[0].buffer);
    free(s);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

struct moe {
    float x[M * N_EMBD], weights[M * N_USED], matrix[EXPERT_N_MATRIX][N_EXPERT][N_FF * N_EMBD];
    int32_t ids[M * N_USED], slots[N_EXPERT];
};

/* What down is multiplied by, element i of a pair's, by the definition. */
static double hidden(const struct moe *m, int pair, int i)
{
    const float *x = m->x + pair / N_USED * N_EMBD;
    const int32_t e = m->ids[pair];
    double gate = 0, up = 0;
    for (int k = 0; k < N_EMBD; k++) {
        gate += (double)m->matrix[EXPERT_GATE][e][i * N_EMBD + k] * x[k];
        up += (double)m->matrix[EXPERT_UP][e][i * N_EMBD + k] * x[k];
    }
    gate *= m->weights[pair];
    return gate / (1 + exp(-gate)) * up * m->weights[pair];
}

/* Expert i lies in slot N_EXPERT - 1 - i. */
static struct slot_pool *open_slots(struct fixture *f, const struct moe *m)
{
    struct err e;
    struct slot_pool *slots;
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct slot_pool_desc d = {{q, q, q}, N_EMBD, N_FF, N_EXPERT};
    assert_int_equal(backend_slot_pool_create(f->device, &d, &slots, &e), ERR_OK);
    for (int i = 0; i < N_EXPERT; i++) {
        assert_true(backend_slot_open(f->device, slots, i));
        for (int k = 0; k < EXPERT_N_MATRIX; k++) {
            const struct slot_rows rows = {(enum expert_matrix)k, m->matrix[k][N_EXPERT - 1 - i], false, 0,
                                           k == EXPERT_DOWN ? N_EMBD : N_FF};
            assert_int_equal(backend_slot_fill(f->device, slots, i, &rows, &e), ERR_OK);
        }
    }
    return slots;
}

/* What was shown is that of the pairs which have an expert and a slot, matrix by matrix in the order of the tokens; two
 * of three matrices are in one tensor here, of which up's name is NULL. are_shared: matrices are those of the slots. */
static void expect_pairs(const struct moe *m, const struct seen *s, bool are_shared)
{
    int at = 0;
    for (int which = 0; which < 2; which++)
        for (int pair = 0; pair < M * N_USED; pair++) {
            const struct shown *r = &s->rows[at];
            int32_t e = m->ids[pair];
            if (e < 0 || m->slots[e] < 0)
                continue;
            assert_true(at++ < s->n);
            assert_string_equal(r->tensor, which ? "down" : "gate_up");
            assert_true(r->matrix == (are_shared ? m->slots[e] : e) && r->n_matrix == N_EXPERT);
            assert_true(r->n == (which ? N_FF : N_EMBD) && r->scale == (which ? 1 : m->weights[pair]));
            for (int i = 0; i < r->n; i++) {
                double want = which ? hidden(m, pair, i) : m->x[pair / N_USED * N_EMBD + i];
                assert_true(fabs(r->x[i] - want) <= (which ? 1e-4 : 0));
            }
        }
    assert_int_equal(at, s->n);
}

static void experts_show_what_each_met(void **state)
{
    static const char *const tensors[EXPERT_N_MATRIX] = {
        [EXPERT_GATE] = "gate_up", [EXPERT_UP] = NULL, [EXPERT_DOWN] = "down"};
    struct fixture *f = *state;
    struct seen *s = malloc(sizeof *s);
    struct moe *m = calloc(1, sizeof *m);
    fill(f, m->x, M * N_EMBD);
    fill(f, m->weights, M * N_USED);
    fill(f, m->matrix[0][0], sizeof m->matrix / sizeof(float));
    for (int i = 0; i < M * N_USED; i++)
        m->ids[i] = i % 5 == 4 ? -1 : (i % N_USED + i / N_USED * 2) % N_EXPERT;
    for (int i = 0; i < N_EXPERT; i++)
        m->slots[i] = i == 2 ? -1 : N_EXPERT - 1 - i;
    struct slot_pool *slots = open_slots(f, m);
    struct op op = {.kind = OP_EXPERTS,
                    .in = {[EXPERTS_X] = tensor_f32(f, N_EMBD, M, 1, m->x),
                           [EXPERTS_IDS] = tensor_i32(f, N_USED, M, m->ids),
                           [EXPERTS_SLOTS] = tensor_i32(f, N_EXPERT, 1, m->slots),
                           [EXPERTS_WEIGHTS] = tensor_f32(f, N_USED, M, 1, m->weights)},
                    .out = {tensor_f32(f, N_EMBD, N_USED, M, NULL)},
                    .slot_pool = slots,
                    .experts = {ACT_SILU, M, tensors}};
    float y[2][M * N_USED * N_EMBD];
    for (int is_direct = 0; is_direct < 2; is_direct++) {
        op.experts.sort_cutoff = is_direct ? M : 1;
        op.experts.are_shared = is_direct;
        begin(f, s);
        backend_enqueue(f->device, &op);
        read_back(f, &op.out[0], y[is_direct]);
        backend_observe_end(f->device);
        expect_pairs(m, s, op.experts.are_shared);
    }
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    begin(f, s);
    op.experts.tensors = NULL;
    backend_enqueue(f->device, &op);
    backend_observe_end(f->device);
    assert_int_equal(s->n, 0);
    backend_slot_pool_close(f->device, &slots);
    for (int i = 0; i < 4; i++)
        backend_buffer_close(f->device, &op.in[i].buffer);
    backend_buffer_close(f->device, &op.out[0].buffer);
    free(m);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(products_show_their_input_under_each_name, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(heads_show_what_each_takes_of_the_row, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_show_what_each_met, open_cpu, close_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
