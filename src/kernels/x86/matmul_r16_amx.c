#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/lanes_avx512.h"
#include "kernels/x86/tiles_amx.h"

#include "kernels/body/tiles_template.h"

/* Few tokens don't pay for the expansion of weights, nor for tiles. */
#define K(name, type, len)                                                                                             \
    void matmul_##type##_amx(const struct kernel_matmul *a)                                                            \
    {                                                                                                                  \
        if (!a->tiles_from || a->m < a->tiles_from)                                                                    \
            matmul_##type##_avx512vnni(a);                                                                             \
        else                                                                                                           \
            tiles_matmul(a, QUANT_##name, len);                                                                        \
    }
KERNELS_R16_LIST(K)
#undef K
