#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/lanes_avx512.h"
#include "kernels/x86/tiles_amx.h"

#include "kernels/body/tiles_template.h"

/* With few tokens, neither expanding weights nor using tiles pays. */
#define K(name, type, len)                                                                                             \
    void matmul_##type##_amx(const struct kernel_matmul *a)                                                            \
    {                                                                                                                  \
        if (!a->how.tiles_from || a->m < a->how.tiles_from)                                                            \
            matmul_##type##_avx512vnni(a);                                                                             \
        else                                                                                                           \
            tiles_matmul(a, QUANT_##name, len);                                                                        \
    }
KERNELS_R16_LIST(K)
#undef K

/* Four results at a time, as in tiles_template.h. Operands aren't zeros, as the unit's speed depends on their bits. */
int64_t peak_tiles_amx(int64_t n_round)
{
    enum { SIDE = 16, DEPTH = 64, N_RESULT = 4 };
    int8_t operand[SIDE * DEPTH];
    for (int i = 0; i < SIDE * DEPTH; i++)
        operand[i] = (int8_t)(i * 37);
    tiles_begin(SIDE, DEPTH);
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_load(4, operand, DEPTH);
    tile_load(5, operand, DEPTH);
    tile_load(6, operand, DEPTH);
    tile_load(7, operand, DEPTH);
    for (int64_t r = 0; r < n_round; r++) {
        tile_dot_ss(0, 4, 6);
        tile_dot_ss(1, 5, 6);
        tile_dot_ss(2, 4, 7);
        tile_dot_ss(3, 5, 7);
    }
    tiles_end();
    return n_round * N_RESULT * SIDE * SIDE * DEPTH;
}
