#include "engine/probe_attention.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"

/* Blocks of one KV head in F16, which a second-level cache holds, and how often they are visited. */
enum { DIM = 128, N_BLOCK = 4, N_VISIT = 8, N_BEST = 5, BLOCK_ELEMS = KERNEL_ATTN_BLOCK * DIM };
/* The queries of one token, whose heads share a KV head, and those of a prompt's task. */
enum { FEW = 8, MANY = 64 };

struct attention_trial {
    const struct kernels *kernels;
    uint16_t *k, *v;            /* [N_BLOCK][KERNEL_ATTN_BLOCK][DIM] */
    float *k_wide, *v_wide;     /* a block as floats */
    float *q;                   /* [MANY][DIM] */
    float *o;                   /* [MANY][DIM], running results */
    float *partial;             /* [KERNEL_ATTN_QUERIES][DIM] */
    float max[MANY], sum[MANY]; /* of the softmaxes whose results are in o */
};

/* Folds a block into all queries' softmaxes, as attention on the processor does for so many. */
static void visit(struct attention_trial *x, int block, int n_query)
{
    const struct kernels *kern = x->kernels;
    const uint16_t *k = x->k + (size_t)block * BLOCK_ELEMS, *v = x->v + (size_t)block * BLOCK_ELEMS;
    bool is_wide = n_query > KERNEL_ATTN_QUERIES;
    if (is_wide) {
        kern->f16_to_f32(x->k_wide, k, BLOCK_ELEMS);
        kern->f16_to_f32(x->v_wide, v, BLOCK_ELEMS);
    }
    for (int i = 0, n; i < n_query; i += n) {
        const float *rows[KERNEL_ATTN_QUERIES];
        float max[KERNEL_ATTN_QUERIES], sum[KERNEL_ATTN_QUERIES];
        n = n_query - i < KERNEL_ATTN_QUERIES ? n_query - i : KERNEL_ATTN_QUERIES;
        for (int r = 0; r < n; r++)
            rows[r] = x->q + (size_t)(i + r) * DIM;
        const struct kernel_attn call = {.q = rows,
                                         .n_q = n,
                                         .k = is_wide ? (const void *)x->k_wide : k,
                                         .v = is_wide ? (const void *)x->v_wide : v,
                                         .hd_k = DIM,
                                         .hd_v = DIM,
                                         .n = KERNEL_ATTN_BLOCK,
                                         .scale = 1 / sqrtf(DIM),
                                         .max = max,
                                         .sum = sum,
                                         .o = x->partial};
        (is_wide ? kern->attn_block_f32 : kern->attn_block_f16)(&call);
        kern->attn_merge(n, x->max + i, x->sum + i, x->o + (size_t)i * DIM, max, sum, x->partial, DIM);
    }
}

/* Multiply-adds a second, the best of some runs. */
static double measure(struct attention_trial *x, int n_query)
{
    double best = 0;
    for (int run = 0; run < N_BEST; run++) {
        for (int i = 0; i < n_query; i++) {
            x->max[i] = -INFINITY;
            x->sum[i] = 0;
        }
        memset(x->o, 0, (size_t)n_query * DIM * sizeof *x->o);
        int64_t start = clock_ns();
        for (int i = 0; i < N_VISIT * N_BLOCK; i++)
            visit(x, i % N_BLOCK, n_query);
        int64_t ns = clock_ns() - start;
        double n = 2.0 * N_VISIT * N_BLOCK * BLOCK_ELEMS * n_query, rate = ns > 0 ? 1e9 * n / (double)ns : 0;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Halves from 1/8 to 1 in both signs. */
static void fill(uint16_t *p, size_t n, struct random *r)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint16_t)(0x3000 + random_u32(r) % 0xc00 + (random_u32(r) & 0x8000));
}

err_code probe_attention(const struct kernels *kernels, struct machine *m, struct err *e)
{
    enum { N_HALF = 2 * N_BLOCK * BLOCK_ELEMS, N_FLOAT = 2 * BLOCK_ELEMS + (2 * MANY + KERNEL_ATTN_QUERIES) * DIM };
    struct attention_trial x = {.kernels = kernels};
    struct random r = random_seed(1);
    x.k = mem_alloc_aligned(64, N_HALF * sizeof *x.k);
    x.k_wide = mem_alloc_aligned(64, N_FLOAT * sizeof *x.k_wide);
    err_code code = x.k && x.k_wide ? ERR_OK : err_nomem(e, N_FLOAT * sizeof *x.k_wide, "measuring attention");
    if (code == ERR_OK) {
        x.v = x.k + N_BLOCK * BLOCK_ELEMS;
        x.v_wide = x.k_wide + BLOCK_ELEMS;
        x.q = x.v_wide + BLOCK_ELEMS;
        x.o = x.q + MANY * DIM;
        x.partial = x.o + MANY * DIM;
        fill(x.k, N_HALF, &r);
        for (int i = 0; i < MANY * DIM; i++)
            x.q[i] = (float)(random_u32(&r) % 255) / 127 - 1;
        m->attention_one_per_s = measure(&x, FEW);
        m->attention_many_per_s = measure(&x, MANY);
    }
    mem_free(x.k);
    mem_free(x.k_wide);
    return code;
}
