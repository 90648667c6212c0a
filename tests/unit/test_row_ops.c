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

static double activated(enum act_fn act, double x)
{
    switch (act) {
    case ACT_SILU:
    case ACT_SILU_CLAMPED: return x / (1 + exp(-x));
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_RELU: return fmax(x, 0);
    case ACT_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    default: return x;
    }
}

/* act(gate) * up, either factor within a limit, if there is one */
static double multiplied(enum act_fn act, double gate, double up, double limit, double up_limit)
{
    if (act == ACT_SITU)
        return limit * tanh(gate / limit) / (1 + exp(-gate)) * (up_limit > 0 ? up_limit * tanh(up / up_limit) : up);
    if (limit == 0)
        return activated(act, gate) * up;
    double by = act == ACT_SILU_CLAMPED ? activated(act, fmin(gate, limit)) : fmin(activated(act, gate), limit);
    return by * fmax(-limit, fmin(limit, up));
}

static void a_gate_may_be_one_for_several_elements(void **state)
{
    enum { N = 120 };
    static const struct {
        enum act_fn fn;
        float limit, up_limit;
    } acts[] = {{ACT_SILU, 0, 0}, {ACT_SILU, 0.5f, 0},  {ACT_SIGMOID, 0, 0},      {ACT_NONE, 0, 0},
                {ACT_RELU, 0, 0}, {ACT_SOFTPLUS, 0, 0}, {ACT_SILU_CLAMPED, 0, 0}, {ACT_SILU_CLAMPED, 0.5f, 0},
                {ACT_SITU, 2, 0}, {ACT_SITU, 4, 0.5f}};
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
                                                        .act_limit = acts[k].limit,
                                                        .act_up_limit = acts[k].up_limit});
                read_back(f, &out, got);
                for (int i = 0; i < M * N; i++) {
                    double want = multiplied(acts[k].fn, (double)gate[i / each], (double)x[i], (double)acts[k].limit,
                                             (double)acts[k].up_limit);
                    if (!(fabs(got[i] - want) <= 1e-5 * fabs(want) + 1e-30))
                        fail_msg("act %d, limit %g, %d each, element %d: %g, expected %g", acts[k].fn,
                                 (double)acts[k].limit, (int)each, i, (double)got[i], want);
                }
                struct tensor *all[] = {&tg, &tx, &ty};
                for (int i = 0; i < 3; i++)
                    backend_buffer_close(f->device, &all[i]->buffer);
            }
}

/* ---- ROPE ---------------------------------------------------------------------------------------------------- */

enum { ROPE_HEADS = 3, ROPE_DIM = 40, N_ROT = 12 };

static const int32_t rope_pos[M] = {0, 1, 77, 4000, 123456};

/* Rows of heads, rotated from element `off` of each on. */
static void rotate(double *x, enum rope_mode mode, int64_t off, const struct rope_angles *a)
{
    for (int i = 0; i < M * ROPE_HEADS * N_ROT / 2; i++) {
        int head = i / (N_ROT / 2), pair = i % (N_ROT / 2), step = mode == ROPE_NEOX ? 1 : 2;
        double angle = rope_pos[head / ROPE_HEADS] * pow((double)a->freq_base, -2.0 * pair / N_ROT);
        double c = cos(angle) * (double)a->magnitude, s = sin(angle) * (double)a->magnitude * (a->is_inverse ? -1 : 1);
        double *first = x + head * ROPE_DIM + off + pair * step;
        double *second = first + (mode == ROPE_NEOX ? N_ROT / 2 : 1), before = *first;
        *first = before * c - *second * s;
        *second = before * s + *second * c;
    }
}

static void expect_rotated(const float *x, const float *got, enum rope_mode mode, int64_t off,
                           const struct rope_angles *a)
{
    double want[M * ROPE_HEADS * ROPE_DIM];
    for (int i = 0; i < M * ROPE_HEADS * ROPE_DIM; i++)
        want[i] = (double)x[i];
    rotate(want, mode, off, a);
    for (int i = 0; i < M * ROPE_HEADS * ROPE_DIM; i++)
        if (!(fabs((double)got[i] - want[i]) < 1e-5))
            fail_msg("from %d on, %s, element %d: %g, expected %g", (int)off, a->is_inverse ? "back" : "forth", i,
                     (double)got[i], want[i]);
}

/* Two tensors, rotated from different elements on, and the second one stored: what follows each other may be one
 * dispatch on a GPU. */
static void heads_are_rotated_from_any_element_on_and_back(void **state)
{
    enum { N = ROPE_HEADS * ROPE_DIM };
    static const int64_t offs[] = {0, 3, ROPE_DIM - N_ROT};
    struct fixture *f = *state;
    float x[M * N], got[M * N];
    int32_t rows[M], zeros[M] = {0};
    fill(f, x, M * N);
    for (int t = 0; t < M; t++)
        rows[t] = t;
    struct tensor pos = tensor_i32(f, M, 1, rope_pos), at = tensor_i32(f, M, 1, rows),
                  pages = tensor_i32(f, 1, 1, zeros), lists = tensor_i32(f, M, 1, zeros);
    struct tensor table = tensor_f32(f, N_ROT, M, 1, NULL), q = tensor_f32(f, N, M, 1, NULL),
                  k = tensor_f32(f, N, M, 1, NULL);
    struct paged cache = paged_zeros(f, ELEM_F32, ROPE_DIM, ATTENTION_BLOCK, ROPE_HEADS, 1, false);
    for (int i = 0; i < 12; i++) {
        enum rope_mode mode = i % 2 ? ROPE_NEOX : ROPE_NORMAL;
        const struct rope_angles angles = {
            .freq_base = 10000, .freq_scale = 1, .magnitude = 1.5f, .is_inverse = i / 2 % 2};
        int64_t q_off = offs[i / 4], k_off = offs[(i / 4 + i % 3) % 3];
        backend_write(f->device, &q, x);
        backend_write(f->device, &k, x);
        backend_enqueue(f->device,
                        &(struct op){.kind = OP_ROPE_TABLE, .in = {pos}, .out = {table}, .rope_table = angles});
        backend_enqueue(
            f->device,
            &(struct op){.kind = OP_ROPE, .in = {q, table}, .out = {q}, .rope = {mode, ROPE_DIM, N_ROT, q_off}});
        backend_enqueue(
            f->device,
            &(struct op){.kind = OP_ROPE, .in = {k, table}, .out = {k}, .rope = {mode, ROPE_DIM, N_ROT, k_off}});
        backend_enqueue(
            f->device,
            &(struct op){
                .kind = OP_KV_STORE,
                .in = {[KV_STORE_X] = k, [KV_STORE_POS] = at, [KV_STORE_TABLE] = lists, [KV_STORE_PAGES] = pages},
                .state = {cache}});
        read_back(f, &q, got);
        expect_rotated(x, got, mode, q_off, &angles);
        read_back(f, &k, got);
        expect_rotated(x, got, mode, k_off, &angles);
    }
    struct tensor *all[] = {&pos, &at, &pages, &lists, &table, &q, &k, &cache.page};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* ---- STREAMS_IN, STREAMS_OUT ------------------------------------------------------------------------------------ */

enum { S_N = 300, S_MIX = OP_MAX_STREAM * (OP_MAX_STREAM + 2) };

struct streams {
    int n, n_mix, n_iteration;
    double eps, magnitude;
    float x[M * OP_MAX_STREAM * S_N], y[M * S_N], mix[M * S_MIX], scale[3], base[S_MIX];
};

/* Divides numbers that are `step` apart by their sum and eps. */
static void divide(double *x, int n, int step, double eps)
{
    double sum = eps;
    for (int i = 0; i < n; i++)
        sum += x[i * step];
    for (int i = 0; i < n; i++)
        x[i * step] /= sum;
}

/* What STREAMS_IN makes of a token's mix. */
static void mix_streams(const struct streams *s, const float *mix, double *out)
{
    int n = s->n;
    double *c = out + 2 * n;
    for (int i = 0; i < s->n_mix; i++)
        out[i] = (double)mix[i] * (double)s->scale[i / n < 2 ? i / n : 2] + (double)s->base[i];
    for (int i = 0; i < n; i++)
        out[i] = 1 / (1 + exp(-out[i])) + s->eps;
    if (s->n_mix == n)
        return;
    for (int i = n; i < 2 * n; i++)
        out[i] = s->magnitude / (1 + exp(-out[i])) + (s->n_mix == 2 * n ? s->eps : 0);
    if (s->n_mix == 2 * n)
        return;
    for (int i = 0; i < n * n; i++)
        c[i] = exp(c[i]);
    for (int i = 0; i < n; i++) {
        divide(c + i * n, n, 1, 0);
        for (int j = 0; j < n; j++)
            c[i * n + j] += s->eps;
    }
    for (int k = 0; k < s->n_iteration; k++) {
        for (int i = 0; k > 0 && i < n; i++)
            divide(c + i * n, n, 1, s->eps);
        for (int i = 0; i < n; i++)
            divide(c + i, n, n, s->eps);
    }
}

static void expect_near(const char *what, int at, float got, double want)
{
    if (!(fabs((double)got - want) < 1e-5))
        fail_msg("%s, element %d: %g, expected %g", what, at, (double)got, want);
}

/* Runs STREAMS_IN and, where there are weights for it, STREAMS_OUT of some y. */
static void expect_streams(struct fixture *f, struct streams *s)
{
    int n = s->n;
    bool has_out = s->n_mix > n, mixes = s->n_mix > 2 * n;
    static float y[M * S_N], x[M * OP_MAX_STREAM * S_N], mix[M * S_MIX];
    struct tensor tx = tensor_f32(f, n * S_N, M, 1, s->x), tmix = tensor_f32(f, s->n_mix, M, 1, s->mix);
    struct tensor ty = tensor_f32(f, S_N, M, 1, s->y), h = tensor_f32(f, S_N, M, 1, NULL);
    struct tensor scale = tensor_f32(f, mixes ? 3 : s->n_mix / n, 1, 1, s->scale),
                  base = tensor_f32(f, s->n_mix, 1, 1, s->base);
    backend_enqueue(f->device, &(struct op){.kind = OP_STREAMS_IN,
                                            .in = {[STREAMS_IN_X] = tx, [STREAMS_IN_MIX] = tmix},
                                            .out = {h, tmix},
                                            .vec = {scale, base},
                                            .streams = {(float)s->eps, (float)s->magnitude, s->n_iteration}});
    if (has_out)
        backend_enqueue(f->device,
                        &(struct op){.kind = OP_STREAMS_OUT,
                                     .in = {[STREAMS_OUT_Y] = ty, [STREAMS_OUT_X] = tx, [STREAMS_OUT_MIX] = tmix},
                                     .out = {tx}});
    read_back(f, &h, y);
    read_back(f, &tx, x);
    read_back(f, &tmix, mix);
    for (int t = 0; t < M; t++) {
        double by[S_MIX];
        const float *old = s->x + t * n * S_N;
        mix_streams(s, s->mix + t * s->n_mix, by);
        for (int i = 0; i < s->n_mix; i++)
            expect_near("the mix", i, mix[t * s->n_mix + i], by[i]);
        for (int i = 0; i < S_N; i++) {
            double sum = 0;
            for (int j = 0; j < n; j++)
                sum += by[j] * (double)old[j * S_N + i];
            expect_near("what comes in", i, y[t * S_N + i], sum);
        }
        for (int i = 0; i < n * S_N; i++) {
            double sum = has_out ? by[n + i / S_N] * (double)s->y[t * S_N + i % S_N] : 0;
            sum += mixes ? 0 : (double)old[i];
            for (int j = 0; mixes && j < n; j++)
                sum += by[2 * n + j * n + i / S_N] * (double)old[j * S_N + i % S_N];
            expect_near("what goes out", i, x[t * n * S_N + i], sum);
        }
    }
    struct tensor *all[] = {&tx, &tmix, &ty, &h, &scale, &base};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* eps is large, so that it counts. */
static void streams_are_weighed_and_mixed(void **state)
{
    struct fixture *f = *state;
    struct streams *s = calloc(1, sizeof *s);
    for (s->n = 2; s->n <= OP_MAX_STREAM; s->n++)
        for (int kind = -1; kind < 4; kind++) {
            s->n_mix = s->n * (kind < 0 ? 1 : kind == 0 ? 2 : s->n + 2);
            s->n_iteration = kind < 0 ? 0 : kind;
            s->eps = 0.05f;
            s->magnitude = kind > 0 ? 2 : 1.5;
            fill(f, s->x, sizeof s->x / sizeof *s->x);
            fill(f, s->y, sizeof s->y / sizeof *s->y);
            fill(f, s->mix, sizeof s->mix / sizeof *s->mix);
            fill(f, s->base, sizeof s->base / sizeof *s->base);
            for (int i = 0; i < 3; i++)
                s->scale[i] = (float)(i + 1) * 1.5f;
            expect_streams(f, s);
        }
    free(s);
}

/* STREAMS_IN with gates, if any, and, with a mix, STREAMS_OUT of some y. */
static void streams_are_gated_element_by_element(void **state)
{
    struct fixture *f = *state;
    static float x[M * OP_MAX_STREAM * S_N], gate[M * OP_MAX_STREAM * S_N], y[M * S_N], mix[M * OP_MAX_STREAM];
    static float h[M * S_N], out[M * OP_MAX_STREAM * S_N];
    for (int i = 0; i < 3 * (OP_MAX_STREAM - 1); i++) {
        int n = 2 + i / 3;
        bool has_gate = i % 3, has_mix = i % 3 == 2;
        fill(f, x, (size_t)(M * n * S_N));
        fill(f, gate, (size_t)(M * n * S_N));
        fill(f, y, (size_t)(M * S_N));
        fill(f, mix, (size_t)(M * n));
        struct tensor tx = tensor_f32(f, n * S_N, M, 1, x), tgate = tensor_f32(f, n * S_N, M, 1, gate),
                      ty = tensor_f32(f, S_N, M, 1, y), th = tensor_f32(f, S_N, M, 1, NULL),
                      tmix = tensor_f32(f, n, M, 1, mix);
        const struct tensor none = {0}, by = has_mix ? tmix : none;
        backend_enqueue(
            f->device,
            &(struct op){
                .kind = OP_STREAMS_IN,
                .in = {[STREAMS_IN_X] = tx, [STREAMS_IN_MIX] = by, [STREAMS_IN_GATE] = has_gate ? tgate : none},
                .out = {th, by},
                .streams = {.magnitude = 1.5f}});
        if (has_mix)
            backend_enqueue(f->device,
                            &(struct op){.kind = OP_STREAMS_OUT,
                                         .in = {[STREAMS_OUT_Y] = ty, [STREAMS_OUT_X] = tx, [STREAMS_OUT_MIX] = tmix},
                                         .out = {tx}});
        read_back(f, &th, h);
        read_back(f, &tx, out);
        for (int t = 0; t < M; t++) {
            for (int j = 0; j < S_N; j++) {
                double sum = 0;
                for (int s = 0; s < n; s++) {
                    int at = (t * n + s) * S_N + j;
                    sum += (double)x[at] / (has_gate ? 1 + exp(-(double)gate[at]) : 1) / n;
                }
                expect_near("what comes in", j, h[t * S_N + j], sum);
            }
            for (int j = 0; j < n * S_N; j++) {
                double b = has_mix ? 1.5 / (1 + exp(-(double)mix[t * n + j / S_N] / n)) : 0;
                expect_near("what goes out", j, out[t * n * S_N + j],
                            (double)x[t * n * S_N + j] + b * (double)y[t * S_N + j % S_N]);
            }
        }
        struct tensor *all[] = {&tx, &tgate, &ty, &th, &tmix};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            backend_buffer_close(f->device, &all[j]->buffer);
    }
}

/* The last token's keys are zeros. */
static void values_go_to_streams_as_keys_and_queries_match(void **state)
{
    enum { N = OP_MAX_STREAM };
    struct fixture *f = *state;
    static float key[M * N * S_N], query[M * N * S_N], value[M * S_N], got[M * N * S_N];
    fill(f, key, (M - 1) * N * S_N);
    fill(f, query, M * N * S_N);
    fill(f, value, M * S_N);
    struct tensor tkey = tensor_f32(f, N * S_N, M, 1, key), tquery = tensor_f32(f, N * S_N, M, 1, query),
                  tvalue = tensor_f32(f, S_N, M, 1, value);
    backend_enqueue(
        f->device,
        &(struct op){.kind = OP_STREAMS_MATCH,
                     .in = {[STREAMS_MATCH_KEY] = tkey, [STREAMS_MATCH_QUERY] = tquery, [STREAMS_MATCH_VALUE] = tvalue},
                     .out = {tkey}});
    read_back(f, &tkey, got);
    for (int i = 0; i < M * N; i++) {
        double s = 0, root;
        for (int j = 0; j < S_N; j++)
            s += (double)key[i * S_N + j] * (double)query[i * S_N + j] / sqrt(S_N);
        root = sqrt(fmax(fabs(s), 1e-6));
        for (int j = 0; j < S_N; j++)
            expect_near("a value", j, got[i * S_N + j],
                        (double)value[i / N * S_N + j] / (1 + exp(s < 0 ? root : -root)));
    }
    struct tensor *all[] = {&tkey, &tquery, &tvalue};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* ---- RESIDUALS ------------------------------------------------------------------------------------------------- */

enum { R_N = 300, R_BANK = OP_MAX_BANK };

/* Row t of what a softmax over residuals makes of them: n_banked of the bank's and x, by the formula. */
static void add_residuals(const float *bank, const float *x, const float *w, int n_banked, double eps, double *out)
{
    double by[R_BANK + 1], all = 0;
    for (int r = 0; r <= n_banked; r++) {
        const float *row = r < n_banked ? bank + r * R_N : x;
        double squares = 0, products = 0;
        for (int i = 0; i < R_N; i++) {
            squares += (double)row[i] * (double)row[i];
            products += (double)row[i] * (double)w[i];
        }
        all += by[r] = exp(products / sqrt(squares / R_N + eps));
    }
    for (int i = 0; i < R_N; i++) {
        out[i] = by[n_banked] / all * (double)x[i];
        for (int r = 0; r < n_banked; r++)
            out[i] += by[r] / all * (double)bank[r * R_N + i];
    }
}

/* eps is large, so that it counts; the bank's last rows hold what must not. */
static void residuals_are_added_up_by_a_softmax(void **state)
{
    static const int banked[] = {1, 2, 7, R_BANK};
    static float bank[M * R_BANK * R_N], x[M * R_N], w[R_N], got[M * R_N];
    const float eps = 0.05f;
    struct fixture *f = *state;
    fill(f, bank, M * R_BANK * R_N);
    fill(f, x, M * R_N);
    fill(f, w, R_N);
    for (int i = 0; i < R_N; i++)
        w[i] *= 0.2f;
    for (size_t k = 0; k < sizeof banked / sizeof *banked; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct tensor tx = tensor_f32(f, R_N, M, 1, x), tb = tensor_f32(f, R_BANK * R_N, M, 1, bank);
            struct tensor ty = tensor_f32(f, R_N, M, 1, NULL), tw = tensor_f32(f, R_N, 1, 1, w);
            struct tensor out = in_place ? tx : ty;
            backend_enqueue(f->device, &(struct op){.kind = OP_RESIDUALS,
                                                    .in = {tx, tb},
                                                    .out = {out},
                                                    .vec = {tw},
                                                    .residuals = {.n_banked = banked[k], .eps = eps}});
            read_back(f, &out, got);
            for (int t = 0; t < M; t++) {
                double want[R_N];
                add_residuals(bank + t * R_BANK * R_N, x + t * R_N, w, banked[k], (double)eps, want);
                for (int i = 0; i < R_N; i++)
                    expect_near("the sum", i, got[t * R_N + i], want[i]);
            }
            struct tensor *all[] = {&tx, &tb, &ty, &tw};
            for (size_t i = 0; i < sizeof all / sizeof *all; i++)
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
        cmocka_unit_test_setup_teardown(heads_are_rotated_from_any_element_on_and_back, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(streams_are_weighed_and_mixed, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(streams_are_gated_element_by_element, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(values_go_to_streams_as_keys_and_queries_match, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(residuals_are_added_up_by_a_softmax, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(heads_pass_through_matrices_of_their_own_or_are_copied, open_cpu, close_cpu),
    };
    return cmocka_run_group_tests_name("row ops", tests, NULL, NULL);
}
