/* The x86 kernels that the tables in kernels.c name. Files of instruction set SUFFIX are NAME_SUFFIX.c; they
 * hold kernels only, because anything else in them would be compiled with instructions that a machine may
 * lack. */
#ifndef KERNELS_X86_KERNELS_X86_H
#define KERNELS_X86_KERNELS_X86_H

#include "kernels/kernels_internal.h"

#define K(name, type, len)                                                                                             \
    kernel_matmul_fn matmul_##type##_avx2, matmul_##type##_avxvnni, matmul_##type##_avx512, matmul_##type##_avx512vnni;
KERNELS_R16_LIST(K)
KERNELS_EXPAND_LIST(K)
#undef K
#define K(name, type, len) kernel_matmul_fn matmul_##type##_avx512vbmi;
KERNELS_EXPAND_LIST(K)
#undef K
#define K(name, type, len) kernel_matmul_fn matmul_##type##_amx;
KERNELS_R16_LIST(K)
#undef K
#define K(name, type, len) kernel_matmul_fn matmul_##type##_avx2, matmul_##type##_avx512;
KERNELS_FLOAT_LIST(K)
#undef K

layout_put_fn r16_put_avx2;
int64_t peak_tiles_amx(int64_t n_round);

KERNELS_DECLARE_OPS(avx2)
KERNELS_DECLARE_OPS(avx512)
KERNELS_DECLARE_PEAKS(avx2)
KERNELS_DECLARE_PEAKS(avxvnni)
KERNELS_DECLARE_PEAKS(avx512)
KERNELS_DECLARE_PEAKS(avx512vnni)

#endif
