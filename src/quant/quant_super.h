/* Encoding blocks of 256 whose sub-blocks have integer scales of one half-precision scale. Internal to the room. */
#ifndef QUANT_QUANT_SUPER_H
#define QUANT_QUANT_SUPER_H

#include "quant/quant_fit.h"

/* Weights are d * unit * scale[sub-block] * value, value a small integer that the format has a code for. */
struct super_codec {
    int len; /* weights of a sub-block */
    int scale_lo, scale_hi, scale_step, n_round;
    float unit;
    float (*ideal)(const void *book, const float *x, const float *w, int n); /* a sub-block's best scale, any number */
    /* sum w (x - d * value)^2 for the best values, which are written */
    float (*error)(const void *book, const float *x, const float *w, int n, float d, int8_t *value);
    const void *book;
};

struct super {
    int16_t scale[QUANT_SUPER / 8];
    int8_t value[QUANT_SUPER];
};

/* half: where d is stored. */
void super_fit(const struct super_codec *c, const float *x, const float *w, uint8_t half[2], struct super *out);

#endif
