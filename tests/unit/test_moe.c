/* A MoE layer on a CPU device, with experts behind a fake store: the formula, the waves, substitutes, predictions, and
 * reads that fail. */
#include <math.h>
#include <stdio.h>

#include "device_fixture.h"
#include "experts/experts.h"
#include "moe/moe.h"
#include "store_fake.h"

enum { N_EMBD = 48, N_FF = 32, N_FF_SHARED = 40, N_EXPERT = 8, N_USED = 3, N_LAYER = 2, MOST_TOKENS = 40 };
enum { MATRIX = N_FF * N_EMBD, LAYER = 3 * N_EXPERT * MATRIX }; /* floats */

struct layer_values {
    float router[N_EXPERT * N_EMBD], router_bias[N_EXPERT], choice_bias[N_EXPERT], down_bias[N_EXPERT * N_EMBD];
    float shared_gate[N_FF_SHARED * N_EMBD], shared_up[N_FF_SHARED * N_EMBD], shared_down[N_EMBD * N_FF_SHARED];
    float shared_gate_inp[N_EMBD];
};

struct moe_fixture {
    struct fixture *f;
    float *experts_file; /* [layer][gate, up, down][expert][MATRIX] */
    struct store_fake_file file;
    struct store_layer store_layers[N_LAYER];
    struct expert_layer expert_layers[N_LAYER];
    struct store *store;
    struct experts *experts;
    struct layer_values values[N_LAYER];
    struct moe_layer layers[N_LAYER];
    struct moe_work *work;
    struct tensor x, out; /* [N_EMBD][MOST_TOKENS] */
    float host_x[MOST_TOKENS * N_EMBD];
    struct err e;
};

static const float *expert_matrix(const struct moe_fixture *t, int layer, enum expert_matrix matrix, int32_t expert)
{
    return t->experts_file + layer * LAYER + ((int)matrix * N_EXPERT + expert) * MATRIX;
}

/* n_slot 0: one for every expert. */
static void open_experts(struct moe_fixture *t, int64_t n_slot)
{
    const struct quant_info *q = quant_info(QUANT_F32);
    for (int l = 0; l < N_LAYER; l++) {
        struct store_layer *s = &t->store_layers[l];
        t->expert_layers[l] = (struct expert_layer){l, N_EXPERT, N_USED, {{q, q, q}, N_EMBD, N_FF, 0}};
        s->n_expert = N_EXPERT;
        for (int i = 0; i < EXPERT_N_MATRIX; i++)
            s->part[i] = (struct store_matrix){.type = q,
                                               .n_row = i == EXPERT_DOWN ? N_EMBD : N_FF,
                                               .k = i == EXPERT_DOWN ? N_FF : N_EMBD,
                                               .offset = (uint64_t)(l * LAYER + i * N_EXPERT * MATRIX) * sizeof(float),
                                               .stride_bytes = MATRIX * sizeof(float),
                                               .n_bytes = MATRIX * sizeof(float)};
    }
    assert_int_equal(store_open_fake(&t->store, &t->file, 1, &t->e), ERR_OK);
    store_fake_set_layers(t->store, t->store_layers, N_LAYER);
    size_t slot_bytes = backend_slot_pool_slot_bytes(t->f->device, &t->expert_layers[0].shape);
    const struct experts_params p = {.device = t->f->device,
                                     .store = t->store,
                                     .pool = t->f->pool,
                                     .policy = POLICY_LRU,
                                     .budget_bytes = (size_t)n_slot * slot_bytes};
    assert_int_equal(experts_create(&t->experts, &p, t->expert_layers, N_LAYER, &t->e), ERR_OK);
    assert_int_equal(experts_load(t->experts, NULL, NULL, &t->e), ERR_OK);
    assert_int_equal(experts_open(t->experts, 0, &t->e), ERR_OK);
}

static void close_experts(struct moe_fixture *t)
{
    moe_work_close(&t->work);
    experts_close(&t->experts);
    store_close(&t->store);
}

/* A plain layer: softmax over all experts, weights divided by their sum; no shared expert, no biases. */
static void create_layer(struct moe_fixture *t, int l)
{
    struct layer_values *v = &t->values[l];
    struct fixture *f = t->f;
    fill(f, v->router, N_EXPERT * N_EMBD);
    fill(f, v->shared_gate, N_FF_SHARED * N_EMBD);
    fill(f, v->shared_up, N_FF_SHARED * N_EMBD);
    fill(f, v->shared_down, N_EMBD * N_FF_SHARED);
    fill(f, v->shared_gate_inp, N_EMBD);
    t->layers[l] = (struct moe_layer){.experts_layer = l,
                                      .n_embd = N_EMBD,
                                      .n_latent = N_EMBD,
                                      .n_expert = N_EXPERT,
                                      .n_used = N_USED,
                                      .router = weight_from(f, QUANT_F32, N_EMBD, N_EXPERT, v->router),
                                      .score = ROUTE_SOFTMAX,
                                      .norm_weights = true,
                                      .scale = 1,
                                      .n_group = 1,
                                      .n_group_used = 1,
                                      .act = ACT_SILU};
}

static void add_shared(struct moe_fixture *t, int l)
{
    struct layer_values *v = &t->values[l];
    struct moe_layer *y = &t->layers[l];
    y->n_ff_shared = N_FF_SHARED;
    y->shared_gate = weight_from(t->f, QUANT_F32, N_EMBD, N_FF_SHARED, v->shared_gate);
    y->shared_up = weight_from(t->f, QUANT_F32, N_EMBD, N_FF_SHARED, v->shared_up);
    y->shared_down = weight_from(t->f, QUANT_F32, N_FF_SHARED, N_EMBD, v->shared_down);
    y->shared_gate_inp = weight_from(t->f, QUANT_F32, N_EMBD, 1, v->shared_gate_inp);
}

static void create_work(struct moe_fixture *t)
{
    moe_work_close(&t->work);
    assert_int_equal(moe_work_create(&t->work, t->f->device, t->experts, NULL, t->layers, N_LAYER, MOST_TOKENS, &t->e),
                     ERR_OK);
}

static int open_with(void **state, int64_t n_slot)
{
    struct moe_fixture *t = calloc(1, sizeof *t);
    if (open_cpu((void **)&t->f))
        return -1;
    *state = t;
    t->experts_file = calloc(N_LAYER * LAYER, sizeof(float));
    fill(t->f, t->experts_file, N_LAYER * LAYER);
    t->file = (struct store_fake_file){"fake.gguf", t->experts_file, N_LAYER * LAYER * sizeof(float)};
    open_experts(t, n_slot);
    for (int l = 0; l < N_LAYER; l++)
        create_layer(t, l);
    create_work(t);
    fill(t->f, t->host_x, MOST_TOKENS * N_EMBD);
    t->x = tensor_f32(t->f, N_EMBD, MOST_TOKENS, 1, t->host_x);
    t->out = tensor_f32(t->f, N_EMBD, MOST_TOKENS, 1, NULL);
    return 0;
}

static int open_resident(void **state)
{
    return open_with(state, 0);
}

static int open_three_slots(void **state)
{
    return open_with(state, N_USED);
}

static int open_eight_slots(void **state)
{
    return open_with(state, 8);
}

static int close_all(void **state)
{
    struct moe_fixture *t = *state;
    void *f = t->f;
    close_experts(t);
    for (int l = 0; l < N_LAYER; l++) {
        struct moe_layer *y = &t->layers[l];
        struct weight **weights[] = {&y->router, &y->shared_gate, &y->shared_up, &y->shared_down, &y->shared_gate_inp};
        for (int i = 0; i < 5; i++)
            backend_weight_close(t->f->device, weights[i]);
        backend_buffer_close(t->f->device, &y->router_bias.buffer);
        backend_buffer_close(t->f->device, &y->choice_bias.buffer);
        backend_buffer_close(t->f->device, &y->bias[EXPERT_DOWN].buffer);
    }
    backend_buffer_close(t->f->device, &t->x.buffer);
    backend_buffer_close(t->f->device, &t->out.buffer);
    free(t->experts_file);
    free(t);
    return close_cpu(&f);
}

/* ---- running it ---------------------------------------------------------------------------------------------- */

static err_code forward(struct moe_fixture *t, int layer, int64_t m, const struct moe_run *run, float *y)
{
    struct tensor x = tensor_rows(t->x, 0, m), out = tensor_rows(t->out, 0, m);
    TRY(moe_forward(t->work, &t->layers[layer], &x, &x, &out, run, &t->e));
    return backend_read(t->f->device, &out, y, &t->e);
}

static void run(struct moe_fixture *t, int layer, int64_t m, int64_t sort_cutoff, float *y)
{
    const struct moe_run how = {.sort_cutoff = sort_cutoff};
    assert_int_equal(forward(t, layer, m, &how, y), ERR_OK);
}

/* ---- the formula, in double ---------------------------------------------------------------------------------- */

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* out += weight * down . (silu(in_scale * gate . x) * (in_scale * up . x)) */
static void add_ffn(const float *gate, const float *up, const float *down, int n_ff, const float *x, double in_scale,
                    double weight, double *out)
{
    float h[N_FF + N_FF_SHARED];
    for (int i = 0; i < n_ff; i++) {
        double g = in_scale * dot(gate + i * N_EMBD, x, N_EMBD), u = in_scale * dot(up + i * N_EMBD, x, N_EMBD);
        h[i] = (float)(g / (1 + exp(-g)) * u);
    }
    for (int i = 0; i < N_EMBD; i++)
        out[i] += weight * dot(down + i * n_ff, h, n_ff);
}

/* The softmax over all experts. */
static void softmax_scores(const struct moe_fixture *t, int layer, const float *x, double *s)
{
    double sum = 0;
    for (int i = 0; i < N_EXPERT; i++)
        sum += s[i] = exp(dot(t->values[layer].router + i * N_EMBD, x, N_EMBD) + t->values[layer].router_bias[i]);
    for (int i = 0; i < N_EXPERT; i++)
        s[i] /= sum;
}

/* The N_USED best, best first. */
static void choose(const double *scores, int32_t *ids)
{
    bool taken[N_EXPERT] = {false};
    for (int r = 0; r < N_USED; r++) {
        ids[r] = -1;
        for (int32_t i = 0; i < N_EXPERT; i++)
            if (!taken[i] && (ids[r] < 0 || scores[i] > scores[ids[r]]))
                ids[r] = i;
        taken[ids[r]] = true;
    }
}

/* One token through the given experts, weighed by their scores divided by the sum of these. */
static void want_token(const struct moe_fixture *t, int layer, const float *x, const double *scores, const int32_t *ids,
                       double *out)
{
    const struct moe_layer *l = &t->layers[layer];
    const struct layer_values *v = &t->values[layer];
    double sum = 0;
    memset(out, 0, N_EMBD * sizeof *out);
    for (int r = 0; r < N_USED; r++)
        sum += scores[ids[r]];
    for (int r = 0; r < N_USED; r++) {
        double w = scores[ids[r]] / sum;
        add_ffn(expert_matrix(t, layer, EXPERT_GATE, ids[r]), expert_matrix(t, layer, EXPERT_UP, ids[r]),
                expert_matrix(t, layer, EXPERT_DOWN, ids[r]), N_FF, x, l->weighs_input ? w : 1, l->weighs_input ? 1 : w,
                out);
    }
    if (l->shared_down)
        add_ffn(v->shared_gate, v->shared_up, v->shared_down, N_FF_SHARED, x, 1,
                1 / (1 + exp(-dot(v->shared_gate_inp, x, N_EMBD))), out);
}

static void expect_near(const float *got, const double *want)
{
    double diff = 0, size = 0;
    for (int i = 0; i < N_EMBD; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    assert_true(sqrt(diff / size) < 1e-5);
}

static void expect_formula(const struct moe_fixture *t, int layer, int64_t m, const float *y)
{
    for (int64_t i = 0; i < m; i++) {
        double scores[N_EXPERT], want[N_EMBD];
        int32_t ids[N_USED];
        softmax_scores(t, layer, t->host_x + i * N_EMBD, scores);
        choose(scores, ids);
        want_token(t, layer, t->host_x + i * N_EMBD, scores, ids, want);
        expect_near(y + i * N_EMBD, want);
    }
}

static void a_layer_is_the_weighted_sum_of_the_best_experts(void **state)
{
    struct moe_fixture *t = *state;
    float y[MOST_TOKENS * N_EMBD];
    for (int l = 0; l < N_LAYER; l++)
        for (int64_t m = 1; m <= MOST_TOKENS; m += 13) {
            run(t, l, m, 8, y);
            expect_formula(t, l, m, y);
        }
}

static void the_shared_expert_is_added_behind_its_gate(void **state)
{
    struct moe_fixture *t = *state;
    float y[MOST_TOKENS * N_EMBD];
    add_shared(t, 0);
    create_work(t);
    run(t, 0, MOST_TOKENS, 1, y);
    expect_formula(t, 0, MOST_TOKENS, y);
    run(t, 1, MOST_TOKENS, 1, y); /* which has none, in the same work space */
    expect_formula(t, 1, MOST_TOKENS, y);
}

static void weights_may_multiply_what_goes_in(void **state)
{
    struct moe_fixture *t = *state;
    float y[MOST_TOKENS * N_EMBD];
    t->layers[0].weighs_input = true;
    for (int64_t cutoff = 1; cutoff <= MOST_TOKENS; cutoff += MOST_TOKENS - 1) { /* sorted, direct */
        run(t, 0, MOST_TOKENS, cutoff, y);
        expect_formula(t, 0, MOST_TOKENS, y);
    }
}

static void the_router_may_see_something_else_than_the_experts(void **state)
{
    struct moe_fixture *t = *state;
    float y[N_EMBD], router_x[N_EMBD];
    double scores[N_EXPERT], want[N_EMBD];
    int32_t ids[N_USED];
    fill(t->f, router_x, N_EMBD);
    struct tensor rx = tensor_f32(t->f, N_EMBD, 1, 1, router_x), x = tensor_rows(t->x, 0, 1);
    const struct moe_run how = {.sort_cutoff = 1};
    assert_int_equal(moe_forward(t->work, &t->layers[0], &x, &rx, &x, &how, &t->e), ERR_OK); /* out is x */
    read_back(t->f, &x, y);
    softmax_scores(t, 0, router_x, scores);
    choose(scores, ids);
    want_token(t, 0, t->host_x, scores, ids, want);
    expect_near(y, want);
    backend_buffer_close(t->f->device, &rx.buffer);
}

/* ---- the order of the sum ------------------------------------------------------------------------------------ */

/* Makes the router's logits those, whatever x is. */
static void set_logits(struct moe_fixture *t, const float *logits)
{
    struct moe_layer *l = &t->layers[0];
    struct layer_values *v = &t->values[0];
    if (!l->router_bias.buffer) {
        memset(v->router, 0, sizeof v->router);
        backend_weight_close(t->f->device, &l->router);
        l->router = weight_from(t->f, QUANT_F32, N_EMBD, N_EXPERT, v->router);
        l->router_bias = tensor_f32(t->f, N_EXPERT, 1, 1, NULL);
    }
    memcpy(v->router_bias, logits, sizeof v->router_bias);
    backend_write(t->f->device, &l->router_bias, v->router_bias);
}

/* Experts that answer a constant, whatever x is, each with the weight sigmoid(0). */
static void set_constants(struct moe_fixture *t, const float constants[N_EXPERT])
{
    static const float logits[N_EXPERT];
    struct moe_layer *l = &t->layers[0];
    struct layer_values *v = &t->values[0];
    close_experts(t);
    memset(t->experts_file, 0, LAYER * sizeof(float));
    open_experts(t, 0);
    create_work(t);
    set_logits(t, logits);
    for (int i = 0; i < N_EXPERT * N_EMBD; i++)
        v->down_bias[i] = constants[i / N_EMBD];
    l->bias[EXPERT_DOWN] = tensor_f32(t->f, N_EMBD, N_EXPERT, 1, v->down_bias);
    l->choice_bias = tensor_f32(t->f, N_EXPERT, 1, 1, NULL);
    l->score = ROUTE_SIGMOID;
    l->norm_weights = false;
}

/* What the layer answers if the router holds three experts best, in this order. */
static float answer(struct moe_fixture *t, int32_t a, int32_t b, int32_t c)
{
    float choice_bias[N_EXPERT] = {0}, y[N_EMBD];
    choice_bias[a] = 3;
    choice_bias[b] = 2;
    choice_bias[c] = 1;
    backend_write(t->f->device, &t->layers[0].choice_bias, choice_bias);
    run(t, 0, 1, 1, y);
    for (int i = 1; i < N_EMBD; i++)
        assert_true(y[i] == y[0]);
    return y[0];
}

static void results_are_added_in_rank_order(void **state)
{
    static const float constants[N_EXPERT] = {0x1p25f, 1, -0x1p25f}; /* times 0.5; 0.5 is lost beside 0x1p24 */
    struct moe_fixture *t = *state;
    set_constants(t, constants);
    assert_true(answer(t, 0, 2, 1) == 0.5f);
    assert_true(answer(t, 2, 0, 1) == 0.5f);
    assert_true(answer(t, 0, 1, 2) == 0);
    assert_true(answer(t, 1, 2, 0) == 0);
}

static void the_shared_expert_is_added_last(void **state)
{
    static const float constants[N_EXPERT] = {0x1p25f, 0, -0x1p25f};
    struct moe_fixture *t = *state;
    struct layer_values *v = &t->values[0];
    float x[N_EMBD] = {1};
    struct tensor first = tensor_rows(t->x, 0, 1);
    backend_write(t->f->device, &first, x);
    memset(v->shared_gate, 0, sizeof v->shared_gate);
    memset(v->shared_up, 0, sizeof v->shared_up);
    v->shared_gate[0] = 64; /* silu(64) = 64 */
    v->shared_up[0] = 1.0f / 64;
    for (int i = 0; i < N_EMBD; i++)
        v->shared_down[i * N_FF_SHARED] = 1;
    add_shared(t, 0);
    backend_weight_close(t->f->device, &t->layers[0].shared_gate_inp); /* without a gate */
    set_constants(t, constants);
    assert_true(answer(t, 0, 1, 2) == 1);
    assert_true(answer(t, 0, 2, 1) == 1);
    assert_true(answer(t, 1, 0, 2) == 1);
}

/* ---- waves --------------------------------------------------------------------------------------------------- */

static uint64_t n_expert_ops(const struct moe_fixture *t)
{
    return backend_counters(t->f->device).op[OP_EXPERTS].n;
}

static void waves_give_the_bits_of_resident_experts(void **state)
{
    static const int64_t n_tokens[] = {1, 2, 5, 17, MOST_TOKENS};
    struct moe_fixture *t = *state;
    float want[5][N_LAYER][MOST_TOKENS * N_EMBD], got[MOST_TOKENS * N_EMBD];
    add_shared(t, 1);
    create_work(t);
    for (int i = 0; i < 5; i++)
        for (int l = 0; l < N_LAYER; l++)
            run(t, l, n_tokens[i], 4, want[i][l]);
    for (int64_t n_slot = N_USED; n_slot <= N_EXPERT; n_slot++)
        for (int sorted = 0; sorted < 2; sorted++) {
            close_experts(t);
            open_experts(t, n_slot);
            create_work(t);
            assert_false(experts_is_resident(t->experts, 0));
            for (int i = 0; i < 5; i++)
                for (int l = 0; l < N_LAYER; l++) {
                    run(t, l, n_tokens[i], sorted ? 1 : MOST_TOKENS, got);
                    assert_memory_equal(got, want[i][l], (size_t)n_tokens[i] * N_EMBD * sizeof *got);
                }
        }
}

static void experts_compute_as_they_arrive(void **state)
{
    struct moe_fixture *t = *state;
    float want[MOST_TOKENS * N_EMBD], got[MOST_TOKENS * N_EMBD];
    run(t, 0, MOST_TOKENS, 1, want);
    uint64_t before = n_expert_ops(t);
    run(t, 1, MOST_TOKENS, 1, got); /* three slots, and more experts than that: three waves at least */
    assert_true(n_expert_ops(t) >= before + 3);
    store_fake_set_drive(t->store, (struct store_fake_drive){.latency_ns = 200000, .bytes_per_s = 20000000});
    run(t, 0, MOST_TOKENS, 1, got);
    assert_memory_equal(got, want, sizeof got);
}

static void a_failed_read_fails_the_layer_and_holds_nothing(void **state)
{
    struct moe_fixture *t = *state;
    float want[MOST_TOKENS * N_EMBD], got[MOST_TOKENS * N_EMBD];
    const struct moe_run how = {.sort_cutoff = 1};
    run(t, 0, MOST_TOKENS, 1, want);
    experts_forget(t->experts);
    for (int32_t expert = 0; expert < N_EXPERT; expert++) {
        uint64_t offset = (uint64_t)((char *)expert_matrix(t, 0, EXPERT_DOWN, expert) - (char *)t->experts_file);
        store_fake_add_fault(t->store, (struct store_fault){STORE_FAULT_ERROR, .offset = offset, .n_times = 1});
        assert_int_equal(forward(t, 0, MOST_TOKENS, &how, got), ERR_IO);
        char name[32];
        snprintf(name, sizeof name, "expert %d", (int)expert);
        assert_non_null(strstr(t->e.text, name));
        assert_int_equal(forward(t, 0, MOST_TOKENS, &how, got), ERR_OK); /* through three slots: none is held */
        assert_memory_equal(got, want, sizeof got);
        experts_forget(t->experts);
        store_fake_clear_faults(t->store);
    }
}

/* ---- traces and predictions ---------------------------------------------------------------------------------- */

struct seen {
    int n_routed, n_predicted, routed_layer, predicted_layer;
    int64_t n_tok;
    int32_t routed[MOST_TOKENS * N_USED], predicted[MOST_TOKENS * N_USED];
};

static void keep_routed(void *user, int layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct seen *s = user;
    s->n_routed++;
    s->routed_layer = layer;
    s->n_tok = n_tok;
    assert_int_equal(n_used, N_USED);
    memcpy(s->routed, ids, (size_t)(n_tok * n_used) * sizeof *ids);
}

static void keep_predicted(void *user, int layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct seen *s = user;
    s->n_predicted++;
    s->predicted_layer = layer;
    memcpy(s->predicted, ids, (size_t)(n_tok * n_used) * sizeof *ids);
}

static void a_trace_sees_the_routers_choice_best_first(void **state)
{
    struct moe_fixture *t = *state;
    struct seen seen = {0};
    const struct moe_trace trace = {keep_routed, keep_predicted, &seen};
    const struct moe_run how = {.sort_cutoff = 1, .trace = &trace};
    float y[MOST_TOKENS * N_EMBD];
    assert_int_equal(forward(t, 1, 5, &how, y), ERR_OK);
    assert_int_equal(seen.n_routed, 1);
    assert_int_equal(seen.routed_layer, 1);
    assert_int_equal(seen.n_tok, 5);
    assert_int_equal(seen.n_predicted, 0);
    for (int i = 0; i < 5; i++) {
        double scores[N_EXPERT];
        int32_t ids[N_USED];
        softmax_scores(t, 1, t->host_x + i * N_EMBD, scores);
        choose(scores, ids);
        assert_memory_equal(seen.routed + i * N_USED, ids, sizeof ids);
    }
}

/* A next layer whose router sees x, and the sum of the experts so far added to it. */
struct next_layer {
    struct moe_fixture *t;
    struct tensor x, router_x;
    int n_calls, n_with_sum;
};

static void fill_router_x(void *user, const struct tensor *sum)
{
    struct next_layer *n = user;
    n->n_calls++;
    n->n_with_sum += sum->buffer != NULL;
    if (sum->buffer)
        backend_enqueue(n->t->f->device, &(struct op){.kind = OP_ADD, .in = {n->x, *sum}, .out = {n->router_x}});
    else
        backend_enqueue(n->t->f->device,
                        &(struct op){.kind = OP_SCALE, .in = {n->x}, .out = {n->router_x}, .scale = 1});
}

static struct moe_next next_of(struct next_layer *n, struct moe_fixture *t, int64_t m, bool prefetch)
{
    *n = (struct next_layer){.t = t, .x = tensor_rows(t->x, 0, m), .router_x = tensor_f32(t->f, N_EMBD, m, 1, NULL)};
    return (struct moe_next){.layer = &t->layers[1],
                             .router_x = n->router_x,
                             .prefetch = prefetch,
                             .fill_router_x = fill_router_x,
                             .user = n};
}

static void a_prediction_is_the_choice_if_nothing_is_added(void **state)
{
    struct moe_fixture *t = *state;
    struct next_layer n;
    struct seen seen = {0};
    float y[MOST_TOKENS * N_EMBD];
    const struct moe_trace trace = {keep_routed, keep_predicted, &seen};
    const struct moe_run how = {.sort_cutoff = 1, .trace = &trace};
    const struct moe_next next = next_of(&n, t, 5, false);
    assert_int_equal(moe_predict(t->work, &next, &trace, &t->e), ERR_OK);
    assert_int_equal(seen.n_predicted, 1);
    assert_int_equal(seen.predicted_layer, 1);
    assert_int_equal(n.n_with_sum, 0);
    assert_int_equal(experts_counters(t->experts).n_prefetched, 0);
    assert_int_equal(forward(t, 1, 5, &how, y), ERR_OK);
    assert_memory_equal(seen.predicted, seen.routed, 5 * N_USED * sizeof *seen.routed);
    backend_buffer_close(t->f->device, &n.router_x.buffer);
}

static void a_prefetched_expert_need_not_be_read_again(void **state)
{
    struct moe_fixture *t = *state;
    struct next_layer n;
    float y[N_EMBD];
    const struct moe_next next = next_of(&n, t, 1, true);
    assert_int_equal(moe_predict(t->work, &next, NULL, &t->e), ERR_OK);
    assert_true(experts_counters(t->experts).n_prefetched > 0);
    run(t, 1, 1, 1, y);
    expect_formula(t, 1, 1, y);
    struct experts_counters c = experts_counters(t->experts);
    assert_int_equal(c.n_prefetch_used, c.n_prefetched);
    assert_int_equal(c.n_read, N_USED);
    backend_buffer_close(t->f->device, &n.router_x.buffer);
}

static void predictions_get_better_while_reads_are_waited_for(void **state)
{
    struct moe_fixture *t = *state;
    struct next_layer n;
    float want[N_EMBD], got[N_EMBD];
    run(t, 0, 1, 1, want);
    experts_forget(t->experts);
    store_fake_set_drive(t->store, (struct store_fake_drive){.bytes_per_s = 200000}); /* 90 ms an expert */
    const struct moe_next next = next_of(&n, t, 1, true);
    const struct moe_run how = {.sort_cutoff = 1, .next = &next};
    assert_int_equal(forward(t, 0, 1, &how, got), ERR_OK);
    assert_int_equal(n.n_calls, n.n_with_sum + 1); /* once before any expert has computed */
    assert_true(n.n_with_sum >= 1);
    assert_memory_equal(got, want, sizeof got);
    backend_buffer_close(t->f->device, &n.router_x.buffer);
}

/* ---- substitutes --------------------------------------------------------------------------------------------- */

static void an_expert_in_a_slot_stands_in_for_one_that_is_not(void **state)
{
    static const float first[N_EXPERT] = {3, 2, 1}, second[N_EXPERT] = {3, 2, 1, 1.1f};
    struct moe_fixture *t = *state;
    struct seen seen = {0};
    const struct moe_trace trace = {keep_routed, NULL, &seen};
    struct car car = {.threshold = 0.5f};
    const struct car *const cars[] = {&car};
    const struct moe_run how = {.sort_cutoff = 1, .trace = &trace, .car = cars, .n_car = 1};
    float y[N_EMBD];
    double scores[N_EXPERT], want[N_EMBD];
    set_logits(t, first);
    assert_int_equal(forward(t, 0, 1, &how, y), ERR_OK);
    set_logits(t, second);
    assert_int_equal(forward(t, 0, 1, &how, y), ERR_OK);
    struct experts_counters c = experts_counters(t->experts);
    assert_int_equal(c.n_substituted, 1);
    assert_int_equal(c.n_read, 3); /* expert 3 was not read */
    assert_memory_equal(seen.routed, ((const int32_t[]){0, 1, 3}), 3 * sizeof(int32_t));
    softmax_scores(t, 0, t->host_x, scores);
    want_token(t, 0, t->host_x, scores, (const int32_t[]){0, 1, 2}, want);
    expect_near(y, want);

    car.threshold = 0.99f; /* more than expert 2 has of expert 3's score */
    assert_int_equal(forward(t, 0, 1, &how, y), ERR_OK);
    assert_int_equal(experts_counters(t->experts).n_substituted, 1);
    assert_int_equal(experts_counters(t->experts).n_read, 4);
    expect_formula(t, 0, 1, y);
}

/* Of three tokens, the first two of which were sampled, one may have substitutes. */
static void each_token_has_substitutes_by_its_own_leave(void **state)
{
    static const float first[N_EXPERT] = {3, 2, 1}, second[N_EXPERT] = {3, 2, 1, 1.1f};
    static const int32_t used[3][N_USED] = {{0, 1, 3}, {0, 1, 2}, {0, 1, 3}};
    struct moe_fixture *t = *state;
    struct seen seen = {0};
    const struct moe_trace trace = {keep_routed, NULL, &seen};
    const struct car car = {.threshold = 0.5f};
    const struct car *const cars[] = {NULL, &car};
    const struct moe_run how = {.sort_cutoff = 1, .trace = &trace, .car = cars, .n_car = 2};
    float y[3 * N_EMBD];
    set_logits(t, first);
    run(t, 0, 1, 1, y); /* brings experts 0 to 2 */
    set_logits(t, second);
    assert_int_equal(forward(t, 0, 3, &how, y), ERR_OK);
    assert_int_equal(experts_counters(t->experts).n_substituted, 1);
    for (int i = 0; i < 3; i++) {
        const float *x = t->host_x + i * N_EMBD;
        double scores[N_EXPERT], want[N_EMBD];
        assert_memory_equal(seen.routed + i * N_USED, used[0], sizeof used[0]);
        softmax_scores(t, 0, x, scores);
        want_token(t, 0, x, scores, used[i], want);
        expect_near(y + i * N_EMBD, want);
    }
}

static void nobody_stands_in_where_all_experts_are_resident(void **state)
{
    struct moe_fixture *t = *state;
    float want[N_EMBD], got[N_EMBD];
    const struct car car = {.threshold = 0.01f};
    const struct car *const cars[] = {&car};
    const struct moe_run how = {.sort_cutoff = 1, .car = cars, .n_car = 1};
    run(t, 0, 1, 1, want);
    assert_int_equal(forward(t, 0, 1, &how, got), ERR_OK);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(experts_counters(t->experts).n_substituted, 0);
}

/* ---- work space ---------------------------------------------------------------------------------------------- */

static void work_space_has_no_more_than_the_layers_need(void **state)
{
    struct moe_fixture *t = *state;
    size_t without = moe_work_bytes(t->work);
    add_shared(t, 0);
    create_work(t);
    size_t shared_bytes = MOST_TOKENS * (2 * N_FF_SHARED + N_EMBD + 1) * sizeof(float);
    assert_int_equal(moe_work_bytes(t->work), without + shared_bytes);
    assert_int_equal(moe_work_bytes(NULL), 0);
    moe_work_close(&t->work);
    moe_work_close(&t->work);
}

static void work_space_that_does_not_fit_is_refused(void **state)
{
    struct moe_fixture *t = *state;
    moe_work_close(&t->work);
    size_t before = mem_total_bytes();
    assert_true(mem_set_limit(before + 4096, NULL, NULL));
    err_code code = moe_work_create(&t->work, t->f->device, t->experts, NULL, t->layers, N_LAYER, MOST_TOKENS, &t->e);
    mem_lift_limit();
    assert_int_equal(code, ERR_NOMEM);
    assert_null(t->work);
    assert_int_equal(mem_total_bytes(), before);
}

static void reclaim(void *experts, size_t n_bytes)
{
    experts_reclaim(experts, n_bytes);
}

/* Without memory for the work space of the second layer. Nothing is waited for between the two: a device may run both
 * when the results are read. */
static void work_space_takes_no_slot_before_an_operation_has_used_it(void **state)
{
    enum { FEW = 13 };
    struct moe_fixture *t = *state;
    const struct moe_run how = {.sort_cutoff = FEW};
    float first[FEW * N_EMBD], second[MOST_TOKENS * N_EMBD];
    struct tensor x = tensor_rows(t->x, 0, FEW), out = tensor_f32(t->f, N_EMBD, FEW, 1, NULL);
    size_t slots_bytes = experts_open_bytes(t->experts);
    assert_int_equal(moe_forward(t->work, &t->layers[0], &x, &x, &out, &how, &t->e), ERR_OK);
    assert_true(mem_set_limit(mem_total_bytes(), reclaim, t->experts));
    err_code code = forward(t, 1, MOST_TOKENS, &how, second);
    mem_lift_limit();
    assert_int_equal(code, ERR_OK);
    read_back(t->f, &out, first);
    assert_true(experts_open_bytes(t->experts) < slots_bytes);
    expect_formula(t, 0, FEW, first);
    expect_formula(t, 1, MOST_TOKENS, second);
    backend_buffer_close(t->f->device, &out.buffer);
}

#define TEST(name, open) cmocka_unit_test_setup_teardown(name, open, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_layer_is_the_weighted_sum_of_the_best_experts, open_resident),
        TEST(the_shared_expert_is_added_behind_its_gate, open_resident),
        TEST(weights_may_multiply_what_goes_in, open_resident),
        TEST(the_router_may_see_something_else_than_the_experts, open_resident),
        TEST(results_are_added_in_rank_order, open_resident),
        TEST(the_shared_expert_is_added_last, open_resident),
        TEST(waves_give_the_bits_of_resident_experts, open_resident),
        TEST(experts_compute_as_they_arrive, open_three_slots),
        TEST(a_failed_read_fails_the_layer_and_holds_nothing, open_three_slots),
        TEST(a_trace_sees_the_routers_choice_best_first, open_resident),
        TEST(a_prediction_is_the_choice_if_nothing_is_added, open_three_slots),
        TEST(a_prefetched_expert_need_not_be_read_again, open_eight_slots),
        TEST(predictions_get_better_while_reads_are_waited_for, open_eight_slots),
        TEST(an_expert_in_a_slot_stands_in_for_one_that_is_not, open_three_slots),
        TEST(each_token_has_substitutes_by_its_own_leave, open_three_slots),
        TEST(nobody_stands_in_where_all_experts_are_resident, open_resident),
        TEST(work_space_has_no_more_than_the_layers_need, open_resident),
        TEST(work_space_that_does_not_fit_is_refused, open_resident),
        TEST(work_space_takes_no_slot_before_an_operation_has_used_it, open_resident),
    };
    return cmocka_run_group_tests_name("moe", tests, NULL, NULL);
}
