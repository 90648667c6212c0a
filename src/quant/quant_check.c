#include "quant/quant_check.h"

#include <math.h>
#include <string.h>

#include "quant/blocks.h"

static const float max_scale = 1024; /* scales above this are absurd */

/* Where a type's blocks have scales in half precision; n 0: they have none. */
struct halves {
    uint8_t n, off[2];
};

#define ONE(block)                                                                                                     \
    {                                                                                                                  \
        1,                                                                                                             \
        {                                                                                                              \
            offsetof(struct block, d)                                                                                  \
        }                                                                                                              \
    }
#define TWO(block, second)                                                                                             \
    {                                                                                                                  \
        2,                                                                                                             \
        {                                                                                                              \
            offsetof(struct block, d), offsetof(struct block, second)                                                  \
        }                                                                                                              \
    }
static const struct halves halves[QUANT_MAX_ID] = {
    [QUANT_Q4_0] = ONE(block_q4_0),       [QUANT_Q4_1] = TWO(block_q4_1, m),    [QUANT_Q5_0] = ONE(block_q5_0),
    [QUANT_Q5_1] = TWO(block_q5_1, m),    [QUANT_Q8_0] = ONE(block_q8_0),       [QUANT_Q2_K] = TWO(block_q2_k, dmin),
    [QUANT_Q3_K] = ONE(block_q3_k),       [QUANT_Q4_K] = TWO(block_q4_k, dmin), [QUANT_Q5_K] = TWO(block_q5_k, dmin),
    [QUANT_Q6_K] = ONE(block_q6_k),       [QUANT_IQ2_XXS] = ONE(block_iq2_xxs), [QUANT_IQ2_XS] = ONE(block_iq2_xs),
    [QUANT_IQ3_XXS] = ONE(block_iq3_xxs), [QUANT_IQ1_S] = ONE(block_iq1_s),     [QUANT_IQ4_NL] = ONE(block_iq4_nl),
    [QUANT_IQ3_S] = ONE(block_iq3_s),     [QUANT_IQ2_S] = ONE(block_iq2_s),     [QUANT_IQ4_XS] = ONE(block_iq4_xs),
    [QUANT_TQ1_0] = ONE(block_tq1_0),     [QUANT_TQ2_0] = ONE(block_tq2_0),     [QUANT_Q1_0] = ONE(block_q1_0),
    [QUANT_Q2_0] = ONE(block_q2_0),
};
#undef ONE
#undef TWO

static void count(struct quant_check *c, float scale)
{
    c->n_scale++;
    c->n_nan += !isfinite(scale);
    c->n_absurd += isfinite(scale) && fabsf(scale) > max_scale;
}

static void check_halves(const struct halves *h, size_t block_bytes, const uint8_t *p, size_t n_bytes,
                         struct quant_check *c)
{
    for (size_t i = 0; i < n_bytes; i += block_bytes)
        for (int k = 0; k < h->n; k++)
            count(c, quant_half_to_float(quant_load16(p + i + h->off[k])));
}

/* Checks floats of `stride` bytes by their upper 16 bits. exponent: the bits of the exponent, which are all set in NaNs
 * and infinities; most: the largest that are not absurd. */
static void check_words(const uint8_t *p, size_t n_bytes, uint16_t exponent, uint16_t most, int stride,
                        struct quant_check *c)
{
    uint64_t n_nan = 0, n_absurd = 0;
    for (size_t i = 0; i < n_bytes; i += (size_t)stride) {
        uint16_t word = quant_load16(p + i + stride - 2) & 0x7fff; /* the upper half of a float32 */
        n_nan += (word & exponent) == exponent;
        n_absurd += word > most && (word & exponent) != exponent;
    }
    c->n_scale += n_bytes / (size_t)stride;
    c->n_nan += n_nan;
    c->n_absurd += n_absurd;
}

static void check_mxfp4(const uint8_t *p, size_t n_bytes, struct quant_check *c)
{
    enum { NOT_A_NUMBER = 255, MOST = 128 + 10 };
    for (size_t i = 0; i < n_bytes; i += sizeof(struct block_mxfp4)) {
        c->n_scale++;
        c->n_nan += p[i] == NOT_A_NUMBER;
        c->n_absurd += p[i] > MOST && p[i] != NOT_A_NUMBER;
    }
}

/* Scales have a bit for a sign, which must be clear. */
static void check_nvfp4(const uint8_t *p, size_t n_bytes, struct quant_check *c)
{
    enum { SIGN = 0x80, NOT_A_NUMBER = 0x7f };
    for (size_t i = 0; i < n_bytes; i += sizeof(struct block_nvfp4))
        for (size_t k = 0; k < sizeof((struct block_nvfp4 *)0)->scales; k++) {
            uint8_t scale = p[i + offsetof(struct block_nvfp4, scales) + k];
            bool is_nan = (scale & ~SIGN) == NOT_A_NUMBER;
            c->n_scale++;
            c->n_nan += is_nan;
            c->n_absurd += (scale & SIGN) && !is_nan;
        }
}

static void check_iq1_m(const uint8_t *p, size_t n_bytes, struct quant_check *c)
{
    for (size_t i = 0; i < n_bytes; i += sizeof(struct block_iq1_m)) {
        struct block_iq1_m b;
        memcpy(&b, p + i, sizeof b);
        count(c, quant_half_to_float(quant_iq1m_half(&b)));
    }
}

/* Rows that begin with a float, their scale. */
static void check_heads(const uint8_t *p, size_t n_bytes, size_t row_bytes, struct quant_check *c)
{
    for (size_t i = 0; i < n_bytes; i += row_bytes) {
        float scale;
        memcpy(&scale, p + i, sizeof scale);
        count(c, scale);
    }
}

void quant_check_rows(const struct quant_info *q, const void *bytes, size_t n_bytes, size_t row_bytes,
                      struct quant_check *c)
{
    enum { EXPONENT_32 = 0x7f80, MOST_32 = (127 + 100) << 7, EXPONENT_16 = 0x7c00 };
    switch ((int)q->type) {
    case QUANT_F32: check_words(bytes, n_bytes, EXPONENT_32, MOST_32, 4, c); return;
    case QUANT_BF16: check_words(bytes, n_bytes, EXPONENT_32, MOST_32, 2, c); return;
    case QUANT_F16: check_words(bytes, n_bytes, EXPONENT_16, EXPONENT_16, 2, c); return;
    case QUANT_MXFP4: check_mxfp4(bytes, n_bytes, c); return;
    case QUANT_NVFP4: check_nvfp4(bytes, n_bytes, c); return;
    case QUANT_IQ1_M: check_iq1_m(bytes, n_bytes, c); return;
    default: break;
    }
    if (q->head_bytes)
        check_heads(bytes, n_bytes, row_bytes, c);
    else
        check_halves(&halves[q->type], (size_t)q->block_bytes, bytes, n_bytes, c);
}

bool quant_is_zero(const void *bytes, size_t n_bytes)
{
    const uint8_t *p = bytes;
    return n_bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, n_bytes - 1) == 0);
}
