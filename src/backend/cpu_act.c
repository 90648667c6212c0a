#include "backend/cpu_act_internal.h"

#include <assert.h>
#include <string.h>

/* The activations of single tokens are written to this many places in turn: where caches are far apart, a core that
 * writes lines which another one has just read has to wait for them. */
enum { N_PLACE = 32 };

/* Rounded rows consist of three arrays, each 64-byte aligned: q (or the floats), d, sum. */
static size_t first_bytes(enum quant_act kind, int64_t n_row, int64_t k)
{
    return kind == QUANT_ACT_FLOAT ? align64((size_t)(n_row * k) * sizeof(float))
                                   : (size_t)(n_row * kernel_act_q_stride(k));
}

static size_t scale_bytes(enum quant_act kind, int64_t n_row, int64_t k)
{
    return align64((size_t)(n_row * kernel_act_n_scale(kind, k)) * sizeof(float));
}

size_t cpu_act_bytes(enum quant_act kind, int64_t n_row, int64_t k)
{
    size_t sum_bytes = align64((size_t)(n_row * kernel_act_n_sum(kind, k)) * sizeof(int16_t));
    return first_bytes(kind, n_row, k) + scale_bytes(kind, n_row, k) + sum_bytes;
}

struct cpu_act cpu_act_at(void *p, enum quant_act kind, int64_t n_row, int64_t k)
{
    if (kind == QUANT_ACT_FLOAT)
        return (struct cpu_act){.kind = kind, .k = k, .f32 = p};
    char *d = (char *)p + first_bytes(kind, n_row, k), *sum = d + scale_bytes(kind, n_row, k);
    return (struct cpu_act){.kind = kind, .k = k, .q = p, .d = (float *)(void *)d, .sum = (int16_t *)(void *)sum};
}

void cpu_act_round_row(const struct cpu_act *a, const struct kernels *kernels, int64_t row, const float *x)
{
    if (a->kind == QUANT_ACT_FLOAT) {
        memcpy(a->f32 + row * a->k, x, (size_t)a->k * sizeof *x);
        return;
    }
    int64_t n_scale = kernel_act_n_scale(a->kind, a->k), n_sum = kernel_act_n_sum(a->kind, a->k);
    (a->kind == QUANT_ACT_INT8_32 ? kernels->quantize_int8_32 : kernels->quantize_int8_256)(
        x, a->k, a->q + row * kernel_act_q_stride(a->k), a->d + row * n_scale, a->sum + row * n_sum);
}

void cpu_act_copy_row(const struct cpu_act *a, int64_t row, const struct kernel_act *from, int64_t from_row)
{
    const struct kernel_act x = cpu_act_skip(from, from_row);
    if (a->kind == QUANT_ACT_FLOAT) {
        memcpy(a->f32 + row * a->k, x.f32, (size_t)a->k * sizeof *x.f32);
        return;
    }
    int64_t n_scale = kernel_act_n_scale(a->kind, a->k), n_sum = kernel_act_n_sum(a->kind, a->k);
    memcpy(a->q + row * kernel_act_q_stride(a->k), x.q, (size_t)a->k);
    memcpy(a->d + row * n_scale, x.d, (size_t)n_scale * sizeof *x.d);
    memcpy(a->sum + row * n_sum, x.sum, (size_t)n_sum * sizeof *x.sum);
}

struct kernel_act cpu_act_rows(const struct cpu_act *a, int64_t row)
{
    const struct kernel_act all = {.kind = a->kind, .k = a->k, .f32 = a->f32, .q = a->q, .d = a->d, .sum = a->sum};
    return cpu_act_skip(&all, row);
}

struct kernel_act cpu_act_skip(const struct kernel_act *a, int64_t row)
{
    struct kernel_act r = *a;
    if (a->kind == QUANT_ACT_FLOAT) {
        r.f32 += row * a->k;
    } else {
        r.q += row * kernel_act_q_stride(a->k);
        r.d += row * kernel_act_n_scale(a->kind, a->k);
        r.sum += row * kernel_act_n_sum(a->kind, a->k);
    }
    return r;
}

bool cpu_act_place(struct cpu *c, enum cpu_scratch id, enum quant_act kind, int64_t n_row, int64_t k,
                   struct cpu_act *out)
{
    assert(kind != QUANT_ACT_FLOAT);
    size_t n_bytes = cpu_act_bytes(kind, n_row, k), n_place = n_row == 1 ? N_PLACE : 1;
    char *p = cpu_scratch(c, id, n_place * n_bytes);
    if (!p)
        return false;
    *out = cpu_act_at(p + c->n_placed++ % n_place * n_bytes, kind, n_row, k);
    return true;
}

struct rounding {
    const struct kernels *kernels;
    const float *x;
    struct cpu_act to;
};

static void round_row(void *arg, size_t row, int thread)
{
    const struct rounding *r = arg;
    cpu_act_round_row(&r->to, r->kernels, (int64_t)row, r->x + (int64_t)row * r->to.k);
}

bool cpu_act_round(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t n_row, int64_t k,
                   struct kernel_act *out)
{
    struct rounding r = {.kernels = c->kernels, .x = x};
    if (kind == QUANT_ACT_FLOAT) {
        *out = (struct kernel_act){.kind = kind, .k = k, .f32 = x};
        return true;
    }
    if (!cpu_act_place(c, id, kind, n_row, k, &r.to))
        return false;
    if (n_row * k > CPU_SERIAL_ELEMS)
        pool_run(c->pool, (size_t)n_row, round_row, &r);
    else
        for (int64_t i = 0; i < n_row; i++)
            round_row(&r, (size_t)i, 0);
    *out = cpu_act_rows(&r.to, 0);
    return true;
}
