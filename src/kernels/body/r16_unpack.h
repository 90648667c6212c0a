/* Vectors of weights of the R16 layout (quant/layout.c), unpacked one at a time where a dot needs them, so that a
 * register tile keeps its registers. Functions that take a type are inlined with it as a constant, so that branches for
 * other types fall away. Include after lanes_*.h. */
#ifndef KERNELS_BODY_R16_UNPACK_H
#define KERNELS_BODY_R16_UNPACK_H

#include "kernels/kernels_internal.h"
#include "quant/blocks.h"

/* Which formats' weights are unpacked once for all tokens, where those are more than a register tile. */
enum r16_panels {
    R16_PANELS_COSTLY,   /* those that cost most to unpack */
    R16_PANELS_MOST,     /* all but Q4_0 and those whose weights are bytes already */
    R16_PANELS_UNPACKED, /* all whose weights aren't bytes already */
    R16_PANELS_ALL
};

/* 32 weights of each of LANES rows: a block, or in formats of 256 the sub-block j. */
struct r16_src {
    enum quant_type type;
    const uint8_t *p;   /* the block's first vector, in the lanes of the rows */
    int j;              /* 0..7; not a constant, or the code would grow eightfold */
    vi fifth[2];        /* Q5_0 and Q5_1: fifth bits, as they are and shifted right by four */
    const vi *unpacked; /* not NULL: the weights of (sub-)block j lie here as vectors, from 8 * j on, by dot_arrange */
    const vi *scales;   /* beside unpacked, in formats of 256: sub-blocks' scales in order, as dot_scale makes them */
};

/* Some of the sub-blocks that share bytes (their kinds): n of them, numbers first, first + step and so on; and of each,
 * vectors [vec, vec + n_vec). */
struct r16_kinds {
    int n, first, step;
    int vec, n_vec;
};

/* Whether the sub-blocks of a format of 256 have 32 weights; else they have 16. */
KERNELS_ALWAYS_INLINE bool r16_subs_of_32(enum quant_type type)
{
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_IQ4_XS;
}

/* The bits of codes that are multiplied by integer scales. */
KERNELS_ALWAYS_INLINE int r16_n_bit(enum quant_type type)
{
    return type == QUANT_IQ4_XS ? 8 : type == QUANT_Q6_K ? 6 : type == QUANT_Q5_K ? 5 : type == QUANT_Q4_K ? 4 : 3;
}

/* Whether a block's scales have signs. */
KERNELS_ALWAYS_INLINE bool r16_signed_scales(enum quant_type type)
{
    return type == QUANT_Q3_K || type == QUANT_Q6_K;
}

/* Whether a format of 32 weights unpacks to signed values; else it unpacks to codes, which are r16_offset32 larger than
 * the weights. */
KERNELS_ALWAYS_INLINE bool r16_is_int8(enum quant_type type)
{
    return type == QUANT_Q8_0 || type == QUANT_IQ4_NL || type == QUANT_MXFP4;
}

KERNELS_ALWAYS_INLINE int r16_offset32(enum quant_type type)
{
    return type == QUANT_Q4_0 ? 8 : type == QUANT_Q5_0 ? 16 : 0;
}

/* The vector at p, shifted right and masked by `mask` in each byte. */
KERNELS_ALWAYS_INLINE vi r16_bits(const uint8_t *p, int shift, int mask)
{
    return vi_and(vi_shr(vi_load(p), shift), vi_set1(mask * 0x01010101));
}

/* Bit `from` of each byte of the vector at p, as bit `to`: one shift where `from` is a constant. */
KERNELS_ALWAYS_INLINE vi r16_bit(const uint8_t *p, int from, int to)
{
    if (!__builtin_constant_p(from))
        return vi_shl(r16_bits(p, from, 1), to);
    vi v = vi_load(p);
    v = from > to ? vi_shr(v, from - to) : from < to ? vi_shl(v, to - from) : v;
    return vi_and(v, vi_set1((1 << to) * 0x01010101));
}

/* The values that a table has for codes of four bits. */
KERNELS_ALWAYS_INLINE vi r16_values(vi codes, const int8_t values[16])
{
    return vi_shuffle8(vi_mask16((const uint8_t *)values), codes);
}

/* The fifth bits of weights 4i..4i + 3 in place, from lanes whose bit i belongs to weight i. */
KERNELS_ALWAYS_INLINE vi r16_fifth(const vi fifth[2], int i)
{
    static const uint8_t spread[4][16] = {
        {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12},
        {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13},
        {2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14},
        {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15},
    };
    static const int8_t to_bit4[16] = {0, 16, 16, 0, 16, 0, 0, 0, 16}; /* one of the bits 0..3 to bit 4 */
    vi bytes = vi_shuffle8(fifth[i % 2], vi_mask16(spread[i / 2]));
    return r16_values(vi_and(bytes, vi_set1(0x08040201)), to_bit4);
}

/* Where the nibbles of a block of 32 weights begin, in vectors. */
KERNELS_ALWAYS_INLINE int r16_nibbles_at(enum quant_type type)
{
    return type == QUANT_Q5_1 ? 2 : type == QUANT_Q4_1 || type == QUANT_Q5_0 ? 1 : 0;
}

/* Whether vectors i and i + 4 of src share bytes, as codes of four bits. */
KERNELS_ALWAYS_INLINE bool r16_shares_bytes(const struct r16_src *src)
{
    switch (src->type) {
    case QUANT_Q4_0:
    case QUANT_Q4_1:
    case QUANT_Q5_0:
    case QUANT_Q5_1:
    case QUANT_IQ4_NL:
    case QUANT_MXFP4:
    case QUANT_IQ4_XS: return !src->unpacked;
    default: return false;
    }
}

/* Where these bytes are. */
KERNELS_ALWAYS_INLINE const uint8_t *r16_shared_at(const struct r16_src *src, int i)
{
    int first = src->type == QUANT_IQ4_XS ? 2 + src->j * 4 : r16_nibbles_at(src->type);
    return src->p + (first + i % 4) * 64;
}

/* Weights 4i..4i + 3 of a block of 32, as r16_is_int8 says, from their codes of four bits. */
KERNELS_ALWAYS_INLINE vi r16_decode32(const struct r16_src *src, int i, vi codes)
{
    switch (src->type) {
    case QUANT_Q5_0:
    case QUANT_Q5_1: return vi_or(codes, r16_fifth(src->fifth, i));
    case QUANT_IQ4_NL: return r16_values(codes, quant_iq4_values);
    case QUANT_MXFP4: return r16_values(codes, quant_mxfp4_values);
    default: return codes;
    }
}

KERNELS_ALWAYS_INLINE vi r16_vec32(const struct r16_src *src, int i)
{
    if (src->type == QUANT_Q8_0)
        return vi_load(src->p + 64 * i);
    return r16_decode32(src, i, r16_bits(r16_shared_at(src, i), i / 4 * 4, 15));
}

/* Weights 4i..4i + 3 (i: 0..7) of sub-block 4 * half + kind as bytes: values of the IQ4 format, else unsigned codes.
 * With `kind` a constant. What lies where: quant/layout.c and, for the sub-blocks, quant/blocks.h. */
KERNELS_ALWAYS_INLINE vi r16_vec256(enum quant_type type, const uint8_t *block, int half, int kind, int i)
{
    const uint8_t *p = block + i * 64;
    int j = 4 * half + kind;
    switch (type) {
    case QUANT_Q2_K: return r16_bits(p + (4 + 8 * half) * 64, 2 * kind, 3);
    case QUANT_Q3_K: { /* dwords of third bits and of the first half's low bits alternate */
        const uint8_t *third = block + (3 + 2 * i) * 64, *low = half ? block + (19 + i) * 64 : third + 64;
        return vi_or(r16_bits(low, 2 * kind, 3), r16_bit(third, j, 2));
    }
    case QUANT_Q4_K: return r16_bits(p + (4 + j / 2 * 8) * 64, j % 2 * 4, 15);
    case QUANT_Q5_K: return vi_or(r16_bits(p + (12 + j / 2 * 8) * 64, j % 2 * 4, 15), r16_bit(p + 4 * 64, j, 4));
    case QUANT_Q6_K: {
        const uint8_t *triple = block + (4 + (half * 8 + i) * 3) * 64; /* low, low, high bits */
        vi high = vi_load(triple + 128);
        high = kind < 2 ? vi_shl(high, 4 - 2 * kind) : vi_shr(high, 2 * kind - 4);
        return vi_or(r16_bits(triple + kind % 2 * 64, kind / 2 * 4, 15), vi_and(high, vi_set1(0x30303030)));
    }
    default: /* IQ4_XS */
        return r16_values(r16_bits(block + (2 + j * 4 + i % 4) * 64, i / 4 * 4, 15), quant_iq4_values);
    }
}

/* x, with `plus` added to each byte. */
KERNELS_ALWAYS_INLINE vi r16_plus(vi x, int plus)
{
    return vi_sub8(x, vi_set1((int32_t)((256u - (unsigned)plus) * 0x01010101u)));
}

/* The signed values that codes of four bits stand for, with `plus` added. */
KERNELS_ALWAYS_INLINE vi r16_decode_plus(const struct r16_src *src, vi codes, int plus)
{
    const int8_t *values = src->type == QUANT_MXFP4 ? quant_mxfp4_values : quant_iq4_values;
    return vi_shuffle8(r16_plus(vi_mask16((const uint8_t *)values), plus), codes);
}

/* Weights 4i..4i + 3 of a format of signed values, with `plus` added. dot_arrange has added it to those that are
 * unpacked. */
KERNELS_ALWAYS_INLINE vi r16_vec_plus(const struct r16_src *src, int i, int plus)
{
    if (src->unpacked)
        return src->unpacked[8 * src->j + i];
    if (src->type == QUANT_Q8_0)
        return r16_plus(r16_vec32(src, i), plus);
    return r16_decode_plus(src, r16_bits(r16_shared_at(src, i), i / 4 * 4, 15), plus);
}

/* Weights 4i..4i + 3 of the sub-block `kind` places behind src's, which is the first of those that share its bytes. */
KERNELS_ALWAYS_INLINE vi r16_vec_kind(const struct r16_src *src, int kind, int i)
{
    if (src->type == QUANT_Q4_K)
        return r16_vec256(src->type, src->p + src->j / 2 * 8 * 64, 0, kind, i);
    if (src->type == QUANT_Q5_K) {
        vi low = r16_bits(src->p + (12 + src->j / 2 * 8 + i) * 64, kind * 4, 15);
        return vi_or(low, r16_bit(src->p + (4 + i) * 64, src->j + kind, 4));
    }
    return r16_vec256(src->type, src->p, src->j / 4, kind, i);
}

/* Weights 4i..4i + 3 of src. */
KERNELS_ALWAYS_INLINE vi r16_vec(const struct r16_src *src, int i)
{
    if (src->unpacked)
        return src->unpacked[8 * src->j + i];
    switch (src->type) {
    case QUANT_Q2_K:
    case QUANT_Q3_K:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
    case QUANT_Q6_K:
    case QUANT_IQ4_XS: return r16_vec256(src->type, src->p, src->j / 4, src->j % 4, i);
    default: return r16_vec32(src, i);
    }
}

#endif
