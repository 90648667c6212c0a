/* The tile unit of tiles_template.h by AMX. Instructions are spelled as assembly, because the compilers' builtins don't
 * say that they read and write memory. */
#ifndef KERNELS_X86_TILES_AMX_H
#define KERNELS_X86_TILES_AMX_H

#include <stdint.h>

/* What LDTILECFG reads (Intel's manual, volume 1, 18.4). */
struct tiles_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tiles_begin(int n_token, int depth)
{
    struct tiles_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? depth : 64);
        c.rows[i] = (uint8_t)(i < 6 ? n_token : depth / 4);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static inline void tiles_end(void)
{
    __asm__ volatile("tilerelease");
}

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define tile_load(t, p, stride)                                                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define tile_store(t, p)       __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((int64_t)64) : "memory")
#define tile_dot_ss(c, a, b)   __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define tile_dot_su(c, a, b)   __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define tile_dot_bf16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#endif
