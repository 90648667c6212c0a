/* How the time of a product grows with its rows of activations, 1 to 16 and those of prompts, on a GPU, for each type
 * of weights: gpu_curve [TYPE [NUMBER]] as check_kernels --curve prints it for the processor. The best of a few runs
 * counts. MOEBIUS_VULKAN_PRODUCTS and MOEBIUS_VULKAN_TILES choose what is else measured (docs/vulkan.md). gpu_curve
 * --experts [TYPE [NUMBER]] prints how long the experts of a token take, 8 of them with 768 rows of 2048 weights, and
 * the processor's time for it, which is the measure where the driver computes on the processor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "quant/quant.h"
#include "vulkan/vulkan.h"

enum { K = 2048, ROWS = 4096, SHARED = 16, MOST = 256, RUNS = 3 }; /* SHARED: rows that share what is read */

struct curve {
    struct backend *gpu;
    const struct quant_info *q;
    struct weight *w;
    struct tensor x, y; /* of MOST rows */
};

static void check(err_code code, const struct err *e)
{
    if (code == ERR_OK)
        return;
    fprintf(stderr, "%s\n", e->text);
    exit(2);
}

/* Bytes that are no infinity and no NaN as parts of halves and floats. */
static err_code read_rows(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    const struct curve *c = user;
    size_t row = 0;
    if (!quant_row_bytes(c->q, K, &row))
        abort();
    for (uint64_t i = 0; i < n * row; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((row0 * row + i) * 2654435761u >> 24 & 0x3f);
    return ERR_OK;
}

/* What the device says that a product with m rows takes. */
static double seconds(struct curve *c, int m)
{
    struct tensor x = c->x, y = c->y;
    double best = 1e9;
    struct err e;
    x.ne[1] = y.ne[1] = m;
    for (int i = 0; i < RUNS; i++) {
        uint64_t before = backend_counters(c->gpu).op[OP_MATMUL].n_ns;
        backend_enqueue(c->gpu, &(struct op){.kind = OP_MATMUL, .in = {x}, .out = {y}, .weight = {c->w}});
        check(backend_wait(c->gpu, backend_fence(c->gpu), &e), &e);
        double s = (double)(backend_counters(c->gpu).op[OP_MATMUL].n_ns - before) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

static void print_curve(struct curve *c)
{
    struct err e;
    size_t row = 0;
    const struct weight_desc d = {"curve.weight", c->q, K, ROWS};
    if (!quant_row_bytes(c->q, K, &row))
        return;
    check(backend_weight_load(c->gpu, &d, &(struct weight_source){read_rows, c}, &c->w, &e), &e);
    double one = 0;
    printf("%-7s", c->q->name);
    for (int m = 1; m <= MOST; m = m < SHARED ? m + 1 : 2 * m) {
        double s = seconds(c, m);
        one = m == 1 ? s : one;
        printf(" %d:%.2f", m, s / one);
        fflush(stdout);
    }
    printf("   times one row's %.2f GB/s\n", (double)row * ROWS / one * 1e-9);
    backend_weight_close(c->gpu, &c->w);
}

/* ---- experts --------------------------------------------------------------------------------------------------- */

enum { N_EMBD = 2048, N_FF = 768, N_EXPERT = 128, N_USED = 8, N_SLOT = 24, N_TOKEN = 4 };

static int64_t processor_ns(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return ((int64_t)r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000000 +
           ((int64_t)r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1000;
}

/* Experts of one type; several share a slot, but not those of a token. */
static struct slot_pool *fill_slots(struct curve *c)
{
    struct slot_pool *s;
    struct err e;
    const struct slot_pool_desc d = {{c->q, c->q, c->q}, N_EMBD, N_FF, N_SLOT};
    check(backend_slot_pool_create(c->gpu, &d, &s, &e), &e);
    size_t n_bytes = 0;
    if (!quant_row_bytes(c->q, N_EMBD, &n_bytes))
        abort();
    n_bytes *= N_FF;
    uint8_t *bytes = malloc(n_bytes);
    for (size_t i = 0; bytes && i < n_bytes; i++)
        bytes[i] = (uint8_t)((i * 2654435761u >> 24 & 0x1f) | 0x20);
    for (size_t i = 0; c->q->type == QUANT_MXFP4 && bytes && i < n_bytes; i += (size_t)c->q->block_bytes)
        bytes[i] = 0x7c; /* processors take long for numbers as small as others make */
    for (int64_t i = 0; i < (int64_t)N_SLOT * EXPERT_N_MATRIX; i++) {
        int64_t slot = i / EXPERT_N_MATRIX;
        int m = (int)(i % EXPERT_N_MATRIX);
        const struct slot_rows rows = {m, bytes, false, 0, m == EXPERT_DOWN ? N_EMBD : N_FF};
        if (m == 0 && !backend_slot_open(c->gpu, s, slot))
            abort();
        check(backend_slot_fill(c->gpu, s, slot, &rows, &e), &e);
    }
    free(bytes);
    return s;
}

static struct tensor numbers(struct curve *c, enum elem_type type, int64_t n, int64_t m, const void *values)
{
    struct tensor t;
    struct err e;
    check(backend_tensor_create(c->gpu, type, n, m, 1, MEM_SCRATCH, &t, &e), &e);
    backend_write(c->gpu, &t, values);
    return t;
}

/* What N_TOKEN tokens take, one by one. */
static void run_tokens(struct curve *c, const struct op *op)
{
    struct err e;
    for (int t = 0; t < N_TOKEN; t++) {
        int32_t ids[N_USED];
        for (int i = 0; i < N_USED; i++)
            ids[i] = (t * N_USED + i) * 5 % N_EXPERT;
        backend_write(c->gpu, &op->in[EXPERTS_IDS], ids);
        backend_enqueue(c->gpu, op);
        check(backend_wait(c->gpu, backend_fence(c->gpu), &e), &e);
    }
}

static void print_experts(struct curve *c)
{
    static float x[N_EMBD], weights[N_USED];
    int32_t ids[N_USED] = {0}, slots[N_EXPERT];
    double best = 1e9, best_wall = 1e9;
    if (N_FF % c->q->block_len)
        return;
    for (int i = 0; i < N_EXPERT; i++)
        slots[i] = i * 5 % N_SLOT;
    for (int i = 0; i < N_EMBD; i++)
        x[i] = (float)(i % 17) * 0.125f - 1;
    for (int i = 0; i < N_USED; i++)
        weights[i] = 1;
    struct op op = {.kind = OP_EXPERTS,
                    .in = {[EXPERTS_X] = numbers(c, ELEM_F32, N_EMBD, 1, x),
                           [EXPERTS_IDS] = numbers(c, ELEM_I32, N_USED, 1, ids),
                           [EXPERTS_SLOTS] = numbers(c, ELEM_I32, N_EXPERT, 1, slots),
                           [EXPERTS_WEIGHTS] = numbers(c, ELEM_F32, N_USED, 1, weights)},
                    .slot_pool = fill_slots(c),
                    .experts = {ACT_SILU, N_TOKEN}};
    struct err e;
    check(backend_tensor_create(c->gpu, ELEM_F32, N_EMBD, N_USED, 1, MEM_SCRATCH, &op.out[0], &e), &e);
    run_tokens(c, &op);
    for (int i = 0; i < RUNS; i++) {
        int64_t cpu = processor_ns(), wall = clock_ns();
        run_tokens(c, &op);
        double s = (double)(processor_ns() - cpu) / N_TOKEN * 1e-6, w = (double)(clock_ns() - wall) / N_TOKEN * 1e-6;
        best = s < best ? s : best;
        best_wall = w < best_wall ? w : best_wall;
    }
    printf("%-7s %7.2f ms a token, %7.2f ms of the processor\n", c->q->name, best_wall, best);
    for (int i = EXPERTS_X; i <= EXPERTS_WEIGHTS; i++)
        backend_buffer_close(c->gpu, &op.in[i].buffer);
    backend_buffer_close(c->gpu, &op.out[0].buffer);
    backend_slot_pool_close(c->gpu, &op.slot_pool);
}

int main(int argc, char **argv)
{
    struct curve c = {0};
    struct pool *pool;
    struct err e;
    bool are_experts = argc > 1 && !strcmp(argv[1], "--experts");
    argc -= are_experts;
    argv += are_experts;
    check(pool_create(&pool, 2, &e), &e);
    check(vulkan_open(&c.gpu, argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0, pool, &e), &e);
    if (!vulkan_time_operations(c.gpu)) {
        fprintf(stderr, "%s has no timestamps\n", backend_name(c.gpu));
        return 2;
    }
    printf("%s\n", backend_name(c.gpu));
    check(backend_tensor_create(c.gpu, ELEM_F32, K, MOST, 1, MEM_SCRATCH, &c.x, &e), &e);
    check(backend_tensor_create(c.gpu, ELEM_F32, ROWS, MOST, 1, MEM_SCRATCH, &c.y, &e), &e);
    backend_clear(c.gpu, &c.x);
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        c.q = quant_info(id);
        if (c.q && (argc < 2 || !strcmp(argv[1], c.q->name)))
            (are_experts ? print_experts : print_curve)(&c);
    }
    backend_buffer_close(c.gpu, &c.x.buffer);
    backend_buffer_close(c.gpu, &c.y.buffer);
    backend_close(&c.gpu);
    pool_close(&pool);
    return 0;
}
