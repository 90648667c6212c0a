/* The Arm kernels that the tables in kernels.c name, as x86/kernels_x86.h has those for x86. */
#ifndef KERNELS_ARM_KERNELS_ARM_H
#define KERNELS_ARM_KERNELS_ARM_H

#include "kernels/kernels_internal.h"

#define K(name, type, len) kernel_matmul_fn matmul_##type##_neon, matmul_##type##_dotprod, matmul_##type##_i8mm;
KERNELS_R16_LIST(K)
KERNELS_EXPAND_LIST(K)
#undef K
#define K(name, type, len) kernel_matmul_fn matmul_##type##_neon;
KERNELS_FLOAT_LIST(K)
#undef K

KERNELS_DECLARE_OPS(neon)
KERNELS_DECLARE_PEAKS(neon)
KERNELS_DECLARE_PEAKS(dotprod)
KERNELS_DECLARE_PEAKS(i8mm)

#endif
