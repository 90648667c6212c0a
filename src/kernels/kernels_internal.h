/* What the files of this folder share: the scalar kernels, which other tables use where they have none of their own. */
#ifndef KERNELS_KERNELS_INTERNAL_H
#define KERNELS_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

#define KERNELS_ALWAYS_INLINE static inline __attribute__((always_inline))

/* Goes before a loop over a small array of constant length: the compiler can keep the array in registers only if it
 * unrolls the loop. */
#if defined(__clang__)
#define KERNELS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KERNELS_UNROLL _Pragma("GCC unroll 16")
#endif

/* matmul_TYPE_SUFFIX for every type of quant_types.def */
#define QUANT(name, id, block_len, block_bytes, decoder, act)                                                          \
    kernel_matmul_fn matmul_##decoder##_scalar, matmul_##decoder##_reference;
#include "quant/quant_types.def"
#undef QUANT

/* Sums over sixteen integers: over all, and over elements 2 and 3 of every four. */
struct v16_sums {
    int all, upper;
};

/* K(name, suffix of names, weights in a block): the formats of body/r16_template.h, in layout R16 */
#define KERNELS_R16_LIST(K)                                                                                            \
    K(Q4_0, q4_0, 32)                                                                                                  \
    K(Q4_1, q4_1, 32)                                                                                                  \
    K(Q5_0, q5_0, 32)                                                                                                  \
    K(Q5_1, q5_1, 32)                                                                                                  \
    K(Q8_0, q8_0, 32)                                                                                                  \
    K(IQ4_NL, iq4_nl, 32)                                                                                              \
    K(MXFP4, mxfp4, 32)                                                                                                \
    K(Q2_K, q2_k, 256)                                                                                                 \
    K(Q3_K, q3_k, 256)                                                                                                 \
    K(Q4_K, q4_k, 256)                                                                                                 \
    K(Q5_K, q5_k, 256)                                                                                                 \
    K(Q6_K, q6_k, 256)                                                                                                 \
    K(IQ4_XS, iq4_xs, 256)
/* the formats that body/expand_template.h expands in L1 */
#define KERNELS_EXPAND_LIST(K)                                                                                         \
    K(IQ1_S, iq1_s, 256)                                                                                               \
    K(IQ1_M, iq1_m, 256)                                                                                               \
    K(IQ2_XXS, iq2_xxs, 256)                                                                                           \
    K(IQ2_XS, iq2_xs, 256)                                                                                             \
    K(IQ2_S, iq2_s, 256)                                                                                               \
    K(IQ3_XXS, iq3_xxs, 256)                                                                                           \
    K(IQ3_S, iq3_s, 256)                                                                                               \
    K(TQ1_0, tq1_0, 256)                                                                                               \
    K(TQ2_0, tq2_0, 256)                                                                                               \
    K(Q1_0, q1_0, 128)                                                                                                 \
    K(Q2_0, q2_0, 64)                                                                                                  \
    K(NVFP4, nvfp4, 64)                                                                                                \
    K(IQ2_KT, iq2_kt, 256)                                                                                             \
    K(IQ3_KT, iq3_kt, 256)                                                                                             \
    K(IQ4_KT, iq4_kt, 256)
/* the formats in layout ROWS */
#define KERNELS_FLOAT_LIST(K) K(F32, f32, 1) K(F16, f16, 1) K(BF16, bf16, 1)

/* Makes the compiler store the value at p, and assume that it may have changed. */
static inline void kernels_keep(void *p, size_t n_bytes)
{
    (void)n_bytes;
    __asm__ volatile("" : : "r"(p) : "memory");
}

/* Prefetches the cache line of weights that is a.ahead_bytes behind w. */
KERNELS_ALWAYS_INLINE void kernels_prefetch(const uint8_t *w, struct kernel_prefetch a)
{
    const uint8_t *p = w + a.ahead_bytes;
    switch (a.to) {
    case KERNEL_CACHE_L1: __builtin_prefetch(p, 0, 3); break;
    case KERNEL_CACHE_L2: __builtin_prefetch(p, 0, 2); break;
    case KERNEL_CACHE_NTA: __builtin_prefetch(p, 0, 0); break;
    case KERNEL_CACHE_BOTH:
        __builtin_prefetch(p, 0, 2);
        __builtin_prefetch(w + KERNEL_NEAR_BYTES, 0, 3);
        break;
    }
}

/* The functions that measure peaks, for a suffix. */
#define KERNELS_DECLARE_PEAKS(suffix)                                                                                  \
    int64_t peak_int8_##suffix(int64_t n_round);                                                                       \
    int64_t peak_float_##suffix(int64_t n_round);                                                                      \
    void peak_read_##suffix(const void *p, int64_t n, bool asks_ahead);

#define KERNELS_FILL_PEAKS(suffix)                                                                                     \
    .peak_int8 = peak_int8_##suffix, .peak_float = peak_float_##suffix, .peak_read = peak_read_##suffix

/* Everything else but the products, for a suffix. */
#define KERNELS_DECLARE_OPS(suffix)                                                                                    \
    void quantize_int8_32_##suffix(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum);                      \
    void quantize_int8_256_##suffix(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum);                     \
    void rms_norm_##suffix(float *y, const float *x, const float *w, int64_t n, float eps);                            \
    void act_mul_##suffix(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up,            \
                          int64_t n);                                                                                  \
    float norm_dot_##suffix(const float *x, const float *w, int64_t n, float eps);                                     \
    void situ_##suffix(float bound, float up_bound, float *y, const float *gate, const float *up, int64_t n);          \
    void add_##suffix(float *y, const float *a, const float *b, int64_t n);                                            \
    void fma_scalar_##suffix(float *y, const float *x, float a, int64_t n);                                            \
    void exp_sum_##suffix(float *y, const float *x, float max, int64_t n, float *sum);                                 \
    void conv_##suffix(float *y, const struct kernel_conv *a);                                                         \
    void delta_rule_##suffix(float *s, const struct kernel_recurrence *a);                                             \
    void state_space_##suffix(float *s, const struct kernel_recurrence *a);                                            \
    void selective_scan_##suffix(float *s, const struct kernel_scan *a);                                               \
    void rope_##suffix(enum kernel_rope mode, float *x, const float *cs, int64_t n_rot);                               \
    void f32_to_f16_##suffix(uint16_t *y, const float *x, int64_t n);                                                  \
    void f16_to_f32_##suffix(float *y, const uint16_t *x, int64_t n);                                                  \
    void f32_to_q8_0_##suffix(void *y, const float *x, int64_t n);                                                     \
    void q8_0_to_f32_##suffix(float *y, const void *x, int64_t n);                                                     \
    void attn_block_f16_##suffix(const struct kernel_attn *a);                                                         \
    void attn_block_f32_##suffix(const struct kernel_attn *a);                                                         \
    void attn_merge_##suffix(int n_q, float *max, float *sum, float *o, const float *max_b, const float *sum_b,        \
                             const float *o_b, int64_t hd_v);

#define KERNELS_FILL_OPS(suffix)                                                                                       \
    .quantize_int8_32 = quantize_int8_32_##suffix, .quantize_int8_256 = quantize_int8_256_##suffix,                    \
    .rms_norm = rms_norm_##suffix, .norm_dot = norm_dot_##suffix, .act_mul = act_mul_##suffix, .situ = situ_##suffix,  \
    .add = add_##suffix, .fma_scalar = fma_scalar_##suffix, .exp_sum = exp_sum_##suffix, .rope = rope_##suffix,        \
    .conv = conv_##suffix, .delta_rule = delta_rule_##suffix, .state_space = state_space_##suffix,                     \
    .selective_scan = selective_scan_##suffix, .f32_to_f16 = f32_to_f16_##suffix, .f16_to_f32 = f16_to_f32_##suffix,   \
    .f32_to_q8_0 = f32_to_q8_0_##suffix, .q8_0_to_f32 = q8_0_to_f32_##suffix,                                          \
    .attn_block_f16 = attn_block_f16_##suffix, .attn_block_f32 = attn_block_f32_##suffix,                              \
    .attn_merge = attn_merge_##suffix

KERNELS_DECLARE_OPS(scalar)
KERNELS_DECLARE_OPS(reference)
KERNELS_DECLARE_PEAKS(scalar)

#endif
