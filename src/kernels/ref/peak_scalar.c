/* The peak rates of plain C, for machines whose vectors this program does not know. */
#include "kernels/kernels_internal.h"

enum { PEAK_TILE = 16 };

int64_t peak_int8_scalar(int64_t n_round)
{
    int32_t acc[PEAK_TILE] = {0};
    int8_t a = 3, b = -5;
    kernels_keep(&a, sizeof a);
    kernels_keep(&b, sizeof b);
    for (int64_t r = 0; r < n_round; r++) {
        for (int i = 0; i < PEAK_TILE; i++)
            acc[i] += a * b;
        kernels_keep(acc, sizeof acc);
    }
    return n_round * PEAK_TILE;
}

int64_t peak_float_scalar(int64_t n_round)
{
    float acc[PEAK_TILE] = {0}, a = 3, b = -5;
    kernels_keep(&a, sizeof a);
    kernels_keep(&b, sizeof b);
    for (int64_t r = 0; r < n_round; r++) {
        for (int i = 0; i < PEAK_TILE; i++)
            acc[i] += a * b;
        kernels_keep(acc, sizeof acc);
    }
    return n_round * PEAK_TILE;
}

void peak_read_scalar(const void *p, int64_t n, bool asks_ahead)
{
    (void)asks_ahead;
    const uint64_t *c = p;
    uint64_t sum[4] = {0};
    for (int64_t i = 0; i < n / 8; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] ^= c[i + j];
    kernels_keep(sum, sizeof sum);
}
