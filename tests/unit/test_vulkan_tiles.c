/* Products of many rows on the Vulkan device with tiles in shared memory, and without: the same bits. Where there is no
 * device, the tests are skipped. */
#define _DEFAULT_SOURCE /* setenv */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/pool.h"
#include "vulkan/vulkan.h"

enum { MOST_K = 1280, MOST_ROWS = 256 };
enum { MOST_M = 131 }; /* tokens of a product, and pairs of a token and an expert */

struct fixture {
    struct pool *pool;
    struct backend *devices[2]; /* without and with tiles */
    float x[MOST_M * MOST_K], y[2][MOST_M * MOST_ROWS];
};

static int close_devices(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 2; i++)
        backend_close(&f->devices[i]);
    pool_close(&f->pool);
    free(f);
    return 0;
}

/* tiles: of the second one, "1" or "matrix". */
static int open_with_tiles(void **state, const char *tiles)
{
    enum { SKIPPED = 77 };
    struct err e;
    struct fixture *f = *state = calloc(1, sizeof *f);
    for (int i = 0; i < MOST_M * MOST_K; i++)
        f->x[i] = (float)(i * 29 % 113) * 0.02f - 1;
    if (pool_create(&f->pool, 2, &e) != ERR_OK)
        return -1;
    for (int i = 0; i < 2; i++) {
        setenv("MOEBIUS_VULKAN_TILES", i ? tiles : "0", 1);
        err_code code = vulkan_open(&f->devices[i], 0, f->pool, &e);
        if (code == ERR_UNSUPPORTED)
            exit(SKIPPED);
        if (code != ERR_OK)
            return -1;
    }
    return 0;
}

static int open_devices(void **state)
{
    return open_with_tiles(state, "1");
}

/* Devices that lack something, whose products are of one definition. */
static void open_without(void **state, const char *without, const char *products, const char *tiles)
{
    close_devices(state);
    setenv("MOEBIUS_VULKAN_WITHOUT", without, 1);
    setenv("MOEBIUS_VULKAN_PRODUCTS", products, 1);
    assert_int_equal(open_with_tiles(state, tiles), 0);
    unsetenv("MOEBIUS_VULKAN_WITHOUT");
}

/* Bytes that are small finite numbers as parts of halves. */
static void fill_tame(uint8_t *bytes, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)((from + i) * 2654435761u >> 24 & 0x3f);
}

static err_code read_tame(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    size_t row = *(const size_t *)user;
    fill_tame(dst, (size_t)row0 * row, (size_t)n * row);
    return ERR_OK;
}

static struct tensor floats(struct backend *b, int64_t n, int64_t m, const float *x)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(b, ELEM_F32, n, m, 1, MEM_SCRATCH, &t, &e), ERR_OK);
    if (x)
        backend_write(b, &t, x);
    return t;
}

static struct tensor ints(struct backend *b, int64_t n, const int32_t *x)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(b, ELEM_I32, n, 1, 1, MEM_SCRATCH, &t, &e), ERR_OK);
    backend_write(b, &t, x);
    return t;
}

/* Products with such weights have tiles, or have none, as the device's number says. */
static struct weight *load(const struct fixture *f, int device, enum quant_type type, int64_t k, int64_t n_row)
{
    struct backend *b = f->devices[device];
    struct err e;
    struct weight *w;
    size_t row_bytes = 0;
    const struct weight_desc d = {"test.weight", quant_info(type), k, n_row};
    assert_true(quant_row_bytes(d.type, (uint64_t)k, &row_bytes));
    assert_int_equal(backend_weight_load(b, &d, &(struct weight_source){read_tame, &row_bytes}, &w, &e), ERR_OK);
    return w;
}

/* Both devices' results, which are not all the same number. */
static void expect_equal(const struct fixture *f, size_t n, const char *what)
{
    size_t n_same = 0;
    for (size_t i = 1; i < n; i++)
        n_same += f->y[0][i] == f->y[0][0];
    if (n_same > n / 2 || memcmp(f->y[0], f->y[1], n * sizeof(float)) != 0)
        fail_msg("%s, %d results: %s", what, (int)n, n_same > n / 2 ? "nothing is computed" : "other bits");
}

struct shape {
    int64_t k, n_row, m;
};

/* Units of 32 and of 64 weights fill no whole round of sixteen chains; some chains have none. The last tiles have few
 * rows. */
static const struct shape shapes[] = {{1280, 17, 20}, {256, 100, 67}, {512, 64, 33}};
enum { N_SHAPE = sizeof shapes / sizeof *shapes };

static void check_product(struct fixture *f, enum quant_type type, const struct shape *s)
{
    struct err e;
    for (int i = 0; i < 2; i++) {
        struct backend *b = f->devices[i];
        struct weight *w = load(f, i, type, s->k, s->n_row);
        struct tensor x = floats(b, s->k, s->m, f->x), y = floats(b, s->n_row, s->m, NULL);
        backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {x}, .out = {y}, .weight = {w}});
        assert_int_equal(backend_read(b, &y, f->y[i], &e), ERR_OK);
        backend_buffer_close(b, &x.buffer);
        backend_buffer_close(b, &y.buffer);
        backend_weight_close(b, &w);
    }
    expect_equal(f, (size_t)(s->m * s->n_row), quant_info(type)->name);
}

/* One of each way to unpack weights: drivers compile each type for long, and test_products has all of them. */
static const enum quant_type float_types[] = {QUANT_F32,   QUANT_F16,   QUANT_Q4_0,  QUANT_Q5_1,
                                              QUANT_Q8_0,  QUANT_Q3_K,  QUANT_Q4_K,  QUANT_IQ2_XXS,
                                              QUANT_IQ1_M, QUANT_TQ1_0, QUANT_NVFP4, QUANT_IQ4_KT};

static void products_of_floats_have_the_same_bits(void **state)
{
    open_without(state, "", "float", "1");
    for (size_t t = 0; t < sizeof float_types / sizeof *float_types; t++)
        for (int i = 0; i < N_SHAPE; i++)
            check_product(*state, float_types[t], &shapes[i]);
}

static const enum quant_type integer_types[] = {QUANT_Q4_0, QUANT_Q5_0, QUANT_Q8_0, QUANT_Q4_K,
                                                QUANT_Q5_K, QUANT_Q6_K, QUANT_MXFP4};
enum { N_INTEGER = sizeof integer_types / sizeof *integer_types };

static void products_of_integers_have_the_same_bits(void **state)
{
    open_without(state, "", "integer", "1");
    for (int t = 0; t < N_INTEGER; t++)
        for (int i = 0; i < N_SHAPE; i++)
            check_product(*state, integer_types[t], &shapes[i]);
}

/* The device's products of matrices where it and the compiler have them, and the model of them. */
static void products_of_matrices_have_the_same_bits(void **state)
{
    static const char *const lacking[] = {"", "VK_KHR_cooperative_matrix"};
    for (size_t l = 0; l < 2; l++) {
        open_without(state, lacking[l], "integer", "matrix");
        for (int t = 0; t < N_INTEGER; t++)
            for (int i = 0; i < N_SHAPE; i++)
                check_product(*state, integer_types[t], &shapes[i]);
    }
}

/* The shaders for devices with fewer instructions. */
static void lesser_devices_have_the_same_bits(void **state)
{
    static const char *const lacking[][2] = {
        {"VK_KHR_shader_integer_dot_product", "integer"}, {"shaderInt64", "integer"}, {"shaderInt64", "float"}};
    for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++) {
        open_without(state, lacking[i][0], lacking[i][1], "1");
        check_product(*state, QUANT_Q4_K, &shapes[0]);
    }
}

/* Three matrices of one type, of several heights, with a bias; then what shares a dispatch with a product: a sum, and
 * the activation of a pair. */
static void products_that_share_a_dispatch_have_the_same_bits(void **state)
{
    enum { K = 256, M = 37, N_MATRIX = 3, N_OUT = 5 };
    static const int64_t n_row[N_MATRIX] = {80, 80, 17};
    static const size_t at[N_OUT + 1] = {0, 80, 160, 177, 257, 337}; /* rows of results before each */
    open_without(state, "", "integer", "1");
    struct fixture *f = *state;
    struct err e;
    float *y = malloc(2 * at[N_OUT] * M * sizeof *y);
    for (int i = 0; i < 2; i++) {
        struct backend *b = f->devices[i];
        struct op all = {.kind = OP_MATMUL, .in = {floats(b, K, M, f->x)}};
        for (int j = 0; j < N_MATRIX; j++) {
            all.weight[j] = load(f, i, QUANT_Q4_K, K, n_row[j]);
            all.out[j] = floats(b, n_row[j], M, NULL);
            all.vec[j] = j == 1 ? (struct tensor){0} : floats(b, n_row[j], 1, f->x + j);
        }
        struct tensor act = floats(b, n_row[0], M, NULL), up = floats(b, n_row[0], M, NULL);
        struct tensor residual = floats(b, n_row[0], M, f->x), one = floats(b, n_row[0], M, NULL);
        const struct op pair = {
            .kind = OP_MATMUL, .in = {all.in[0]}, .out = {act, up}, .weight = {all.weight[0], all.weight[1]}};
        const struct op single = {.kind = OP_MATMUL, .in = {all.in[0]}, .out = {one}, .weight = {all.weight[1]}};
        backend_enqueue(b, &all);
        backend_enqueue(b, &pair);
        backend_enqueue(
            b, &(struct op){.kind = OP_ACT_MUL, .in = {act, up}, .out = {act}, .act = ACT_SILU, .act_limit = 0.5f});
        backend_enqueue(b, &single);
        backend_enqueue(b, &(struct op){.kind = OP_ADD, .in = {residual, one}, .out = {residual}});
        const struct tensor *outs[N_OUT] = {&all.out[0], &all.out[1], &all.out[2], &act, &residual};
        for (int j = 0; j < N_OUT; j++)
            assert_int_equal(backend_read(b, outs[j], y + ((size_t)i * at[N_OUT] + at[j]) * M, &e), ERR_OK);
        struct tensor *tensors[] = {&all.in[0],  &all.out[0], &all.out[1], &all.out[2], &all.vec[0],
                                    &all.vec[2], &act,        &up,         &residual,   &one};
        for (size_t j = 0; j < sizeof tensors / sizeof *tensors; j++)
            backend_buffer_close(b, &tensors[j]->buffer);
        for (int j = 0; j < N_MATRIX; j++)
            backend_weight_close(b, &all.weight[j]);
    }
    assert_true(y[0] != y[1] && y[at[3] * M] != y[at[4] * M]);
    assert_memory_equal(y, y + at[N_OUT] * M, at[N_OUT] * M * sizeof *y);
    free(y);
}

/* ---- experts --------------------------------------------------------------------------------------------------- */

enum { N_EMBD = 256, N_FF = 256, N_EXPERT = 4, N_USED = 2, MOST_TOKEN = 65 };

/* Tiles are half as large where an expert has few pairs. */
static const struct share {
    int n_token, n_expert;
} few = {41, N_EXPERT}, many = {MOST_TOKEN, 2};

static struct slot_pool *fill_slots(const struct fixture *f, int device, const enum quant_type types[EXPERT_N_MATRIX],
                                    bool is_ungated)
{
    struct err e;
    struct slot_pool *s;
    struct backend *b = f->devices[device];
    struct slot_pool_desc d = {.n_embd = N_EMBD, .n_ff = N_FF, .n_slot = N_EXPERT, .is_ungated = is_ungated};
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        d.type[i] = quant_info(types[i]);
    assert_int_equal(backend_slot_pool_create(b, &d, &s, &e), ERR_OK);
    for (int i = 0; i < N_EXPERT * EXPERT_N_MATRIX; i++) {
        int slot = i / EXPERT_N_MATRIX, m = i % EXPERT_N_MATRIX;
        size_t row_bytes = 0;
        assert_true((m > 0 || backend_slot_open(b, s, slot)) &&
                    quant_row_bytes(d.type[m], (uint64_t)slot_matrix_k(&d, m), &row_bytes));
        uint8_t *bytes = malloc(row_bytes * N_FF);
        fill_tame(bytes, (size_t)i * 1001, row_bytes * N_FF);
        assert_int_equal(backend_slot_fill(b, s, slot, &(struct slot_rows){m, bytes, false, 0, N_FF}, &e), ERR_OK);
        free(bytes);
    }
    return s;
}

/* Sorted dispatch of some tokens, which has more than a tile for the first expert, and of four leaves the third. */
static void check_experts(struct fixture *f, const enum quant_type types[EXPERT_N_MATRIX], const struct share *share,
                          bool is_ungated)
{
    static const int32_t slots[N_EXPERT] = {2, 0, 3, 1};
    int32_t ids[MOST_TOKEN * N_USED];
    float weights[MOST_TOKEN * N_USED];
    int64_t n = share->n_token, n_pair = n * N_USED;
    struct err e;
    for (int i = 0; i < n_pair; i++) {
        ids[i] = i % 2 == 0 ? 0 : i % 4 == 1 ? 1 : share->n_expert - 1;
        weights[i] = 0.25f + (float)(i % 3) / 8;
    }
    for (int i = 0; i < 2; i++) {
        struct backend *b = f->devices[i];
        struct slot_pool *s = fill_slots(f, i, types, is_ungated);
        struct tensor x = floats(b, N_EMBD, n, f->x), id = ints(b, n_pair, ids), slot = ints(b, share->n_expert, slots),
                      w = floats(b, N_USED, n, weights), y = floats(b, N_EMBD, n_pair, NULL);
        id.ne[0] = y.ne[1] = N_USED;
        id.ne[1] = y.ne[2] = n;
        backend_enqueue(
            b, &(struct op){.kind = OP_EXPERTS,
                            .in = {[EXPERTS_X] = x, [EXPERTS_IDS] = id, [EXPERTS_SLOTS] = slot, [EXPERTS_WEIGHTS] = w},
                            .out = {y},
                            .slot_pool = s,
                            .experts = {is_ungated ? ACT_RELU : ACT_SILU, 1, NULL, is_ungated ? 0 : 0.5f}});
        assert_int_equal(backend_read(b, &y, f->y[i], &e), ERR_OK);
        struct tensor *tensors[] = {&x, &id, &slot, &w, &y};
        for (int j = 0; j < 5; j++)
            backend_buffer_close(b, &tensors[j]->buffer);
        backend_slot_pool_close(b, &s);
    }
    expect_equal(f, (size_t)n_pair * N_EMBD, quant_info(types[0])->name);
}

static void sorted_experts_have_the_same_bits(void **state)
{
    static const enum quant_type kinds[][EXPERT_N_MATRIX] = {{QUANT_Q4_K, QUANT_Q4_K, QUANT_Q6_K},
                                                             {QUANT_Q8_0, QUANT_Q4_0, QUANT_IQ4_XS}};
    for (int t = 0; t < 2; t++) {
        open_without(state, "", "integer", t ? "matrix" : "1");
        for (int i = 0; i < 2; i++)
            check_experts(*state, kinds[i], &few, i == t);
        check_experts(*state, kinds[0], &many, false);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_devices, close_devices)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(products_of_floats_have_the_same_bits),   TEST(products_of_integers_have_the_same_bits),
        TEST(lesser_devices_have_the_same_bits),       TEST(products_that_share_a_dispatch_have_the_same_bits),
        TEST(products_of_matrices_have_the_same_bits), TEST(sorted_experts_have_the_same_bits),
    };
    return cmocka_run_group_tests_name("vulkan tiles", tests, NULL, NULL);
}
