/* What the encoders share that doesn't depend on the width of vectors: halves, codebooks, grids. For this folder
 * only. */
#ifndef QUANT_QUANT_FIT_H
#define QUANT_QUANT_FIT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/quant_encode.h"

/* Encodes n_block contiguous blocks. w: the importance of each weight; NULL: all are alike. */
typedef void encode_fn(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block);

/* The encoders of all types, compiled for different machines; they give the same bytes. NULL: the type has none. */
struct encoders {
    encode_fn *of[QUANT_MAX_ID];
};
extern const struct encoders encoders_generic, encoders_avx2, encoders_avx512;

static inline void fit_store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Stores v in half precision, and returns the number that was stored. */
static inline float fit_store_half(uint8_t *p, float v)
{
    uint16_t h = quant_float_to_half(v);
    if ((h & 0x7fff) == 0x7c00) /* stores the largest number instead of infinity */
        h--;
    fit_store16(p, h);
    return quant_half_to_float(h);
}

/* 1 / d; 0 where that would overflow. */
static inline float fit_inverse(float d)
{
    return fabsf(d) > 1e-30f ? 1 / d : 0;
}

/* Turns the importances of n columns into weights of errors. A block (of `len`) whose importances are all zero gets
 * equal weights. */
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

/* A codebook: ascending values, and the middle between each value and the one before. */
struct fit_book {
    int n;
    float value[16], midway[16];
};

/* A grid (quant/quant_grids.h), in runs of entries with the same high byte, and a table of the grid's entries by their
 * levels: the table's index is a number whose digits are the levels, the first weight's being the lowest digit. */
enum { FIT_GRID_POINTS = 3 * 3 * 3 * 3 * 3 * 3 * 3 * 3 };
struct fit_grid {
    const uint16_t *entries;
    const int8_t *values; /* the values of the levels, ascending */
    int n_dim, n_level, n_run;
    struct {
        uint8_t high;
        uint16_t first, end;
    } runs[256];
    int16_t index[FIT_GRID_POINTS]; /* -1: the grid has no such entry */
};

struct quant_tables {
    const struct encoders *encoders; /* of this machine */
    struct fit_book iq4, fp4;
    struct fit_grid iq1, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s;
    struct kt_tables *kt;
};

#endif
