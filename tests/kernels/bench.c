#define _GNU_SOURCE
/* Speed of the products on one thread, over more weights than any cache holds. Prints, for each type and
 * table, GB/s of weights for one token, G multiply-adds a second for several, and GB/s of rows that are packed from a
 * cache into memory; or how the time of 1 to 16 tokens grows. The best of a few runs counts: noise only slows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "check.h"

enum { K = 2048, ROWS = 1024, RUNS = 6, MAX_M = 512 };

static const size_t working_set = (size_t)256 << 20;

struct bench {
    const struct quant_info *q;
    uint8_t *w; /* `n` packed matrices, one behind the other */
    size_t matrix_bytes;
    int n;
    struct kernel_act act;
    float *y;
};

/* The thread's own time, which a busy machine stretches less than the clock's. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double seconds_once(const struct bench *b, kernel_matmul_fn *fn, int m, int n_matrix, struct kernel_how how)
{
    int64_t start = thread_ns();
    for (int i = 0; i < n_matrix; i++) {
        struct kernel_matmul mm = {b->w + (size_t)i * b->matrix_bytes, K, ROWS, 0, ROWS, &b->act, m, b->y, ROWS, how};
        fn(&mm);
    }
    return (double)(thread_ns() - start) * 1e-9;
}

/* Runs unpack weights once for all tokens and for each tile by turns: the faster way counts. */
static double seconds_best(const struct bench *b, kernel_matmul_fn *fn, int m, int n_matrix,
                           struct kernel_prefetch prefetch)
{
    double best = 1e9;
    for (int i = 0; i < RUNS; i++) {
        double s = seconds_once(b, fn, m, n_matrix, (struct kernel_how){prefetch, 1, i % 2 == 0});
        best = s < best ? s : best;
    }
    return best;
}

/* Time over tokens, on this thread, as the best of a few prefetches has it. */
static void print_curve(const struct bench *b, const struct kernels *table)
{
    static const struct kernel_prefetch choices[] = {{0, KERNEL_CACHE_L1},
                                                     {1024, KERNEL_CACHE_L2},
                                                     {6144, KERNEL_CACHE_L1},
                                                     {8192, KERNEL_CACHE_L2},
                                                     {8192, KERNEL_CACHE_BOTH}};
    double one = 0;
    printf("%-7s %-11s", b->q->name, table->name);
    for (int m = 1; m <= 16; m++) {
        double best = 1e9;
        for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
            double seconds = seconds_best(b, table->matmul[b->q->type], m, b->n, choices[i]);
            best = seconds < best ? seconds : best;
        }
        one = m == 1 ? best : one;
        printf(" %d:%.2f", m, best / one);
        fflush(stdout);
    }
    printf("   times one token's %.2f GB/s\n", (double)b->n * (double)b->matrix_bytes / one * 1e-9);
}

static double packing_seconds_best(const struct bench *b, const uint8_t *rows, layout_put_fn *put)
{
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        int64_t start = thread_ns();
        for (int i = 0; i < b->n; i++)
            layout_pack(&(struct layout_matrix){LAYOUT_R16, b->q, ROWS, K}, b->w + (size_t)i * b->matrix_bytes, rows, 0,
                        ROWS, put);
        double s = (double)(thread_ns() - start) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

static void act_fill(struct check *c, struct kernel_act *act, enum quant_act kind)
{
    float *x = mem_alloc_aligned(64, MAX_M * K * sizeof *x);
    int64_t q_stride = kernel_act_q_stride(K), n_scale = kernel_act_n_scale(kind, K), n_sum = kernel_act_n_sum(kind, K);
    int8_t *q = mem_alloc_aligned(64, (size_t)(MAX_M * q_stride));
    float *d = mem_alloc_aligned(64, MAX_M * K / 32 * sizeof *d);
    int16_t *sum = mem_alloc_aligned(64, MAX_M * K / 16 * 3 * sizeof *sum);
    if (!x || !q || !d || !sum)
        abort();
    random_floats(&c->rng, x, MAX_M * K, 0);
    for (int t = 0; t < MAX_M; t++)
        if (kind == QUANT_ACT_INT8_32)
            c->tables[0]->quantize_int8_32(x + t * K, K, q + t * q_stride, d + t * n_scale, sum + t * n_sum);
        else if (kind == QUANT_ACT_INT8_256)
            c->tables[0]->quantize_int8_256(x + t * K, K, q + t * q_stride, d + t * n_scale, sum + t * n_sum);
    *act = (struct kernel_act){kind, K, x, q, d, sum};
}

static void act_free(struct kernel_act *act)
{
    mem_free((void *)act->f32);
    mem_free((void *)act->q);
    mem_free((void *)act->d);
    mem_free((void *)act->sum);
}

static void bench_type(struct check *c, const struct quant_info *q, bool curve)
{
    static const int tokens[] = {4, 8, 16, 32, 64, 512};
    const struct kernel_prefetch ahead = {8192, KERNEL_CACHE_BOTH};
    struct bench b = {.q = q};
    size_t row = 0;
    if (!quant_row_bytes(q, K, &row))
        abort();
    b.matrix_bytes = ROWS * row;
    b.n = (int)(working_set / b.matrix_bytes);
    b.w = mem_map((size_t)b.n * b.matrix_bytes, MEM_WEIGHTS);
    b.y = mem_alloc(MAX_M * ROWS * sizeof *b.y);
    uint8_t *rows = mem_alloc(b.matrix_bytes);
    if (!b.w || !b.y || !rows)
        abort();
    for (size_t i = 0; i < ROWS; i++)
        random_row(&c->rng, q, rows + i * row, K / q->block_len, 0);
    for (int i = 0; i < b.n; i++)
        memcpy(b.w + (size_t)i * b.matrix_bytes, rows, b.matrix_bytes);
    act_fill(c, &b.act, q->act);
    if (curve)
        print_curve(&b, c->tables[c->n_table - 1]);
    for (int i = 0; i < c->n_table && !curve; i++) {
        kernel_matmul_fn *fn = c->tables[i]->matmul[q->type];
        int n = i == 0 ? 2 : b.n; /* the scalar table is not worth the wait */
        printf("%-7s %-11s %7.2f GB/s", q->name, c->tables[i]->name,
               (double)n * (double)b.matrix_bytes / seconds_best(&b, fn, 1, n, ahead) * 1e-9);
        for (int j = 0; j < (int)(sizeof tokens / sizeof *tokens); j++) {
            int n_mat = i == 0 ? 1 : n / tokens[j] + 1;
            double macs = (double)n_mat * ROWS * K * tokens[j];
            printf("   m=%-3d %7.2f", tokens[j], macs / seconds_best(&b, fn, tokens[j], n_mat, ahead) * 1e-9);
        }
        printf(" G/s");
        if (c->tables[i]->layout[q->type] == LAYOUT_R16)
            printf("   packing %6.2f GB/s",
                   (double)b.n * (double)b.matrix_bytes * 1e-9 / packing_seconds_best(&b, rows, c->tables[i]->r16_put));
        printf("\n");
        fflush(stdout);
    }
    act_free(&b.act);
    mem_free(rows);
    mem_free(b.y);
    mem_unmap(b.w, (size_t)b.n * b.matrix_bytes, MEM_WEIGHTS);
}

static void bench_reading(void)
{
    uint64_t *p = mem_map(working_set, MEM_WEIGHTS), sum[8] = {0};
    if (!p)
        abort();
    memset(p, 1, working_set);
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        int64_t start = thread_ns();
        for (size_t i = 0; i < working_set / 8; i += 8)
            for (int j = 0; j < 8; j++)
                sum[j] += p[i + (size_t)j];
        double s = (double)(thread_ns() - start) * 1e-9;
        best = s < best ? s : best;
    }
    volatile uint64_t sink = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
    (void)sink;
    printf("reading %26.2f GB/s\n", (double)working_set / best * 1e-9);
    mem_unmap(p, working_set, MEM_WEIGHTS);
}

void bench_products(struct check *c, const char *filter, bool curve)
{
    bench_reading();
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        if (q && (!filter || !strcmp(filter, q->name)))
            bench_type(c, q, curve);
    }
}
