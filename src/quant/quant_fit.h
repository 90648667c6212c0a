/* What the encoders share: fitting a block of weights by a scale, or by a scale and a minimum, times integers.
 * Internal to the room. Four numbers are worked on at a
 * time: four weights, or four scales that are tried. */
#ifndef QUANT_QUANT_FIT_H
#define QUANT_QUANT_FIT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/quant_encode.h"

enum { FIT_LANES = 4, FIT_MAX = QUANT_SUPER };

typedef void encode_block_fn(const struct quant_tables *t, const float *x, const float *w, void *block);

/* One block of a format each (quant_encode.c: the table). w: the importance of each weight. */
encode_block_fn encode_q1_0, encode_q2_0, encode_q4_0, encode_q4_1, encode_q5_0, encode_q5_1, encode_q8_0,
    encode_iq4_nl, encode_mxfp4, encode_nvfp4, encode_tq1_0, encode_tq2_0;
encode_block_fn encode_q2_k, encode_q3_k, encode_q4_k, encode_q5_k, encode_q6_k, encode_iq4_xs;
encode_block_fn encode_iq1_s, encode_iq1_m, encode_iq2_xxs, encode_iq2_xs, encode_iq2_s, encode_iq3_xxs, encode_iq3_s;

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

/* Four numbers: a vector on every machine that has them. */
typedef float fit_vec __attribute__((vector_size(16)));
typedef int32_t fit_mask __attribute__((vector_size(16)));

#define FIT_ALL(x) ((fit_vec){0} + (x))
/* where m: a, else b */
#define FIT_CHOOSE(m, a, b) ((fit_vec)(((fit_mask)(a) & (m)) | ((fit_mask)(b) & ~(m))))
#define FIT_LESS(a, b)      ((fit_mask)((a) < (b)))

/* Integers nearest to x, ties to even, and within lo..hi. */
static inline fit_vec fit_clamp_round(fit_vec x, float lo, float hi)
{
    fit_vec low = FIT_ALL(lo), high = FIT_ALL(hi), q = x + 0x1.8p+23f - 0x1.8p+23f;
    q = FIT_CHOOSE(FIT_LESS(q, low), low, q);
    return FIT_CHOOSE(FIT_LESS(high, q), high, q);
}

static inline float fit_total(fit_vec v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline fit_vec fit_load(const float *p)
{
    fit_vec v;
    memcpy(&v, p, sizeof v);
    return v;
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

/* The scale d for which sum w (x - d q)^2 with integers q in lo..hi is about least; 0 when nothing helps. Tries scales
 * that put the extreme weight near either end. */
float fit_scale(const float *x, const float *w, int n, int lo, int hi);

/* sum w (x - d q)^2 with the best integers in lo..hi; written to q when it is not NULL. */
float fit_error(const float *x, const float *w, int n, float d, int lo, int hi, int8_t *q);

/* Scale and minimum for sum w (x - d q - m)^2, q in 0..hi; m at most max_min. Tries scales around the one that the
 * range of the weights gives, `width` quarters of an integer apart, and moves each `n_round` times to what fits best.
 */
struct fit_affine {
    float d, m;
};
struct fit_affine fit_scale_min(const float *x, const float *w, int n, int hi, int width, int n_round, float max_min);

/* sum w (x - d q - m)^2 with the best integers in 0..hi, which go to q; the same for a few scales and minima. */
float fit_affine_error(const float *x, const float *w, int n, struct fit_affine f, int hi, uint8_t *q);
void fit_affine_errors(const float *x, const float *w, int n, const float d[FIT_LANES], const float m[FIT_LANES],
                       int hi, float error[FIT_LANES]);

/* A codebook of 16 values. Numbers midway between two are multiples of a half, so a cell a half wide has one nearest
 * value. */
enum { FIT_BOOK_CELLS = 512 };
struct fit_book {
    const int8_t *values;
    float first, last; /* the least and the greatest value */
    uint8_t nearest[FIT_BOOK_CELLS];
};
void fit_book_open(struct fit_book *b, const int8_t values[16]);
float fit_book_error(const struct fit_book *b, const float *x, const float *w, int n, float d, uint8_t *q);
float fit_book_scale(const struct fit_book *b, const float *x, const float *w, int n, int steps);

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
void fit_grid_open(struct fit_grid *g, const uint16_t *entries, int n, int n_dim, const int8_t *values, int n_level);

struct quant_tables {
    struct fit_book iq4, fp4;
    struct fit_grid iq1, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s;
};

#endif
