/* Products in plain C: the definition (docs/numerics.md) that every other table must match to the bit. */
#include <math.h>

#include "kernels/kernels_internal.h"
#include "kernels/ref/unpack.h"
#include "kernels/ref/unpack_iq.h"

static const uint8_t *row_of(const struct kernel_matmul *a, int64_t row, int block_len, int block_bytes)
{
    return (const uint8_t *)a->w + row * (a->k / block_len) * block_bytes;
}

enum { KT_HEAD = sizeof(float) }; /* rows of the trellis formats begin with their scale */

enum { TOKENS = 8 }; /* tokens that share one unpacking of a block */

typedef void unpack32_fn(const void *block, struct unpacked32 *u);
typedef void unpack_part_fn(const void *block, int part, struct unpacked32 *u);
typedef void unpack256_fn(const void *block, struct unpacked256 *u);

/* Multiplies one row by tokens [t0, t0 + n_tok), at most TOKENS. */
KERNELS_ALWAYS_INLINE void row_int8_32(const struct kernel_matmul *a, int64_t row, int64_t t0, int64_t n_tok,
                                       unpack32_fn *unpack, int block_bytes, bool has_min)
{
    int64_t n_block = a->k / 32, n_sum = kernel_act_n_sum(a->x->kind, a->k);
    const uint8_t *w = row_of(a, row, 32, block_bytes);
    float acc[TOKENS] = {0};
    for (int64_t b = 0; b < n_block; b++, w += block_bytes) {
        struct unpacked32 u;
        unpack(w, &u);
        for (int64_t t = 0; t < n_tok; t++) {
            const int8_t *q = a->x->q + (t0 + t) * kernel_act_q_stride(a->k) + 32 * b;
            int32_t s = 0;
            for (int j = 0; j < 32; j++)
                s += u.w[j] * q[j];
            float v = u.d * (float)s;
            if (has_min)
                v = fmaf(u.m, (float)a->x->sum[(t0 + t) * n_sum + b], v);
            acc[t] = fmaf(v, a->x->d[(t0 + t) * n_block + b], acc[t]);
        }
    }
    for (int64_t t = 0; t < n_tok; t++)
        a->y[(t0 + t) * a->ldy + row] = acc[t];
}

/* The integer sum of a block of 256 and, where there are minima, theirs. */
KERNELS_ALWAYS_INLINE void dot_super(const struct unpacked256 *u, const int8_t *q, const int16_t *sum, bool has_min,
                                     int32_t *s, int32_t *m)
{
    *s = *m = 0;
    for (int j = 0; j < 16; j++) {
        int32_t part = 0;
        for (int i = 16 * j; i < 16 * j + 16; i++)
            part += u->w[i] * q[i];
        *s += u->scale[j] * part;
        if (has_min)
            *m += u->min[j] * sum[j];
    }
}

KERNELS_ALWAYS_INLINE void row_int8_256(const struct kernel_matmul *a, int64_t row, int64_t t0, int64_t n_tok,
                                        unpack256_fn *unpack, int block_bytes, bool has_min, int head)
{
    int64_t n_block = a->k / 256, n_sum = kernel_act_n_sum(a->x->kind, a->k);
    const uint8_t *w = row_of(a, row, 256, block_bytes) + (row + (head != 0)) * head;
    float acc[TOKENS] = {0}, row_scale = 0;
    if (head)
        memcpy(&row_scale, w - head, sizeof row_scale);
    for (int64_t b = 0; b < n_block; b++, w += block_bytes) {
        struct unpacked256 u;
        unpack(w, &u);
        for (int64_t t = 0; t < n_tok; t++) {
            const int8_t *q = a->x->q + (t0 + t) * kernel_act_q_stride(a->k) + 256 * b;
            int32_t s, m;
            dot_super(&u, q, a->x->sum + (t0 + t) * n_sum + 16 * b, has_min, &s, &m);
            float v = (head ? row_scale : u.d) * (float)s;
            if (has_min)
                v = fmaf(-u.dmin, (float)m, v);
            acc[t] = fmaf(v, a->x->d[(t0 + t) * n_block + b], acc[t]);
        }
    }
    for (int64_t t = 0; t < n_tok; t++)
        a->y[(t0 + t) * a->ldy + row] = acc[t];
}

/* Blocks of block_len weights by activations in blocks of 32; halves: with a scale each 16 weights. */
KERNELS_ALWAYS_INLINE void row_parts(const struct kernel_matmul *a, int64_t row, int64_t t0, int64_t n_tok,
                                     unpack_part_fn *unpack, int block_len, int block_bytes, bool halves)
{
    int64_t n_part = block_len / 32, n_chunk = a->k / 32;
    const uint8_t *w = row_of(a, row, block_len, block_bytes);
    float acc[TOKENS] = {0};
    for (int64_t b = 0; b < n_chunk; b++) {
        struct unpacked32 u;
        unpack(w + b / n_part * block_bytes, (int)(b % n_part), &u);
        for (int64_t t = 0; t < n_tok; t++) {
            const int8_t *q = a->x->q + (t0 + t) * kernel_act_q_stride(a->k) + 32 * b;
            int32_t s[2] = {0, 0};
            for (int j = 0; j < 32; j++)
                s[halves && j >= 16] += u.w[j] * q[j];
            float v = u.d * (float)s[0];
            if (halves)
                v = fmaf(u.m, (float)s[1], v);
            acc[t] = fmaf(v, a->x->d[(t0 + t) * n_chunk + b], acc[t]);
        }
    }
    for (int64_t t = 0; t < n_tok; t++)
        a->y[(t0 + t) * a->ldy + row] = acc[t];
}

#define MATMUL_ROWS(type, row_fn, ...)                                                                                 \
    void matmul_##type##_scalar(const struct kernel_matmul *a)                                                         \
    {                                                                                                                  \
        for (int64_t r = a->row0; r < a->row1; r++)                                                                    \
            for (int64_t t = 0; t < a->m; t += TOKENS)                                                                 \
                row_fn(a, r, t, a->m - t < TOKENS ? a->m - t : TOKENS, unpack_##type, __VA_ARGS__);                    \
    }
#define MATMUL_32(type, has_min)        MATMUL_ROWS(type, row_int8_32, sizeof(struct block_##type), has_min)
#define MATMUL_256(type, has_min)       MATMUL_ROWS(type, row_int8_256, sizeof(struct block_##type), has_min, 0)
#define MATMUL_KT(type)                 MATMUL_ROWS(type, row_int8_256, sizeof(struct block_##type), false, KT_HEAD)
#define MATMUL_PARTS(type, len, halves) MATMUL_ROWS(type, row_parts, len, sizeof(struct block_##type), halves)

MATMUL_32(q4_0, false)
MATMUL_32(q4_1, true)
MATMUL_32(q5_0, false)
MATMUL_32(q5_1, true)
MATMUL_32(q8_0, false)
MATMUL_32(iq4_nl, false)
MATMUL_32(mxfp4, false)
MATMUL_256(q2_k, true)
MATMUL_256(q3_k, false)
MATMUL_256(q4_k, true)
MATMUL_256(q5_k, true)
MATMUL_256(q6_k, false)
MATMUL_256(iq1_s, false)
MATMUL_256(iq1_m, false)
MATMUL_256(iq2_xxs, false)
MATMUL_256(iq2_xs, false)
MATMUL_256(iq2_s, false)
MATMUL_256(iq3_xxs, false)
MATMUL_256(iq3_s, false)
MATMUL_256(iq4_xs, false)
MATMUL_256(tq1_0, false)
MATMUL_256(tq2_0, false)
MATMUL_KT(iq2_kt)
MATMUL_KT(iq3_kt)
MATMUL_KT(iq4_kt)
MATMUL_PARTS(q1_0, 128, false)
MATMUL_PARTS(q2_0, 64, false)
MATMUL_PARTS(nvfp4, 64, true)

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

KERNELS_ALWAYS_INLINE float dot_float(const uint8_t *w, const float *x, int64_t k, float (*weight)(const uint8_t *),
                                      int weight_bytes)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < k; i++)
        lane[i % 16] = fmaf(weight(w + i * weight_bytes), x[i], lane[i % 16]);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

#define MATMUL_FLOAT(type, weight_bytes)                                                                               \
    void matmul_##type##_scalar(const struct kernel_matmul *a)                                                         \
    {                                                                                                                  \
        for (int64_t r = a->row0; r < a->row1; r++)                                                                    \
            for (int64_t t = 0; t < a->m; t++)                                                                         \
                a->y[t * a->ldy + r] =                                                                                 \
                    dot_float(row_of(a, r, 1, weight_bytes), a->x->f32 + t * a->k, a->k, weight_##type, weight_bytes); \
    }

MATMUL_FLOAT(f32, 4)
MATMUL_FLOAT(f16, 2)
MATMUL_FLOAT(bf16, 2)
