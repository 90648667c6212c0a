/* MATMUL, ROUTE and EXPERTS on a device, for each type of weights, against the definition in double. */
#include <math.h>

#include "backend/route.h"
#include "device_fixture.h"

enum { MAX_M = 9, N_ROW = 37, K = 512, MAX_K = 512 };

static const enum quant_type types[] = {
#define QUANT(name, id, block_len, block_bytes, decoder, act) QUANT_##name,
#include "quant/quant_types.def"
#undef QUANT
};
enum { N_TYPE = sizeof types / sizeof *types };

/* Random rows of a type. Half-precision scales are made small and finite; floats are numbers of -1 to 1. Owned by the
 * caller. */
static uint8_t *random_rows(struct fixture *f, const struct quant_info *q, int64_t k, int64_t n_row, size_t *row_bytes)
{
    assert_true(quant_row_bytes(q, (uint64_t)k, row_bytes));
    size_t n = *row_bytes * (size_t)n_row;
    uint8_t *rows = malloc(n);
    for (size_t i = 0; i < n; i++)
        rows[i] = (uint8_t)random_u32(&f->random);
    for (int64_t i = 0; i < n_row * k && q->act == QUANT_ACT_FLOAT; i++) {
        float x = (float)(random_unit(&f->random) * 2 - 1);
        uint16_t half = q->type == QUANT_F16 ? quant_float_to_half(x) : quant_float_to_bf16(x);
        if (q->type == QUANT_F32)
            memcpy(rows + 4 * i, &x, 4);
        else
            memcpy(rows + 2 * i, &half, 2);
    }
    return rows;
}

static bool are_sane(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < 100))
            return false;
    return true;
}

/* Decoded rows; blocks whose random scales are wild are drawn again. */
static uint8_t *sane_rows(struct fixture *f, const struct quant_info *q, int64_t k, int64_t n_row, float *decoded)
{
    size_t row_bytes;
    uint8_t *rows = random_rows(f, q, k, n_row, &row_bytes);
    for (int64_t r = 0; r < n_row; r++) {
        uint8_t *row = rows + (size_t)r * row_bytes;
        if (q->head_bytes) { /* a row's float */
            const float d = 0.01f;
            memcpy(row, &d, sizeof d);
        }
        for (int64_t b = 0; b < k / q->block_len; b++)
            for (;;) {
                uint8_t *block = row + q->head_bytes + b * q->block_bytes;
                quant_decode_block(q, row, b, decoded + r * k + b * q->block_len);
                if (are_sane(decoded + r * k + b * q->block_len, q->block_len))
                    break;
                for (int i = 0; i < q->block_bytes; i++)
                    block[i] = (uint8_t)random_u32(&f->random);
            }
    }
    return rows;
}

static struct weight *load(struct fixture *f, const struct quant_info *q, int64_t k, int64_t n_row, const uint8_t *rows)
{
    struct err e;
    struct weight *w;
    struct weight_rows r = {.bytes = (const char *)rows};
    assert_true(quant_row_bytes(q, (uint64_t)k, &r.row_bytes));
    const struct weight_desc d = {"test.weight", q, k, n_row};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_weight_rows, &r}, &w, &e), ERR_OK);
    return w;
}

/* How far a product of k terms may be from the exact one: roundings grow with the root of k; devices that round
 * activations to eight bits err by half of 1/127 of the largest, each. */
static double bound(const struct quant_info *q, double length, double x_length, int64_t k)
{
    bool is_rounded = q->act != QUANT_ACT_FLOAT && may_round();
    return length * x_length * (is_rounded ? 0.02 : 1e-7 * sqrt((double)k)) + 1e-6;
}

struct product {
    float decoded[N_ROW * MAX_K], x[MAX_M * MAX_K], bias[N_ROW], y[MAX_M * N_ROW], one[N_ROW];
};

static void expect_products(const struct product *p, const struct quant_info *q, int64_t k, int64_t m, bool has_bias)
{
    for (int64_t t = 0; t < m; t++)
        for (int64_t r = 0; r < N_ROW; r++) {
            double want = has_bias ? p->bias[r] : 0, length = 0, x_length = 0;
            for (int64_t i = 0; i < k; i++) {
                double w = p->decoded[r * k + i], x = p->x[t * k + i];
                want += w * x;
                length += w * w;
                x_length += x * x;
            }
            double off = fabs(p->y[t * N_ROW + r] - want), most = bound(q, sqrt(length), sqrt(x_length), k);
            if (!(off <= most))
                fail_msg("%s: row %d of token %d is %g apart, allowed %g", q->name, (int)r, (int)t, off, most);
        }
}

/* Of 1, 2, 3 and 9 tokens; a token gives the same bits alone and among others. */
static void check_products(struct fixture *f, struct product *p, const struct quant_info *q, int64_t k)
{
    uint8_t *rows = sane_rows(f, q, k, N_ROW, p->decoded);
    struct weight *w = load(f, q, k, N_ROW, rows);
    free(rows);
    fill(f, p->x, (size_t)(MAX_M * k));
    fill(f, p->bias, N_ROW);
    struct tensor bias = tensor_f32(f, N_ROW, 1, 1, p->bias);
    static const int64_t tokens[] = {1, MAX_M, 2, 3};
    bool is_common =
        q->type == QUANT_F32 || q->type == QUANT_Q8_0 || q->type == QUANT_Q4_K; /* of each kind of product */
    for (int i = 0; i < (is_common ? 4 : 2); i++) {
        int64_t m = tokens[i];
        struct tensor x = tensor_f32(f, k, m, 1, p->x), y = tensor_f32(f, N_ROW, m, 1, NULL);
        backend_enqueue(
            f->device,
            &(struct op){
                .kind = OP_MATMUL, .in = {x}, .out = {y}, .weight = {w}, .vec = {i < 3 ? bias : (struct tensor){0}}});
        read_back(f, &y, p->y);
        expect_products(p, q, k, m, i < 3);
        if (m == 1)
            memcpy(p->one, p->y, sizeof p->one);
        if (i < 3)
            assert_memory_equal(p->one, p->y, sizeof p->one);
        backend_buffer_close(f->device, &x.buffer);
        backend_buffer_close(f->device, &y.buffer);
    }
    backend_buffer_close(f->device, &bias.buffer);
    backend_weight_close(f->device, &w);
}

/* Types that a GPU multiplies as integers where MOEBIUS_VULKAN_PRODUCTS asks for that: others are what they are
 * without. */
static const enum quant_type integers[] = {QUANT_Q4_0, QUANT_Q5_0, QUANT_Q8_0, QUANT_Q4_K,
                                           QUANT_Q5_K, QUANT_Q6_K, QUANT_MXFP4};
enum { N_INTEGER = sizeof integers / sizeof *integers };

static bool asks_for_integers(void)
{
    const char *products = getenv("MOEBIUS_VULKAN_PRODUCTS");
    return products && !strcmp(products, "integer");
}

/* Whether products on integers are asked for, and the type has none: it would be tested as among the floats. */
static bool is_left_out(enum quant_type type)
{
    bool has_integers = false;
    for (int i = 0; i < N_INTEGER; i++)
        has_integers = has_integers || integers[i] == type;
    return asks_for_integers() && !has_integers;
}

static void check_all_products(struct fixture *f, const enum quant_type *all, int n)
{
    struct product *p = calloc(1, sizeof *p);
    for (int i = 0; i < n; i++)
        check_products(f, p, quant_info(all[i]), K);
    free(p);
}

static void products_of_each_type_are_those_of_the_decoded_rows(void **state)
{
    check_all_products(*state, types, N_TYPE);
}

static void products_of_integers_are_near_those_of_the_decoded_rows(void **state)
{
    check_all_products(*state, integers, N_INTEGER);
}

static void products_of_floats_take_rows_of_any_length(void **state)
{
    static const enum quant_type floats[] = {QUANT_F32, QUANT_F16, QUANT_BF16};
    static const int64_t lengths[] = {1, 7, 33, 100};
    struct fixture *f = *state;
    struct product *p = calloc(1, sizeof *p);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            check_products(f, p, quant_info(floats[i]), lengths[j]);
    free(p);
}

/* Four matrices of three types and several heights. */
static void matrices_of_several_types_are_multiplied_at_once(void **state)
{
    enum { MK = 64 };
    static const enum quant_type kinds[] = {QUANT_F32, QUANT_Q8_0, QUANT_Q8_0, QUANT_Q4_0};
    static const int64_t n_row[] = {N_ROW, 16, 1, 20};
    struct fixture *f = *state;
    struct op op = {.kind = OP_MATMUL};
    float x[MAX_M * MK], decoded[4][N_ROW * MK], y[MAX_M * N_ROW];
    fill(f, x, MAX_M * MK);
    op.in[0] = tensor_f32(f, MK, MAX_M, 1, x);
    for (int i = 0; i < 4; i++) {
        uint8_t *rows = sane_rows(f, quant_info(kinds[i]), MK, n_row[i], decoded[i]);
        op.weight[i] = load(f, quant_info(kinds[i]), MK, n_row[i], rows);
        op.out[i] = tensor_f32(f, n_row[i], MAX_M, 1, NULL);
        free(rows);
    }
    backend_enqueue(f->device, &op);
    for (int i = 0; i < 4; i++) {
        read_back(f, &op.out[i], y);
        for (int64_t e = 0; e < MAX_M * n_row[i]; e++) {
            double want = 0, length = 0, x_length = 0;
            for (int k = 0; k < MK; k++) {
                double a = decoded[i][e % n_row[i] * MK + k], b = x[e / n_row[i] * MK + k];
                want += a * b;
                length += a * a;
                x_length += b * b;
            }
            assert_true(fabs(y[e] - want) <= bound(quant_info(kinds[i]), sqrt(length), sqrt(x_length), MK));
        }
        backend_weight_close(f->device, &op.weight[i]);
        backend_buffer_close(f->device, &op.out[i].buffer);
    }
    backend_buffer_close(f->device, &op.in[0].buffer);
}

/* ---- ROUTE ----------------------------------------------------------------------------------------------------- */

enum { R_EXPERT = 40, R_USED = 6, R_K = 24, R_VOCAB = 7 };

struct routing {
    float router[R_EXPERT * R_K], x[MAX_M * R_K], bias[R_EXPERT], choice_bias[R_EXPERT], factors[R_EXPERT];
    float weights[MAX_M * R_USED], scores[MAX_M * R_EXPERT];
    int32_t ids[MAX_M * R_USED], tokens[MAX_M], given[R_VOCAB * R_USED]; /* given: the experts of each token id */
};

/* Token t's choice by the reference, from logits in double. */
static void expect_choice(const struct routing *d, const struct op *op, int t)
{
    float logits[R_EXPERT], work[R_EXPERT], weights[R_USED], scores[R_EXPERT];
    int32_t ids[R_USED];
    const int32_t *given = d->given + d->tokens[t] * R_USED;
    for (int e = 0; e < R_EXPERT; e++) {
        double sum = op->vec[ROUTE_BIAS].buffer ? d->bias[e] : 0;
        for (int k = 0; k < R_K; k++)
            sum += (double)d->router[e * R_K + k] * (double)d->x[t * R_K + k];
        logits[e] = (float)sum;
    }
    route_choose(best_kernels(),
                 &(struct route_token){.op = op,
                                       .bias = op->vec[ROUTE_CHOICE_BIAS].buffer ? d->choice_bias : NULL,
                                       .expert_scale = op->vec[ROUTE_EXPERT_SCALE].buffer ? d->factors : NULL,
                                       .n = R_EXPERT,
                                       .k = R_USED,
                                       .logits = logits,
                                       .choice = work,
                                       .given = op->vec[ROUTE_TOKEN_EXPERTS].buffer ? given : NULL,
                                       .ids = ids,
                                       .weights = weights,
                                       .scores = scores});
    assert_memory_equal(d->ids + t * R_USED, ids, sizeof ids);
    for (int r = 0; r < R_USED; r++)
        assert_true(fabsf(d->weights[t * R_USED + r] - weights[r]) < 1e-5f);
    for (int e = 0; e < R_EXPERT; e++)
        assert_true(fabsf(d->scores[t * R_EXPERT + e] - scores[e]) < 1e-5f);
}

static void routers_of_each_kind_choose_as_the_reference(void **state)
{
    struct fixture *f = *state;
    struct err e;
    struct routing *d = calloc(1, sizeof *d);
    fill(f, d->router, R_EXPERT * R_K);
    fill(f, d->x, MAX_M * R_K);
    fill(f, d->bias, R_EXPERT);
    fill(f, d->choice_bias, R_EXPERT);
    fill(f, d->factors, R_EXPERT);
    for (int t = 0; t < MAX_M; t++)
        d->tokens[t] = t * 3 % R_VOCAB;
    for (int i = 0; i < R_VOCAB * R_USED; i++)
        d->given[i] = (i * 11 + i / R_USED) % R_EXPERT;
    struct weight *w = weight_from(f, QUANT_F32, R_K, R_EXPERT, d->router);
    struct tensor x = tensor_f32(f, R_K, MAX_M, 1, d->x), ids = tensor_i32(f, R_USED, MAX_M, NULL);
    struct tensor weights = tensor_f32(f, R_USED, MAX_M, 1, NULL), scores = tensor_f32(f, R_EXPERT, MAX_M, 1, NULL);
    struct tensor vec[] = {[ROUTE_BIAS] = tensor_f32(f, R_EXPERT, 1, 1, d->bias),
                           [ROUTE_CHOICE_BIAS] = tensor_f32(f, R_EXPERT, 1, 1, d->choice_bias),
                           [ROUTE_EXPERT_SCALE] = tensor_f32(f, R_EXPERT, 1, 1, d->factors),
                           [ROUTE_TOKEN_EXPERTS] = tensor_i32(f, R_USED, R_VOCAB, d->given)};
    struct tensor tokens = tensor_i32(f, MAX_M, 1, d->tokens);
    for (int kind = 0; kind < 48; kind++) {
        struct op op = {.kind = OP_ROUTE,
                        .in = {x, tokens},
                        .out = {[ROUTE_IDS] = ids, [ROUTE_WEIGHTS] = weights, [ROUTE_SCORES] = scores},
                        .weight = {w}};
        bool has_groups = kind / 8 % 2, is_given = kind % 3 == 2;
        op.route.score = kind % 4;
        op.route.norm_weights = kind / 4 % 2;
        op.route.scale = 1.5f;
        op.route.n_group = has_groups ? 8 : 1;
        op.route.n_group_used = has_groups ? 3 : 1;
        for (int i = ROUTE_BIAS; i <= ROUTE_EXPERT_SCALE; i++)
            if ((kind * 5) >> i & 1 || kind > 24)
                op.vec[i] = vec[i];
        if (is_given)
            op.vec[ROUTE_TOKEN_EXPERTS] = vec[ROUTE_TOKEN_EXPERTS];
        backend_enqueue(f->device, &op);
        assert_int_equal(backend_read(f->device, &ids, d->ids, &e), ERR_OK);
        read_back(f, &weights, d->weights);
        read_back(f, &scores, d->scores);
        for (int t = 0; t < MAX_M; t++)
            expect_choice(d, &op, t);
    }
    struct tensor *all[] = {&x, &tokens, &ids, &weights, &scores, &vec[0], &vec[1], &vec[2], &vec[3]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
    backend_weight_close(f->device, &w);
    free(d);
}

/* Logits that are NaN or infinite still choose as many different experts as there should be. */
static void a_router_survives_what_is_no_number(void **state)
{
    enum { N = 8, USED = 8 };
    struct fixture *f = *state;
    static const float odd[][N] = {{NAN, 1, 2, NAN, -INFINITY, INFINITY, 0, NAN},
                                   {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN},
                                   {-INFINITY, -INFINITY, -INFINITY, 0, 0, 0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        float zeros[N] = {0}, x[1] = {0};
        int32_t ids[USED];
        bool chosen[N] = {false};
        struct weight *w = weight_from(f, QUANT_F32, 1, N, zeros);
        struct tensor tx = tensor_f32(f, 1, 1, 1, x), tids = tensor_i32(f, USED, 1, NULL);
        struct tensor tw = tensor_f32(f, USED, 1, 1, NULL), bias = tensor_f32(f, N, 1, 1, odd[i]);
        backend_enqueue(f->device, &(struct op){.kind = OP_ROUTE,
                                                .in = {tx},
                                                .out = {[ROUTE_IDS] = tids, [ROUTE_WEIGHTS] = tw},
                                                .weight = {w},
                                                .vec = {[1] = bias},
                                                .route = {ROUTE_SIGMOID, true, 1, 1, 1}});
        read_back(f, &tids, ids);
        for (int r = 0; r < USED; r++) {
            assert_true(ids[r] >= 0 && ids[r] < N && !chosen[ids[r]]);
            chosen[ids[r]] = true;
        }
        backend_weight_close(f->device, &w);
        struct tensor *all[] = {&tx, &tids, &tw, &bias};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            backend_buffer_close(f->device, &all[j]->buffer);
    }
}

/* ---- EXPERTS --------------------------------------------------------------------------------------------------- */

enum { E_EMBD = 256, E_FF = 256, E_EXPERT = 5, E_USED = 2 };

/* Experts of a type, expert i in slot E_EXPERT - 1 - i; up of another type where up is not `type`. Where they have no
 * gate, gate and up are halves of one matrix. */
struct mixture {
    bool is_ungated;
    float limit;  /* of the activation; 0: none */
    bool clamps;  /* what SiLU is of, and not SiLU */
    int n_hidden; /* E_FF, or twice as many */
    float gate[E_EXPERT][E_FF * E_EMBD], up[E_EXPERT][E_FF * E_EMBD], down[E_EXPERT][E_EMBD * 2 * E_FF];
    float x[MAX_M * E_EMBD], y[2][MAX_M * E_USED * E_EMBD], weights[MAX_M * E_USED];
    int32_t ids[MAX_M * E_USED];
};

static struct slot_pool *fill_slots(struct fixture *f, struct mixture *d, const struct quant_info *type,
                                    const struct quant_info *up)
{
    struct err e;
    struct slot_pool *s;
    const struct slot_pool_desc desc = {{type, up, type}, E_EMBD, E_FF, E_EXPERT, d->is_ungated};
    assert_int_equal(backend_slot_pool_create(f->device, &desc, &s, &e), ERR_OK);
    for (int i = 0; i < E_EXPERT; i++) {
        int64_t slot = E_EXPERT - 1 - i;
        float *decoded[] = {d->gate[i], d->up[i], d->down[i]};
        assert_true(backend_slot_open(f->device, s, slot));
        for (int k = 0; k < EXPERT_N_MATRIX; k++) {
            int64_t n_row = slot_matrix_rows(&desc, k);
            uint8_t *rows = sane_rows(f, desc.type[k], slot_matrix_k(&desc, k), n_row, decoded[k]);
            const struct slot_rows all = {k, rows, false, 0, n_row};
            assert_int_equal(backend_slot_fill(f->device, s, slot, &all, &e), ERR_OK);
            free(rows);
        }
    }
    return s;
}

static double limited_silu(const struct mixture *d, double x)
{
    double limit = (double)d->limit;
    x = d->clamps ? fmin(x, limit) : x;
    return fmin(x / (1 + exp(-x)), d->clamps ? INFINITY : limit);
}

/* How far a pair's result is from the definition, as a share of its length. */
static double pair_distance(const struct mixture *d, int pair, const float *y)
{
    int e = d->ids[pair];
    const float *x = d->x + pair / E_USED * E_EMBD;
    double h[2 * E_FF], diff = 0, size = 0;
    for (int i = 0; i < E_FF; i++) {
        double g = 0, u = 0;
        for (int k = 0; k < E_EMBD; k++) {
            g += (double)d->gate[e][i * E_EMBD + k] * x[k];
            u += (double)d->up[e][i * E_EMBD + k] * x[k];
        }
        g *= d->weights[pair];
        u *= d->weights[pair];
        h[i] = d->is_ungated ? fmax(g, 0) * g : g / (1 + exp(-g)) * u;
        if (d->limit > 0)
            h[i] = limited_silu(d, g) * fmax(-d->limit, fmin(d->limit, u));
        h[E_FF + i] = fmax(u, 0) * u;
    }
    for (int i = 0; i < E_EMBD; i++) {
        double want = 0;
        for (int k = 0; k < d->n_hidden; k++)
            want += (double)d->down[e][i * d->n_hidden + k] * h[k];
        diff += (y[i] - want) * (y[i] - want);
        size += want * want;
    }
    return sqrt(diff / size);
}

static void check_mixture(struct fixture *f, struct mixture *d, const struct quant_info *type,
                          const struct quant_info *up, bool is_ungated, float limit)
{
    d->is_ungated = is_ungated;
    d->limit = limit;
    d->n_hidden = is_ungated ? 2 * E_FF : E_FF;
    static const int32_t table[E_EXPERT] = {4, 3, 2, 1, 0};
    enum act_fn act = is_ungated ? ACT_RELU : d->clamps ? ACT_SILU_CLAMPED : ACT_SILU;
    struct slot_pool *s = fill_slots(f, d, type, up);
    bool is_rounded = type->act != QUANT_ACT_FLOAT && may_round();
    struct tensor x = tensor_f32(f, E_EMBD, MAX_M, 1, d->x), ids = tensor_i32(f, E_USED, MAX_M, d->ids);
    struct tensor slots = tensor_i32(f, E_EXPERT, 1, table), y = tensor_f32(f, E_EMBD, E_USED, MAX_M, NULL);
    struct tensor weights = tensor_f32(f, E_USED, MAX_M, 1, d->weights);
    for (int sorted = 0; sorted < 2; sorted++) {
        backend_clear(f->device, &y);
        backend_enqueue(
            f->device,
            &(struct op){
                .kind = OP_EXPERTS,
                .in = {[EXPERTS_X] = x, [EXPERTS_IDS] = ids, [EXPERTS_SLOTS] = slots, [EXPERTS_WEIGHTS] = weights},
                .out = {y},
                .slot_pool = s,
                .experts = {.act = act, .sort_cutoff = sorted ? 1 : MAX_M, .act_limit = limit}});
        read_back(f, &y, d->y[sorted]);
    }
    assert_memory_equal(d->y[0], d->y[1], sizeof d->y[0]);
    for (int i = 0; i < MAX_M * E_USED; i++) {
        double off = pair_distance(d, i, d->y[0] + i * E_EMBD);
        if (!(off < (is_rounded ? 0.05 : 1e-5)))
            fail_msg("%s, up %s%s, limit %g: pair %d is %g apart", type->name, up->name, is_ungated ? ", no gate" : "",
                     (double)limit, i, off);
    }
    struct tensor *all[] = {&x, &ids, &slots, &y, &weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
    backend_slot_pool_close(f->device, &s);
}

static void experts_of_each_type_compute_the_formula_by_either_dispatch(void **state)
{
    static const enum quant_type kinds[][2] = {
        {QUANT_F16, QUANT_F16},     {QUANT_Q8_0, QUANT_Q4_0},     {QUANT_Q4_K, QUANT_Q4_K},  {QUANT_Q6_K, QUANT_Q5_K},
        {QUANT_MXFP4, QUANT_MXFP4}, {QUANT_IQ3_KT, QUANT_IQ2_KT}, {QUANT_IQ2_S, QUANT_IQ1_M}};
    struct fixture *f = *state;
    struct mixture *d = calloc(1, sizeof *d);
    fill(f, d->x, MAX_M * E_EMBD);
    for (int i = 0; i < MAX_M * E_USED; i++) {
        d->ids[i] = (i % E_USED + i / E_USED * 2) % E_EXPERT;
        d->weights[i] = 0.25f + (float)(i % 3) / 8;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int is_ungated = 0; is_ungated < (i < 3 ? 2 : 1) && !is_left_out(kinds[i][0]); is_ungated++)
            check_mixture(f, d, quant_info(kinds[i][0]), quant_info(kinds[i][1]), is_ungated, 0);
    for (size_t i = 0; i < 4; i++) {
        d->clamps = i / 2;
        if (!is_left_out(kinds[i % 2][0]))
            check_mixture(f, d, quant_info(kinds[i % 2][0]), quant_info(kinds[i % 2][1]), false, 4);
    }
    free(d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cpu, close_cpu)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(products_of_each_type_are_those_of_the_decoded_rows),
        TEST(products_of_floats_take_rows_of_any_length),
        TEST(matrices_of_several_types_are_multiplied_at_once),
        TEST(routers_of_each_kind_choose_as_the_reference),
        TEST(a_router_survives_what_is_no_number),
        TEST(experts_of_each_type_compute_the_formula_by_either_dispatch),
    };
    const struct CMUnitTest of_integers[] = {
        TEST(products_of_integers_are_near_those_of_the_decoded_rows),
        TEST(matrices_of_several_types_are_multiplied_at_once),
        TEST(experts_of_each_type_compute_the_formula_by_either_dispatch),
    };
    return asks_for_integers() ? cmocka_run_group_tests_name("products of integers", of_integers, NULL, NULL)
                               : cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
