/* How the time of a product grows with its rows of activations, 1 to 16, on a GPU, for each type of weights:
 *   gpu_curve [TYPE [NUMBER]]
 * as check_kernels --curve prints it for the processor. The best of a few runs counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "quant/quant.h"
#include "vulkan/vulkan.h"

enum { K = 2048, ROWS = 4096, MOST = 16, RUNS = 3 };

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
    for (int m = 1; m <= MOST; m++) {
        double s = seconds(c, m);
        one = m == 1 ? s : one;
        printf(" %d:%.2f", m, s / one);
        fflush(stdout);
    }
    printf("   times one row's %.2f GB/s\n", (double)row * ROWS / one * 1e-9);
    backend_weight_close(c->gpu, &c->w);
}

int main(int argc, char **argv)
{
    struct curve c = {0};
    struct pool *pool;
    struct err e;
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
            print_curve(&c);
    }
    backend_buffer_close(c.gpu, &c.x.buffer);
    backend_buffer_close(c.gpu, &c.y.buffer);
    backend_close(&c.gpu);
    pool_close(&pool);
    return 0;
}
