/* Blocks of the R16 layout (quant/layout.c) of the codebook, ternary and trellis formats, expanded to one byte a
 * weight, with their scales as the dots of expand_template.h take them. Include after lanes_*.h, expand_ops_*.h and
 * expand_dot_*.h. What the bits of a block mean: quant/blocks.h.
 *
 * `p` is the block's first vector in the lanes of the rows; vector i of it is at p + 64 * i. */
#ifndef KERNELS_BODY_EXPAND_BLOCKS_H
#define KERNELS_BODY_EXPAND_BLOCKS_H

#include "kernels/kernels_internal.h"
#include "quant/blocks.h"
#include "quant/quant_grids.h"

struct ex_block {
    vi w[64];      /* four weights a lane, in the order of the row */
    vi factor[16]; /* of each sub-block, for ex_dot */
    vi words[8];   /* if EX_HAS_OFFSET: the scales of weights 32i to 32i + 15 and 32i + 16 to 32i + 31, as words */
    vf d[4];       /* of the block; NVFP4: of each 16 weights */
};

#define EX_VEC(p, i) vi_load((p) + 64 * (i))
#define EX_BYTES(x)  vi_set1((int32_t)((uint32_t)((x)&255) * 0x01010101u))
#define EX_PAIR(x)   vi_set1((x)*0x10001)
/* A weight in the narrow form. */
#define EX_NARROW(x) (uint8_t)(EX_NARROW_OFFSET + (x))
#define EX_LEVELS2(a, b, c, d)                                                                                         \
    {                                                                                                                  \
        EX_NARROW(a), EX_NARROW(b), EX_NARROW(c), EX_NARROW(d), EX_NARROW(b), 0, 0, 0, EX_NARROW(c), 0, 0, 0,          \
            EX_NARROW(d), 0, 0, 0                                                                                      \
    }

enum { EX_HAS_OFFSET = EX_NARROW_OFFSET != 0 || EX_WIDE_OFFSET != 0 };

/* ---- pieces ------------------------------------------------------------------------------------------------- */

/* The scale of sub-block j of 32. */
KERNELS_ALWAYS_INLINE void ex_scale32(struct ex_block *e, int j, vi scale)
{
    e->factor[j] = ex_factor(scale);
    if (EX_HAS_OFFSET)
        e->words[j] = vi_or(vi_and(scale, vi_set1(0xffff)), vi_shl(scale, 16));
}

/* The scales, not negative, of sub-blocks 2j and 2j + 1 of 16. */
KERNELS_ALWAYS_INLINE void ex_scale16(struct ex_block *e, int j, vi first, vi second)
{
    e->factor[2 * j] = ex_factor(first);
    e->factor[2 * j + 1] = ex_factor(second);
    if (EX_HAS_OFFSET)
        e->words[j] = vi_or(first, vi_shl(second, 16));
}

/* 2s + 1, s: the low bits of x */
KERNELS_ALWAYS_INLINE vi ex_odd(vi x, int bits)
{
    return vi_or(vi_shl(vi_and(x, vi_set1((1 << bits) - 1)), 1), vi_set1(1));
}

/* Byte i of each lane, in all four. */
KERNELS_ALWAYS_INLINE vi ex_spread(vi x, int i)
{
    static const uint8_t mask[4][16] = {
        {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12},
        {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13},
        {2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14},
        {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15},
    };
    return vi_shuffle8(x, vi_mask16(mask[i]));
}

/* The bits of weights 4 * half .. 4 * half + 3 in a byte of eight signs. */
KERNELS_ALWAYS_INLINE vi ex_bits(int half)
{
    return vi_set1(half ? (int32_t)0x80402010 : 0x08040201);
}

/* quant_even_signs in each word; bits above the seventh are 0. */
KERNELS_ALWAYS_INLINE vi ex_even_signs(vi seven)
{
    vi odd = vi_xor(seven, vi_shr(seven, 4));
    odd = vi_xor(odd, vi_shr(odd, 2));
    odd = vi_xor(odd, vi_shr(odd, 1));
    return vi_or(seven, vi_shl(vi_and(odd, EX_PAIR(1)), 7));
}

/* Four weights from byte i of a grid entry, two bits each. Their values stand in `levels` at the level and at four
 * times the level, because every other one is found there. */
KERNELS_ALWAYS_INLINE vi ex_levels2(vi entry, int i, const uint8_t levels[16])
{
    vi x = vi_and(ex_spread(entry, i), vi_set1((int32_t)0xc0300c03));
    x = vi_and(vi_or(x, vi_shr(x, 4)), vi_set1(0x0c030c03));
    return vi_shuffle8(vi_mask16(levels), x);
}

/* Four weights from word i of a grid entry, four bits each. */
KERNELS_ALWAYS_INLINE vi ex_levels4(vi entry, int i, const uint8_t levels[16])
{
    static const uint8_t mask[2][16] = {
        {0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13},
        {2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15},
    };
    vi x = vi_shuffle8(entry, vi_mask16(mask[i]));
    x = vi_or(vi_and(x, vi_set1(0x000f000f)), vi_and(vi_shr(x, 4), vi_set1(0x0f000f00)));
    return vi_shuffle8(vi_mask16(levels), x);
}

/* ---- IQ2, IQ3 ----------------------------------------------------------------------------------------------- */

/* Groups a (low words) and b (high words) of eight: their grid entries, and their signs in the low bytes of the words.
 */
KERNELS_ALWAYS_INLINE void ex_iq2_groups(struct ex_block *e, int a, int b, vi entries, vi signs)
{
    static const uint8_t levels[16] = EX_LEVELS2(8, 25, 43, 0);
    vi sign_a = ex_spread(signs, 0), sign_b = ex_spread(signs, 2), twice = EX_BYTES(2 * EX_NARROW_OFFSET);
    KERNELS_UNROLL
    for (int half = 0; half < 2; half++) {
        e->w[2 * a + half] = ex_reflect(ex_levels2(entries, half, levels), sign_a, ex_bits(half), twice);
        e->w[2 * b + half] = ex_reflect(ex_levels2(entries, 2 + half, levels), sign_b, ex_bits(half), twice);
    }
}

/* The bytes of a vector as words, the even ones and the odd ones. */
KERNELS_ALWAYS_INLINE void ex_byte_words(vi x, vi out[2])
{
    out[0] = vi_and(x, EX_PAIR(255));
    out[1] = vi_and(vi_shr(x, 8), EX_PAIR(255));
}

KERNELS_ALWAYS_INLINE void ex_iq2_xxs(struct ex_block *e, const uint8_t *p)
{
    for (int j = 0; j < 8; j++) {
        vi aux = EX_VEC(p, 2 * j + 1), seven = vi_set1(127), upper = vi_set1(127 << 16), index[2], entries[2];
        ex_byte_words(EX_VEC(p, 2 * j), index);
        ex_lookup(quant_grid_iq2_xxs, 256, index, entries);
        vi even = vi_or(vi_and(aux, seven), vi_and(vi_shl(aux, 2), upper));
        vi odd = vi_or(vi_and(vi_shr(aux, 7), seven), vi_and(vi_shr(aux, 5), upper));
        ex_iq2_groups(e, 4 * j, 4 * j + 2, entries[0], ex_even_signs(even));
        ex_iq2_groups(e, 4 * j + 1, 4 * j + 3, entries[1], ex_even_signs(odd));
        ex_scale32(e, j, ex_odd(vi_shr(aux, 28), 4));
    }
}

/* Sixteen scales of four bits, in vectors i and i + 1. */
KERNELS_ALWAYS_INLINE void ex_scales4(struct ex_block *e, const uint8_t *p, int i)
{
    for (int j = 0; j < 8; j++) {
        vi x = vi_shr(EX_VEC(p, i + j / 4), j % 4 * 8);
        ex_scale16(e, j, ex_odd(x, 4), ex_odd(vi_shr(x, 4), 4));
    }
}

KERNELS_ALWAYS_INLINE void ex_iq2_xs(struct ex_block *e, const uint8_t *p)
{
    for (int i = 0; i < 16; i += 2) {
        vi code[2] = {EX_VEC(p, i), EX_VEC(p, i + 1)}, entries[2];
        vi index[2] = {vi_and(code[0], EX_PAIR(511)), vi_and(code[1], EX_PAIR(511))};
        ex_lookup(quant_grid_iq2_xs, 512, index, entries);
        for (int h = 0; h < 2; h++) {
            vi signs = ex_even_signs(vi_and(vi_shr(code[h], 9), EX_PAIR(127)));
            ex_iq2_groups(e, 2 * (i + h), 2 * (i + h) + 1, entries[h], signs);
        }
    }
    ex_scales4(e, p, 16);
}

KERNELS_ALWAYS_INLINE void ex_iq2_s(struct ex_block *e, const uint8_t *p)
{
    for (int j = 0; j < 8; j++) {
        vi signs = EX_VEC(p, 8 + j), high = vi_shr(EX_VEC(p, 16 + j / 4), j % 4 * 8), index[2], entries[2];
        vi bits = vi_set1(0x300), upper = vi_set1(0x3000000);
        ex_byte_words(EX_VEC(p, j), index);
        index[0] = vi_or(index[0], vi_or(vi_and(vi_shl(high, 8), bits), vi_and(vi_shl(high, 20), upper)));
        index[1] = vi_or(index[1], vi_or(vi_and(vi_shl(high, 6), bits), vi_and(vi_shl(high, 18), upper)));
        ex_lookup(quant_grid_iq2_s, 1024, index, entries);
        ex_iq2_groups(e, 4 * j, 4 * j + 2, entries[0], signs);
        ex_iq2_groups(e, 4 * j + 1, 4 * j + 3, entries[1], vi_shr(signs, 8));
    }
    ex_scales4(e, p, 18);
}

/* Eight groups of four: indices in the bytes of low[2], their ninth bits in `high`, and a byte of signs each two. */
KERNELS_ALWAYS_INLINE void ex_iq3_groups(struct ex_block *e, int j, const uint16_t *grid, int n, const uint8_t *levels,
                                         const vi low[2], vi high, const vi signs[4])
{
    KERNELS_UNROLL
    for (int i = 0; i < 2; i++) {
        vi index[2], entries[2], twice = EX_BYTES(2 * EX_NARROW_OFFSET);
        ex_byte_words(low[i], index);
        KERNELS_UNROLL
        for (int h = 0; h < 2 && n > 256; h++) { /* the ninth bits of groups a and a + 2 */
            vi ninth = vi_shr(high, 4 * i + h);
            index[h] = vi_or(index[h], vi_shl(vi_and(ninth, vi_set1(1)), 8));
            index[h] = vi_or(index[h], vi_shl(vi_and(ninth, vi_set1(4)), 22));
        }
        ex_lookup(grid, n, index, entries);
        KERNELS_UNROLL
        for (int h = 0; h < 2; h++) {
            vi *w = e->w + 8 * j + 4 * i + h, bits = ex_bits(h);
            w[0] = ex_reflect(ex_levels4(entries[h], 0, levels), signs[2 * i], bits, twice);
            w[2] = ex_reflect(ex_levels4(entries[h], 1, levels), signs[2 * i + 1], bits, twice);
        }
    }
}

KERNELS_ALWAYS_INLINE void ex_iq3_xxs(struct ex_block *e, const uint8_t *p)
{
    static const uint8_t levels[16] = {EX_NARROW(4),  EX_NARROW(12), EX_NARROW(20), EX_NARROW(28),
                                       EX_NARROW(36), EX_NARROW(44), EX_NARROW(52), EX_NARROW(62)};
    for (int j = 0; j < 8; j++) {
        vi low[2] = {EX_VEC(p, 2 * j), EX_VEC(p, 2 * j + 1)}, aux = EX_VEC(p, 16 + j), seven = vi_set1(127), signs[4];
        KERNELS_UNROLL
        for (int i = 0; i < 4; i++)
            signs[i] = ex_spread(ex_even_signs(vi_and(vi_shr(aux, 7 * i), seven)), 0);
        ex_iq3_groups(e, j, quant_grid_iq3_xxs, 256, levels, low, vi_set1(0), signs);
        ex_scale32(e, j, ex_odd(vi_shr(aux, 28), 4));
    }
}

KERNELS_ALWAYS_INLINE void ex_iq3_s(struct ex_block *e, const uint8_t *p)
{
    static const uint8_t levels[16] = {EX_NARROW(1), EX_NARROW(3),  EX_NARROW(5),  EX_NARROW(7),
                                       EX_NARROW(9), EX_NARROW(11), EX_NARROW(13), EX_NARROW(15)};
    for (int j = 0; j < 8; j++) {
        vi low[2] = {EX_VEC(p, 2 * j), EX_VEC(p, 2 * j + 1)}, all = EX_VEC(p, 18 + j), signs[4];
        KERNELS_UNROLL
        for (int i = 0; i < 4; i++)
            signs[i] = ex_spread(all, i);
        vi high = vi_shr(EX_VEC(p, 16 + j / 4), j % 4 * 8);
        ex_iq3_groups(e, j, quant_grid_iq3_s, 512, levels, low, high, signs);
        ex_scale32(e, j, ex_odd(vi_shr(EX_VEC(p, 26), 4 * j), 4));
    }
}

/* ---- IQ1 ---------------------------------------------------------------------------------------------------- */

/* Groups a (low words) and b of eight, in eighths: 8 * grid + 1 or, where the low bit of a word of `down` is set, - 1.
 */
KERNELS_ALWAYS_INLINE void ex_iq1_groups(struct ex_block *e, int a, int b, vi entries, vi down)
{
    static const uint8_t levels[16] = EX_LEVELS2(-8, 0, 8, 0);
    vi one = vi_set1(1), ones = EX_BYTES(1);
    vi minus_a = vi_or(vi_sub(vi_and(down, one), one), ones); /* 1 where down, else -1 */
    vi minus_b = vi_or(vi_sub(vi_and(vi_shr(down, 16), one), one), ones);
    KERNELS_UNROLL
    for (int half = 0; half < 2; half++) {
        e->w[2 * a + half] = vi_sub8(ex_levels2(entries, half, levels), minus_a);
        e->w[2 * b + half] = vi_sub8(ex_levels2(entries, 2 + half, levels), minus_b);
    }
}

KERNELS_ALWAYS_INLINE void ex_iq1_s(struct ex_block *e, const uint8_t *p)
{
    for (int j = 0; j < 8; j++) {
        vi high = vi_shr(EX_VEC(p, 8 + j / 2), j % 2 * 16), bits = vi_set1(0x700), upper = vi_set1(0x7000000);
        vi sign = vi_and(vi_shr(high, 15), vi_set1(1)), down = vi_or(sign, vi_shl(sign, 16)), index[2], entries[2];
        ex_byte_words(EX_VEC(p, j), index);
        index[0] = vi_or(index[0], vi_or(vi_and(vi_shl(high, 8), bits), vi_and(vi_shl(high, 18), upper)));
        index[1] = vi_or(index[1], vi_or(vi_and(vi_shl(high, 5), bits), vi_and(vi_shl(high, 15), upper)));
        ex_lookup(quant_grid_iq1, 2048, index, entries);
        ex_iq1_groups(e, 4 * j, 4 * j + 2, entries[0], down);
        ex_iq1_groups(e, 4 * j + 1, 4 * j + 3, entries[1], down);
        ex_scale32(e, j, ex_odd(vi_shr(high, 12), 3));
    }
}

/* quant_iq1m_half in each lane */
KERNELS_ALWAYS_INLINE vi ex_iq1m_half(const uint8_t *p)
{
    vi a = EX_VEC(p, 12), b = EX_VEC(p, 13);
    vi low = vi_or(vi_and(vi_shr(a, 12), vi_set1(0xf)), vi_and(vi_shr(a, 24), vi_set1(0xf0)));
    return vi_or(low, vi_or(vi_and(vi_shr(b, 4), vi_set1(0xf00)), vi_and(vi_shr(b, 16), vi_set1(0xf000))));
}

KERNELS_ALWAYS_INLINE void ex_iq1_m(struct ex_block *e, const uint8_t *p)
{
    for (int j = 0; j < 8; j++) {
        vi high = vi_shr(EX_VEC(p, 8 + j / 2), j % 2 * 16), bits = vi_set1(0x700), upper = vi_set1(0x7000000);
        vi down = vi_or(vi_and(high, vi_set1(0xff)), vi_shl(high, 8)); /* two bytes of `high`, a word each */
        vi scales = vi_shr(EX_VEC(p, 12 + j / 4), j / 2 % 2 * 16 + j % 2 * 6), index[2], entries[2];
        ex_byte_words(EX_VEC(p, j), index);
        index[0] = vi_or(index[0], vi_or(vi_and(vi_shl(high, 8), bits), vi_and(vi_shl(high, 16), upper)));
        index[1] = vi_or(index[1], vi_or(vi_and(vi_shl(high, 4), bits), vi_and(vi_shl(high, 12), upper)));
        ex_lookup(quant_grid_iq1, 2048, index, entries);
        ex_iq1_groups(e, 4 * j, 4 * j + 2, entries[0], vi_shr(down, 3));
        ex_iq1_groups(e, 4 * j + 1, 4 * j + 3, entries[1], vi_shr(down, 7));
        ex_scale16(e, j, ex_odd(scales, 3), ex_odd(vi_shr(scales, 3), 3));
    }
    e->d[0] = vf_mul(vf_low_half(ex_iq1m_half(p)), vf_set1(0.125f));
}

/* ---- ternary and smaller ------------------------------------------------------------------------------------ */

/* n_vec vectors of n_digit digits base three a byte (quant/blocks.h: block_tq1_0), to w; returns what follows. */
KERNELS_ALWAYS_INLINE vi *ex_ternaries(vi *w, const uint8_t *p, int n_vec, int n_digit)
{
    for (int i = 0; i < n_vec; i++) {
        vi even = vi_and(EX_VEC(p, i), EX_PAIR(255)), odd = vi_and(vi_shr(EX_VEC(p, i), 8), EX_PAIR(255));
        for (int digit = 0; digit < n_digit; digit++) { /* three times the fraction: the digit, and what remains */
            even = vi_add(even, vi_shl(even, 1));
            odd = vi_add(odd, vi_shl(odd, 1));
            vi digits = vi_or(vi_and(vi_shr(even, 8), EX_PAIR(3)), vi_and(odd, EX_PAIR(0x300)));
            w[digit * n_vec + i] = vi_sub8(digits, EX_BYTES(1 - EX_NARROW_OFFSET));
            even = vi_and(even, EX_PAIR(255));
            odd = vi_and(odd, EX_PAIR(255));
        }
    }
    return w + n_vec * n_digit;
}

KERNELS_ALWAYS_INLINE void ex_scales_one(struct ex_block *e)
{
    for (int j = 0; j < 8; j++)
        ex_scale32(e, j, vi_set1(1));
}

KERNELS_ALWAYS_INLINE void ex_tq1_0(struct ex_block *e, const uint8_t *p)
{
    vi *w = ex_ternaries(e->w, p, 8, 5);
    w = ex_ternaries(w, p + 8 * 64, 4, 5);
    ex_ternaries(w, p + 12 * 64, 1, 4);
    ex_scales_one(e);
}

KERNELS_ALWAYS_INLINE void ex_tq2_0(struct ex_block *e, const uint8_t *p)
{
    for (int i = 0; i < 64; i++) {
        vi two = vi_and(vi_shr(EX_VEC(p, i / 32 * 8 + i % 8), i % 32 / 8 * 2), EX_BYTES(3));
        e->w[i] = vi_sub8(two, EX_BYTES(1 - EX_NARROW_OFFSET));
    }
    ex_scales_one(e);
}

KERNELS_ALWAYS_INLINE void ex_q1_0(struct ex_block *e, const uint8_t *p)
{
    for (int i = 0; i < 32; i++) {
        vi bits = ex_spread(vi_shr(EX_VEC(p, i / 8), i / 2 % 4 * 8), 0);
        e->w[i] = vi_sub8(ex_reflect(vi_set1(0), bits, ex_bits(i % 2), EX_BYTES(2)), EX_BYTES(1 - EX_NARROW_OFFSET));
    }
}

KERNELS_ALWAYS_INLINE void ex_q2_0(struct ex_block *e, const uint8_t *p)
{
    static const uint8_t levels[16] = EX_LEVELS2(-1, 0, 1, 2);
    for (int i = 0; i < 16; i++)
        e->w[i] = ex_levels2(EX_VEC(p, i / 4), i % 4, levels);
}

KERNELS_ALWAYS_INLINE void ex_nvfp4(struct ex_block *e, const uint8_t *p)
{
    static const uint8_t levels[16] = {EX_NARROW(0),  EX_NARROW(1),  EX_NARROW(2),  EX_NARROW(3),
                                       EX_NARROW(4),  EX_NARROW(6),  EX_NARROW(8),  EX_NARROW(12),
                                       EX_NARROW(0),  EX_NARROW(-1), EX_NARROW(-2), EX_NARROW(-3),
                                       EX_NARROW(-4), EX_NARROW(-6), EX_NARROW(-8), EX_NARROW(-12)};
    KERNELS_UNROLL
    for (int j = 0; j < 4; j++) {
        e->d[j] = ex_nvfp4_scale(vi_and(vi_shr(EX_VEC(p, 0), 8 * j), vi_set1(255)));
        for (int i = 0; i < 4; i++) {
            vi codes = vi_and(vi_shr(EX_VEC(p, 1 + 2 * j + i % 2), i / 2 * 4), EX_BYTES(15));
            e->w[4 * j + i] = vi_shuffle8(vi_mask16(levels), codes);
        }
    }
}

/* ---- trellises ---------------------------------------------------------------------------------------------- */

/* The next four weights, as signed bytes; moves the state. */
KERNELS_ALWAYS_INLINE vi ex_trellis(vi *state)
{
    vi parts[4];
    KERNELS_UNROLL
    for (int i = 0; i < 4; i++) {
        *state = vi_mul(*state, vi_set1((int32_t)0xcbac1fed));
        parts[i] = vi_and(*state, EX_BYTES(63));
    }
    return vi_sub8(ex_sums_of_bytes(parts), EX_BYTES(126));
}

KERNELS_ALWAYS_INLINE void ex_iq2_kt(struct ex_block *e, const uint8_t *p)
{
    for (int i = 0; i < 32; i++) {
        vi seed = vi_and(vi_shr(EX_VEC(p, 1 + i / 2), i % 2 * 16), vi_set1(0xffff));
        vi state = vi_add(seed, vi_set1(QUANT_TRELLIS_START));
        e->w[2 * i] = ex_wide(ex_trellis(&state));
        e->w[2 * i + 1] = ex_wide(ex_trellis(&state));
    }
    for (int j = 0; j < 8; j++) {
        vi code = vi_and(vi_shr(EX_VEC(p, 0), j % 4 * 8 + j / 4 * 4), vi_set1(15));
        vi value = vi_shuffle8(vi_mask16((const uint8_t *)quant_iq4_values), code);
        ex_scale32(e, j, vi_sar(vi_shl(value, 24), 24));
    }
}

KERNELS_ALWAYS_INLINE void ex_iq3_kt(struct ex_block *e, const uint8_t *p)
{
    for (int i = 0; i < 32; i++) {
        vi seed = vi_and(vi_shr(EX_VEC(p, 1 + i / 2), i % 2 * 16), vi_set1(0xffff));
        vi state = vi_add(seed, vi_set1(QUANT_TRELLIS_START)), minus = EX_BYTES(1 << i / 4);
        for (int half = 0; half < 2; half++) {
            vi size = ex_wide(vi_abs8(ex_trellis(&state)));
            e->w[2 * i + half] = ex_reflect(size, EX_VEC(p, 17 + i % 4 * 2 + half), minus, vi_set1(0));
        }
    }
    for (int j = 0; j < 8; j++)
        ex_scale32(e, j, vi_and(vi_shr(EX_VEC(p, 0), j % 4 * 8 + j / 4 * 4), vi_set1(15)));
}

KERNELS_ALWAYS_INLINE void ex_iq4_kt(struct ex_block *e, const uint8_t *p)
{
    for (int j = 0; j < 8; j++) {
        vi head = EX_VEC(p, j), start = vi_shl(vi_and(head, vi_set1(1)), 15);
        start = vi_add(start, vi_set1(QUANT_TRELLIS_START));
        for (int i = 0; i < 8; i++) {
            vi low = vi_and(vi_shr(EX_VEC(p, 8 + 2 * j + i / 4), i % 4 * 8), vi_set1(255));
            vi mid = vi_and(vi_shr(EX_VEC(p, 24 + j % 4 * 2 + i / 4), i % 4 * 8 + j / 4 * 4), vi_set1(15));
            vi high = vi_and(vi_shr(head, 8 + 3 * i), vi_set1(7));
            vi state = vi_add(start, vi_or(low, vi_or(vi_shl(mid, 8), vi_shl(high, 12))));
            e->w[8 * j + i] = ex_wide(ex_trellis(&state));
        }
        ex_scale32(e, j, vi_sub(vi_and(vi_shr(head, 1), vi_set1(127)), vi_set1(64)));
    }
}

#endif
