/* Products in plain C: the definition (docs/numerics.md) that every other table must match to the bit. */
#include <math.h>

#include "kernels/kernels_internal.h"
#include "quant/blocks.h"

static inline float unpack_half(const uint8_t *p)
{
    return quant_half_to_float(quant_load16(p));
}

#include "kernels/unpack.h"

static const uint8_t *row_of(const struct kernel_matmul *a, int64_t row, int block_len, int block_bytes)
{
    return (const uint8_t *)a->w + row * (a->k / block_len) * block_bytes;
}

typedef void unpack32_fn(const void *block, struct unpacked32 *u);
typedef void unpack256_fn(const void *block, struct unpacked256 *u);

KERNELS_ALWAYS_INLINE float dot_int8_32(const uint8_t *w, const struct kernel_act *x, int64_t t,
                                        unpack32_fn *unpack, int block_bytes, bool has_min)
{
    int64_t n_block = x->k / 32;
    const int8_t *q = x->q + t * x->k;
    const float *dx = x->d + t * n_block;
    const int16_t *sum = x->sum + t * n_block;
    float acc = 0;
    for (int64_t b = 0; b < n_block; b++) {
        struct unpacked32 u;
        unpack(w + b * block_bytes, &u);
        int32_t s = 0;
        for (int i = 0; i < 32; i++)
            s += u.w[i] * q[32 * b + i];
        float v = u.d * (float)s;
        if (has_min)
            v = fmaf(u.m, (float)sum[b], v);
        acc = fmaf(v, dx[b], acc);
    }
    return acc;
}

KERNELS_ALWAYS_INLINE float dot_int8_256(const uint8_t *w, const struct kernel_act *x, int64_t t,
                                         unpack256_fn *unpack, int block_bytes, bool has_min)
{
    int64_t n_block = x->k / 256;
    const int8_t *q = x->q + t * x->k;
    const float *dx = x->d + t * n_block;
    const int16_t *sum = x->sum + t * n_block * 16;
    float acc = 0;
    for (int64_t b = 0; b < n_block; b++) {
        struct unpacked256 u;
        unpack(w + b * block_bytes, &u);
        int32_t s = 0, m = 0;
        for (int j = 0; j < 16; j++) {
            int32_t part = 0;
            for (int i = 16 * j; i < 16 * j + 16; i++)
                part += u.w[i] * q[256 * b + i];
            s += u.scale[j] * part;
            if (has_min)
                m += u.min[j] * sum[16 * b + j];
        }
        float v = u.d * (float)s;
        if (has_min)
            v = fmaf(-u.dmin, (float)m, v);
        acc = fmaf(v, dx[b], acc);
    }
    return acc;
}

#define MATMUL_INT(type, len, block_bytes, has_min)                                                          \
    void matmul_##type##_scalar(const struct kernel_matmul *a)                                               \
    {                                                                                                        \
        for (int64_t r = a->row0; r < a->row1; r++)                                                          \
            for (int64_t t = 0; t < a->m; t++)                                                               \
                a->y[t * a->ldy + r] = dot_int8_##len(row_of(a, r, len, block_bytes), a->x, t,               \
                                                      unpack_##type, block_bytes, has_min);                  \
    }

MATMUL_INT(q4_0, 32, sizeof(struct block_q4_0), false)
MATMUL_INT(q4_1, 32, sizeof(struct block_q4_1), true)
MATMUL_INT(q5_0, 32, sizeof(struct block_q5_0), false)
MATMUL_INT(q5_1, 32, sizeof(struct block_q5_1), true)
MATMUL_INT(q8_0, 32, sizeof(struct block_q8_0), false)
MATMUL_INT(iq4_nl, 32, sizeof(struct block_iq4_nl), false)
MATMUL_INT(mxfp4, 32, sizeof(struct block_mxfp4), false)
MATMUL_INT(q2_k, 256, sizeof(struct block_q2_k), true)
MATMUL_INT(q3_k, 256, sizeof(struct block_q3_k), false)
MATMUL_INT(q4_k, 256, sizeof(struct block_q4_k), true)
MATMUL_INT(q5_k, 256, sizeof(struct block_q5_k), true)
MATMUL_INT(q6_k, 256, sizeof(struct block_q6_k), false)
MATMUL_INT(iq4_xs, 256, sizeof(struct block_iq4_xs), false)

static float weight_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

static float weight_bf16(const uint8_t *p)
{
    return quant_bf16_to_float(quant_load16(p));
}

static float weight_f16(const uint8_t *p)
{
    return unpack_half(p);
}

KERNELS_ALWAYS_INLINE float dot_float(const uint8_t *w, const float *x, int64_t k,
                                      float (*weight)(const uint8_t *), int weight_bytes)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < k; i++)
        lane[i % 16] = fmaf(weight(w + i * weight_bytes), x[i], lane[i % 16]);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

#define MATMUL_FLOAT(type, weight_bytes)                                                                     \
    void matmul_##type##_scalar(const struct kernel_matmul *a)                                               \
    {                                                                                                        \
        for (int64_t r = a->row0; r < a->row1; r++)                                                          \
            for (int64_t t = 0; t < a->m; t++)                                                               \
                a->y[t * a->ldy + r] = dot_float(row_of(a, r, 1, weight_bytes), a->x->f32 + t * a->k, a->k,  \
                                                 weight_##type, weight_bytes);                               \
    }

MATMUL_FLOAT(f32, 4)
MATMUL_FLOAT(f16, 2)
MATMUL_FLOAT(bf16, 2)
