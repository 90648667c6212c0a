/* Codebooks of the IQ1, IQ2 and IQ3 formats: a grid entry stands for the magnitudes (IQ1: the values) of 8 or 4
 * weights. It consists of 16 bits of levels, 2 bits for each of 8 weights or 4 bits for each of 4, the first weight
 * lowest. The arrays called _values hold the numbers that the levels stand for. */
#ifndef QUANT_QUANT_GRIDS_H
#define QUANT_QUANT_GRIDS_H

#include <stdint.h>

/* of 8 weights */
extern const uint16_t quant_grid_iq1[2048];
extern const uint16_t quant_grid_iq2_xxs[256];
extern const uint16_t quant_grid_iq2_xs[512];
extern const uint16_t quant_grid_iq2_s[1024];
/* of 4 weights */
extern const uint16_t quant_grid_iq3_xxs[256];
extern const uint16_t quant_grid_iq3_s[512];

static const int8_t quant_iq1_values[3] = {-1, 0, 1};
static const int8_t quant_iq2_values[3] = {8, 25, 43};
static const int8_t quant_iq3_xxs_values[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t quant_iq3_s_values[8] = {1, 3, 5, 7, 9, 11, 13, 15};

#endif
