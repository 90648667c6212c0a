/* Blocks of the R16 layout (quant/layout.c) in a matrix: where they lie, their scales and minima. LANES rows at a time;
 * types are constants, as in r16_unpack.h. Include after lanes_*.h. */
#ifndef KERNELS_BODY_R16_BLOCKS_H
#define KERNELS_BODY_R16_BLOCKS_H

#include "kernels/body/r16_unpack.h"
#include "kernels/kernels_internal.h"

/* ---- where things lie ---------------------------------------------------------------------------------------- */

/* The vectors of a block of 16 rows. Behind them are r16_tail bytes of each row. */
KERNELS_ALWAYS_INLINE int r16_n_vec(enum quant_type type)
{
    switch (type) {
    case QUANT_Q4_0:
    case QUANT_IQ4_NL:
    case QUANT_MXFP4: return 4;
    case QUANT_Q4_1:
    case QUANT_Q5_0: return 5;
    case QUANT_Q5_1: return 6;
    case QUANT_Q8_0: return 8;
    case QUANT_Q2_K: return 21;
    case QUANT_Q3_K: return 27;
    case QUANT_IQ4_XS: return 34;
    case QUANT_Q4_K: return 36;
    case QUANT_Q5_K: return 44;
    default: return 52; /* Q6_K */
    }
}

KERNELS_ALWAYS_INLINE int r16_tail(enum quant_type type)
{
    switch (type) {
    case QUANT_MXFP4: return 1;
    case QUANT_Q4_0:
    case QUANT_IQ4_NL:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_Q3_K:
    case QUANT_Q6_K: return 2;
    default: return 0;
    }
}

KERNELS_ALWAYS_INLINE int r16_block_bytes(enum quant_type type)
{
    return r16_n_vec(type) * 64 + r16_tail(type) * LAYOUT_R16_ROWS;
}

/* Whether a block's own scale stands behind its weights, not in front of them. It is read in that order, because
 * processors prefetch ascending reads alone (docs/experiments.md). */
KERNELS_ALWAYS_INLINE bool r16_scale_behind(enum quant_type type)
{
    return type == QUANT_Q2_K || r16_tail(type) > 0;
}

/* The part of a packed matrix that holds LANES rows from `row` on. */
KERNELS_ALWAYS_INLINE const uint8_t *r16_rows(const struct kernel_matmul *a, enum quant_type type, int64_t row,
                                              int block_len)
{
    int64_t group = row / LAYOUT_R16_ROWS * (a->k / block_len) * r16_block_bytes(type);
    return (const uint8_t *)a->w + group + row % LAYOUT_R16_ROWS * 4;
}

/* The tails of those rows in a block. */
KERNELS_ALWAYS_INLINE const uint8_t *r16_tails(const uint8_t *w, enum quant_type type, int64_t row)
{
    int64_t lane = row % LAYOUT_R16_ROWS;
    return w - lane * 4 + r16_n_vec(type) * 64 + lane * r16_tail(type);
}

/* ---- formats with 32 weights a block ------------------------------------------------------------------------- */

/* A block's scale and, in some formats, minimum. */
struct r16_scale32 {
    vf d, min;
};

KERNELS_ALWAYS_INLINE bool r16_has_min32(enum quant_type type)
{
    return type == QUANT_Q4_1 || type == QUANT_Q5_1;
}

KERNELS_ALWAYS_INLINE struct r16_scale32 r16_scale32_load(const uint8_t *w, enum quant_type type, int64_t row)
{
    if (r16_has_min32(type)) {
        vi head = vi_load(w);
        return (struct r16_scale32){vf_low_half(head), vf_low_half(vi_shr(head, 16))};
    }
    const uint8_t *tail = r16_tails(w, type, row);
    return (struct r16_scale32){type == QUANT_MXFP4 ? vf_load_mxfp4(tail) : vf_load_half(tail), vf_zero()};
}

KERNELS_ALWAYS_INLINE struct r16_src r16_src32(const uint8_t *w, enum quant_type type)
{
    struct r16_src src = {.type = type, .p = w};
    if (type == QUANT_Q5_0 || type == QUANT_Q5_1) {
        src.fifth[0] = vi_load(w + (r16_nibbles_at(type) - 1) * 64);
        src.fifth[1] = vi_shr(src.fifth[0], 4);
    }
    return src;
}

/* ---- formats with 256 weights a block ------------------------------------------------------------------------ */

KERNELS_ALWAYS_INLINE bool r16_has_min256(enum quant_type type)
{
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_Q2_K;
}

/* Scales and minima of a block's sub-blocks: those of sub-block j are byte j % 4 of the lanes of vector j / 4.
 * Sub-blocks are 32 weights long in Q4_K, Q5_K and IQ4_XS, else 16. IQ4_XS: scale[0] and [1] hold the packed low and
 * high bits instead. */
struct r16_scales {
    vi scale[4], min[4];
};

KERNELS_ALWAYS_INLINE void r16_scales_load(struct r16_scales *s, const uint8_t *w, enum quant_type type)
{
    vi low4 = vi_set1(0x0f0f0f0f), low6 = vi_set1(0x3f3f3f3f), high2 = vi_set1(0x30303030);
    if (type == QUANT_Q4_K || type == QUANT_Q5_K) { /* quant/blocks.h: quant_k4_scale */
        vi a = vi_load(w + 64), b = vi_load(w + 128), c = vi_load(w + 192);
        s->scale[0] = vi_and(a, low6);
        s->scale[1] = vi_or(vi_and(c, low4), vi_and(vi_shr(a, 2), high2));
        s->min[0] = vi_and(b, low6);
        s->min[1] = vi_or(vi_and(vi_shr(c, 4), low4), vi_and(vi_shr(b, 2), high2));
    } else if (type == QUANT_Q2_K) {
        for (int i = 0; i < 4; i++) {
            s->scale[i] = vi_and(vi_load(w + 64 * i), low4);
            s->min[i] = vi_and(vi_shr(vi_load(w + 64 * i), 4), low4);
        }
    } else if (type == QUANT_Q3_K) { /* quant/blocks.h: quant_q3k_scale */
        vi high = vi_load(w + 2 * 64);
        KERNELS_UNROLL
        for (int i = 0; i < 4; i++) {
            vi low = vi_and(vi_shr(vi_load(w + i % 2 * 64), i / 2 * 4), low4);
            vi up = i < 2 ? vi_shl(high, 4 - 2 * i) : vi_shr(high, 2 * i - 4);
            s->scale[i] = vi_sub8(vi_or(low, vi_and(up, high2)), vi_set1(0x20202020));
        }
    } else if (type == QUANT_Q6_K) {
        KERNELS_UNROLL
        for (int i = 0; i < 4; i++)
            s->scale[i] = vi_load(w + i * 64);
    } else {
        s->scale[0] = vi_load(w + 64);
        s->scale[1] = vi_shr(vi_load(w), 16);
    }
}

/* The scale of sub-block j of IQ4_XS (quant/blocks.h: quant_iq4xs_scale). */
KERNELS_ALWAYS_INLINE vi r16_iq4xs_scale(const struct r16_scales *s, int j)
{
    vi low = vi_and(vi_shr(s->scale[0], 4 * j), vi_set1(15)), high = vi_and(vi_shr(s->scale[1], 2 * j), vi_set1(3));
    return vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32));
}

/* A block's own scale and, in some formats, that of its minima. */
struct r16_scale256 {
    vf d, dmin;
};

KERNELS_ALWAYS_INLINE struct r16_scale256 r16_scale256_load(const uint8_t *w, enum quant_type type, int64_t row)
{
    if (r16_tail(type))
        return (struct r16_scale256){vf_load_half(r16_tails(w, type, row)), vf_zero()};
    vi halves = vi_load(w + (type == QUANT_Q2_K ? 20 * 64 : 0));
    return (struct r16_scale256){vf_low_half(halves), vf_low_half(vi_shr(halves, 16))};
}

#endif
