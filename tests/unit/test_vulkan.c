/* The Vulkan device: what is particular to it. Where there is none, the tests are skipped. */
#define _DEFAULT_SOURCE /* setenv */
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/crc32c.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "vulkan/vulkan.h"

struct fixture {
    struct pool *pool;
    struct backend *device;
};

static int open_device(void **state)
{
    enum { SKIPPED = 77 };
    struct err e;
    struct fixture *f = *state = calloc(1, sizeof *f);
    setenv("MOEBIUS_VULKAN_PRODUCTS", "float", 1); /* tests of the other definition say so */
    if (pool_create(&f->pool, 2, &e) != ERR_OK)
        return -1;
    err_code code = vulkan_open(&f->device, 0, f->pool, &e);
    if (code != ERR_OK)
        fprintf(stderr, "%s\n", e.text);
    if (code == ERR_UNSUPPORTED)
        exit(SKIPPED);
    return code;
}

static int close_device(void **state)
{
    struct fixture *f = *state;
    unsetenv("MOEBIUS_VULKAN_LOSE");
    unsetenv("MOEBIUS_VULKAN_FULL");
    unsetenv("MOEBIUS_VULKAN_ALLOCATION");
    unsetenv("MOEBIUS_VULKAN_WITHOUT");
    unsetenv("MOEBIUS_VULKAN_KIND");
    unsetenv("MOEBIUS_VULKAN_BUDGET");
    unsetenv("MOEBIUS_VULKAN_HEAP");
    unsetenv("MOEBIUS_VULKAN_FILL");
    unsetenv("MOEBIUS_VULKAN_WORK");
    unsetenv("MOEBIUS_VULKAN_TILES");
    unsetenv("MOEBIUS_VULKAN_UPLOADS");
    unsetenv("MOEBIUS_VULKAN_SUBMIT");
    backend_close(&f->device);
    pool_close(&f->pool);
    free(f);
    return 0;
}

/* The device again, with a variable that it reads. */
static void open_with(struct fixture *f, const char *name, const char *value)
{
    struct err e;
    backend_close(&f->device);
    setenv(name, value, 1);
    assert_int_equal(vulkan_open(&f->device, 0, f->pool, &e), ERR_OK);
}

static struct tensor floats(struct fixture *f, int64_t n, int64_t m, const float *x)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, n, m, 1, MEM_SCRATCH, &t, &e), ERR_OK);
    if (x)
        backend_write(f->device, &t, x);
    return t;
}

static void add(struct fixture *f, struct tensor a, struct tensor b, struct tensor out)
{
    backend_enqueue(f->device, &(struct op){.kind = OP_ADD, .in = {a, b}, .out = {out}});
}

static void a_list_says_what_is_usable(void **state)
{
    struct vulkan_device *all;
    struct err e = {0};
    int n;
    assert_int_equal(vulkan_list(&all, &n, &e), ERR_OK);
    assert_true(n > 0 && all[0].is_usable && all[0].memory_bytes > 0 && all[0].name[0]);
    mem_free(all);
    setenv("MOEBIUS_VULKAN_UPLOADS", "apart", 1);
    setenv("MOEBIUS_VULKAN_WITHOUT", "mapped", 1);
    assert_int_equal(vulkan_list(&all, &n, &e), ERR_OK);
    assert_true(all[0].has_upload_queue);
    mem_free(all);
    unsetenv("MOEBIUS_VULKAN_UPLOADS");
    setenv("MOEBIUS_VULKAN_WITHOUT", "mapped,transferQueue,secondQueue", 1);
    assert_int_equal(vulkan_list(&all, &n, &e), ERR_OK);
    assert_false(all[0].has_upload_queue);
    mem_free(all);
    setenv("MOEBIUS_VULKAN_WITHOUT", "mapped,timelineSemaphore", 1);
    assert_int_equal(vulkan_list(&all, &n, &e), ERR_OK);
    assert_false(all[0].is_usable);
    assert_non_null(strstr(all[0].why_not, "timeline semaphores"));
    mem_free(all);
}

static void what_is_missing_is_said(void **state)
{
    static const char *const missing[][2] = {{"bufferDeviceAddress", "its driver has no addresses of buffers"},
                                             {"timelineSemaphore", "its driver has no timeline semaphores"},
                                             {"Vulkan 1.2", "expected 1.2"},
                                             {"maxComputeWorkGroupInvocations", "its workgroups have at most"},
                                             {"hostMemory", "none that the host can write"},
                                             {"computeQueue", "it has no queue that computes"}};
    struct fixture *f = *state;
    struct backend *b;
    struct err e = {0};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        setenv("MOEBIUS_VULKAN_WITHOUT", missing[i][0], 1);
        assert_int_equal(vulkan_open(&b, 0, f->pool, &e), ERR_UNSUPPORTED);
        assert_null(b);
        assert_non_null(strstr(e.text, missing[i][1]));
    }
    unsetenv("MOEBIUS_VULKAN_WITHOUT");
    assert_int_equal(vulkan_open(&b, 63, f->pool, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "there is no Vulkan device 63"));
}

/* Commands are submitted after 8 dispatches, then after 16, so that a GPU begins before all are recorded. */
static void a_gpu_begins_while_the_host_records(void **state)
{
    enum { N = 100, N_ADD = 30 };
    struct fixture *f = *state;
    struct err e;
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    open_with(f, "MOEBIUS_VULKAN_SUBMIT", "early");
    struct tensor a = floats(f, N, 1, x), b = floats(f, N, 1, x), c = floats(f, N, 1, NULL);
    for (int round = 0; round < 2; round++) { /* the second begins anew */
        assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
        uint64_t before = vulkan_get_counters(f->device).n_submit;
        for (int i = 0; i < N_ADD / 2; i++) {
            add(f, a, b, c);
            add(f, a, c, b);
        }
        assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
        assert_int_equal(vulkan_get_counters(f->device).n_submit, before + 3);
    }
    assert_int_equal(backend_read(f->device, &b, y, &e), ERR_OK);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == (float)(2 * N_ADD + 1) * x[i]);
    struct tensor *all[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* A barrier stands only where an operation depends on another. */
static void independent_operations_have_no_barrier_between_them(void **state)
{
    enum { N = 100 };
    struct fixture *f = *state;
    struct err e;
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    struct tensor a = floats(f, N, 1, x), b = floats(f, N, 1, NULL), c = floats(f, N, 1, NULL),
                  d = floats(f, N, 1, NULL);
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    struct vulkan_counters before = vulkan_get_counters(f->device);
    add(f, a, a, b);
    add(f, a, a, c);
    struct vulkan_counters two = vulkan_get_counters(f->device);
    assert_int_equal(two.n_dispatch - before.n_dispatch, 2);
    assert_int_equal(two.n_barrier, before.n_barrier);
    add(f, b, c, d); /* reads what was written */
    add(f, a, d, b); /* writes what was read */
    struct vulkan_counters four = vulkan_get_counters(f->device);
    assert_int_equal(four.n_barrier - two.n_barrier, 2);
    assert_int_equal(four.n_submit, before.n_submit); /* nobody has waited */
    assert_int_equal(backend_read(f->device, &b, y, &e), ERR_OK);
    assert_int_equal(vulkan_get_counters(f->device).n_submit, before.n_submit + 1);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == 5 * x[i]);
    struct tensor *all[] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* A product and a sum behind it are one dispatch, as long as the sum does not go where the product's input is; the same
 * for norms and rotations of heads. What they give is what each alone gives. */
static void operations_that_go_together_are_one_dispatch(void **state)
{
    enum { N = 32, HEAD = 8 };
    struct fixture *f = *state;
    struct err e;
    float x[N], y[3][N], table[HEAD];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 7) - 2.5f;
    for (int i = 0; i < HEAD; i++)
        table[i] = 0.25f * (float)i - 1;
    struct tensor a = floats(f, N, 1, x), h = floats(f, N, 1, NULL), sum = floats(f, N, 1, NULL),
                  t = floats(f, HEAD, 1, table);
    const struct op add_up = {.kind = OP_ADD, .in = {a, h}, .out = {sum}};
    const struct op combine = {.kind = OP_COMBINE, .in = {{a.buffer, 0, ELEM_F32, {N, 1, 1}}}, .out = {h}};
    const struct op norm = {.kind = OP_RMS_NORM, .in = {h}, .out = {h}, .norm = {HEAD, 1e-6f}};
    const struct op rope = {.kind = OP_ROPE, .in = {h, t}, .out = {h}, .rope = {ROPE_NEOX, HEAD, HEAD}};
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    for (int apart = 1; apart >= 0; apart--) {
        struct vulkan_counters before = vulkan_get_counters(f->device);
        const struct op *all[] = {&combine, &add_up, &norm, &rope};
        for (int i = 0; i < 4; i++) {
            backend_enqueue(f->device, all[i]);
            if (apart)
                backend_fence(f->device);
        }
        backend_fence(f->device);
        assert_int_equal(vulkan_get_counters(f->device).n_dispatch - before.n_dispatch, apart ? 4 : 2);
        assert_int_equal(backend_read(f->device, &sum, y[0], &e), ERR_OK);
        assert_int_equal(backend_read(f->device, &h, y[1 + apart], &e), ERR_OK);
        for (int i = 0; i < N; i++)
            assert_true(y[0][i] == 2 * x[i]);
    }
    assert_memory_equal(y[1], y[2], sizeof y[1]);
    const struct op into_input = {.kind = OP_ADD, .in = {a, h}, .out = {a}};
    struct vulkan_counters before = vulkan_get_counters(f->device);
    backend_enqueue(f->device, &combine);
    backend_enqueue(f->device, &into_input);
    assert_int_equal(backend_read(f->device, &a, y[0], &e), ERR_OK);
    assert_int_equal(vulkan_get_counters(f->device).n_dispatch - before.n_dispatch, 2);
    struct tensor *tensors[] = {&a, &h, &sum, &t};
    for (int i = 0; i < 4; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
}

/* A matrix of 40 rows of 64 floats. */
static err_code read_waves(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    enum { K = 64 };
    for (uint64_t i = 0; i < n * K; i++)
        ((float *)dst)[i] = (float)((row0 * K + i) * 37 % 101) * 0.02f - 1;
    return ERR_OK;
}

/* Enqueues operations, each apart from the others or not; returns how many dispatches they took. */
static uint64_t n_dispatch_of(struct fixture *f, const struct op *const *ops, int n, bool apart)
{
    uint64_t before = vulkan_get_counters(f->device).n_dispatch;
    for (int i = 0; i < n; i++) {
        backend_enqueue(f->device, ops[i]);
        if (apart)
            backend_fence(f->device);
    }
    return vulkan_get_counters(f->device).n_dispatch - before;
}

/* The products of a norm compute it themselves, and one of them leaves it where it belongs; but not where the sum
 * behind a product would be written over the norm's input. */
static void products_of_a_norm_compute_it_with_its_bits(void **state)
{
    enum { K = 64, N_ROW = 40 };
    struct fixture *f = *state;
    struct err e;
    struct weight *w;
    float x[K], y[3][2][N_ROW], h[2][K], sum[2][N_ROW];
    for (int i = 0; i < K; i++)
        x[i] = (float)(i % 11) - 4.5f;
    const struct weight_desc d = {"test.weight", quant_info(QUANT_F32), K, N_ROW};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_waves, NULL}, &w, &e), ERR_OK);
    struct tensor a = floats(f, K, 1, x), n = floats(f, K, 1, NULL), p = floats(f, N_ROW, 1, NULL),
                  q = floats(f, N_ROW, 1, NULL), r = floats(f, N_ROW, 1, NULL);
    struct tensor front = a;
    front.ne[0] = N_ROW;
    const struct op norm = {.kind = OP_RMS_NORM, .in = {a}, .out = {n}, .norm = {K, 1e-6f}};
    const struct op product = {.kind = OP_MATMUL, .in = {n}, .out = {p}, .weight = {w}};
    const struct op pair = {.kind = OP_MATMUL, .in = {n}, .out = {q, r}, .weight = {w, w}};
    struct op act = {.kind = OP_ACT_MUL, .in = {q, r}, .out = {q}, .act_limit = 0.5f};
    const struct op into_input = {.kind = OP_ADD, .in = {front, p}, .out = {front}};
    const struct op *const all[] = {&norm, &product, &pair, &act};
    static const enum act_fn acts[] = {ACT_SILU, ACT_SILU_CLAMPED, ACT_SITU};
    for (size_t k = 0; k < sizeof acts / sizeof *acts; k++) {
        act.act = acts[k];
        act.act_up_limit = acts[k] == ACT_SITU ? 0.3f : 0;
        for (int apart = 1; apart >= 0; apart--) {
            assert_int_equal(n_dispatch_of(f, all, 4, apart), apart ? 4 : 2);
            assert_int_equal(backend_read(f->device, &n, h[apart], &e), ERR_OK);
            assert_int_equal(backend_read(f->device, &p, y[0][apart], &e), ERR_OK);
            assert_int_equal(backend_read(f->device, &q, y[1][apart], &e), ERR_OK);
            assert_int_equal(backend_read(f->device, &r, y[2][apart], &e), ERR_OK);
        }
        assert_memory_equal(h[0], h[1], sizeof h[0]);
        for (int i = 0; i < 3; i++)
            assert_memory_equal(y[i][0], y[i][1], sizeof y[i][0]);
    }
    const struct op *const over[] = {&norm, &product, &into_input};
    for (int apart = 1; apart >= 0; apart--) {
        backend_write(f->device, &a, x);
        assert_int_equal(n_dispatch_of(f, over, 3, apart), apart ? 3 : 2);
        assert_int_equal(backend_read(f->device, &front, sum[apart], &e), ERR_OK);
    }
    assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
    struct tensor *tensors[] = {&a, &n, &p, &q, &r};
    for (int i = 0; i < 5; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
    backend_weight_close(f->device, &w);
}

/* A router computes the norm that it reads, and multiplies a small matrix beside it, with the bits of each alone; where
 * its experts are given it leaves that matrix to others. */
static void a_router_takes_a_norm_and_a_matrix_with_their_bits(void **state)
{
    enum { K = 64, N_ROW = 40, N_OTHER = 8, USED = 3, TOKEN = 2 };
    static const int32_t given[3 * USED] = {0, 0, 0, 0, 0, 0, 30, 2, 17}, token = TOKEN;
    struct fixture *f = *state;
    struct err e;
    struct weight *w, *other;
    struct tensor ids, tokens, table;
    float x[K], h[2][K], weights[2][USED], y[2][N_OTHER];
    int32_t chosen[2][USED];
    for (int i = 0; i < K; i++)
        x[i] = (float)(i % 11) - 4.5f;
    const struct weight_source source = {read_waves, NULL};
    const struct weight_desc d = {"test.weight", quant_info(QUANT_F32), K, N_ROW};
    const struct weight_desc small = {"test.other", quant_info(QUANT_F32), K, N_OTHER};
    assert_int_equal(backend_weight_load(f->device, &d, &source, &w, &e), ERR_OK);
    assert_int_equal(backend_weight_load(f->device, &small, &source, &other, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, USED, 1, 1, MEM_SCRATCH, &ids, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 1, 1, 1, MEM_SCRATCH, &tokens, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, USED, 3, 1, MEM_SCRATCH, &table, &e), ERR_OK);
    backend_write(f->device, &tokens, &token);
    backend_write(f->device, &table, given);
    struct tensor a = floats(f, K, 1, x), n = floats(f, K, 1, NULL), p = floats(f, N_ROW, 1, NULL),
                  q = floats(f, N_ROW, 1, NULL), r = floats(f, N_OTHER, 1, NULL), by = floats(f, USED, 1, NULL);
    const struct op norm = {.kind = OP_RMS_NORM, .in = {a}, .out = {n}, .norm = {K, 1e-6f}};
    struct op route = {.kind = OP_ROUTE,
                       .in = {n, tokens},
                       .out = {[ROUTE_IDS] = ids, [ROUTE_WEIGHTS] = by},
                       .weight = {w},
                       .route = {ROUTE_SQRT_SOFTPLUS, true, 1.5f, 1, 1}};
    const struct op product = {.kind = OP_MATMUL, .in = {n}, .out = {p, q, r}, .weight = {w, w, other}};
    const struct op *const all[] = {&norm, &route, &product};
    for (int is_given = 0; is_given < 2; is_given++) {
        if (is_given)
            route.vec[ROUTE_TOKEN_EXPERTS] = table;
        for (int apart = 1; apart >= 0; apart--) {
            backend_clear(f->device, &r);
            assert_int_equal(n_dispatch_of(f, all, 3, apart), apart ? 3 : 2);
            assert_int_equal(backend_read(f->device, &n, h[apart], &e), ERR_OK);
            assert_int_equal(backend_read(f->device, &ids, chosen[apart], &e), ERR_OK);
            assert_int_equal(backend_read(f->device, &by, weights[apart], &e), ERR_OK);
            assert_int_equal(backend_read(f->device, &r, y[apart], &e), ERR_OK);
        }
        assert_memory_equal(h[0], h[1], sizeof h[0]);
        assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
        assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        assert_true(y[0][0] != 0 && (memcmp(chosen[0], given + TOKEN * USED, sizeof chosen[0]) == 0) == is_given);
    }
    struct tensor *tensors[] = {&a, &n, &p, &q, &r, &by, &ids, &tokens, &table};
    for (int i = 0; i < 9; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
    backend_weight_close(f->device, &w);
    backend_weight_close(f->device, &other);
}

/* A matrix of 40 rows of 512 weights in blocks of Q4_K. */
static err_code read_q4k(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    enum { BLOCK = 144, N_BLOCK = 2 };
    static const uint8_t scales[4] = {0x00, 0x2c, 0x00, 0x28}; /* 1/16 and 1/32 */
    uint8_t *b = dst;
    for (uint64_t i = 0; i < n * N_BLOCK * BLOCK; i++)
        b[i] = i % BLOCK < 4 ? scales[i % BLOCK] : (uint8_t)((row0 * N_BLOCK * BLOCK + i) * 37 % 251);
    return ERR_OK;
}

enum { Q4K_K = 512, Q4K_ROWS = 40, MOST_TOKENS = 17 };

/* The product of m rows of x that begin off_bytes into their tensor. */
static void multiply_q4k(struct fixture *f, int m, size_t off_bytes, const float *x, float *y)
{
    struct err e;
    struct weight *w;
    const struct weight_desc d = {"test.weight", quant_info(QUANT_Q4_K), Q4K_K, Q4K_ROWS};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_q4k, NULL}, &w, &e), ERR_OK);
    struct tensor room = floats(f, Q4K_K, m + 1, NULL), out = floats(f, Q4K_ROWS, m, NULL), in = room;
    in.off_bytes = off_bytes;
    in.ne[1] = m;
    backend_write(f->device, &in, x);
    backend_enqueue(f->device, &(struct op){.kind = OP_MATMUL, .in = {in}, .out = {out}, .weight = {w}});
    assert_int_equal(backend_read(f->device, &out, y, &e), ERR_OK);
    backend_buffer_close(f->device, &room.buffer);
    backend_buffer_close(f->device, &out.buffer);
    backend_weight_close(f->device, &w);
}

/* However many rows share what is read of the weights, and however that is loaded. */
static void a_product_has_the_same_bits_for_any_number_of_rows_and_any_loads(void **state)
{
    static const struct {
        const char *without;
        int m;
        size_t off_bytes;
    } cases[] = {{"", 2, 0}, {"", 16, 0},           {"", MOST_TOKENS, 0},
                 {"", 3, 4}, {"shaderInt64", 1, 0}, {"shaderInt64", 2, 0}};
    static float x[MOST_TOKENS * Q4K_K], want[MOST_TOKENS * Q4K_ROWS], got[MOST_TOKENS * Q4K_ROWS];
    struct fixture *f = *state;
    for (int i = 0; i < MOST_TOKENS * Q4K_K; i++)
        x[i] = (float)(i * 29 % 113) * 0.02f - 1;
    for (int t = 0; t < MOST_TOKENS; t++)
        multiply_q4k(f, 1, 0, x + (size_t)t * Q4K_K, want + (size_t)t * Q4K_ROWS);
    assert_true(fabsf(want[0]) > 0.01f && want[0] != want[1]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_with(f, "MOEBIUS_VULKAN_WITHOUT", cases[i].without);
        multiply_q4k(f, cases[i].m, cases[i].off_bytes, x, got);
        assert_memory_equal(got, want, (size_t)cases[i].m * Q4K_ROWS * sizeof *got);
    }
}

static void a_product_of_integers_has_the_same_bits_for_any_number_of_rows_and_any_loads(void **state)
{
    setenv("MOEBIUS_VULKAN_PRODUCTS", "integer", 1);
    open_with(*state, "MOEBIUS_VULKAN_WITHOUT", "");
    a_product_has_the_same_bits_for_any_number_of_rows_and_any_loads(state);
}

/* Bytes that are small finite numbers as parts of halves. */
static err_code read_tame(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    size_t row = *(const size_t *)user;
    for (uint64_t i = 0; i < n * row; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((row0 * row + i) * 2654435761u >> 24 & 0x3f);
    return ERR_OK;
}

/* The product of m rows of x with 40 rows of 512 weights of a type, on any device. */
static void multiply_on(struct backend *b, enum quant_type type, int m, const float *x, float *y)
{
    struct err e;
    struct weight *w;
    size_t row_bytes = 0;
    struct tensor in, out;
    const struct weight_desc d = {"test.weight", quant_info(type), Q4K_K, Q4K_ROWS};
    assert_true(quant_row_bytes(d.type, Q4K_K, &row_bytes));
    assert_int_equal(backend_weight_load(b, &d, &(struct weight_source){read_tame, &row_bytes}, &w, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(b, ELEM_F32, Q4K_K, m, 1, MEM_SCRATCH, &in, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(b, ELEM_F32, Q4K_ROWS, m, 1, MEM_SCRATCH, &out, &e), ERR_OK);
    backend_write(b, &in, x);
    backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {in}, .out = {out}, .weight = {w}});
    assert_int_equal(backend_read(b, &out, y, &e), ERR_OK);
    backend_buffer_close(b, &in.buffer);
    backend_buffer_close(b, &out.buffer);
    backend_weight_close(b, &w);
}

/* What would take a driver long is submitted in parts, without tiles and with them, and is the same to the bit. */
static void long_products_are_submitted_in_parts(void **state)
{
    enum { M = 250 };
    static float x[M * Q4K_K], y[3][M * Q4K_ROWS];
    struct fixture *f = *state;
    uint64_t n_submit[3];
    for (int i = 0; i < M * Q4K_K; i++)
        x[i] = (float)(i * 29 % 113) * 0.02f - 1;
    for (int i = 0; i < 3; i++) {
        setenv("MOEBIUS_VULKAN_TILES", i == 2 ? "1" : "0", 1);
        if (i)
            open_with(f, "MOEBIUS_VULKAN_WORK", "1");
        multiply_on(f->device, QUANT_Q8_0, 1, x, y[i]); /* compiles */
        n_submit[i] = vulkan_get_counters(f->device).n_submit;
        multiply_on(f->device, QUANT_Q8_0, M, x, y[i]);
        n_submit[i] = vulkan_get_counters(f->device).n_submit - n_submit[i];
    }
    for (int i = 1; i < 3; i++) {
        assert_true(n_submit[i] > n_submit[0] + 4);
        assert_memory_equal(y[0], y[i], sizeof y[0]);
    }
}

/* Activations are rounded as there, so that nothing but the order of the blocks' sums differs; and by whatever
 * instructions, it is the same to the bit. */
static void products_of_integers_are_those_of_the_processor(void **state)
{
    enum { M = 5 };
    static const enum quant_type types[] = {QUANT_Q4_0, QUANT_Q5_0, QUANT_Q8_0, QUANT_Q4_K,
                                            QUANT_Q5_K, QUANT_Q6_K, QUANT_MXFP4};
    static const char *const without[] = {"", "VK_KHR_shader_integer_dot_product", "shaderInt64"};
    static float x[M * Q4K_K], want[M * Q4K_ROWS], first[M * Q4K_ROWS], got[M * Q4K_ROWS], floats_of[M * Q4K_ROWS];
    struct fixture *f = *state;
    struct backend *cpu;
    struct err e;
    assert_int_equal(backend_cpu_open(&cpu, f->pool, kernels_for(CPU_SCALAR), &e), ERR_OK);
    for (int i = 0; i < M * Q4K_K; i++) /* a row of zeros, too */
        x[i] = i / Q4K_K == 1 ? 0 : (float)(i * 29 % 113) * 0.02f * (float)(1 + i % 700 / 256) - 1;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double off = 0, float_off = 0, size = 0;
        multiply_on(cpu, types[t], M, x, want);
        for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
            setenv("MOEBIUS_VULKAN_PRODUCTS", "integer", 1);
            open_with(f, "MOEBIUS_VULKAN_WITHOUT", without[i]);
            multiply_on(f->device, types[t], M, x, got);
            if (i == 0)
                memcpy(first, got, sizeof got);
            assert_memory_equal(got, first, sizeof got);
            multiply_on(f->device, types[t], 1, x, got);
            assert_memory_equal(got, first, Q4K_ROWS * sizeof *got);
        }
        setenv("MOEBIUS_VULKAN_PRODUCTS", "float", 1);
        open_with(f, "MOEBIUS_VULKAN_WITHOUT", "");
        multiply_on(f->device, types[t], M, x, floats_of);
        for (int i = 0; i < M * Q4K_ROWS; i++) {
            off += pow((double)first[i] - want[i], 2);
            float_off += pow((double)floats_of[i] - want[i], 2);
            size += pow(want[i], 2);
        }
        if (!(sqrt(off / size) < 1e-6 && sqrt(float_off / size) > 1e-5 && sqrt(float_off / size) < 0.02))
            fail_msg("%s: %g apart, floats %g", quant_info(types[t])->name, sqrt(off / size), sqrt(float_off / size));
    }
    backend_close(&cpu);
}

/* The product of a row with weights of Q4_0 on a device that is opened anew and goes by `saved`, unless that is NULL.
 */
static void multiply_anew(struct fixture *f, const void *saved, size_t n, const float *x, float *y)
{
    open_with(f, "MOEBIUS_VULKAN_WITHOUT", "");
    if (saved)
        assert_true(vulkan_use_pipelines(f->device, saved, n));
    multiply_on(f->device, QUANT_Q4_0, 1, x, y);
}

/* Which definition is faster is measured once, and kept with what is compiled. */
static void a_later_run_takes_the_definitions_that_were_measured(void **state)
{
    enum {
        CHOICE_OFF = 32 + QUANT_Q4_0,
        HEADER_CRC_OFF = 204,
        INTEGER = 4
    }; /* in what is saved: a type's choices; a checksum of what is before; a bit of the choices */
    static float x[Q4K_K], y[4][Q4K_ROWS];
    struct fixture *f = *state;
    struct err e;
    uint32_t crc;
    void *saved;
    size_t n;
    for (int i = 0; i < Q4K_K; i++)
        x[i] = (float)(i * 29 % 113) * 0.02f - 1;
    for (int i = 0; i < 2; i++) {
        setenv("MOEBIUS_VULKAN_PRODUCTS", i ? "integer" : "float", 1);
        multiply_anew(f, NULL, 0, x, y[i]);
    }
    unsetenv("MOEBIUS_VULKAN_PRODUCTS");
    multiply_anew(f, NULL, 0, x, y[2]);
    assert_in_range(vulkan_get_counters(f->device).n_dispatch, 1, 2); /* what is measured does not count */
    assert_int_equal(vulkan_save_pipelines(f->device, &saved, &n, &e), ERR_OK);
    char *choice = (char *)saved + CHOICE_OFF;
    assert_true(*choice & 1); /* something was chosen */
    assert_memory_equal(y[2], y[*choice & INTEGER ? 1 : 0], sizeof y[2]);
    *choice ^= INTEGER;
    crc = crc32c(0, saved, HEADER_CRC_OFF);
    memcpy((char *)saved + HEADER_CRC_OFF, &crc, sizeof crc);
    multiply_anew(f, saved, n, x, y[3]);
    assert_memory_equal(y[3], y[*choice & INTEGER ? 1 : 0], sizeof y[3]);
    assert_memory_not_equal(y[2], y[3], sizeof y[3]);
    mem_free(saved);
}

static void transfers_are_timed_both_ways(void **state)
{
    enum { N = 1 << 20 };
    struct fixture *f = *state;
    struct tensor t = floats(f, N, 1, NULL);
    double to, from;
    struct err e;
    assert_int_equal(vulkan_time_transfers(f->device, &t, &to, &from, &e), ERR_OK);
    assert_true(to > 1e6 && to < 1e12 && from > 1e6 && from < 1e12);
    backend_buffer_close(f->device, &t.buffer);
}

static void operations_are_timed_when_that_is_asked_for(void **state)
{
    enum { N = 1000 };
    struct fixture *f = *state;
    struct tensor a = floats(f, N, 1, NULL), b = floats(f, N, 1, NULL);
    add(f, a, a, b);
    assert_int_equal(backend_counters(f->device).op[OP_ADD].n_ns, 0);
    assert_true(vulkan_time_operations(f->device));
    for (int i = 0; i < 2; i++) {
        uint64_t before = backend_counters(f->device).op[OP_ADD].n_ns;
        add(f, a, a, b);
        assert_true(backend_counters(f->device).op[OP_ADD].n_ns > before);
    }
    assert_int_equal(backend_counters(f->device).op[OP_MATMUL].n_ns, 0);
    backend_buffer_close(f->device, &a.buffer);
    backend_buffer_close(f->device, &b.buffer);
    open_with(f, "MOEBIUS_VULKAN_WITHOUT", "timestamps");
    assert_false(vulkan_time_operations(f->device));
}

/* Norms and rotations of q's and k's heads and both caches are one dispatch, and hold what each gives alone. */
/* The elements [off, off + n_rot) of heads are rotated. */
static void expect_heads_at_once(struct fixture *f, int64_t n_rot, int64_t off)
{
    enum { HEAD = 32, N_HEAD = 2, N = HEAD * N_HEAD };
    static const int32_t zero = 0;
    struct err e;
    float x[N], cs[HEAD], q_out[2][N], k_out[2][HEAD];
    uint16_t stored[2][2][HEAD];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 13) - 5.5f;
    for (int i = 0; i < HEAD; i++)
        cs[i] = 0.06f * (float)i - 1;
    struct tensor q = floats(f, N, 1, x), k = floats(f, HEAD, 1, x), val = floats(f, HEAD, 1, x + HEAD),
                  table = floats(f, n_rot, 1, cs), list, cache[2];
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 1, 1, 1, MEM_SCRATCH, &list, &e), ERR_OK);
    backend_write(f->device, &list, &zero);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            backend_tensor_create(f->device, ELEM_F16, HEAD, ATTENTION_BLOCK, 1, MEM_SCRATCH, &cache[i], &e), ERR_OK);
    const struct op norm_q = {.kind = OP_RMS_NORM, .in = {q}, .out = {q}, .norm = {HEAD, 1e-6f}};
    const struct op rope_q = {.kind = OP_ROPE, .in = {q, table}, .out = {q}, .rope = {ROPE_NEOX, HEAD, n_rot, off}};
    const struct op norm_k = {.kind = OP_RMS_NORM, .in = {k}, .out = {k}, .norm = {HEAD, 1e-6f}};
    const struct op rope_k = {.kind = OP_ROPE, .in = {k, table}, .out = {k}, .rope = {ROPE_NEOX, HEAD, n_rot, off}};
    const struct op store_k = {
        .kind = OP_KV_STORE,
        .in = {[KV_STORE_X] = k, [KV_STORE_POS] = list, [KV_STORE_TABLE] = list, [KV_STORE_PAGES] = list},
        .state = {{cache[0], tensor_bytes(&cache[0]), tensor_bytes(&cache[0])}}};
    const struct op store_v = {
        .kind = OP_KV_STORE,
        .in = {[KV_STORE_X] = val, [KV_STORE_POS] = list, [KV_STORE_TABLE] = list, [KV_STORE_PAGES] = list},
        .state = {{cache[1], tensor_bytes(&cache[1]), tensor_bytes(&cache[1])}}};
    const struct op *const all[] = {&norm_q, &rope_q, &norm_k, &rope_k, &store_k, &store_v};
    for (int apart = 1; apart >= 0; apart--) {
        backend_write(f->device, &q, x);
        backend_write(f->device, &k, x);
        assert_int_equal(n_dispatch_of(f, all, 6, apart), apart ? 6 : 1);
        assert_int_equal(backend_read(f->device, &q, q_out[apart], &e), ERR_OK);
        assert_int_equal(backend_read(f->device, &k, k_out[apart], &e), ERR_OK);
        for (int i = 0; i < 2; i++) {
            const struct tensor first = tensor_rows(cache[i], 0, 1);
            assert_int_equal(backend_read(f->device, &first, stored[i][apart], &e), ERR_OK);
            backend_clear(f->device, &cache[i]);
        }
    }
    assert_memory_equal(q_out[0], q_out[1], sizeof q_out[0]);
    assert_memory_equal(k_out[0], k_out[1], sizeof k_out[0]);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(stored[i][0], stored[i][1], sizeof stored[i][0]);
    assert_true(fabsf(k_out[0][0] - x[0]) > 0.1f && stored[1][0][0] != 0);
    struct tensor *tensors[] = {&q, &k, &val, &table, &list, &cache[0], &cache[1]};
    for (int i = 0; i < 7; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
}

static void heads_are_normed_rotated_and_stored_at_once(void **state)
{
    expect_heads_at_once(*state, 32, 0);
    expect_heads_at_once(*state, 12, 20);
}

/* What was read last is on its way to the host when it has been written again and waited for. */
static void reading_the_same_again_takes_no_submission(void **state)
{
    enum { N = 100 };
    struct fixture *f = *state;
    struct err e;
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    struct tensor a = floats(f, N, 1, x), b = floats(f, N, 1, NULL);
    for (int round = 0; round < 3; round++) {
        uint64_t before = vulkan_get_counters(f->device).n_submit;
        x[7] = (float)round;
        backend_write(f->device, &a, x);
        add(f, a, a, b);
        assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
        assert_int_equal(backend_read(f->device, &b, y, &e), ERR_OK);
        assert_int_equal(vulkan_get_counters(f->device).n_submit - before, round ? 1 : 2);
        for (int i = 0; i < N; i++)
            assert_true(y[i] == 2 * x[i]);
    }
    add(f, b, a, b); /* after the copy: it must be read anew */
    assert_int_equal(backend_read(f->device, &b, y, &e), ERR_OK);
    assert_true(y[3] == 3 * x[3]);
    backend_buffer_close(f->device, &b.buffer);
    add(f, a, a, a); /* nothing is copied from what has gone */
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    backend_buffer_close(f->device, &a.buffer);
}

/* What is read in parts, of a tensor or of pages, is read again part by part. */
static void parts_that_are_read_again_are_told_apart(void **state)
{
    enum { N = 512 << 10, UNIT = 12 << 20, N_PAGE = 3 };
    struct fixture *f = *state;
    struct err e;
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), page[2] = {0};
    struct tensor small = floats(f, 1, 1, (float[]){1});
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    struct tensor large = floats(f, N, 1, x), pages[N_PAGE];
    for (int round = 0; round < 2; round++) {
        memset(y, 0, N * sizeof *y);
        assert_int_equal(backend_read(f->device, &large, y, &e), ERR_OK);
        assert_memory_equal(x, y, N * sizeof *x);
        add(f, small, small, small);
        assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    }
    struct buffer *buf;
    assert_int_equal(backend_buffer_reserve(f->device, N_PAGE * UNIT, UNIT, 1, MEM_STATE, &buf, &e), ERR_OK);
    assert_true(backend_buffer_commit(f->device, buf, 0, N_PAGE * UNIT));
    for (int i = 0; i < N_PAGE; i++) {
        pages[i] = (struct tensor){buf, (size_t)i * UNIT, ELEM_F32, {2, 1, 1}};
        backend_write(f->device, &pages[i], (float[]){(float)i, 7});
    }
    for (int i = 0; i < N_PAGE; i++) {
        assert_int_equal(backend_read(f->device, &pages[i], page, &e), ERR_OK);
        assert_true(page[0] == (float)i && page[1] == 7);
        add(f, small, small, small);
        assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    }
    backend_buffer_decommit(f->device, buf, 0, N_PAGE * UNIT);
    add(f, small, small, small); /* nothing is copied from pages that have gone */
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    backend_buffer_close(f->device, &buf);
    backend_buffer_close(f->device, &large.buffer);
    backend_buffer_close(f->device, &small.buffer);
    free(x);
    free(y);
}

/* More writes than the staging of all submissions holds, each read by a copy that was enqueued before the next. */
static void writes_keep_their_order_when_staging_runs_out(void **state)
{
    enum { N = 200000, ROUNDS = 12 };
    struct fixture *f = *state;
    struct err e;
    float *x = malloc(N * sizeof *x);
    struct tensor t = floats(f, N, 1, NULL), sums = floats(f, N, ROUNDS, NULL);
    for (int r = 0; r < ROUNDS; r++) {
        const struct tensor to = tensor_rows(sums, r, 1);
        for (int i = 0; i < N; i++)
            x[i] = (float)(r * 1000 + i % 1000);
        backend_write(f->device, &t, x);
        backend_copy(f->device, &t, &to);
    }
    for (int r = 0; r < ROUNDS; r++) {
        const struct tensor row = tensor_rows(sums, r, 1);
        assert_int_equal(backend_read(f->device, &row, x, &e), ERR_OK);
        for (int i = 0; i < N; i++)
            assert_true(x[i] == (float)(r * 1000 + i % 1000));
    }
    backend_buffer_close(f->device, &t.buffer);
    backend_buffer_close(f->device, &sums.buffer);
    free(x);
}

enum { LARGE_K = 64, LARGE_ROW = 50000 };

static err_code read_rows(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    float *x = dst;
    for (uint64_t i = 0; i < n * LARGE_K; i++)
        x[i] = (float)((row0 + i / LARGE_K) % 1001) * (i % LARGE_K == 5);
    return ERR_OK;
}

/* A matrix of 12.8 MB: row r is r % 1001 at element 5, and else zeros. */
static void check_large_matrix(struct fixture *f)
{
    static const int32_t ids[3] = {0, LARGE_ROW - 1, LARGE_ROW / 2 + 7};
    struct err e;
    struct weight *w;
    float x[2 * LARGE_K] = {0}, *y = malloc(2 * LARGE_ROW * sizeof *y), rows[3 * LARGE_K];
    const struct weight_desc d = {"large.weight", quant_info(QUANT_F32), LARGE_K, LARGE_ROW};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_rows, NULL}, &w, &e), ERR_OK);
    x[5] = 2;
    x[LARGE_K + 5] = 3;
    struct tensor tx = floats(f, LARGE_K, 2, x), ty = floats(f, LARGE_ROW, 2, NULL), out = floats(f, LARGE_K, 3, NULL);
    struct tensor tids;
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 3, 1, 1, MEM_SCRATCH, &tids, &e), ERR_OK);
    backend_write(f->device, &tids, ids);
    backend_enqueue(f->device, &(struct op){.kind = OP_MATMUL, .in = {tx}, .out = {ty}, .weight = {w}});
    backend_enqueue(f->device, &(struct op){.kind = OP_EMBED, .in = {tids}, .out = {out}, .weight = {w}, .scale = 1});
    assert_int_equal(backend_read(f->device, &ty, y, &e), ERR_OK);
    assert_int_equal(backend_read(f->device, &out, rows, &e), ERR_OK);
    for (int i = 0; i < 2 * LARGE_ROW; i++)
        assert_true(y[i] == (float)(i % LARGE_ROW % 1001) * (i < LARGE_ROW ? 2 : 3));
    for (int i = 0; i < 3; i++)
        assert_true(rows[i * LARGE_K + 5] == (float)(ids[i] % 1001) && rows[i * LARGE_K + 6] == 0);
    struct tensor *all[] = {&tx, &ty, &out, &tids};
    for (int i = 0; i < 4; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
    backend_weight_close(f->device, &w);
    free(y);
}

static void a_matrix_beyond_the_largest_allocation_comes_in_parts(void **state)
{
    struct fixture *f = *state;
    open_with(f, "MOEBIUS_VULKAN_ALLOCATION", "8");
    check_large_matrix(f);
}

static void weights_reach_memory_that_the_host_cannot_write(void **state)
{
    struct fixture *f = *state;
    open_with(f, "MOEBIUS_VULKAN_WITHOUT", "mapped");
    check_large_matrix(f);
}

static void a_tensor_beyond_the_largest_allocation_is_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct buffer *buf;
    size_t before = mem_total_bytes();
    open_with(f, "MOEBIUS_VULKAN_ALLOCATION", "8");
    assert_int_equal(backend_buffer_create(f->device, 9 << 20, 1, MEM_STATE, &buf, &e), ERR_LIMIT);
    assert_null(buf);
    assert_non_null(strstr(e.text, "the driver allocates 8388608 at most"));
    assert_true(mem_total_bytes() <= before + (1 << 20));
}

/* ---- memory of a card ------------------------------------------------------------------------------------------ */

enum { MIB = 1 << 20, SLOT_K = 4096, SLOT_ROWS = 64, N_SLOT = 32 };

/* Slots of 3 x 256 KiB and a little. */
static struct slot_pool *open_slots(struct fixture *f)
{
    struct slot_pool *s;
    struct err e;
    const struct quant_info *q = quant_info(QUANT_Q8_0);
    const struct slot_pool_desc d = {{q, q, q}, SLOT_K, SLOT_ROWS, N_SLOT};
    assert_int_equal(backend_slot_pool_create(f->device, &d, &s, &e), ERR_OK);
    return s;
}

struct closing {
    struct fixture *f;
    struct slot_pool *s;
    int n_open;
    size_t asked_bytes;
};

/* Gives slots back, the last first. */
static void close_slots(void *user, size_t n_bytes)
{
    struct closing *c = user;
    c->asked_bytes = n_bytes;
    while (c->n_open && backend_room_bytes(c->f->device) < n_bytes)
        backend_slot_close(c->f->device, c->s, --c->n_open);
}

/* Memory of its own is bounded by the limit that is set, by the driver's budget, which may shrink, and by what the
 * driver refuses; what is asked to does give some back; and the host's limit has nothing to do with it. */
static void a_card_has_no_more_than_its_limit(void **state)
{
    static const char *const bounds[][2] = {
        {NULL, NULL}, {"MOEBIUS_VULKAN_BUDGET", "20"}, {"MOEBIUS_VULKAN_HEAP", "20"}};
    struct fixture *f = *state;
    for (size_t i = 0; i < 3; i++) {
        struct err e = {0};
        struct buffer *buf = NULL;
        struct closing c = {.f = f};
        if (bounds[i][0])
            setenv(bounds[i][0], bounds[i][1], 1);
        open_with(f, "MOEBIUS_VULKAN_KIND", "discrete");
        assert_true(backend_own_bytes(f->device) > 0);
        if (!bounds[i][0])
            vulkan_set_limit(f->device, 20 * MIB);
        size_t host = mem_total_bytes();
        c.s = open_slots(f);
        while (c.n_open < N_SLOT && backend_slot_open(f->device, c.s, c.n_open))
            c.n_open++;
        assert_true(c.n_open >= 20 && c.n_open < 27);
        struct vulkan_memory m = vulkan_get_memory(f->device);
        assert_true(m.allocated_bytes <= 20 * MIB && m.used_bytes <= m.allocated_bytes);
        assert_true(mem_total_bytes() < host + MIB);
        assert_int_equal(backend_buffer_create(f->device, 4 * MIB, 1, MEM_STATE, &buf, &e), ERR_LIMIT);
        assert_null(buf);
        assert_non_null(strstr(e.text, "MiB for"));
        assert_non_null(strstr(e.text, "of its memory that may be used"));
        backend_set_reclaim(f->device, close_slots, &c);
        int n_before = c.n_open;
        assert_int_equal(backend_buffer_create(f->device, MIB / 2, 1, MEM_STATE, &buf, &e), ERR_OK);
        assert_true(c.n_open >= n_before - 2);
        backend_buffer_close(f->device, &buf);
        backend_slot_pool_close(f->device, &c.s);
        if (bounds[i][0])
            unsetenv(bounds[i][0]);
    }
}

/* An operation that found no room for its work space says so, and runs as ever once there is some: what it took before
 * it failed begins with zeros, too. */
static void an_operation_without_room_leaves_nothing_behind(void **state)
{
    enum { N_TOK = 1024, N_EXPERT = 16, K = 64 };
    struct fixture *f = *state;
    struct err e = {0};
    struct weight *router;
    struct tensor ids;
    static int32_t chosen[N_TOK];
    setenv("MOEBIUS_VULKAN_FILL", "1", 1);
    open_with(f, "MOEBIUS_VULKAN_KIND", "discrete");
    const struct weight_desc d = {"test.weight", quant_info(QUANT_F32), K, N_EXPERT};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_rows, NULL}, &router, &e), ERR_OK);
    struct tensor x = floats(f, K, N_TOK, NULL), weights = floats(f, 1, N_TOK, NULL);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 1, N_TOK, 1, MEM_SCRATCH, &ids, &e), ERR_OK);
    const struct op route = {.kind = OP_ROUTE,
                             .in = {x},
                             .out = {[ROUTE_IDS] = ids, [ROUTE_WEIGHTS] = weights},
                             .weight = {router},
                             .route = {.score = ROUTE_SOFTMAX, .scale = 1, .n_group = 1, .n_group_used = 1}};
    float *ones = malloc(K * N_TOK * sizeof *ones);
    for (int i = 0; i < K * N_TOK; i++)
        ones[i] = 1;
    backend_write(f->device, &x, ones);
    free(ones);
    vulkan_set_limit(f->device, vulkan_get_memory(f->device).used_bytes + 32768); /* for counters, but no logits */
    backend_enqueue(f->device, &route);
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_LIMIT);
    vulkan_set_limit(f->device, SIZE_MAX);
    backend_enqueue(f->device, &route);
    assert_int_equal(backend_read(f->device, &ids, chosen, &e), ERR_OK);
    for (int i = 0; i < N_TOK; i++)
        assert_int_equal(chosen[i], N_EXPERT - 1); /* the row with the largest number */
    struct tensor *tensors[] = {&x, &weights, &ids};
    for (int i = 0; i < 3; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
    backend_weight_close(f->device, &router);
}

static void a_budget_that_shrinks_takes_slots_back(void **state)
{
    struct fixture *f = *state;
    struct closing c = {.f = f};
    setenv("MOEBIUS_VULKAN_BUDGET", "40", 1);
    open_with(f, "MOEBIUS_VULKAN_KIND", "discrete");
    c.s = open_slots(f);
    while (c.n_open < 20 && backend_slot_open(f->device, c.s, c.n_open))
        c.n_open++;
    assert_int_equal(c.n_open, 20);
    backend_set_reclaim(f->device, close_slots, &c);
    assert_true(backend_make_room(f->device, 8 * MIB));
    assert_int_equal(c.n_open, 20);
    setenv("MOEBIUS_VULKAN_BUDGET", "14", 1);
    assert_int_equal(backend_room_bytes(f->device), 0);
    assert_true(backend_make_room(f->device, 8 * MIB));
    assert_int_equal(c.asked_bytes, 8 * MIB);
    assert_true(c.n_open > 0 && c.n_open < 12);
    assert_false(backend_make_room(f->device, 20 * MIB));
    assert_int_equal(c.n_open, 0);
    backend_slot_pool_close(f->device, &c.s);
}

enum { FILL_N = 64, FILL_RING = 2, FILL_EXPERTS = 40 };

/* Experts that one thread fills a ring of slots with, while another computes what was filled before. */
struct filling {
    struct backend *device;
    struct slot_pool *s;
    sem_t room, filled; /* slots of the ring */
    err_code code;      /* the first error */
};

static void *fill_ring(void *arg)
{
    static float x[FILL_N * FILL_N];
    struct filling *r = arg;
    struct err e;
    for (int i = 0; i < FILL_EXPERTS; i++) {
        sem_wait(&r->room);
        for (int matrix = 0; matrix < EXPERT_N_MATRIX && r->code == ERR_OK; matrix++) {
            for (int j = 0; j < FILL_N * FILL_N; j++)
                x[j] = (float)((j + i * 31 + matrix * 7) * 37 % 101) * 0.02f - 1;
            const struct slot_rows rows = {(enum expert_matrix)matrix, x, false, 0, FILL_N};
            r->code = backend_slot_fill(r->device, r->s, i % FILL_RING, &rows, &e);
        }
        sem_post(&r->filled);
    }
    return NULL;
}

/* y [FILL_EXPERTS][FILL_N]: what each expert makes of the same row. */
static void compute_ring(struct fixture *f, float *y)
{
    struct filling r = {.device = f->device};
    struct err e;
    pthread_t thread;
    float x[FILL_N];
    const int32_t id = 0;
    struct tensor ids, slots;
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct slot_pool_desc d = {{q, q, q}, FILL_N, FILL_N, FILL_RING};
    for (int i = 0; i < FILL_N; i++)
        x[i] = (float)(i % 11) * 0.1f - 0.5f;
    struct tensor in = floats(f, FILL_N, 1, x), out = floats(f, FILL_N, 1, NULL);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 1, 1, 1, MEM_SCRATCH, &ids, &e), ERR_OK);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 1, 1, 1, MEM_SCRATCH, &slots, &e), ERR_OK);
    backend_write(f->device, &ids, &id);
    assert_int_equal(backend_slot_pool_create(f->device, &d, &r.s, &e), ERR_OK);
    for (int i = 0; i < FILL_RING; i++)
        assert_true(backend_slot_open(f->device, r.s, i));
    sem_init(&r.room, 0, FILL_RING);
    sem_init(&r.filled, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, fill_ring, &r), 0);
    for (int32_t i = 0, slot; i < FILL_EXPERTS; i++) {
        slot = i % FILL_RING;
        sem_wait(&r.filled);
        backend_write(f->device, &slots, &slot);
        backend_enqueue(f->device, &(struct op){.kind = OP_EXPERTS,
                                                .in = {[EXPERTS_X] = in, [EXPERTS_IDS] = ids, [EXPERTS_SLOTS] = slots},
                                                .out = {out},
                                                .slot_pool = r.s,
                                                .experts = {ACT_SILU, 1}});
        assert_int_equal(backend_read(f->device, &out, y + (size_t)i * FILL_N, &e), ERR_OK);
        sem_post(&r.room);
    }
    pthread_join(thread, NULL);
    assert_int_equal(r.code, ERR_OK);
    sem_destroy(&r.room);
    sem_destroy(&r.filled);
    struct tensor *tensors[] = {&in, &out, &ids, &slots};
    for (int i = 0; i < 4; i++)
        backend_buffer_close(f->device, &tensors[i]->buffer);
    backend_slot_pool_close(f->device, &r.s);
}

/* Whether the host writes them, or they are uploaded on the queue of operations or on one of their own. */
static void slots_are_filled_beside_computing(void **state)
{
    static const char *const without[] = {"", "mapped", "mapped,transferQueue", "mapped,transferQueue,secondQueue"};
    static float want[FILL_EXPERTS * FILL_N], got[FILL_EXPERTS * FILL_N];
    struct fixture *f = *state;
    compute_ring(f, want);
    for (int i = 1; i < FILL_EXPERTS; i++)
        assert_memory_not_equal(want, want + (size_t)i * FILL_N, FILL_N * sizeof *want);
    for (int apart = 0; apart < 2; apart++)
        for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
            setenv("MOEBIUS_VULKAN_UPLOADS", apart ? "apart" : "", 1);
            open_with(f, "MOEBIUS_VULKAN_WITHOUT", without[i]);
            compute_ring(f, got);
            assert_memory_equal(got, want, sizeof got);
        }
}

/* Without the driver's word for it, a part of the memory is left to others. */
static void without_a_budget_some_memory_is_left(void **state)
{
    struct fixture *f = *state;
    setenv("MOEBIUS_VULKAN_WITHOUT", "VK_EXT_memory_budget", 1);
    open_with(f, "MOEBIUS_VULKAN_KIND", "discrete");
    size_t all = backend_own_bytes(f->device), room = backend_room_bytes(f->device);
    assert_true(room > all / 4 * 3 && room <= all / 8 * 7 + 8);
}

/* A device anew, whose next submission is the one that a variable has the number of, and two tensors: a begins with 1,
 * b has zeros. */
static void open_until(struct fixture *f, const char *name, struct tensor *a, struct tensor *b)
{
    enum { N = 64 };
    struct err e;
    float x[N] = {1};
    char next[32] = "0";
    for (int round = 0; round < 2; round++) { /* the first one counts */
        open_with(f, name, next);
        *a = floats(f, N, 1, x);
        *b = floats(f, N, 1, NULL);
        assert_int_equal(backend_read(f->device, a, x, &e), ERR_OK);
        snprintf(next, sizeof next, "%d", (int)vulkan_get_counters(f->device).n_submit + 1);
        if (round == 0) {
            backend_buffer_close(f->device, &a->buffer);
            backend_buffer_close(f->device, &b->buffer);
        }
    }
}

/* From then on everything fails with a sentence, and closing works. */
static void a_lost_device_says_so(void **state)
{
    enum { N = 64 };
    struct fixture *f = *state;
    struct err e = {0};
    float x[N];
    struct tensor a, b;
    open_until(f, "MOEBIUS_VULKAN_LOSE", &a, &b);
    add(f, a, a, b);
    assert_int_equal(backend_read(f->device, &b, x, &e), ERR_FAIL);
    assert_non_null(strstr(e.text, "the device was lost"));
    add(f, a, b, b);
    assert_int_equal(backend_read(f->device, &b, x, &e), ERR_FAIL);
    backend_buffer_close(f->device, &a.buffer);
    backend_buffer_close(f->device, &b.buffer);
}

/* A driver that has no memory for a submission gets it again. */
static void a_refused_submission_is_made_again(void **state)
{
    enum { N = 64 };
    struct fixture *f = *state;
    struct err e = {0};
    float x[N];
    struct tensor a, b;
    open_until(f, "MOEBIUS_VULKAN_FULL", &a, &b);
    add(f, a, a, b);
    assert_int_equal(backend_read(f->device, &b, x, &e), ERR_OK);
    assert_true(x[0] == 2);
    backend_buffer_close(f->device, &a.buffer);
    backend_buffer_close(f->device, &b.buffer);
}

static void a_type_without_a_shader_is_refused_by_name(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct weight *w;
    const struct weight_desc d = {"blk.0.attn_q.weight", quant_info(QUANT_IQ2_XXS), 256, 16};
    open_with(f, "MOEBIUS_VULKAN_WITHOUT", "IQ2_XXS");
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_rows, NULL}, &w, &e),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "blk.0.attn_q.weight is of type IQ2_XXS"));
}

/* What was compiled serves another device; a byte that is wrong anywhere, or missing, and it is left alone. */
static void compiled_shaders_are_used_again_unless_they_are_damaged(void **state)
{
    struct fixture *f = *state;
    struct err e;
    float x[3] = {1, 2, 3}, y[3];
    char *bytes, name[VULKAN_CACHE_NAME_BYTES];
    void *saved;
    size_t n;
    struct tensor a = floats(f, 3, 1, x);
    assert_int_equal(vulkan_save_pipelines(f->device, &saved, &n, &e), ERR_OK);
    assert_null(saved); /* nothing was compiled yet */
    add(f, a, a, a);
    assert_int_equal(backend_read(f->device, &a, y, &e), ERR_OK);
    backend_buffer_close(f->device, &a.buffer);
    assert_int_equal(vulkan_save_pipelines(f->device, &saved, &n, &e), ERR_OK);
    bytes = saved;
    assert_true(n > 56);
    backend_close(&f->device);
    assert_int_equal(vulkan_open(&f->device, 0, f->pool, &e), ERR_OK);
    for (size_t i = 0; i < n; i += i < 64 ? 1 : 97) {
        bytes[i] ^= 4;
        assert_false(vulkan_use_pipelines(f->device, bytes, n));
        bytes[i] ^= 4;
    }
    assert_false(vulkan_use_pipelines(f->device, bytes, n - 1));
    assert_false(vulkan_use_pipelines(f->device, bytes, 10));
    assert_true(vulkan_use_pipelines(f->device, bytes, n));
    vulkan_cache_name(f->device, name);
    assert_non_null(strstr(name, "vulkan-"));
    a = floats(f, 3, 1, x);
    add(f, a, a, a);
    assert_int_equal(backend_read(f->device, &a, y, &e), ERR_OK);
    assert_true(y[2] == 6);
    backend_buffer_close(f->device, &a.buffer);
    mem_free(bytes);
}

static void two_devices_of_one_driver_work_side_by_side(void **state)
{
    struct fixture *f = *state, other = {.pool = f->pool};
    struct err e;
    float x[3] = {1, 2, 3}, y[3], z[3];
    assert_int_equal(vulkan_open(&other.device, 0, f->pool, &e), ERR_OK);
    struct tensor a = floats(f, 3, 1, x), b = floats(&other, 3, 1, x);
    add(f, a, a, a);
    add(&other, b, b, b);
    add(&other, b, b, b);
    assert_int_equal(backend_read(f->device, &a, y, &e), ERR_OK);
    assert_int_equal(backend_read(other.device, &b, z, &e), ERR_OK);
    assert_true(y[2] == 6 && z[2] == 12);
    backend_buffer_close(f->device, &a.buffer);
    backend_buffer_close(other.device, &b.buffer);
    backend_close(&other.device);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_device, close_device)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_list_says_what_is_usable),
        TEST(what_is_missing_is_said),
        TEST(a_gpu_begins_while_the_host_records),
        TEST(independent_operations_have_no_barrier_between_them),
        TEST(operations_that_go_together_are_one_dispatch),
        TEST(products_of_a_norm_compute_it_with_its_bits),
        TEST(a_router_takes_a_norm_and_a_matrix_with_their_bits),
        TEST(a_product_has_the_same_bits_for_any_number_of_rows_and_any_loads),
        TEST(a_product_of_integers_has_the_same_bits_for_any_number_of_rows_and_any_loads),
        TEST(long_products_are_submitted_in_parts),
        TEST(products_of_integers_are_those_of_the_processor),
        TEST(a_later_run_takes_the_definitions_that_were_measured),
        TEST(transfers_are_timed_both_ways),
        TEST(operations_are_timed_when_that_is_asked_for),
        TEST(heads_are_normed_rotated_and_stored_at_once),
        TEST(reading_the_same_again_takes_no_submission),
        TEST(parts_that_are_read_again_are_told_apart),
        TEST(writes_keep_their_order_when_staging_runs_out),
        TEST(a_matrix_beyond_the_largest_allocation_comes_in_parts),
        TEST(weights_reach_memory_that_the_host_cannot_write),
        TEST(a_tensor_beyond_the_largest_allocation_is_refused),
        TEST(a_card_has_no_more_than_its_limit),
        TEST(an_operation_without_room_leaves_nothing_behind),
        TEST(a_budget_that_shrinks_takes_slots_back),
        TEST(slots_are_filled_beside_computing),
        TEST(without_a_budget_some_memory_is_left),
        TEST(a_lost_device_says_so),
        TEST(a_refused_submission_is_made_again),
        TEST(a_type_without_a_shader_is_refused_by_name),
        TEST(compiled_shaders_are_used_again_unless_they_are_damaged),
        TEST(two_devices_of_one_driver_work_side_by_side),
    };
    return cmocka_run_group_tests_name("vulkan", tests, NULL, NULL);
}
