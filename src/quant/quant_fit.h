/* What the encoders share that has nothing to do with lanes: halves, codebooks, grids. Internal to the room. */
#ifndef QUANT_QUANT_FIT_H
#define QUANT_QUANT_FIT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/quant_encode.h"

/* Encodes n_block blocks that follow each other; w: the importance of each weight, or NULL: all alike. */
typedef void encode_fn(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block);

/* The encoders of all types, compiled for different machines; they give the same bytes. NULL: none. */
struct encoders {
    encode_fn *of[QUANT_MAX_ID];
};
extern const struct encoders encoders_generic, encoders_avx2, encoders_avx512;

static inline void fit_store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Stores v as half, and returns what was stored. */
static inline float fit_store_half(uint8_t *p, float v)
{
    uint16_t h = quant_float_to_half(v);
    if ((h & 0x7fff) == 0x7c00) /* the largest, rather than infinity */
        h--;
    fit_store16(p, h);
    return quant_half_to_float(h);
}

/* 1 / d; 0 where that would overflow. */
static inline float fit_inverse(float d)
{
    return fabsf(d) > 1e-30f ? 1 / d : 0;
}

static inline float fit_round(float x) /* to an integer, ties to even; as it is above 2^23 */
{
    return x + 0x1.8p+23f - 0x1.8p+23f;
}

static inline float fit_clamp(float x, float lo, float hi)
{
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}

/* The weight of the largest magnitude, with its sign. */
static inline float fit_extreme(const float *x, int n)
{
    float max = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(max))
            max = x[i];
    return max;
}

/* Turns importances of n columns into weights of errors. In a block (of len) without any importance all weights are
 * alike. */
static inline void fit_importances(float *w, const float *importance, int64_t n, int len)
{
    memcpy(w, importance, (size_t)n * sizeof *w);
    for (; n > 0; n -= len, w += len) {
        float sum = 0;
        for (int i = 0; i < len; i++)
            sum += w[i];
        for (int i = 0; i < len && !(sum > 0); i++)
            w[i] = 1;
    }
}

/* A codebook: ascending values, and what lies midway between each and the one before. */
struct fit_book {
    int n;
    float value[16], midway[16];
};

/* A grid (quant/quant_grids.h) in runs of entries with the same high byte, and the index of each combination of levels
 * (a number whose digits they are, the first weight's lowest) that it has. */
enum { FIT_GRID_POINTS = 3 * 3 * 3 * 3 * 3 * 3 * 3 * 3 };
struct fit_grid {
    const uint16_t *entries;
    const int8_t *values; /* of the levels, ascending */
    int n_dim, n_level, n_run;
    struct {
        uint8_t high;
        uint16_t first, end;
    } runs[256];
    int16_t index[FIT_GRID_POINTS]; /* -1: the grid does not have it */
};

struct quant_tables {
    const struct encoders *encoders; /* of this machine */
    struct fit_book iq4, fp4;
    struct fit_grid iq1, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s;
    struct kt_tables *kt;
};

#endif
