/* Products by tiles, over a model of the tile unit in plain C: for machines without one. */
#include "check.h"
#include "lanes_plain.h"
#include "tiles_plain.h"

#include "kernels/body/tiles_template.h"

#define K(name, type, len)                                                                                             \
    static void matmul_##type##_model(const struct kernel_matmul *a)                                                   \
    {                                                                                                                  \
        tiles_matmul(a, QUANT_##name, len);                                                                            \
    }
KERNELS_R16_LIST(K)
#undef K

#define K_MODEL(name, type, len)  [QUANT_##name] = matmul_##type##_model,
#define K_LAYOUT(name, type, len) [QUANT_##name] = LAYOUT_R16,
const struct kernels tiles_model = {
    .name = "tiles model",
    .matmul = {KERNELS_R16_LIST(K_MODEL)},
    .layout = {KERNELS_R16_LIST(K_LAYOUT)},
};
