#include "engine/probe_products.h"

#include <stdio.h>

#include "backend/backend.h"
#include "backend/cpu_tuning.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/random.h"

/* A matrix that the second-level cache holds with its activations, and how often it is multiplied. */
enum { K = 2048, ROWS = 64, N_ONE = 64, N_MANY = 4, N_BEST = 3, CACHE_LINE = 64 };

_Static_assert((int)MACHINE_MAX_PRODUCT >= 48, "room for all types");

/* Multiply-adds a second with n_tok tokens, the best of some runs. 0: out of memory. */
static double measure(struct backend *device, const struct cpu_rows *rows, int64_t n_tok, struct kernel_how how)
{
    struct cpu_rows pieces[N_ONE];
    size_t n = n_tok == 1 ? N_ONE : N_MANY;
    double best = 0;
    for (size_t i = 0; i < n; i++)
        pieces[i] = *rows;
    for (int i = 0; i < N_BEST; i++) {
        int64_t ns = backend_cpu_trial(device, pieces, n, n_tok, how);
        double rate = ns > 0 ? 1e9 * (double)n * (double)(n_tok * K * ROWS) / (double)ns : 0;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Bytes of 0x30 to 0x3f: of no type do they make numbers that processors are slow with. */
static void fill(uint8_t *p, size_t n)
{
    struct random r = random_seed(1);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(0x30 + (random_u32(&r) & 15));
}

static err_code measure_type(struct backend *device, const struct kernels *kernels, const struct quant_info *q,
                             struct machine_product *p, struct err *e)
{
    static const struct kernel_how ways[] = {{.panels_from = 1}, {.panels_from = 0}, {.tiles_from = 1}};
    const struct layout_matrix matrix = {kernels->layout[q->type], q, ROWS, K};
    size_t row_bytes = 0, n_bytes = 0;
    uint8_t *file = NULL, *packed = NULL;
    err_code code = ERR_OK;
    if (!quant_row_bytes(q, K, &row_bytes) || !layout_bytes(matrix.layout, q, ROWS, K, &n_bytes))
        return ERR_OK; /* no row is so long */
    file = mem_alloc(ROWS * row_bytes);
    packed = mem_alloc_aligned(CACHE_LINE, n_bytes);
    if (!file || !packed) {
        code = err_nomem(e, n_bytes, "measuring products");
        goto out;
    }
    fill(file, ROWS * row_bytes);
    layout_pack(&matrix, packed, file, 0, ROWS, kernels->r16_put);
    const struct cpu_rows rows = {.type = q, .w = packed, .k = K, .n_row = ROWS, .row1 = ROWS};
    snprintf(p->type, sizeof p->type, "%s", q->name);
    p->one_per_s = measure(device, &rows, 1, ways[0]);
    for (int i = 0; i < (kernels->peak_tiles ? 3 : 2); i++) {
        double rate = measure(device, &rows, MACHINE_MANY, ways[i]);
        p->many_per_s = rate > p->many_per_s ? rate : p->many_per_s;
    }
out:
    mem_free(file);
    mem_free(packed);
    return code;
}

err_code probe_products(const struct kernels *kernels, struct machine *m, struct err *e)
{
    struct pool *pool = NULL;
    struct backend *device = NULL;
    err_code code;
    TRY_OUT(pool_create(&pool, 1, e));
    TRY_OUT(backend_cpu_open(&device, pool, kernels, e));
    for (uint32_t id = 0; id < QUANT_MAX_ID && m->n_product < MACHINE_MAX_PRODUCT; id++) {
        const struct quant_info *q = quant_info(id);
        struct machine_product *p = &m->products[m->n_product];
        if (!q || !kernels->matmul[id])
            continue;
        TRY_OUT(measure_type(device, kernels, q, p, e));
        m->n_product += *p->type != '\0';
    }
out:
    backend_close(&device);
    pool_close(&pool);
    return code;
}
