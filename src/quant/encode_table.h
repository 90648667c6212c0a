/* The encoders of the lanes that were included before, as the table that ENCODERS names. */
#ifndef QUANT_ENCODE_TABLE_H
#define QUANT_ENCODE_TABLE_H

#include "quant/encode_blocks.h"
#include "quant/encode_grids.h"
#include "quant/encode_super.h"

#ifndef ENCODERS
#define ENCODERS encoders_generic
#endif

static void encode_f32(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    memcpy(blocks, x, (size_t)n_block * sizeof *x);
}

static void encode_f16(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    for (int i = 0; i < n_block; i++)
        fit_store16((uint8_t *)blocks + 2 * i, quant_float_to_half(x[i]));
}

static void encode_bf16(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    for (int i = 0; i < n_block; i++)
        fit_store16((uint8_t *)blocks + 2 * i, quant_float_to_bf16(x[i]));
}

const struct encoders ENCODERS = {
    {
        [QUANT_F32] = encode_f32,       [QUANT_F16] = encode_f16,       [QUANT_BF16] = encode_bf16,
        [QUANT_Q1_0] = encode_q1_0,     [QUANT_Q2_0] = encode_q2_0,     [QUANT_Q4_0] = encode_q4_0,
        [QUANT_Q4_1] = encode_q4_1,     [QUANT_Q5_0] = encode_q5_0,     [QUANT_Q5_1] = encode_q5_1,
        [QUANT_Q8_0] = encode_q8_0,     [QUANT_Q2_K] = encode_q2_k,     [QUANT_Q3_K] = encode_q3_k,
        [QUANT_Q4_K] = encode_q4_k,     [QUANT_Q5_K] = encode_q5_k,     [QUANT_Q6_K] = encode_q6_k,
        [QUANT_IQ1_S] = encode_iq1_s,   [QUANT_IQ1_M] = encode_iq1_m,   [QUANT_IQ2_XXS] = encode_iq2_xxs,
        [QUANT_IQ2_XS] = encode_iq2_xs, [QUANT_IQ2_S] = encode_iq2_s,   [QUANT_IQ3_XXS] = encode_iq3_xxs,
        [QUANT_IQ3_S] = encode_iq3_s,   [QUANT_IQ4_NL] = encode_iq4_nl, [QUANT_IQ4_XS] = encode_iq4_xs,
        [QUANT_TQ1_0] = encode_tq1_0,   [QUANT_TQ2_0] = encode_tq2_0,   [QUANT_MXFP4] = encode_mxfp4,
        [QUANT_NVFP4] = encode_nvfp4,
    },
};

#endif
