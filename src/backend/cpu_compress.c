/* COMPRESS: makes entries of a compressed cache. Each is a weighted mean of what a run of positions has left in two
 * caches. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "backend/cpu_rows_internal.h"

/* The work space of a thread: rows of n numbers. */
struct compress_work {
    float *max, *weight, *sum;
};

/* Where a row of a cache begins. */
static const float *state_row(const struct op *op, int state, int64_t e, int64_t pos)
{
    const int32_t *table = tensor_data(&op->in[COMPRESS_TABLE]), *pages = tensor_data(&op->in[COMPRESS_PAGES]);
    const struct paged *s = &op->state[state];
    int32_t page = pages[table[e] + pos / ATTENTION_BLOCK];
    assert(page >= 0);
    return (const float *)paged_data(s, page, 0) + pos % ATTENTION_BLOCK * s->page.ne[0];
}

/* The scores of position `pos`, which is the j-th of its run, for channels [off, off + n): gate, if there is one, plus
 * bias. */
static void score(const struct op *op, int64_t e, int64_t pos, int64_t j, int64_t off, int64_t n, float *out)
{
    const float *bias = (const float *)tensor_data(&op->vec[0]) + j * op->vec[0].ne[0] + off;
    if (!op->state[COMPRESS_GATE].page.buffer) {
        memcpy(out, bias, (size_t)n * sizeof *out);
        return;
    }
    const float *gate = state_row(op, COMPRESS_GATE, e, pos) + off;
    for (int64_t i = 0; i < n; i++)
        out[i] = gate[i] + bias[i];
}

/* Makes an entry. It goes through positions in ascending order: those of the run before, of whose rows it takes the
 * first n channels, then the entry's own. */
static void compress_entry(void *arg, size_t entry, int thread)
{
    const struct cpu_row_loop *l = arg;
    const struct op *op = l->op;
    int64_t e = (int64_t)entry, n = op->out[0].ne[0], ratio = op->vec[0].ne[1], own = op->vec[0].ne[0] - n;
    int64_t begin = ((const int32_t *)tensor_data(&op->in[COMPRESS_AT]))[e] + 1 - ratio;
    int64_t first = own && begin >= ratio ? begin - ratio : begin;
    float *y = tensor_row(&op->out[0], e), *p = (float *)l->c->scratch[SCRATCH_THREAD].p + 3 * thread * n, ignored;
    const struct compress_work w = {p, p + n, p + 2 * n};
    assert(begin >= 0 && begin % ratio == 0);
    for (int64_t i = 0; i < n; i++)
        w.max[i] = -INFINITY;
    for (int64_t pos = first; pos < begin + ratio; pos++) {
        score(op, e, pos, pos % ratio, pos < begin ? 0 : own, n, w.weight);
        for (int64_t i = 0; i < n; i++)
            w.max[i] = w.weight[i] > w.max[i] ? w.weight[i] : w.max[i];
    }
    memset(w.sum, 0, (size_t)n * sizeof *w.sum);
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t pos = first; pos < begin + ratio; pos++) {
        int64_t off = pos < begin ? 0 : own;
        const float *x = state_row(op, COMPRESS_X, e, pos) + off;
        score(op, e, pos, pos % ratio, off, n, w.weight);
        for (int64_t i = 0; i < n; i++)
            w.weight[i] -= w.max[i];
        l->c->kernels->exp_sum(w.weight, w.weight, 0, n, &ignored);
        for (int64_t i = 0; i < n; i++) {
            w.sum[i] += w.weight[i];
            y[i] += w.weight[i] * x[i];
        }
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] / w.sum[i];
}

void cpu_op_compress(struct cpu *c, const struct op *op)
{
    int64_t n = op->out[0].ne[0], n_entry = op->in[COMPRESS_AT].ne[0];
    if (cpu_scratch(c, SCRATCH_THREAD, (size_t)(3 * n * pool_n_threads(c->pool)) * sizeof(float)))
        cpu_run_rows(c, op, n_entry, n_entry > 1, compress_entry);
}
