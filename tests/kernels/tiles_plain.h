/* The tile unit of tiles_template.h in plain C: a model of AMX's eight tiles, with which the algorithm is tested on any
 * machine. */
#ifndef TILES_PLAIN_H
#define TILES_PLAIN_H

#include <stdint.h>
#include <string.h>

static struct {
    int rows, row_bytes; /* what tiles_begin set; a tile has no more */
    uint8_t data[16][64];
} tiles_plain[8];

static inline void tiles_begin(int n_token, int depth)
{
    for (int i = 0; i < 8; i++) {
        memset(&tiles_plain[i], 0, sizeof tiles_plain[i]);
        tiles_plain[i].row_bytes = i == 4 || i == 5 ? depth : 64;
        tiles_plain[i].rows = i < 6 ? n_token : depth / 4;
    }
}

static inline void tiles_end(void)
{
    memset(tiles_plain, 0, sizeof tiles_plain); /* what is used without tiles_begin gives nothing */
}

static inline void tile_zero(int t)
{
    memset(tiles_plain[t].data, 0, sizeof tiles_plain[t].data);
}

static inline void tile_load(int t, const void *p, int64_t stride)
{
    tile_zero(t);
    for (int i = 0; i < tiles_plain[t].rows; i++)
        memcpy(tiles_plain[t].data[i], (const char *)p + i * stride, (size_t)tiles_plain[t].row_bytes);
}

static inline void tile_store(int t, void *p)
{
    for (int i = 0; i < tiles_plain[t].rows; i++)
        memcpy((char *)p + (int64_t)i * 64, tiles_plain[t].data[i], (size_t)tiles_plain[t].row_bytes);
}

static inline int32_t tiles_plain_byte(uint8_t byte, int is_signed)
{
    return is_signed ? (int8_t)byte : byte;
}

/* c[m][n] += the products of a[m][4k + i] and b[k][4n + i]; b signed or not */
static inline void tile_dot_bytes(int c, int a, int b, int b_is_signed)
{
    for (int m = 0; m < tiles_plain[c].rows; m++)
        for (int n = 0; n < 16; n++) {
            int32_t sum;
            memcpy(&sum, tiles_plain[c].data[m] + 4 * n, sizeof sum);
            for (int k = 0; k < tiles_plain[b].rows; k++)
                for (int i = 0; i < 4; i++)
                    sum += tiles_plain_byte(tiles_plain[a].data[m][4 * k + i], 1) *
                           tiles_plain_byte(tiles_plain[b].data[k][4 * n + i], b_is_signed);
            memcpy(tiles_plain[c].data[m] + 4 * n, &sum, sizeof sum);
        }
}

static inline void tile_dot_ss(int c, int a, int b)
{
    tile_dot_bytes(c, a, b, 1);
}

static inline void tile_dot_su(int c, int a, int b)
{
    tile_dot_bytes(c, a, b, 0);
}

static inline float tiles_plain_bf16(const uint8_t *p)
{
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline void tile_dot_bf16(int c, int a, int b)
{
    for (int m = 0; m < tiles_plain[c].rows; m++)
        for (int n = 0; n < 16; n++) {
            float sum;
            memcpy(&sum, tiles_plain[c].data[m] + 4 * n, sizeof sum);
            for (int k = 0; k < tiles_plain[b].rows; k++)
                for (int i = 0; i < 4; i += 2)
                    sum += tiles_plain_bf16(tiles_plain[a].data[m] + 4 * k + i) *
                           tiles_plain_bf16(tiles_plain[b].data[k] + 4 * n + i);
            memcpy(tiles_plain[c].data[m] + 4 * n, &sum, sizeof sum);
        }
}

#endif
