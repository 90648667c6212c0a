/* The x86 kernels that the tables in kernels.c name. Files of instruction set SUFFIX are NAME_SUFFIX.c; they
 * hold kernels only, because anything else in them would be compiled with instructions that a machine may
 * lack. */
#ifndef KERNELS_X86_KERNELS_X86_H
#define KERNELS_X86_KERNELS_X86_H

#include "kernels/kernels_internal.h"

/* K(name, suffix of names, weights in a block): the formats in layout R16 */
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
/* those of them that are expanded in L1 (expand_template.h) */
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
/* and those in ROWS */
#define KERNELS_FLOAT_LIST(K) K(F32, f32, 1) K(F16, f16, 1) K(BF16, bf16, 1)

#define K(name, type, len) kernel_matmul_fn matmul_##type##_avx2, matmul_##type##_avx512, matmul_##type##_avx512vnni;
KERNELS_R16_LIST(K)
KERNELS_EXPAND_LIST(K)
#undef K
#define K(name, type, len) kernel_matmul_fn matmul_##type##_avx2, matmul_##type##_avx512;
KERNELS_FLOAT_LIST(K)
#undef K

KERNELS_DECLARE_OPS(avx2)
KERNELS_DECLARE_OPS(avx512)
KERNELS_DECLARE_PEAKS(avx2)
KERNELS_DECLARE_PEAKS(avx512)
KERNELS_DECLARE_PEAKS(avx512vnni)

#endif
