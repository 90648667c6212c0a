/* The device interface: routing, dispatch, slot tables, and the checking device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/route.h"
#include "device_fixture.h"

enum { N_EMBD = 32, N_FF = 48, N_EXPERT = 6, N_USED = 3, M = 7 };

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

/* The k best of n experts by an operation's rules. */
static void choose_k(const struct op *op, const float *bias, const float *expert_scale, const float *logits, int64_t n,
                     int64_t k, int32_t *ids, float *weights)
{
    float copy[64], work[64];
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    route_choose(best_kernels(), &(struct route_token){.op = op,
                                                       .bias = bias,
                                                       .expert_scale = expert_scale,
                                                       .n = n,
                                                       .k = k,
                                                       .logits = copy,
                                                       .choice = work,
                                                       .ids = ids,
                                                       .weights = weights});
}

static void choose(enum route_score score, bool norm, float scale, const float *logits, int64_t n, int32_t *ids,
                   float *weights)
{
    struct op op = {.kind = OP_ROUTE, .route = {score, norm, scale}};
    choose_k(&op, NULL, NULL, logits, n, 2, ids, weights);
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

/* Minus infinity is the lowest number, and a choice of as many experts as there are still finds each once. */
static void router_survives_infinities(void **state)
{
    enum { N = 8 };
    static const float logits[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const float biases[][N] = {
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {-INFINITY, NAN, INFINITY, -INFINITY, 0, NAN, INFINITY, -3e38f},
        {-3e38f, -3e38f, -3e38f, -3e38f, -3e38f, -3e38f, -3e38f, -3e38f},
    };
    static const int32_t best[][N] = {{0, 1, 2, 3, 4, 5, 6, 7}, {2, 6, 4, 7, 0, 3, 1, 5}, {0, 1, 2, 3, 4, 5, 6, 7}};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        for (int n_group = 1; n_group <= N; n_group *= 2) {
            struct op op = {.kind = OP_ROUTE,
                            .route = {.score = ROUTE_SIGMOID, .scale = 1, .n_group = n_group, .n_group_used = n_group}};
            float copy[N], work[N], weights[N];
            int32_t ids[N];
            memcpy(copy, logits, sizeof copy);
            route_choose(best_kernels(), &(struct route_token){.op = &op,
                                                               .bias = biases[i],
                                                               .n = N,
                                                               .k = N,
                                                               .logits = copy,
                                                               .choice = work,
                                                               .ids = ids,
                                                               .weights = weights});
            assert_memory_equal(ids, best[i], sizeof ids);
        }
}

/* Against the definition: again and again the best of the rest, ties to the lower id, NaN last. */
static void router_chooses_any_number_of_experts_in_order(void **state)
{
    enum { N = 61 };
    struct fixture *f = *state;
    const struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SIGMOID, .scale = 1}};
    for (int64_t k = 1; k <= N; k++) {
        float bias[N], logits[N] = {0}, weights[N];
        bool taken[N] = {false};
        int32_t ids[N];
        for (int i = 0; i < N; i++) /* few values, so that there are ties */
            bias[i] = random_u32(&f->random) % 16 ? (float)(random_u32(&f->random) % 8) : NAN;
        choose_k(&op, bias, NULL, logits, N, k, ids, weights);
        for (int64_t r = 0; r < k; r++) {
            int best = -1;
            for (int i = 0; i < N; i++)
                if (!taken[i] && (best < 0 || bias[i] > bias[best] || (isnan(bias[best]) && !isnan(bias[i]))))
                    best = i;
            taken[best] = true;
            assert_int_equal(ids[r], best);
        }
    }
}

static void router_bias_changes_the_choice_and_not_the_weights(void **state)
{
    int32_t ids[2];
    float w[2];
    const float logits[] = {0, logf(2), logf(5), 0}, bias[] = {0, 0, 0, 1}; /* scores 1/2 2/3 5/6 1/2 */
    struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SIGMOID, .scale = 1}};
    choose_k(&op, bias, NULL, logits, 4, 2, ids, w);
    assert_int_equal(ids[0], 3);
    assert_int_equal(ids[1], 2);
    assert_true(fabsf(w[0] - 0.5f) < 1e-6f && fabsf(w[1] - 5.f / 6) < 1e-6f);
    op.route.norm_weights = true;
    choose_k(&op, bias, NULL, logits, 4, 2, ids, w);
    assert_int_equal(ids[0], 3);
    assert_true(fabsf(w[0] - 3.f / 8) < 1e-6f && fabsf(w[1] - 5.f / 8) < 1e-6f);
}

static void router_scales_the_final_weights_by_expert(void **state)
{
    int32_t ids[2];
    float w[2];
    const float logits[] = {0, logf(2), logf(5), 0}, factors[] = {100, 3, 0.5f, 100};
    struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SOFTMAX, .norm_weights = true, .scale = 1}};
    choose_k(&op, NULL, factors, logits, 4, 2, ids, w);
    assert_int_equal(ids[0], 2); /* the factors have no say in the choice */
    assert_int_equal(ids[1], 1);
    assert_true(fabsf(w[0] - 0.5f * 5 / 7) < 1e-6f && fabsf(w[1] - 3.f * 2 / 7) < 1e-6f);
}

static void router_takes_experts_of_the_best_groups_only(void **state)
{
    int32_t ids[4];
    float w[4];
    struct op op = {.kind = OP_ROUTE,
                    .route = {.score = ROUTE_SOFTMAX_CHOSEN, .scale = 1, .n_group = 4, .n_group_used = 2}};
    /* the groups are worth 9, 10, 9.5 and 2: the best expert's is not among the best two */
    const float pairs[] = {9, 0, 5, 5, 6, 3.5f, 1, 1};
    choose_k(&op, NULL, NULL, pairs, 8, 4, ids, w);
    assert_memory_equal(ids, ((const int32_t[]){4, 2, 3, 5}), sizeof ids);
    /* with expert 7's bias: 9, 10, 9.5 and 12 */
    choose_k(&op, (const float[]){0, 0, 0, 0, 0, 0, 0, 10}, NULL, pairs, 8, 4, ids, w);
    assert_memory_equal(ids, ((const int32_t[]){7, 2, 3, 6}), sizeof ids);
    /* the two best of four count, and not all: 8 against 8.5 */
    const float fours[] = {4, 4, 4, 4, 0, 8, 0.5f, 0};
    op.route.n_group = 2;
    op.route.n_group_used = 1;
    choose_k(&op, NULL, NULL, fours, 8, 2, ids, w);
    assert_int_equal(ids[0], 5);
    assert_int_equal(ids[1], 6);
    /* the sum counts, and not the best: 7.5 against 7 */
    const float sums[] = {7, 0, -1, 0, 4, 3.5f, 0, 0};
    choose_k(&op, NULL, NULL, sums, 8, 2, ids, w);
    assert_int_equal(ids[0], 4);
    assert_int_equal(ids[1], 5);
    /* ties go to the lower group; one group, or none, is no restriction */
    const float tie[] = {3, 1, 2, 2};
    choose_k(&op, NULL, NULL, tie, 4, 1, ids, w);
    assert_int_equal(ids[0], 0);
    op.route.n_group = op.route.n_group_used = 1;
    choose_k(&op, NULL, NULL, pairs, 8, 2, ids, w);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 4);
}

static void router_may_weigh_the_chosen_by_a_softmax_of_their_own(void **state)
{
    int32_t ids[2];
    float w[2];
    const float logits[] = {0, logf(2), logf(6), 0, logf(0.5f)};
    struct op op = {.kind = OP_ROUTE, .route = {.score = ROUTE_SOFTMAX_CHOSEN, .scale = 1}};
    choose_k(&op, NULL, NULL, logits, 5, 2, ids, w); /* 6 and 2 of 8 */
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 1);
    assert_true(fabsf(w[0] - 0.75f) < 1e-6f && fabsf(w[1] - 0.25f) < 1e-6f);
    op.route.scale = 3;
    choose_k(&op, (const float[]){5, 0, 0, 0, 0}, NULL, logits, 5, 2, ids, w); /* 1 and 6 of 7, by unbiased logits */
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 2);
    assert_true(fabsf(w[0] - 3.f / 7) < 1e-6f && fabsf(w[1] - 3.f * 6 / 7) < 1e-6f);
}

/* ---- angles -------------------------------------------------------------------------------------------------- */

static void rope_table_mixes_frequencies_as_yarn_says(void **state)
{
    enum { N_ROT = 64, N_POS = 5 };
    struct fixture *f = *state;
    struct err e;
    static const int32_t pos[N_POS] = {0, 1, 5, 1000, 131071};
    const struct rope_angles a = {.freq_base = 150000,
                                  .freq_scale = 0.03125f,
                                  .yarn = true,
                                  .yarn_low = 8.25f,
                                  .yarn_high = 17.5f,
                                  .magnitude = 1.25f};
    float divisors[N_ROT / 2], got[N_POS][N_ROT];
    fill(f, divisors, N_ROT / 2);
    for (int i = 0; i < N_ROT / 2; i++)
        divisors[i] += 2;
    struct tensor ids = tensor_i32(f, N_POS, 1, pos), table = tensor_f32(f, N_ROT, N_POS, 1, NULL);
    struct tensor td = tensor_f32(f, N_ROT / 2, 1, 1, divisors);
    for (int with = 0; with < 2; with++) {
        struct op op = {.kind = OP_ROPE_TABLE, .in = {ids}, .out = {table}, .rope_table = a};
        if (with)
            op.vec[0] = td;
        backend_enqueue(f->device, &op);
        assert_int_equal(backend_read(f->device, &table, got, &e), ERR_OK);
        for (int t = 0; t < N_POS; t++)
            for (int i = 0; i < N_ROT / 2; i++) {
                double unscaled = exp(-2.0 * i / N_ROT * log(150000)), scaled = unscaled / 32;
                double share = i <= 8 ? 0 : i >= 18 ? 1 : (i - 8.25) / (17.5 - 8.25);
                double freq = unscaled + share * (scaled - unscaled);
                double angle = pos[t] * freq / (with ? (double)divisors[i] : 1);
                assert_true(fabs((double)got[t][2 * i] - 1.25 * cos(angle)) < 3e-7);
                assert_true(fabs((double)got[t][2 * i + 1] - 1.25 * sin(angle)) < 3e-7);
            }
    }
    struct tensor *all[] = {&ids, &table, &td};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* Without frequencies a table keeps directions; lengths grow with every whole span of positions. */
static void rope_table_lengthens_with_the_position(void **state)
{
    enum { N_ROT = 4, N_POS = 5 };
    struct fixture *f = *state;
    struct err e;
    static const int32_t pos[N_POS] = {0, 98, 99, 100, 1000000};
    static const int64_t n_span[2][N_POS] = {{0, 0, 0, 1, 10000}, {0, 0, 1, 1, 10000}}; /* whole spans, by shift */
    float got[N_POS][N_ROT];
    struct tensor ids = tensor_i32(f, N_POS, 1, pos), table = tensor_f32(f, N_ROT, N_POS, 1, NULL);
    for (int shift = 0; shift < 2; shift++) {
        const struct rope_angles a = {
            .freq_base = 1, .magnitude = 2, .temperature = 0.25f, .temperature_span = 100, .temperature_shift = shift};
        backend_enqueue(f->device, &(struct op){.kind = OP_ROPE_TABLE, .in = {ids}, .out = {table}, .rope_table = a});
        assert_int_equal(backend_read(f->device, &table, got, &e), ERR_OK);
        for (int t = 0; t < N_POS; t++)
            for (int i = 0; i < N_ROT; i += 2) {
                double length = 2 * (1 + 0.25 * log(1 + (double)n_span[shift][t]));
                assert_true(fabs((double)got[t][i] - length) < 1e-6 && got[t][i + 1] == 0);
            }
    }
    backend_buffer_close(f->device, &ids.buffer);
    backend_buffer_close(f->device, &table.buffer);
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

enum { A_POS = 150, A_HEAD = 6, A_HEAD_KV = 2, A_DK = 32, A_DV = 64, A_PAGE = 24 };

struct attn {
    float q[A_POS * A_HEAD * A_DK], k[A_POS * A_HEAD_KV * A_DK], v[A_POS * A_HEAD_KV * A_DV], sinks[A_HEAD];
    struct tensor tq, tpos, tout, tsinks;
    struct tensor ttable, tpages; /* zeros for each token, the page of each block of positions */
    struct paged tk, tv;          /* of A_PAGE pages */
    bool chunked;
    float softcap; /* of scores; 0: none */
};

/* What a cache of a type holds of n numbers. */
static void round_to(enum elem_type type, float *x, int n)
{
    char blocks[A_POS * A_HEAD_KV * A_DV / 32 * 34];
    for (int i = 0; type == ELEM_F16 && i < n; i++)
        x[i] = quant_half_to_float(quant_float_to_half(x[i]));
    if (type == ELEM_Q8_0) {
        best_kernels()->f32_to_q8_0(blocks, x, n);
        quant_info(QUANT_Q8_0)->decode(blocks, x, n);
    }
}

/* Caches of a type, of which blocks of positions get pages here and there: n_ring of them in turn. */
static void open_cache(struct fixture *f, struct attn *a, enum elem_type type, int n_ring)
{
    int32_t pages[A_PAGE];
    for (int i = 0; i < A_PAGE; i++)
        pages[i] = (i % n_ring * 7 + 3) % A_PAGE;
    a->tpages = tensor_i32(f, A_PAGE, 1, pages);
    a->tk = paged_zeros(f, type, A_DK, ATTENTION_BLOCK, A_HEAD_KV, A_PAGE, true);
    a->tv = paged_zeros(f, type, A_DV, ATTENTION_BLOCK, A_HEAD_KV, A_PAGE, false);
}

static void close_cache(struct fixture *f, struct attn *a)
{
    backend_buffer_close(f->device, &a->tpages.buffer);
    backend_buffer_close(f->device, &a->tk.page.buffer);
    backend_buffer_close(f->device, &a->tv.page.buffer);
}

/* Elements [first, first + n) of a list. */
static struct tensor list_part(struct tensor t, int64_t first, int64_t n)
{
    t.off_bytes += (size_t)first * sizeof(int32_t);
    t.ne[0] = n;
    return t;
}

/* Stores keys and values of the tokens at positions `pos`. */
static void store_tokens(struct fixture *f, const struct attn *a, const struct tensor *k, const struct tensor *v,
                         const struct tensor *pos)
{
    const struct tensor table = list_part(a->ttable, 0, pos->ne[0]);
    backend_enqueue(
        f->device,
        &(struct op){
            .kind = OP_KV_STORE,
            .in = {[KV_STORE_X] = *k, [KV_STORE_POS] = *pos, [KV_STORE_TABLE] = table, [KV_STORE_PAGES] = a->tpages},
            .state = {a->tk}});
    backend_enqueue(
        f->device,
        &(struct op){
            .kind = OP_KV_STORE,
            .in = {[KV_STORE_X] = *v, [KV_STORE_POS] = *pos, [KV_STORE_TABLE] = table, [KV_STORE_PAGES] = a->tpages},
            .state = {a->tv}});
}

/* Random queries, and a cache of random keys and values; k and v become what the cache holds of them. */
static struct attn *open_attn(struct fixture *f, enum elem_type type)
{
    struct err e;
    int32_t pos[A_POS], table[A_POS] = {0};
    struct attn *a = calloc(1, sizeof *a);
    for (int t = 0; t < A_POS; t++)
        pos[t] = t;
    fill(f, a->q, A_POS * A_HEAD * A_DK);
    fill(f, a->k, A_POS * A_HEAD_KV * A_DK);
    fill(f, a->v, A_POS * A_HEAD_KV * A_DV);
    fill(f, a->sinks, A_HEAD);
    a->sinks[1] = 4; /* takes nearly all */
    a->tq = tensor_f32(f, A_HEAD * A_DK, A_POS, 1, a->q);
    a->tpos = tensor_i32(f, A_POS, 1, pos);
    a->ttable = tensor_i32(f, A_POS, 1, table);
    a->tsinks = tensor_f32(f, A_HEAD, 1, 1, a->sinks);
    a->tout = tensor_f32(f, A_HEAD * A_DV, A_POS, 1, NULL);
    open_cache(f, a, type, A_PAGE);
    struct tensor k = tensor_f32(f, A_HEAD_KV * A_DK, A_POS, 1, a->k);
    struct tensor v = tensor_f32(f, A_HEAD_KV * A_DV, A_POS, 1, a->v);
    store_tokens(f, a, &k, &v, &a->tpos);
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    backend_buffer_close(f->device, &k.buffer);
    backend_buffer_close(f->device, &v.buffer);
    round_to(type, a->k, A_POS * A_HEAD_KV * A_DK);
    round_to(type, a->v, A_POS * A_HEAD_KV * A_DV);
    return a;
}

static void close_attn(struct fixture *f, struct attn *a)
{
    struct tensor *all[] = {&a->tq, &a->tpos, &a->ttable, &a->tout, &a->tsinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
    close_cache(f, a);
    free(a);
}

enum { A_SCALE = 2 }; /* spreads the scores */

/* The operation on tokens [t0, t0 + n): into y, [A_HEAD * A_DV][n]. */
static void run_attn(struct fixture *f, const struct attn *a, int64_t window, bool sinks, int64_t t0, int64_t n,
                     float *y)
{
    struct err e;
    struct tensor out = tensor_rows(a->tout, t0, n);
    struct op op = {
        .kind = OP_ATTENTION,
        .in = {[ATTENTION_Q] = tensor_rows(a->tq, t0, n),
               [ATTENTION_POS] = list_part(a->tpos, t0, n),
               [ATTENTION_TABLE] = list_part(a->ttable, t0, n),
               [ATTENTION_PAGES] = a->tpages},
        .out = {out},
        .state = {[ATTENTION_K] = a->tk, [ATTENTION_V] = a->tv},
        .attention = {
            .n_head = A_HEAD, .scale = A_SCALE, .window = window, .chunked = a->chunked, .softcap = a->softcap}};
    if (sinks)
        op.vec[0] = a->tsinks;
    backend_enqueue(f->device, &op);
    assert_int_equal(backend_read(f->device, &out, y, &e), ERR_OK);
}

/* A query by the definition, in double, of the positions [first, last]; k and v begin with its KV head of position 0.
 */
static void expected_query(const float *q, const float *k, const float *v, int first, int last, const float *sink,
                           double softcap, double *y)
{
    double sum = sink ? exp((double)*sink) : 0;
    memset(y, 0, A_DV * sizeof *y);
    for (int p = first; p <= last; p++) {
        double score = 0;
        for (int i = 0; i < A_DK; i++)
            score += (double)q[i] * (double)k[p * A_HEAD_KV * A_DK + i];
        score *= A_SCALE;
        double w = exp(softcap > 0 ? softcap * tanh(score / softcap) : score);
        sum += w;
        for (int i = 0; i < A_DV; i++)
            y[i] += w * (double)v[p * A_HEAD_KV * A_DV + i];
    }
    for (int i = 0; i < A_DV; i++)
        y[i] /= sum;
}

/* Compares token t's results with it. k and v: [position][A_HEAD_KV] heads; q: the token's; sinks: NULL or all. */
static void check_token(const float *got, const float *q, const float *k, const float *v, int t, int window,
                        const float *sinks, float softcap)
{
    int first = window && t + 1 > window ? t + 1 - window : 0;
    for (int h = 0; h < A_HEAD; h++) {
        int hk = h / (A_HEAD / A_HEAD_KV);
        double want[A_DV];
        expected_query(q + h * A_DK, k + hk * A_DK, v + hk * A_DV, first, t, sinks ? &sinks[h] : NULL, (double)softcap,
                       want);
        for (int i = 0; i < A_DV; i++)
            assert_true(fabs((double)got[h * A_DV + i] - want[i]) < 1e-5);
    }
}

static void attention_sees_its_window_and_its_sinks(void **state)
{
    static const int windows[] = {0, 1, 5, 64, 100, 150};
    struct fixture *f = *state;
    static const enum elem_type types[] = {ELEM_F32, ELEM_F16, ELEM_Q8_0};
    float *got = calloc(A_POS * A_HEAD * A_DV, sizeof *got), one[A_HEAD * A_DV];
    for (int type = 0; type < 3; type++) {
        struct attn *a = open_attn(f, types[type]);
        for (int w = 0; w < 6; w++)
            for (int sinks = 0; sinks < 2; sinks++) {
                if (!is_tested(type + w + sinks, 3))
                    continue;
                a->softcap = w % 2 ? 0.5f : 0;
                run_attn(f, a, windows[w], sinks, 0, A_POS, got);
                for (int t = 0; t < A_POS; t++)
                    check_token(got + t * A_HEAD * A_DV, a->q + t * A_HEAD * A_DK, a->k, a->v, t, windows[w],
                                sinks ? a->sinks : NULL, a->softcap);
                for (int t = 3; t < A_POS; t += 20) { /* the same bits, one token at a time */
                    run_attn(f, a, windows[w], sinks, t, 1, one);
                    assert_memory_equal(one, got + (size_t)t * A_HEAD * A_DV, sizeof one);
                }
            }
        close_attn(f, a);
    }
    free(got);
}

/* The tokens in pieces of n, stored and attended piece by piece, with n_ring pages in turn. */
static void run_ring(struct fixture *f, const struct attn *a, enum elem_type type, int n_ring, int64_t window,
                     int64_t piece, float *got)
{
    struct attn ring = *a;
    open_cache(f, &ring, type, n_ring);
    struct tensor k = tensor_f32(f, A_HEAD_KV * A_DK, A_POS, 1, a->k);
    struct tensor v = tensor_f32(f, A_HEAD_KV * A_DV, A_POS, 1, a->v);
    for (int64_t t = 0; t < A_POS; t += piece) {
        int64_t n = A_POS - t < piece ? A_POS - t : piece;
        const struct tensor pos = list_part(a->tpos, t, n), rows_k = tensor_rows(k, t, n),
                            rows_v = tensor_rows(v, t, n);
        store_tokens(f, &ring, &rows_k, &rows_v, &pos);
        run_attn(f, &ring, window, true, t, n, got + t * A_HEAD * A_DV);
    }
    backend_buffer_close(f->device, &k.buffer);
    backend_buffer_close(f->device, &v.buffer);
    close_cache(f, &ring);
}

static void a_ring_of_positions_gives_the_bits_of_the_whole_cache(void **state)
{
    static const enum elem_type types[] = {ELEM_F32, ELEM_F16, ELEM_Q8_0};
    static const struct {
        int n_page;
        int64_t window, piece;
    } rings[] = {{1, 1, 64}, {2, 64, 1}, {2, 50, 15}, {2, 65, 64}, {3, 100, 29}};
    struct fixture *f = *state;
    size_t n = A_POS * A_HEAD * A_DV;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    for (int type = 0; type < 3; type++) {
        struct attn *a = open_attn(f, types[type]);
        for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
            if (!is_tested(type + (int)i, 3))
                continue;
            run_ring(f, a, types[type], A_PAGE, rings[i].window, A_POS, want);
            run_ring(f, a, types[type], rings[i].n_page, rings[i].window, rings[i].piece, got);
            assert_memory_equal(want, got, n * sizeof *got);
        }
        close_attn(f, a);
    }
    free(want);
    free(got);
}

enum { L_POS = 1300, L_M = 30 }; /* positions in three spans, and the last tokens, which ask */

/* One token's spans are tasks of their own; together with others it has a task a KV head. */
static void a_long_context_gives_one_token_the_bits_of_many(void **state)
{
    static const int windows[] = {0, 1, 20, 512, 600, 1290};
    struct fixture *f = *state;
    int32_t pos[L_POS], table[L_POS] = {0};
    float *q = calloc(L_M * A_HEAD * A_DK, sizeof *q), *k = calloc(L_POS * A_HEAD_KV * A_DK, sizeof *k);
    float *v = calloc(L_POS * A_HEAD_KV * A_DV, sizeof *v), *want = calloc(L_M * A_HEAD * A_DV, sizeof *want);
    float one[A_HEAD * A_DV];
    struct attn a = {0}; /* its tensors and sinks */
    for (int t = 0; t < L_POS; t++)
        pos[t] = t;
    fill(f, q, L_M * A_HEAD * A_DK);
    fill(f, k, L_POS * A_HEAD_KV * A_DK);
    fill(f, v, L_POS * A_HEAD_KV * A_DV);
    fill(f, a.sinks, A_HEAD);
    a.tsinks = tensor_f32(f, A_HEAD, 1, 1, a.sinks);
    a.tq = tensor_f32(f, A_HEAD * A_DK, L_M, 1, q);
    a.tout = tensor_f32(f, A_HEAD * A_DV, L_M, 1, NULL);
    struct tensor all_pos = tensor_i32(f, L_POS, 1, pos), rows_k = tensor_f32(f, A_HEAD_KV * A_DK, L_POS, 1, k);
    struct tensor rows_v = tensor_f32(f, A_HEAD_KV * A_DV, L_POS, 1, v);
    a.tpos = list_part(all_pos, L_POS - L_M, L_M);
    a.ttable = tensor_i32(f, L_POS, 1, table);
    open_cache(f, &a, ELEM_F32, A_PAGE);
    store_tokens(f, &a, &rows_k, &rows_v, &all_pos);
    for (int w = 0; w < 6; w++)
        for (int sinks = 0; sinks < 2; sinks++) {
            if (!is_tested(w + sinks, 2))
                continue;
            run_attn(f, &a, windows[w], sinks, 0, L_M, want);
            for (int t = 0; t < L_M; t++) {
                run_attn(f, &a, windows[w], sinks, t, 1, one);
                assert_memory_equal(one, want + (size_t)t * A_HEAD * A_DV, sizeof one);
                check_token(one, q + t * A_HEAD * A_DK, k, v, L_POS - L_M + t, windows[w], sinks ? a.sinks : NULL, 0);
            }
        }
    struct tensor *all[] = {&a.tq, &a.tout, &a.tsinks, &a.ttable, &all_pos, &rows_k, &rows_v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
    close_cache(f, &a);
    free(q);
    free(k);
    free(v);
    free(want);
}

/* ---- recurrent layers ---------------------------------------------------------------------------------------- */

enum { R_M = 23, R_PIECE = 7 };

/* Runs an operation over R_M tokens of one text in pieces, in a state of one page from its first contents on: out and
 * the state afterwards. */
static void run_pieces(struct fixture *f, const struct op *op, const float *first, int64_t piece, float *out,
                       float *state)
{
    struct err e;
    backend_write(f->device, &op->state[0].page, first);
    backend_clear(f->device, &op->out[0]);
    for (int64_t t = 0; t < R_M; t += piece) {
        struct op part = *op;
        int64_t n = R_M - t < piece ? R_M - t : piece;
        part.out[0] = tensor_rows(op->out[0], t, n);
        for (int i = 0; i < OP_MAX_IN; i++)
            if (op->in[i].buffer)
                part.in[i] = op->in[i].type == ELEM_I32 ? list_part(op->in[i], t, n) : tensor_rows(op->in[i], t, n);
        backend_enqueue(f->device, &part);
    }
    assert_int_equal(backend_read(f->device, &op->out[0], out, &e), ERR_OK);
    assert_int_equal(backend_read(f->device, &op->state[0].page, state, &e), ERR_OK);
}

/* Pieces of 1 and of 7 tokens give the bits of the whole. */
static void expect_pieces(struct fixture *f, const struct op *op, const float *first, const float *out,
                          const float *state)
{
    size_t out_bytes = tensor_bytes(&op->out[0]), state_bytes = tensor_bytes(&op->state[0].page);
    float *out2 = malloc(out_bytes), *state2 = malloc(state_bytes);
    for (int64_t piece = 1; piece <= R_PIECE; piece += R_PIECE - 1) {
        run_pieces(f, op, first, piece, out2, state2);
        assert_memory_equal(out, out2, out_bytes);
        assert_memory_equal(state, state2, state_bytes);
    }
    free(out2);
    free(state2);
}

static void close_recurrent(struct fixture *f, struct op *op)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        backend_buffer_close(f->device, &op->in[i].buffer);
    for (int i = 0; i < OP_MAX_OUT; i++)
        backend_buffer_close(f->device, &op->vec[i].buffer);
    backend_buffer_close(f->device, &op->state[0].page.buffer);
    backend_buffer_close(f->device, &op->out[0].buffer);
}

static void convolution_is_causal_and_carries_its_inputs_over(void **state)
{
    enum { N = 37 };
    struct fixture *f = *state;
    static const int32_t page_0[R_M];
    for (int kind = 0; kind < 6; kind++) {
        int n_tap = 2 + kind % 3, past = n_tap - 1;
        bool has_silu = kind >= 3, has_bias = kind % 2;
        float x[(3 + R_M) * N], w[4 * N], bias[N], got[R_M * N], after[3 * N]; /* x: the state, then the tokens */
        fill(f, x, (size_t)((past + R_M) * N));
        fill(f, w, (size_t)(n_tap * N));
        fill(f, bias, N);
        struct op op = {.kind = OP_CONV,
                        .in = {[CONV_X] = tensor_f32(f, N, R_M, 1, x + past * N),
                               [CONV_FROM] = tensor_i32(f, R_M, 1, page_0),
                               [CONV_TO] = tensor_i32(f, R_M, 1, page_0)},
                        .out = {tensor_f32(f, N, R_M, 1, NULL)},
                        .vec = {tensor_f32(f, N, n_tap, 1, w)},
                        .state = {paged_zeros(f, ELEM_F32, N, past, 1, 1, false)},
                        .conv = {has_silu}};
        if (has_bias)
            op.vec[CONV_BIAS] = tensor_f32(f, N, 1, 1, bias);
        run_pieces(f, &op, x, R_M, got, after);
        for (int t = 0; t < R_M; t++)
            for (int i = 0; i < N; i++) {
                double sum = has_bias ? (double)bias[i] : 0;
                for (int j = 0; j < n_tap; j++)
                    sum += (double)w[j * N + i] * (double)x[(t + j) * N + i];
                assert_true(fabs((double)got[t * N + i] - (has_silu ? sum / (1 + exp(-sum)) : sum)) < 1e-6);
            }
        assert_memory_equal(after, x + R_M * N, (size_t)(past * N) * sizeof *after);
        expect_pieces(f, &op, x, got, after);
        close_recurrent(f, &op);
    }
}

static void layer_norm_takes_the_mean_away(void **state)
{
    enum { N = 37, ROWS = 3 };
    struct fixture *f = *state;
    struct err e;
    float x[ROWS * N], w[N], bias[N], got[ROWS * N];
    fill(f, x, ROWS * N);
    fill(f, w, N);
    fill(f, bias, N);
    for (int i = 0; i < N; i++)
        x[i] = 5 + x[i] * 1e-2f; /* far from zero */
    for (int is_bare = 0; is_bare < 2; is_bare++) {
        struct tensor in = tensor_f32(f, N, ROWS, 1, x), out = tensor_f32(f, N, ROWS, 1, NULL);
        struct tensor tw = tensor_f32(f, N, 1, 1, w), tb = tensor_f32(f, N, 1, 1, bias);
        struct op op = {.kind = OP_LAYER_NORM, .in = {in}, .out = {out}, .norm = {.eps = 1e-6f}};
        if (!is_bare) {
            op.vec[NORM_W] = tw;
            op.vec[NORM_BIAS] = tb;
        }
        backend_enqueue(f->device, &op);
        assert_int_equal(backend_read(f->device, &out, got, &e), ERR_OK);
        for (int r = 0; r < ROWS; r++) {
            double mean = 0, sum = 0;
            for (int i = 0; i < N; i++)
                mean += (double)x[r * N + i] / N;
            for (int i = 0; i < N; i++)
                sum += ((double)x[r * N + i] - mean) * ((double)x[r * N + i] - mean);
            for (int i = 0; i < N; i++) {
                double y = ((double)x[r * N + i] - mean) / sqrt(sum / N + 1e-6);
                y = is_bare ? y : y * (double)w[i] + (double)bias[i];
                assert_true(fabs((double)got[r * N + i] - y) < (r ? 2e-6 : 2e-4));
            }
        }
        backend_buffer_close(f->device, &in.buffer);
        backend_buffer_close(f->device, &out.buffer);
        backend_buffer_close(f->device, &tw.buffer);
        backend_buffer_close(f->device, &tb.buffer);
    }
}

/* Each part of a row by itself. */
static void rms_norm_adds_a_bias(void **state)
{
    enum { N = 37, N_PART = 2, ROWS = 3 };
    struct fixture *f = *state;
    struct err e;
    float x[ROWS * N_PART * N], w[N], bias[N], got[ROWS * N_PART * N];
    fill(f, x, ROWS * N_PART * N);
    fill(f, w, N);
    fill(f, bias, N);
    struct tensor in = tensor_f32(f, N_PART * N, ROWS, 1, x), tw = tensor_f32(f, N, 1, 1, w),
                  tb = tensor_f32(f, N, 1, 1, bias);
    backend_enqueue(f->device,
                    &(struct op){.kind = OP_RMS_NORM, .in = {in}, .out = {in}, .vec = {tw, tb}, .norm = {N, 1e-3f}});
    assert_int_equal(backend_read(f->device, &in, got, &e), ERR_OK);
    for (int r = 0; r < ROWS * N_PART; r++) {
        double sum = 0;
        for (int i = 0; i < N; i++)
            sum += (double)x[r * N + i] * (double)x[r * N + i];
        for (int i = 0; i < N; i++) {
            double y = (double)x[r * N + i] / sqrt(sum / N + 1e-3) * (double)w[i] + (double)bias[i];
            assert_true(fabs((double)got[r * N + i] - y) < 2e-6);
        }
    }
    backend_buffer_close(f->device, &in.buffer);
    backend_buffer_close(f->device, &tw.buffer);
    backend_buffer_close(f->device, &tb.buffer);
}

enum { D_HEAD_K = 2, D_HEAD_V = 6, D_K = 20, D_V = 37, D_MIXED = 2 * D_HEAD_K * D_K + D_HEAD_V * D_V };
#define D_EPS 1e-3f /* large, so that it shows */

struct delta_data {
    float x[R_M * D_MIXED], alpha[R_M * D_HEAD_V * D_K], beta[R_M * D_HEAD_V], dt[D_HEAD_V * D_K], a[D_HEAD_V];
    float skip[D_HEAD_V];
    int n_decay; /* of a head: 1 or D_K */
    float min_log_decay;
    float state[D_HEAD_V * D_V * D_K], out[R_M * D_HEAD_V * D_V], after[D_HEAD_V * D_V * D_K];
};

static void unit_vector(const float *x, double *y)
{
    double sum = (double)D_EPS;
    for (int i = 0; i < D_K; i++)
        sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < D_K; i++)
        y[i] = (double)x[i] / sqrt(sum);
}

/* The decay of a head's key dimension j at token t. */
static double decay_of(const struct delta_data *d, int t, int head, int j)
{
    int i = head * d->n_decay + j % d->n_decay;
    double step = (double)d->alpha[t * D_HEAD_V * d->n_decay + i] + (double)d->dt[i], a = (double)d->a[head];
    return exp(d->min_log_decay < 0 ? (double)d->min_log_decay / (1 + exp(-a * step)) : a * log(1 + exp(step)));
}

/* One value head by the definition, in double: its state matrix decays, forgets what it knew under k, learns v. */
static void expect_delta_head(const struct delta_data *d, int head, int head_k)
{
    double s[D_V][D_K], q[D_K], k[D_K];
    for (int i = 0; i < D_V * D_K; i++)
        s[i / D_K][i % D_K] = (double)d->state[head * D_V * D_K + i];
    for (int t = 0; t < R_M; t++) {
        const float *x = d->x + t * D_MIXED;
        unit_vector(x + head_k * D_K, q);
        unit_vector(x + (D_HEAD_K + head_k) * D_K, k);
        double decay[D_K];
        for (int j = 0; j < D_K; j++)
            decay[j] = decay_of(d, t, head, j);
        double beta = 1 / (1 + exp(-(double)d->beta[t * D_HEAD_V + head]));
        for (int i = 0; i < D_V; i++) {
            double v = (double)x[2 * D_HEAD_K * D_K + head * D_V + i], known = 0, o = 0;
            for (int j = 0; j < D_K; j++)
                known += decay[j] * s[i][j] * k[j];
            for (int j = 0; j < D_K; j++) {
                s[i][j] = decay[j] * s[i][j] + beta * (v - known) * k[j];
                o += s[i][j] * q[j] / sqrt(D_K);
            }
            assert_true(fabs((double)d->out[(t * D_HEAD_V + head) * D_V + i] - o) < 2e-6);
        }
    }
    for (int i = 0; i < D_V * D_K; i++)
        assert_true(fabs((double)d->after[head * D_V * D_K + i] - s[i / D_K][i % D_K]) < 5e-6);
}

/* One head of a state space by the definition, in double. */
static void expect_space_head(const struct delta_data *d, int head, int head_k)
{
    double s[D_V][D_K];
    for (int i = 0; i < D_V * D_K; i++)
        s[i / D_K][i % D_K] = (double)d->state[head * D_V * D_K + i];
    for (int t = 0; t < R_M; t++) {
        const float *x = d->x + t * D_MIXED, *q = x + head_k * D_K, *k = x + (D_HEAD_K + head_k) * D_K;
        double step = d->n_decay ? log(1 + exp((double)d->alpha[t * D_HEAD_V + head] + (double)d->dt[head])) : 1;
        double decay = exp((double)d->a[head] * step), size = 1;
        for (int i = 0; i < D_V; i++) {
            double v = (double)x[2 * D_HEAD_K * D_K + head * D_V + i], o = (double)d->skip[head] * v;
            for (int j = 0; j < D_K; j++) {
                s[i][j] = decay * s[i][j] + step * v * (double)k[j];
                o += s[i][j] * (double)q[j];
                size += fabs(s[i][j] * (double)q[j]);
            }
            assert_true(fabs((double)d->out[(t * D_HEAD_V + head) * D_V + i] - o) < 1e-6 * size);
        }
    }
    for (int i = 0; i < D_V * D_K; i++)
        assert_true(fabs((double)d->after[head * D_V * D_K + i] - s[i / D_K][i % D_K]) < 1e-4);
}

/* The delta rule with so many decays a head, which may have a lower bound, or a state space; n_decay 0: with fixed
 * ones. */
static void expect_recurrence(struct fixture *f, bool is_space, int n_decay, float min_log_decay)
{
    static const int32_t page_0[R_M];
    int n_alpha = D_HEAD_V * (n_decay ? n_decay : 1);
    struct delta_data *d = calloc(1, sizeof *d);
    d->n_decay = n_decay;
    d->min_log_decay = min_log_decay;
    for (int grouped = 0; grouped < 2; grouped++) {
        fill(f, d->skip, D_HEAD_V);
        fill(f, d->x, R_M * D_MIXED);
        fill(f, d->alpha, (size_t)(R_M * n_alpha));
        fill(f, d->beta, R_M * D_HEAD_V);
        fill(f, d->dt, (size_t)n_alpha);
        fill(f, d->a, D_HEAD_V);
        fill(f, d->state, D_HEAD_V * D_V * D_K);
        d->alpha[0] = 30; /* softplus of it is the number itself */
        d->alpha[1] = -30;
        for (int i = 0; i < D_HEAD_V; i++)
            d->a[i] = -fabsf(d->a[i]) / 4;
        struct op op = {
            .kind = OP_DELTA,
            .in = {[DELTA_QKV] = tensor_f32(f, D_MIXED, R_M, 1, d->x),
                   [DELTA_ALPHA] = tensor_f32(f, n_alpha, R_M, 1, d->alpha),
                   [DELTA_BETA] = tensor_f32(f, D_HEAD_V, R_M, 1, d->beta),
                   [DELTA_FROM] = tensor_i32(f, R_M, 1, page_0),
                   [DELTA_TO] = tensor_i32(f, R_M, 1, page_0)},
            .out = {tensor_f32(f, D_HEAD_V * D_V, R_M, 1, NULL)},
            .vec = {[DELTA_DT] = tensor_f32(f, n_alpha, 1, 1, d->dt), [DELTA_A] = tensor_f32(f, D_HEAD_V, 1, 1, d->a)},
            .state = {paged_zeros(f, ELEM_F32, D_K, D_V, D_HEAD_V, 1, false)},
            .delta = {.n_head_k = D_HEAD_K, .grouped = grouped, .eps = D_EPS, .min_log_decay = min_log_decay}};
        if (is_space) {
            op.kind = OP_SSM;
            backend_buffer_close(f->device, &op.in[DELTA_BETA].buffer);
            op.in[DELTA_BETA] = (struct tensor){0};
            op.vec[SSM_SKIP] = tensor_f32(f, D_HEAD_V, 1, 1, d->skip);
        }
        if (n_decay == 0) {
            backend_buffer_close(f->device, &op.in[DELTA_ALPHA].buffer);
            backend_buffer_close(f->device, &op.vec[DELTA_DT].buffer);
            op.in[DELTA_ALPHA] = op.vec[DELTA_DT] = (struct tensor){0};
        }
        run_pieces(f, &op, d->state, R_M, d->out, d->after);
        for (int head = 0; head < D_HEAD_V; head++)
            (is_space ? expect_space_head
                      : expect_delta_head)(d, head, grouped ? head / (D_HEAD_V / D_HEAD_K) : head % D_HEAD_K);
        expect_pieces(f, &op, d->state, d->out, d->after);
        close_recurrent(f, &op);
    }
    free(d);
}

static void delta_rule_learns_token_by_token_whatever_the_pieces(void **state)
{
    expect_recurrence(*state, false, 1, 0);
    expect_recurrence(*state, false, 1, -2);
}

static void delta_rule_may_have_a_decay_for_each_key_dimension(void **state)
{
    expect_recurrence(*state, false, D_K, 0);
    expect_recurrence(*state, false, D_K, -2);
}

static void state_space_takes_token_by_token_whatever_the_pieces(void **state)
{
    expect_recurrence(*state, true, 1, 0);
    expect_recurrence(*state, true, 0, 0);
}

enum { S_DIM = 37 };

struct scan_data {
    float x[R_M * S_DIM], alpha[R_M * S_DIM], qk[R_M * 2 * D_K], dt[S_DIM], a[S_DIM * D_K], skip[S_DIM];
    float state[S_DIM * D_K], out[R_M * S_DIM], after[S_DIM * D_K];
};

/* A value dimension of a selective state space by the definition, in double. */
static void expect_scan_dim(const struct scan_data *d, int dim)
{
    double s[D_K];
    for (int j = 0; j < D_K; j++)
        s[j] = (double)d->state[dim * D_K + j];
    for (int t = 0; t < R_M; t++) {
        const float *q = d->qk + t * 2 * D_K, *k = q + D_K;
        double step = log(1 + exp((double)d->alpha[t * S_DIM + dim] + (double)d->dt[dim]));
        double v = (double)d->x[t * S_DIM + dim], o = (double)d->skip[dim] * v, size = 1;
        for (int j = 0; j < D_K; j++) {
            s[j] = exp(step * (double)d->a[dim * D_K + j]) * s[j] + step * v * (double)k[j];
            o += s[j] * (double)q[j];
            size += fabs(s[j] * (double)q[j]);
        }
        assert_true(fabs((double)d->out[t * S_DIM + dim] - o) < 1e-6 * size);
    }
    for (int j = 0; j < D_K; j++)
        assert_true(fabs((double)d->after[dim * D_K + j] - s[j]) < 1e-4);
}

static void selective_state_space_has_steps_for_each_value_dimension(void **state)
{
    static const int32_t page_0[R_M];
    struct fixture *f = *state;
    struct scan_data *d = calloc(1, sizeof *d);
    fill(f, d->x, R_M * S_DIM);
    fill(f, d->alpha, R_M * S_DIM);
    fill(f, d->qk, R_M * 2 * D_K);
    fill(f, d->dt, S_DIM);
    fill(f, d->a, S_DIM * D_K);
    fill(f, d->skip, S_DIM);
    fill(f, d->state, S_DIM * D_K);
    d->alpha[0] = 30; /* softplus of it is the number itself */
    d->alpha[1] = -30;
    for (int i = 0; i < S_DIM * D_K; i++)
        d->a[i] = -fabsf(d->a[i]) / 4;
    struct op op = {.kind = OP_SSM,
                    .in = {[DELTA_QKV] = tensor_f32(f, S_DIM, R_M, 1, d->x),
                           [DELTA_ALPHA] = tensor_f32(f, S_DIM, R_M, 1, d->alpha),
                           [SSM_QK] = tensor_f32(f, 2 * D_K, R_M, 1, d->qk),
                           [DELTA_FROM] = tensor_i32(f, R_M, 1, page_0),
                           [DELTA_TO] = tensor_i32(f, R_M, 1, page_0)},
                    .out = {tensor_f32(f, S_DIM, R_M, 1, NULL)},
                    .vec = {[DELTA_DT] = tensor_f32(f, S_DIM, 1, 1, d->dt),
                            [DELTA_A] = tensor_f32(f, D_K, S_DIM, 1, d->a),
                            [SSM_SKIP] = tensor_f32(f, S_DIM, 1, 1, d->skip)},
                    .state = {paged_zeros(f, ELEM_F32, D_K, S_DIM, 1, 1, false)},
                    .delta = {.n_head_k = 1}};
    run_pieces(f, &op, d->state, R_M, d->out, d->after);
    for (int i = 0; i < S_DIM; i++)
        expect_scan_dim(d, i);
    expect_pieces(f, &op, d->state, d->out, d->after);
    close_recurrent(f, &op);
    free(d);
}

/* ---- experts ------------------------------------------------------------------------------------------------- */

struct moe {
    float x[M * N_EMBD], gate[N_EXPERT][N_FF * N_EMBD], up[N_EXPERT][N_FF * N_EMBD], down[N_EXPERT][N_EMBD * N_FF];
    float gate_bias[N_EXPERT][N_FF], up_bias[N_EXPERT][N_FF],
        down_bias[N_EXPERT][N_EMBD]; /* zeros unless tbias is there */
    int32_t ids[M * N_USED];
    struct slot_pool *slot_pool;
    struct tensor tx, tids, tbias[3];
};

static struct moe *open_moe(struct fixture *f)
{
    struct err e;
    struct moe *m = calloc(1, sizeof *m);
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct slot_pool_desc d = {{q, q, q}, N_EMBD, N_FF, N_EXPERT};
    assert_int_equal(backend_slot_pool_create(f->device, &d, &m->slot_pool, &e), ERR_OK);
    for (int64_t i = 0; i < d.n_slot; i++)
        assert_true(backend_slot_open(f->device, m->slot_pool, i));
    fill(f, m->x, M * N_EMBD);
    for (int i = 0; i < N_EXPERT; i++) {
        fill(f, m->gate[i], N_FF * N_EMBD);
        fill(f, m->up[i], N_FF * N_EMBD);
        fill(f, m->down[i], N_EMBD * N_FF);
        /* expert i lies in slot N_EXPERT - 1 - i, so that ids and slots can't be confused */
        const float *matrices[] = {m->gate[i], m->up[i], m->down[i]};
        for (int k = 0; k < 6; k++) {
            int64_t row0 = k % 2 ? 16 : 0, n_row = k % 2 ? (k < 4 ? N_FF : N_EMBD) - 16 : 16;
            const float *rows = matrices[k / 2] + row0 * (k < 4 ? N_EMBD : N_FF);
            assert_int_equal(backend_slot_fill(f->device, m->slot_pool, N_EXPERT - 1 - i,
                                               &(struct slot_rows){k / 2, rows, false, row0, n_row}, &e),
                             ERR_OK);
        }
    }
    for (int i = 0; i < M * N_USED; i++)
        m->ids[i] = (i % N_USED + i / N_USED * 2) % N_EXPERT; /* some experts are busy, all distinct in a token */
    m->tx = tensor_f32(f, N_EMBD, M, 1, m->x);
    m->tids = tensor_i32(f, N_USED, M, m->ids);
    return m;
}

static void close_moe(struct fixture *f, struct moe *m)
{
    backend_slot_pool_close(f->device, &m->slot_pool);
    backend_buffer_close(f->device, &m->tx.buffer);
    backend_buffer_close(f->device, &m->tids.buffer);
    for (int i = 0; i < 3; i++)
        backend_buffer_close(f->device, &m->tbias[i].buffer);
    free(m);
}

/* Row `row` of y by the definition, in double. */
static void expected_row(const struct moe *m, int row, double *y)
{
    int e = m->ids[row];
    const float *x = m->x + row / N_USED * N_EMBD;
    double h[N_FF];
    for (int i = 0; i < N_FF; i++) {
        double g = m->gate_bias[e][i], u = m->up_bias[e][i];
        for (int k = 0; k < N_EMBD; k++) {
            g += (double)m->gate[e][i * N_EMBD + k] * x[k];
            u += (double)m->up[e][i * N_EMBD + k] * x[k];
        }
        h[i] = g / (1 + exp(-g)) * u;
    }
    for (int i = 0; i < N_EMBD; i++) {
        y[i] = m->down_bias[e][i];
        for (int k = 0; k < N_FF; k++)
            y[i] += (double)m->down[e][i * N_FF + k] * h[k];
    }
}

static void run_experts(struct fixture *f, const struct moe *m, const int32_t *table, int64_t sort_cutoff, float *y)
{
    struct err e;
    struct tensor slots = tensor_i32(f, N_EXPERT, 1, table), out = tensor_f32(f, N_EMBD, N_USED, M, y);
    backend_enqueue(
        f->device,
        &(struct op){.kind = OP_EXPERTS,
                     .in = {[EXPERTS_X] = m->tx, [EXPERTS_IDS] = m->tids, [EXPERTS_SLOTS] = slots},
                     .out = {out},
                     .vec = {[EXPERT_GATE] = m->tbias[0], [EXPERT_UP] = m->tbias[1], [EXPERT_DOWN] = m->tbias[2]},
                     .slot_pool = m->slot_pool,
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

static void experts_add_their_own_biases_wherever_they_lie(void **state)
{
    struct fixture *f = *state;
    struct moe *m = open_moe(f);
    static const int32_t table[N_EXPERT] = {5, 4, 3, 2, 1, 0};
    fill(f, m->gate_bias[0], N_EXPERT * N_FF);
    fill(f, m->up_bias[0], N_EXPERT * N_FF);
    fill(f, m->down_bias[0], N_EXPERT * N_EMBD);
    m->tbias[0] = tensor_f32(f, N_FF, N_EXPERT, 1, m->gate_bias[0]);
    m->tbias[1] = tensor_f32(f, N_FF, N_EXPERT, 1, m->up_bias[0]);
    m->tbias[2] = tensor_f32(f, N_EMBD, N_EXPERT, 1, m->down_bias[0]);
    float direct[M * N_USED * N_EMBD] = {0}, sorted[M * N_USED * N_EMBD] = {0};
    run_experts(f, m, table, M, direct);
    run_experts(f, m, table, 1, sorted);
    assert_memory_equal(direct, sorted, sizeof direct);
    for (int row = 0; row < M * N_USED; row++) {
        double want[N_EMBD];
        expected_row(m, row, want);
        for (int i = 0; i < N_EMBD; i++)
            assert_true(fabs(direct[row * N_EMBD + i] - want[i]) < 1e-4);
    }
    close_moe(f, m);
}

/* As some ranks of a token may be computed elsewhere. */
static void experts_leave_rows_without_an_expert_alone(void **state)
{
    struct fixture *f = *state;
    struct moe *m = open_moe(f);
    static const int32_t table[N_EXPERT] = {5, 4, 3, 2, 1, 0};
    float want[M * N_USED * N_EMBD] = {0}, got[M * N_USED * N_EMBD];
    int32_t ids[M * N_USED];
    run_experts(f, m, table, M, want);
    for (int64_t cutoff = 1; cutoff <= M; cutoff += M - 1)
        for (int n_gone = 1; n_gone <= N_USED; n_gone++) { /* at last all of them */
            for (int i = 0; i < M * N_USED; i++)
                ids[i] = (i + i / N_USED) % N_USED < n_gone ? -1 : m->ids[i];
            backend_write(f->device, &m->tids, ids);
            for (int i = 0; i < M * N_USED * N_EMBD; i++)
                got[i] = 12345;
            uint64_t n_row = backend_counters(f->device).n_expert_rows;
            run_experts(f, m, table, cutoff, got);
            assert_int_equal(backend_counters(f->device).n_expert_rows - n_row, M * (N_USED - n_gone));
            for (int i = 0; i < M * N_USED * N_EMBD; i++)
                assert_true(got[i] == (ids[i / N_EMBD] < 0 ? 12345 : want[i]));
        }
    close_moe(f, m);
}

enum { RAW_EMBD = 64, RAW_FF = 96, RAW_BYTES = RAW_EMBD * RAW_FF / 32 * 34 /* of a matrix in Q8_0 */ };

/* n_tok tokens by the first of ids, in a slot_pool of RAW_EMBD by RAW_FF. */
static void run_raw(struct fixture *f, struct slot_pool *slot_pool, const float *x, const int32_t *ids, int64_t n_tok,
                    int64_t sort_cutoff, float *y)
{
    struct err e;
    static const int32_t table[N_EXPERT] = {5, 4, 3, 2, 1, 0};
    struct tensor slots = tensor_i32(f, N_EXPERT, 1, table), out = tensor_f32(f, RAW_EMBD, N_USED, n_tok, NULL);
    struct tensor tx = tensor_f32(f, RAW_EMBD, n_tok, 1, x), tids = tensor_i32(f, N_USED, n_tok, ids);
    backend_enqueue(f->device, &(struct op){.kind = OP_EXPERTS,
                                            .in = {[EXPERTS_X] = tx, [EXPERTS_IDS] = tids, [EXPERTS_SLOTS] = slots},
                                            .out = {out},
                                            .slot_pool = slot_pool,
                                            .experts = {ACT_SILU, sort_cutoff}});
    assert_int_equal(backend_read(f->device, &out, y, &e), ERR_OK);
    backend_buffer_close(f->device, &slots.buffer);
    backend_buffer_close(f->device, &out.buffer);
    backend_buffer_close(f->device, &tx.buffer);
    backend_buffer_close(f->device, &tids.buffer);
}

/* Experts in two slot pools: packed in the one, as a file has them in the other. */
struct raw {
    uint8_t matrix[N_EXPERT][3][RAW_BYTES];
    float x[M * RAW_EMBD];
    int32_t ids[M * N_USED];
    struct slot_pool *packed, *raw;
};

static void pack_expert(struct fixture *f, struct raw *r, int64_t slot)
{
    struct err e;
    assert_true(backend_slot_open(f->device, r->packed, slot) && backend_slot_open(f->device, r->raw, slot));
    for (int i = 0; i < 3; i++) {
        const struct slot_rows rows = {i, r->matrix[N_EXPERT - 1 - slot][i], false, 0, i < 2 ? RAW_FF : RAW_EMBD};
        assert_int_equal(backend_slot_fill(f->device, r->packed, slot, &rows, &e), ERR_OK);
    }
}

static struct raw *open_raw(struct fixture *f)
{
    struct err e;
    struct raw *r = calloc(1, sizeof *r);
    const struct quant_info *q = quant_info(QUANT_Q8_0);
    const struct slot_pool_desc d = {{q, q, q}, RAW_EMBD, RAW_FF, N_EXPERT};
    assert_int_equal(backend_slot_pool_create(f->device, &d, &r->packed, &e), ERR_OK);
    assert_int_equal(backend_slot_pool_create(f->device, &d, &r->raw, &e), ERR_OK);
    fill(f, r->x, M * RAW_EMBD);
    for (int i = 0; i < M * N_USED; i++)
        r->ids[i] = (i % N_USED + i / N_USED * 2) % N_EXPERT;
    for (int i = 0; i < 3 * N_EXPERT; i++)
        for (int j = 0; j < RAW_BYTES; j++) /* d: 2^-9 */
            r->matrix[i / 3][i % 3][j] = j % 34 == 0 ? 0 : j % 34 == 1 ? 0x18 : (uint8_t)random_u32(&f->random);
    for (int64_t slot = 0; slot < N_EXPERT; slot++)
        pack_expert(f, r, slot);
    return r;
}

static void close_raw(struct fixture *f, struct raw *r)
{
    backend_slot_pool_close(f->device, &r->packed);
    backend_slot_pool_close(f->device, &r->raw);
    free(r);
}

/* Puts all matrices into their slots as a read would, at no particular place in a block. */
static void read_raw(struct fixture *f, struct raw *r, int shift)
{
    for (int i = 0; i < 3 * N_EXPERT; i++) {
        char *room = backend_slot_room(f->device, r->raw, i / 3, i % 3, false);
        assert_non_null(room);
        char *at = room + (i * 371 + shift) % SLOT_ALIGN;
        memcpy(at, r->matrix[N_EXPERT - 1 - i / 3][i % 3], RAW_BYTES);
        backend_slot_adopt(f->device, r->raw, i / 3, i % 3, at, false);
    }
}

/* Of one token and of many, by either dispatch. */
static const struct raw_mode {
    int64_t n_tok, cutoff;
} raw_modes[] = {{1, 1}, {M, M}, {M, 1}};

static void expect_raw_as_packed(struct fixture *f, const struct raw *r, const struct raw_mode *mode)
{
    static float want[M * N_USED * RAW_EMBD], got[M * N_USED * RAW_EMBD];
    memset(got, 0, sizeof got);
    run_raw(f, r->packed, r->x, r->ids, mode->n_tok, mode->cutoff, want);
    run_raw(f, r->raw, r->x, r->ids, mode->n_tok, mode->cutoff, got);
    assert_memory_equal(got, want, (size_t)(mode->n_tok * N_USED * RAW_EMBD) * sizeof *want);
}

/* Matrices that were read straight into their slots are packed by the first operation that uses them. */
static void raw_experts_give_the_bits_of_packed_ones(void **state)
{
    struct fixture *f = *state;
    needs_cpu(); /* other devices have no room to read to */
    struct raw *r = open_raw(f);
    for (int i = 0; i < 3; i++) {
        read_raw(f, r, i);
        expect_raw_as_packed(f, r, &raw_modes[i]);
        expect_raw_as_packed(f, r, &raw_modes[i]);
        expect_raw_as_packed(f, r, &raw_modes[2]); /* those that are still raw, and the others */
    }
    close_raw(f, r);
}

/* Copies each matrix from one pool to the other, in two pieces, over something else. */
static void copy_experts(struct fixture *f, const struct raw *r, bool is_used)
{
    struct err e;
    for (int i = 0; i < 3 * N_EXPERT; i++) {
        bool is_packed;
        int64_t n_row = i % 3 < 2 ? RAW_FF : RAW_EMBD;
        const char *from = backend_slot_bytes(f->device, r->raw, i / 3, i % 3, &is_packed);
        assert_non_null(from);
        assert_true(is_packed || !is_used); /* some devices pack at once */
        struct slot_rows rows = {i % 3, r->matrix[0][0], false, 0, n_row};
        assert_int_equal(backend_slot_fill(f->device, r->packed, i / 3, &rows, &e), ERR_OK);
        for (int64_t row = 0; row < n_row; row += 32) {
            int64_t n = n_row - row < 32 ? n_row - row : 32;
            rows = (struct slot_rows){i % 3, from + row * (RAW_BYTES / n_row), is_packed, row, n};
            assert_int_equal(backend_slot_fill(f->device, r->packed, i / 3, &rows, &e), ERR_OK);
        }
    }
}

/* From another device's slots, before an operation has used them and after. */
static void copied_experts_give_the_bits_of_those_that_they_come_from(void **state)
{
    static float want[M * N_USED * RAW_EMBD], got[M * N_USED * RAW_EMBD];
    struct fixture *f = *state;
    needs_cpu();
    struct raw *r = open_raw(f);
    run_raw(f, r->packed, r->x, r->ids, M, 1, want);
    read_raw(f, r, 1);
    for (int i = 0; i < 2; i++) {
        copy_experts(f, r, i > 0);
        run_raw(f, r->packed, r->x, r->ids, M, 1, got);
        assert_memory_equal(got, want, sizeof want);
        run_raw(f, r->raw, r->x, r->ids, M, 1, got);
        assert_memory_equal(got, want, sizeof want);
    }
    close_raw(f, r);
}

static bool always(void *user)
{
    return true;
}

static void no_task(void *arg, size_t task, int thread)
{
}

/* What a cancelled operation computes is nobody's business, but experts are packed whole or not at all. */
static void cancelled_operations_leave_experts_in_order(void **state)
{
    static const struct cancel now = {always, NULL};
    static float y[M * N_USED * RAW_EMBD];
    struct fixture *f = *state;
    needs_cpu();
    struct raw *r = open_raw(f);
    for (int i = 0; i < 3; i++) {
        read_raw(f, r, i);
        pool_set_cancel(f->pool, &now);
        while (!pool_is_cancelled(f->pool)) /* the other threads may have taken all tasks */
            pool_run(f->pool, 10, no_task, NULL);
        run_raw(f, r->raw, r->x, r->ids, raw_modes[i].n_tok, raw_modes[i].cutoff, y);
        pool_set_cancel(f->pool, NULL);
        for (int k = 0; k < 3; k++)
            expect_raw_as_packed(f, r, &raw_modes[k]);
    }
    close_raw(f, r);
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
    backend_enqueue(f->device, &(struct op){.kind = OP_COMBINE,
                                            .in = {[COMBINE_Y] = ty, [COMBINE_WEIGHTS] = tw, [COMBINE_SHARED] = ts},
                                            .out = {out}});
    assert_int_equal(backend_read(f->device, &out, &got, &e), ERR_OK);
    assert_true(got == 1.25f);
    backend_enqueue(
        f->device,
        &(struct op){
            .kind = OP_COMBINE,
            .in = {[COMBINE_Y] = ty, [COMBINE_WEIGHTS] = tw, [COMBINE_SHARED] = ts, [COMBINE_SHARED_GATE] = tg},
            .out = {out}});
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

/* Floats whose lower half is empty take half of the room, and the products are the same to the bit. */
static void floats_that_fit_bf16_are_kept_so(void **state)
{
    enum { N_ROW = 200, LAST = N_ROW - 1 };
    struct fixture *f = *state;
    needs_cpu();
    struct err e;
    float w[N_ROW * N_EMBD], x[M * N_EMBD], y[2][M * N_ROW];
    fill(f, w, N_ROW * N_EMBD);
    fill(f, x, M * N_EMBD);
    for (int i = 0; i < N_ROW * N_EMBD; i++) {
        uint32_t bits;
        memcpy(&bits, &w[i], 4);
        bits &= 0xffff0000;
        memcpy(&w[i], &bits, 4);
    }
    struct tensor tx = tensor_f32(f, N_EMBD, M, 1, x), ty = tensor_f32(f, N_ROW, M, 1, NULL);
    for (int i = 0; i < 2; i++) {
        size_t before = mem_mapped_bytes(MEM_WEIGHTS);
        struct weight *weight = weight_f32(f, N_ROW, w);
        assert_int_equal(mem_mapped_bytes(MEM_WEIGHTS) - before, mem_length(sizeof w / (i == 0 ? 2 : 1)));
        backend_enqueue(f->device, &(struct op){.kind = OP_MATMUL, .in = {tx}, .out = {ty}, .weight = {weight}});
        assert_int_equal(backend_read(f->device, &ty, y[i], &e), ERR_OK);
        backend_weight_close(f->device, &weight);
        w[N_ROW * N_EMBD - 1] = 0.1f; /* one that does not fit, in the last row */
    }
    for (int t = 0; t < M; t++)
        assert_memory_equal(y[0] + t * N_ROW, y[1] + t * N_ROW, LAST * sizeof(float));
    backend_buffer_close(f->device, &tx.buffer);
    backend_buffer_close(f->device, &ty.buffer);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static size_t held(struct fixture *f, enum mem_tag tag)
{
    for (enum mem_tag i = 0; i < MEM_N_TAG; i++)
        assert_true(i == tag || i == MEM_SCRATCH || backend_held_bytes(f->device, i) == 0);
    return backend_held_bytes(f->device, tag);
}

static void a_device_knows_what_it_holds(void **state)
{
    struct fixture *f = *state;
    struct err e;
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct slot_pool_desc d = {{q, q, q}, N_EMBD, N_FF, 3};
    struct slot_pool *slots;
    struct buffer *buf;
    float values[N_EMBD * N_EMBD];
    fill(f, values, N_EMBD * N_EMBD);
    struct weight *w = weight_f32(f, N_EMBD, values);
    backend_trim(f->device); /* what packing took */
    assert_int_equal(held(f, MEM_WEIGHTS), mem_length(sizeof values));
    assert_int_equal(held(f, MEM_WEIGHTS), mem_mapped_bytes(MEM_WEIGHTS));
    backend_weight_close(f->device, &w);

    assert_int_equal(backend_slot_pool_create(f->device, &d, &slots, &e), ERR_OK);
    assert_int_equal(held(f, MEM_EXPERTS), 0);
    assert_true(backend_slot_open(f->device, slots, 0) && backend_slot_open(f->device, slots, 2));
    assert_int_equal(held(f, MEM_EXPERTS), 2 * backend_slot_pool_slot_bytes(f->device, &d));
    backend_slot_close(f->device, slots, 0);
    assert_int_equal(held(f, MEM_EXPERTS), backend_slot_pool_slot_bytes(f->device, &d));
    backend_slot_pool_close(f->device, &slots);
    assert_int_equal(held(f, MEM_EXPERTS), 0);

    assert_int_equal(backend_buffer_reserve(f->device, 8 * BUFFER_ALIGN, BUFFER_ALIGN, 1, MEM_STATE, &buf, &e), ERR_OK);
    assert_int_equal(held(f, MEM_STATE), 0);
    assert_true(backend_buffer_commit(f->device, buf, BUFFER_ALIGN, 3 * BUFFER_ALIGN));
    assert_int_equal(held(f, MEM_STATE), 3 * BUFFER_ALIGN);
    backend_buffer_decommit(f->device, buf, BUFFER_ALIGN, BUFFER_ALIGN);
    assert_int_equal(held(f, MEM_STATE), 2 * BUFFER_ALIGN);
    backend_buffer_close(f->device, &buf);
    assert_int_equal(held(f, MEM_STATE), 0);
}

static void devices_count_apart(void **state)
{
    struct fixture *f = *state;
    struct backend *other;
    size_t at_first = backend_held_bytes(f->device, MEM_SCRATCH);
    struct tensor mine = tensor_f32(f, N_EMBD, M, 1, NULL), theirs;
    struct err e;
    size_t before = backend_held_bytes(f->device, MEM_SCRATCH), n_bytes = (size_t)3 << 20;
    assert_int_equal(backend_cpu_open(&other, f->pool, best_kernels(), &e), ERR_OK);
    assert_int_equal(backend_held_bytes(other, MEM_SCRATCH), 0);
    assert_int_equal(backend_tensor_create(other, ELEM_F32, (int64_t)n_bytes / 4, 1, 1, MEM_SCRATCH, &theirs, &e),
                     ERR_OK);
    assert_int_equal(backend_held_bytes(other, MEM_SCRATCH), mem_length(n_bytes));
    assert_int_equal(backend_held_bytes(f->device, MEM_SCRATCH), before);
    backend_buffer_close(other, &theirs.buffer);
    assert_int_equal(backend_held_bytes(other, MEM_SCRATCH), 0);
    backend_close(&other);
    backend_buffer_close(f->device, &mine.buffer);
    backend_trim(f->device);
    assert_int_equal(backend_held_bytes(f->device, MEM_SCRATCH), at_first);
}

/* ---- the checking device ------------------------------------------------------------------------------------- */

static void off_by_a_percent(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up,
                             int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + expf(-gate[i])) * up[i] * 1.01f;
}

/* Norm, product and activation over random inputs on a device; the first error it reports. The product has an empty
 * output, too, as in a layer that lacks what others of its model have. */
static err_code run_three(struct fixture *f, struct err *e)
{
    float x[M * N_EMBD], v[N_EMBD * N_EMBD];
    fill(f, x, M * N_EMBD);
    fill(f, v, N_EMBD * N_EMBD);
    struct tensor a = tensor_f32(f, N_EMBD, M, 1, x), b = tensor_f32(f, N_EMBD, M, 1, NULL);
    struct tensor empty = b;
    struct weight *w = weight_f32(f, N_EMBD, v);
    empty.ne[0] = 0;
    backend_enqueue(f->device, &(struct op){.kind = OP_RMS_NORM, .in = {a}, .out = {b}, .norm = {N_EMBD, 1e-6f}});
    backend_enqueue(f->device, &(struct op){.kind = OP_MATMUL, .in = {b}, .out = {a, empty}, .weight = {w}});
    backend_enqueue(f->device, &(struct op){.kind = OP_ACT_MUL, .in = {a, b}, .out = {a}});
    backend_enqueue(f->device, &(struct op){.kind = OP_ADD, .in = {a, b}, .out = {a}});
    err_code code = backend_wait(f->device, backend_fence(f->device), e);
    backend_weight_close(f->device, &w);
    backend_buffer_close(f->device, &a.buffer);
    backend_buffer_close(f->device, &b.buffer);
    return code;
}

static err_code run_checked(struct fixture *f, const struct kernels *primary,
                            err_code (*run)(struct fixture *f, struct err *e), struct err *e)
{
    struct backend *a, *b;
    struct fixture checked = *f;
    assert_int_equal(backend_cpu_open(&a, f->pool, primary, e), ERR_OK);
    assert_int_equal(backend_cpu_open(&b, f->pool, kernels_reference(), e), ERR_OK);
    assert_int_equal(backend_check_open(&checked.device, a, b, e), ERR_OK);
    err_code code = run(&checked, e);
    backend_close(&checked.device);
    return code;
}

static void checking_device_is_content_with_equal_devices(void **state)
{
    struct err e = {0};
    assert_int_equal(run_checked(*state, best_kernels(), run_three, &e), ERR_OK);
}

static void checking_device_names_the_first_operation_that_differs(void **state)
{
    struct err e = {0};
    struct kernels wrong = *best_kernels();
    wrong.act_mul = off_by_a_percent;
    assert_int_equal(run_checked(*state, &wrong, run_three, &e), ERR_CHECK);
    assert_non_null(strstr(e.text, "operation 3, ACT_MUL"));
}

/* One token and one expert, of whose matrices only up rounds its activations. */
static err_code run_expert_with_rounded_up(struct fixture *f, struct err *e)
{
    static const int32_t zero = 0;
    const struct quant_info *f32 = quant_info(QUANT_F32), *q8 = quant_info(QUANT_Q8_0);
    const struct slot_pool_desc d = {{f32, q8, f32}, N_EMBD, N_FF, 1};
    static float rows[EXPERT_N_MATRIX][N_EMBD * N_FF], x[N_EMBD];
    static char up[N_EMBD * N_FF / 32 * 34];
    struct slot_pool *pool;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        fill(f, rows[i], N_EMBD * N_FF);
    fill(f, x, N_EMBD);
    best_kernels()->f32_to_q8_0(up, rows[EXPERT_UP], N_EMBD * N_FF);
    assert_int_equal(backend_slot_pool_create(f->device, &d, &pool, e), ERR_OK);
    assert_true(backend_slot_open(f->device, pool, 0));
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct slot_rows all = {i, i == EXPERT_UP ? up : (void *)rows[i], false, 0, slot_matrix_rows(&d, i)};
        assert_int_equal(backend_slot_fill(f->device, pool, 0, &all, e), ERR_OK);
    }
    struct tensor in = tensor_f32(f, N_EMBD, 1, 1, x), ids = tensor_i32(f, 1, 1, &zero),
                  slots = tensor_i32(f, 1, 1, &zero), out = tensor_f32(f, N_EMBD, 1, 1, NULL);
    backend_enqueue(
        f->device,
        &(struct op){
            .kind = OP_EXPERTS, .in = {in, ids, slots}, .out = {out}, .slot_pool = pool, .experts = {ACT_SILU, 1}});
    err_code code = backend_wait(f->device, backend_fence(f->device), e);
    struct tensor *all[] = {&in, &ids, &slots, &out};
    for (int i = 0; i < 4; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
    backend_slot_pool_close(f->device, &pool);
    return code;
}

static void checking_device_allows_for_rounding_in_any_matrix_of_an_expert(void **state)
{
    struct err e = {0};
    assert_int_equal(run_checked(*state, best_kernels(), run_expert_with_rounded_up, &e), ERR_OK);
}

/* In chunks of n, token t sees the t % n + 1 last positions. */
static void attention_begins_anew_with_each_chunk(void **state)
{
    static const int64_t chunks[] = {1, 7, 64, 70, 1000};
    struct fixture *f = *state;
    struct attn *a = open_attn(f, ELEM_F16);
    float *got = calloc(A_POS * A_HEAD * A_DV, sizeof *got), one[A_HEAD * A_DV];
    for (int i = 0; i < 5; i++) {
        a->chunked = true;
        run_attn(f, a, chunks[i], true, 0, A_POS, got);
        a->chunked = false;
        for (int t = 0; t < A_POS; t++) {
            if (!is_tested(i + t, 3))
                continue;
            run_attn(f, a, t % chunks[i] + 1, true, t, 1, one);
            assert_memory_equal(one, got + (size_t)t * A_HEAD * A_DV, sizeof one);
        }
    }
    free(got);
    close_attn(f, a);
}

static err_code must_not_be_read(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    fail_msg("the null device read a weight");
    return ERR_OK;
}

static void null_device_holds_nothing(void **state)
{
    struct backend *b;
    struct weight *w;
    struct tensor t;
    struct err e = {0};
    float x[8] = {1, 2, 3};
    const struct weight_desc d = {"w", quant_info(QUANT_F32), 1 << 30, 1 << 30};
    const struct weight_source source = {must_not_be_read, NULL};
    assert_int_equal(backend_null_open(&b, &e), ERR_OK);
    assert_int_equal(backend_weight_load(b, &d, &source, &w, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(b, ELEM_F32, 8, 1, 1, MEM_WEIGHTS, &t, &e), ERR_OK);
    assert_true(w && t.buffer);
    backend_write(b, &t, x);
    assert_int_equal(backend_read(b, &t, x, &e), ERR_OK);
    for (int i = 0; i < 8; i++)
        assert_true(x[i] == 0);
    backend_enqueue(b, &(struct op){.kind = OP_ADD, .in = {t, t}, .out = {t}});
    assert_int_equal(backend_wait(b, backend_fence(b), &e), ERR_OK);
    for (enum mem_tag tag = 0; tag < MEM_N_TAG; tag++)
        assert_int_equal(backend_held_bytes(b, tag), 0);
    backend_buffer_close(b, &t.buffer);
    backend_weight_close(b, &w);
    backend_close(&b);
}

/* What a model is sized by (model/sizes.h): the figures of the device that would hold it, and of products with weights.
 */
static void a_null_device_that_asks_counts_what_the_other_would_hold(void **state)
{
    struct fixture *f = *state;
    struct backend *b;
    struct weight *w;
    struct tensor x, y;
    struct buffer *pages;
    struct err e = {0};
    const struct weight_desc d = {"w", quant_info(QUANT_Q4_K), 512, 100};
    const struct weight_source source = {must_not_be_read, NULL};
    size_t row_bytes;
    assert_true(quant_row_bytes(d.type, 512, &row_bytes));
    assert_int_equal(backend_asking_open(&b, f->device, &e), ERR_OK);
    assert_int_equal(backend_weight_load(b, &d, &source, &w, &e), ERR_OK);
    assert_int_equal(backend_held_bytes(b, MEM_WEIGHTS), backend_weight_bytes(f->device, &d));
    assert_in_range(backend_weight_bytes(f->device, &d), 100 * row_bytes, mem_length(112 * row_bytes));
    assert_int_equal(backend_tensor_create(b, ELEM_F32, 512, 3, 1, MEM_SCRATCH, &x, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(b, ELEM_F32, 100, 3, 1, MEM_SCRATCH, &y, &e), ERR_OK);
    assert_int_equal(backend_held_bytes(b, MEM_SCRATCH), mem_length(512 * 3 * 4) + mem_length(100 * 3 * 4));
    assert_int_equal(backend_buffer_reserve(b, 8 * BUFFER_ALIGN, BUFFER_ALIGN, 1, MEM_STATE, &pages, &e), ERR_OK);
    assert_int_equal(backend_held_bytes(b, MEM_STATE), 0);
    assert_true(backend_buffer_commit(b, pages, 0, 2 * BUFFER_ALIGN));
    backend_buffer_decommit(b, pages, BUFFER_ALIGN, BUFFER_ALIGN);
    assert_int_equal(backend_held_bytes(b, MEM_STATE), BUFFER_ALIGN);
    backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {x}, .out = {y}, .weight = {w}});
    const struct backend_counters c = backend_counters(b);
    assert_true(c.op[OP_MATMUL].n == 1 && c.op[OP_MATMUL].n_bytes == 100 * row_bytes);
    assert_true(c.n_product[d.type->type] == 512 * 100 * 3);
    backend_buffer_close(b, &pages);
    backend_buffer_close(b, &x.buffer);
    backend_buffer_close(b, &y.buffer);
    backend_weight_close(b, &w);
    for (enum mem_tag tag = 0; tag < MEM_N_TAG; tag++)
        assert_int_equal(backend_held_bytes(b, tag), 0);
    backend_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_takes_the_best_and_ties_go_to_the_lower_id),
        cmocka_unit_test(router_weights_are_those_of_the_formula),
        cmocka_unit_test(router_survives_nan),
        cmocka_unit_test(router_survives_infinities),
        cmocka_unit_test_setup_teardown(router_chooses_any_number_of_experts_in_order, open_cpu, close_cpu),
        cmocka_unit_test(router_bias_changes_the_choice_and_not_the_weights),
        cmocka_unit_test(router_scales_the_final_weights_by_expert),
        cmocka_unit_test(router_takes_experts_of_the_best_groups_only),
        cmocka_unit_test(router_may_weigh_the_chosen_by_a_softmax_of_their_own),
        cmocka_unit_test_setup_teardown(rope_table_mixes_frequencies_as_yarn_says, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(attention_sees_its_window_and_its_sinks, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(a_long_context_gives_one_token_the_bits_of_many, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(a_ring_of_positions_gives_the_bits_of_the_whole_cache, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(convolution_is_causal_and_carries_its_inputs_over, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(layer_norm_takes_the_mean_away, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(rms_norm_adds_a_bias, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(delta_rule_learns_token_by_token_whatever_the_pieces, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(delta_rule_may_have_a_decay_for_each_key_dimension, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(state_space_takes_token_by_token_whatever_the_pieces, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(selective_state_space_has_steps_for_each_value_dimension, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_compute_the_formula_by_either_dispatch, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_add_their_own_biases_wherever_they_lie, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_leave_rows_without_an_expert_alone, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(raw_experts_give_the_bits_of_packed_ones, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(copied_experts_give_the_bits_of_those_that_they_come_from, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(cancelled_operations_leave_experts_in_order, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_without_a_slot_leave_their_rows_alone, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(experts_of_an_empty_wave_compute_nothing, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(combine_adds_in_rank_order_and_shared_last, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(failed_read_fails_the_load, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(a_device_knows_what_it_holds, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(devices_count_apart, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(floats_that_fit_bf16_are_kept_so, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(rope_table_lengthens_with_the_position, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(attention_begins_anew_with_each_chunk, open_cpu, close_cpu),
        cmocka_unit_test(null_device_holds_nothing),
        cmocka_unit_test_setup_teardown(a_null_device_that_asks_counts_what_the_other_would_hold, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(checking_device_is_content_with_equal_devices, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(checking_device_names_the_first_operation_that_differs, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(checking_device_allows_for_rounding_in_any_matrix_of_an_expert, open_cpu,
                                        close_cpu),
    };
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
