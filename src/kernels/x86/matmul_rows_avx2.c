/* Products of formats without a layout of their own, from GGUF's order: each block is unpacked to int8
 * weights (kernels/unpack.h) once for up to TOKENS tokens, then multiplied 32 weights an instruction.
 *
 * Exactness: the weights' signs are moved to the activations, so a 16-bit sum is at most 2 * 128 * 127 =
 * 32512. */
#include <immintrin.h>
#include <math.h>

#include "kernels/x86/kernels_x86.h"
#include "quant/blocks.h"

static inline float unpack_half(const uint8_t *p)
{
    return _cvtsh_ss(quant_load16(p));
}

#include "kernels/unpack.h"

enum { TOKENS = 8 }; /* for one unpacking */

/* Up to eight blocks of 32 weights. */
struct unit {
    int8_t w[256];
    float d[8], m[8];
};

static inline __m256i load32(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* Sixteen 16-bit sums of neighbouring products, exact. */
static inline __m256i pair_sums(const int8_t *w, const int8_t *q)
{
    __m256i x = load32(w);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(load32(q), x));
}

static inline int32_t sum8(__m256i a)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* ---- unpacking by table, which compilers don't turn into a shuffle ----------------------------------------
 */

static inline void codes32(int8_t w[32], const uint8_t qs[16], const int8_t values[16])
{
    __m128i q = _mm_loadu_si128((const __m128i *)qs), low4 = _mm_set1_epi8(15);
    __m128i table = _mm_loadu_si128((const __m128i *)values);
    _mm_storeu_si128((__m128i *)w, _mm_shuffle_epi8(table, _mm_and_si128(q, low4)));
    _mm_storeu_si128((__m128i *)(w + 16), _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(q, 4), low4)));
}

static inline void unpack_iq4_nl_avx2(const void *block, struct unpacked32 *u)
{
    const struct block_iq4_nl *b = block;
    codes32(u->w, b->qs, quant_iq4_values);
    u->d = unpack_half(b->d);
}

static inline void unpack_mxfp4_avx2(const void *block, struct unpacked32 *u)
{
    const struct block_mxfp4 *b = block;
    codes32(u->w, b->qs, quant_mxfp4_values);
    u->d = quant_mxfp4_scale(b->e);
}

static inline void unpack_iq4_xs_avx2(const void *block, struct unpacked256 *u)
{
    const struct block_iq4_xs *b = block;
    for (int j = 0; j < 8; j++)
        codes32(u->w + 32 * j, b->qs + 16 * j, quant_iq4_values);
    for (int j = 0; j < 16; j++)
        u->scale[j] = (int16_t)quant_iq4xs_scale(b, j / 2);
    u->d = unpack_half(b->d);
}

/* ---- formats with 32 weights a block: eight blocks at a time ----------------------------------------------
 */

typedef void unpack32_fn(const void *block, struct unpacked32 *u);

/* acc + the products of n <= 8 blocks with one activation row at q, dx, sum. */
KERNELS_ALWAYS_INLINE float dot_blocks(const struct unit *u, const int8_t *q, const float *dx,
                                       const int16_t *sum, int n, bool has_min, float acc)
{
    __m256i p[8], ones = _mm256_set1_epi16(1);
    for (int b = 0; b < 8; b++)
        p[b] = b < n ? _mm256_madd_epi16(pair_sums(u->w + 32 * b, q + 32 * b), ones) : _mm256_setzero_si256();
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
    __m256i c = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
    __m256i s =
        _mm256_add_epi32(_mm256_permute2x128_si256(a, c, 0x20), _mm256_permute2x128_si256(a, c, 0x31));
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(u->d), _mm256_cvtepi32_ps(s));
    if (has_min) {
        int16_t sums[8] = {0};
        memcpy(sums, sum, (size_t)n * sizeof *sum);
        __m256i wide = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)sums));
        v = _mm256_fmadd_ps(_mm256_loadu_ps(u->m), _mm256_cvtepi32_ps(wide), v);
    }
    float t[8];
    _mm256_storeu_ps(t, v);
    for (int b = 0; b < n; b++)
        acc = fmaf(t[b], dx[b], acc);
    return acc;
}

/* One row, tokens [t0, t0 + n_tok). */
KERNELS_ALWAYS_INLINE void row_int8_32(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok,
                                       unpack32_fn *unpack, int block_bytes, bool has_min)
{
    int64_t n_block = a->k / 32;
    const uint8_t *w = (const uint8_t *)a->w + row * n_block * block_bytes;
    float acc[TOKENS] = {0};
    struct unit u;
    memset(u.d, 0, sizeof u.d);
    memset(u.m, 0, sizeof u.m);
    for (int64_t b0 = 0; b0 < n_block; b0 += 8) {
        int n = n_block - b0 < 8 ? (int)(n_block - b0) : 8;
        for (int b = 0; b < n; b++, w += block_bytes) {
            struct unpacked32 one;
            unpack(w, &one);
            memcpy(u.w + 32 * b, one.w, 32);
            u.d[b] = one.d;
            if (has_min)
                u.m[b] = one.m;
        }
        for (int t = 0; t < n_tok; t++) {
            const int8_t *q = a->x->q + (t0 + t) * a->k + 32 * b0;
            int64_t i = (t0 + t) * n_block + b0;
            if (n == 8)
                acc[t] = dot_blocks(&u, q, a->x->d + i, a->x->sum + i, 8, has_min, acc[t]);
            else
                acc[t] = dot_blocks(&u, q, a->x->d + i, a->x->sum + i, n, has_min, acc[t]);
        }
    }
    for (int t = 0; t < n_tok; t++)
        a->y[(t0 + t) * a->ldy + row] = acc[t];
}

/* ---- formats with 256 weights a block ---------------------------------------------------------------------
 */

typedef void unpack256_fn(const void *block, struct unpacked256 *u);

KERNELS_ALWAYS_INLINE float dot_super(const struct unpacked256 *u, const __m256i scale[8], const int8_t *q,
                                      float dx, const int16_t *sum, bool has_min, float acc)
{
    __m256i s = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++)
        s = _mm256_add_epi32(s, _mm256_madd_epi16(pair_sums(u->w + 32 * i, q + 32 * i), scale[i]));
    float v = u->d * (float)sum8(s);
    if (has_min)
        v = fmaf(-u->dmin, (float)sum8(_mm256_madd_epi16(load32(u->min), load32(sum))), v);
    return fmaf(v, dx, acc);
}

KERNELS_ALWAYS_INLINE void row_int8_256(const struct kernel_matmul *a, int64_t row, int64_t t0, int n_tok,
                                        unpack256_fn *unpack, int block_bytes, bool has_min)
{
    int64_t n_block = a->k / 256;
    const uint8_t *w = (const uint8_t *)a->w + row * n_block * block_bytes;
    float acc[TOKENS] = {0};
    for (int64_t b = 0; b < n_block; b++, w += block_bytes) {
        struct unpacked256 u;
        __m256i scale[8];
        unpack(w, &u);
        for (int i = 0; i < 8; i++)
            scale[i] = _mm256_set_m128i(_mm_set1_epi16(u.scale[2 * i + 1]), _mm_set1_epi16(u.scale[2 * i]));
        for (int t = 0; t < n_tok; t++) {
            int64_t i = (t0 + t) * n_block + b;
            acc[t] = dot_super(&u, scale, a->x->q + i * 256, a->x->d[i], a->x->sum + i * 16, has_min, acc[t]);
        }
    }
    for (int t = 0; t < n_tok; t++)
        a->y[(t0 + t) * a->ldy + row] = acc[t];
}

#define ROWS_MATMUL(type, len, unpack, has_min)                                                              \
    void matmul_##type##_avx2(const struct kernel_matmul *a)                                                 \
    {                                                                                                        \
        for (int64_t row = a->row0; row < a->row1; row++) {                                                  \
            int64_t t = 0;                                                                                   \
            for (; t + 1 < a->m; t += TOKENS)                                                                \
                row_int8_##len(a, row, t, a->m - t < TOKENS ? (int)(a->m - t) : TOKENS, unpack,              \
                               sizeof(struct block_##type), has_min);                                        \
            if (t < a->m)                                                                                    \
                row_int8_##len(a, row, t, 1, unpack, sizeof(struct block_##type), has_min);                  \
        }                                                                                                    \
    }

ROWS_MATMUL(q4_1, 32, unpack_q4_1, true)
ROWS_MATMUL(q5_0, 32, unpack_q5_0, false)
ROWS_MATMUL(q5_1, 32, unpack_q5_1, true)
ROWS_MATMUL(iq4_nl, 32, unpack_iq4_nl_avx2, false)
ROWS_MATMUL(mxfp4, 32, unpack_mxfp4_avx2, false)
ROWS_MATMUL(q2_k, 256, unpack_q2_k, true)
ROWS_MATMUL(q3_k, 256, unpack_q3_k, false)
ROWS_MATMUL(q5_k, 256, unpack_q5_k, true)
ROWS_MATMUL(iq4_xs, 256, unpack_iq4_xs_avx2, false)
