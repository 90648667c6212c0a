/* The x86 kernels that the tables in kernels.c name. Files of instruction set SUFFIX are NAME_SUFFIX.c; they
 * hold kernels only, because anything else in them would be compiled with instructions that a machine may
 * lack. */
#ifndef KERNELS_X86_KERNELS_X86_H
#define KERNELS_X86_KERNELS_X86_H

#include "kernels/kernels_internal.h"

/* formats in layout R16 */
#define KERNELS_R16_LIST(K) K(Q4_0, q4_0) K(Q8_0, q8_0) K(Q4_K, q4_k) K(Q6_K, q6_k)
/* formats in layout ROWS, by way of unpack.h */
#define KERNELS_ROWS_LIST(K)                                                                                 \
    K(Q4_1, q4_1)                                                                                            \
    K(Q5_0, q5_0)                                                                                            \
    K(Q5_1, q5_1) K(IQ4_NL, iq4_nl) K(MXFP4, mxfp4) K(Q2_K, q2_k) K(Q3_K, q3_k) K(Q5_K, q5_k)                \
        K(IQ4_XS, iq4_xs)
#define KERNELS_FLOAT_LIST(K) K(F32, f32) K(F16, f16) K(BF16, bf16)

#define K(name, type)                                                                                        \
    kernel_matmul_fn matmul_##type##_avx2, matmul_##type##_avx512, matmul_##type##_avx512vnni;
KERNELS_R16_LIST(K)
#undef K
#define K(name, type) kernel_matmul_fn matmul_##type##_avx2;
KERNELS_ROWS_LIST(K)
#undef K
#define K(name, type) kernel_matmul_fn matmul_##type##_avx2, matmul_##type##_avx512;
KERNELS_FLOAT_LIST(K)
#undef K

KERNELS_DECLARE_OPS(avx2)
KERNELS_DECLARE_OPS(avx512)

#endif
