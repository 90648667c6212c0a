/* Measures the peak rates of an instruction set, for rooflines: products of register tiles without any loads. Include
 * after lanes_*.h and dot_*.h; PEAK_NAME(what) names the functions. peak_dot and peak_fma are dot_bytes and vf_fma,
 * written so that compilers neither copy sums nor compute anything once for all rounds. */
#include "kernels/kernels_internal.h"

enum { PEAK_READ_TILE = 4, PEAK_READ_AHEAD = 4096 };

int64_t PEAK_NAME(int8)(int64_t n_round)
{
    static const int8_t q[4] = {1, -1, 1, -1};
    vi w = vi_set1(0x01020304), acc[PEAK_TILE];
    KERNELS_UNROLL
    for (int i = 0; i < PEAK_TILE; i++)
        acc[i] = vi_set1(i);
    for (int64_t r = 0; r < n_round; r++)
        KERNELS_UNROLL
    for (int i = 0; i < PEAK_TILE; i++)
        acc[i] = peak_dot(acc[i], w, q);
    KERNELS_UNROLL
    for (int i = 0; i < PEAK_TILE; i++)
        vi_keep(acc[i]);
    return n_round * PEAK_TILE * LANES * DOT_DEPTH;
}

int64_t PEAK_NAME(float)(int64_t n_round)
{
    vf a = vf_set1(1), b = vf_set1(1e-9f), acc[PEAK_TILE];
    KERNELS_UNROLL
    for (int i = 0; i < PEAK_TILE; i++)
        acc[i] = vf_set1((float)i); /* different values, or the compiler would compute one alone */
    for (int64_t r = 0; r < n_round; r++)
        KERNELS_UNROLL
    for (int i = 0; i < PEAK_TILE; i++)
        acc[i] = peak_fma(acc[i], a, b);
    KERNELS_UNROLL
    for (int i = 0; i < PEAK_TILE; i++)
        vf_keep(acc[i]);
    return n_round * PEAK_TILE * LANES;
}

KERNELS_ALWAYS_INLINE void peak_read(const char *c, int64_t n, bool asks_ahead)
{
    vi acc[PEAK_READ_TILE];
    KERNELS_UNROLL
    for (int i = 0; i < PEAK_READ_TILE; i++)
        acc[i] = vi_set1(0);
    for (int64_t at = 0; at < n; at += PEAK_READ_TILE * LANES * 4) {
        KERNELS_UNROLL
        for (int i = 0; i < PEAK_READ_TILE; i++) {
            if (asks_ahead)
                __builtin_prefetch(c + at + PEAK_READ_AHEAD + i * LANES * 4);
            acc[i] = vi_xor(acc[i], vi_load(c + at + i * LANES * 4));
        }
    }
    KERNELS_UNROLL
    for (int i = 0; i < PEAK_READ_TILE; i++)
        vi_keep(acc[i]);
}

void PEAK_NAME(read)(const void *p, int64_t n, bool asks_ahead)
{
    if (asks_ahead)
        peak_read(p, n, true);
    else
        peak_read(p, n, false);
}
