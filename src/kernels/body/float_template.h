/* Products of F32, F16 and BF16 weights, with sixteen partial sums for each result (docs/numerics.md), in register
 * tiles of FLOAT_ROWS rows by FLOAT_TOKENS tokens, or for one token row after row. The including file has chosen
 * v16_*.h and defines FLOAT_NAME(type). */
#include "kernels/kernels_internal.h"

/* Sixteen weights from number i on; where n < 16, n of them and zeros. `type` is a constant. */
KERNELS_ALWAYS_INLINE v16 weight_load(const uint8_t *row, int64_t i, int64_t n, enum quant_type type)
{
    const uint16_t *h = (const uint16_t *)(const void *)row + i;
    const float *f = (const float *)(const void *)row + i;
    if (type == QUANT_F16)
        return n >= 16 ? v16_load_f16(h) : v16_load_f16_n(h, n);
    if (type == QUANT_BF16)
        return n >= 16 ? v16_load_bf16(h) : v16_load_bf16_n(h, n);
    return n >= 16 ? v16_load(f) : v16_load_n(f, n);
}

KERNELS_ALWAYS_INLINE int weight_bytes(enum quant_type type)
{
    return type == QUANT_F32 ? 4 : 2;
}

/* Multiplies `rows` rows by `tokens` tokens, both constants. prefetch: how each row is prefetched. */
KERNELS_ALWAYS_INLINE void float_tile(const struct kernel_matmul *a, enum quant_type type, int64_t row, int64_t t0,
                                      int rows, int tokens, struct kernel_prefetch prefetch)
{
    const uint8_t *w = (const uint8_t *)a->w + row * a->k * weight_bytes(type);
    const float *x = a->x->f32 + t0 * a->k;
    v16 lanes[8][4];
    KERNELS_UNROLL
    for (int r = 0; r < rows; r++)
        KERNELS_UNROLL
    for (int t = 0; t < tokens; t++)
        lanes[r][t] = v16_set1(0);
    int64_t i = 0;
    for (; i + 16 <= a->k; i += 16)
        KERNELS_UNROLL
    for (int r = 0; r < rows; r++) {
        const uint8_t *p = w + r * a->k * weight_bytes(type);
        if (prefetch.ahead_bytes)
            kernels_prefetch(p + i * weight_bytes(type), prefetch);
        v16 v = weight_load(p, i, 16, type);
        KERNELS_UNROLL
        for (int t = 0; t < tokens; t++)
            lanes[r][t] = v16_fma(v, v16_load(x + t * a->k + i), lanes[r][t]);
    }
    if (i < a->k)
        KERNELS_UNROLL
    for (int r = 0; r < rows; r++) {
        v16 v = weight_load(w + r * a->k * weight_bytes(type), i, a->k - i, type);
        KERNELS_UNROLL
        for (int t = 0; t < tokens; t++) {
            v16 sum = v16_fma(v, v16_load_n(x + t * a->k + i, a->k - i), lanes[r][t]);
            lanes[r][t] = v16_first(sum, lanes[r][t], a->k - i);
        }
    }
    KERNELS_UNROLL
    for (int r = 0; r < rows; r++)
        KERNELS_UNROLL
    for (int t = 0; t < tokens; t++)
        a->y[(t0 + t) * a->ldy + row + r] = v16_sum(lanes[r][t]);
}

/* Multiplies rows [row0, end) by all tokens. The tokens of a tile stay in the first-level cache; the rows come from
 * memory for the first tile, and from the second-level cache after that. */
KERNELS_ALWAYS_INLINE void float_rows(const struct kernel_matmul *a, enum quant_type type, int64_t row0, int64_t end)
{
    int64_t tile_bytes = FLOAT_ROWS * a->k * weight_bytes(type);
    struct kernel_prefetch next_tile = {tile_bytes < INT32_MAX ? (int32_t)tile_bytes : 0, KERNEL_CACHE_L2};
    for (int64_t t = 0, n; t < a->m; t += n, next_tile.ahead_bytes = 0) {
        int64_t row = row0;
        n = a->m - t < FLOAT_TOKENS ? 1 : FLOAT_TOKENS;
        for (; row + FLOAT_ROWS <= end; row += FLOAT_ROWS)
            if (n == FLOAT_TOKENS)
                float_tile(a, type, row, t, FLOAT_ROWS, FLOAT_TOKENS, next_tile);
            else
                float_tile(a, type, row, t, FLOAT_ROWS, 1, next_tile);
        for (; row < end; row++)
            for (int64_t u = t; u < t + n; u++)
                float_tile(a, type, row, u, 1, 1, a->how.prefetch);
    }
}

KERNELS_ALWAYS_INLINE void float_matmul(const struct kernel_matmul *a, enum quant_type type)
{
    enum { BLOCK_BYTES = 1 << 17 }; /* bytes of weights that are multiplied by all tokens before the next weights are */
    int64_t fit = a->k > 0 ? BLOCK_BYTES / a->k / weight_bytes(type) / FLOAT_ROWS * FLOAT_ROWS : 0;
    int64_t step = fit > FLOAT_ROWS ? fit : FLOAT_ROWS;
    if (a->m == 1)
        for (int64_t row = a->row0; row < a->row1; row++)
            float_tile(a, type, row, 0, 1, 1, a->how.prefetch);
    else
        for (int64_t row = a->row0; row < a->row1; row += step)
            float_rows(a, type, row, a->row1 - row < step ? a->row1 : row + step);
}

void FLOAT_NAME(f32)(const struct kernel_matmul *a)
{
    float_matmul(a, QUANT_F32);
}

void FLOAT_NAME(f16)(const struct kernel_matmul *a)
{
    float_matmul(a, QUANT_F16);
}

void FLOAT_NAME(bf16)(const struct kernel_matmul *a)
{
    float_matmul(a, QUANT_BF16);
}
