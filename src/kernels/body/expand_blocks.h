/* Blocks of the R16 layout (quant/layout.c) of the codebook, ternary and trellis formats, expanded to one byte a
 * weight, with their scales as the dots of expand_template.h take them. Include after lanes_*.h, expand_ops_*.h and
 * expand_dot_*.h. What the bits of a block mean: quant/blocks.h.
 *
 * A format's function expands weights 32j to 32j + 31. `p` points to the rows' lanes in the block's first vector;
 * vector i is at p + 64 * i. */
#ifndef KERNELS_BODY_EXPAND_BLOCKS_H
#define KERNELS_BODY_EXPAND_BLOCKS_H

#include "kernels/kernels_internal.h"
#include "quant/blocks.h"
#include "quant/quant_grids.h"

struct ex_sub {
    vi w[8];     /* 32 weights, four a lane, in the order of the row */
    vi scale[2]; /* in blocks of 256: of all weights, or of each half */
    vi words;    /* the scales of the halves as words, for subtracting what weights are too large by */
    vf d[2];     /* NVFP4: the scale of each half */
};

#define EX_VEC(p, i) vi_load((p) + 64 * (i))
/* x in each byte, x in each word. */
#define EX_BYTES(x) vi_set1((int32_t)((uint32_t)((x)&255) * 0x01010101u))
#define EX_PAIR(x)  vi_set1((x)*0x10001)
/* A weight as an unsigned byte (expand_dot_*.h), and a table of such bytes for ex_levels2. */
#define EX_NARROW(x) (uint8_t)(EX_NARROW_OFFSET + (x))
#define EX_LEVELS2(a, b, c, d)                                                                                         \
    {                                                                                                                  \
        EX_NARROW(a), EX_NARROW(b), EX_NARROW(c), EX_NARROW(d), EX_NARROW(b), 0, 0, 0, EX_NARROW(c), 0, 0, 0,          \
            EX_NARROW(d), 0, 0, 0                                                                                      \
    }

/* The weights that the levels of a grid stand for (quant_grids.h), for ex_entry8 and ex_entry4. */
static const uint8_t ex_levels_iq1[16] = EX_LEVELS2(-8, 0, 8, 0);
static const uint8_t ex_levels_iq2[16] = EX_LEVELS2(8, 25, 43, 0);
static const uint8_t ex_levels_iq3_xxs[16] = {EX_NARROW(4),  EX_NARROW(12), EX_NARROW(20), EX_NARROW(28),
                                              EX_NARROW(36), EX_NARROW(44), EX_NARROW(52), EX_NARROW(62)};
static const uint8_t ex_levels_iq3_s[16] = {EX_NARROW(1), EX_NARROW(3),  EX_NARROW(5),  EX_NARROW(7),
                                            EX_NARROW(9), EX_NARROW(11), EX_NARROW(13), EX_NARROW(15)};

/* ---- pieces ------------------------------------------------------------------------------------------------- */

/* 2s + 1, s: the low bits of x */
KERNELS_ALWAYS_INLINE vi ex_odd(vi x, int bits)
{
    return vi_or(vi_shl(vi_and(x, vi_set1((1 << bits) - 1)), 1), vi_set1(1));
}

/* The bits of weights 4 * half .. 4 * half + 3 in a byte of eight signs. */
KERNELS_ALWAYS_INLINE vi ex_bits(int half)
{
    return vi_set1(half ? (int32_t)0x80402010 : 0x08040201);
}

/* Of vectors from number i on, each of which has a byte for each of four sub-blocks: that of sub-block j, in the lowest
 * bits. */
KERNELS_ALWAYS_INLINE vi ex_byte_of(const uint8_t *p, int i, int j)
{
    return vi_shr(EX_VEC(p, i + j / 4), j % 4 * 8);
}

/* ---- IQ2, IQ3 ----------------------------------------------------------------------------------------------- */

/* Expands four groups of eight weights. Group i has byte i of the entries and of the signs; if they are swapped, groups
 * 1 and 2 have each other's. */
KERNELS_ALWAYS_INLINE void ex_iq2_groups(vi w[8], const struct ex_grid *grid, const struct ex_entries *entries,
                                         vi signs, bool are_swapped)
{
    vi twice = EX_BYTES(2 * EX_NARROW_OFFSET);
    KERNELS_UNROLL
    for (int i = 0; i < 4; i++) {
        vi sign = ex_spread(signs, i), *of = w + 2 * (are_swapped ? i % 2 * 2 + i / 2 : i);
        ex_entry8(of, grid, entries, i, ex_levels_iq2);
        of[0] = ex_reflect(of[0], sign, ex_bits(0), twice);
        of[1] = ex_reflect(of[1], sign, ex_bits(1), twice);
    }
}

KERNELS_ALWAYS_INLINE void ex_iq2_xxs(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi aux = EX_VEC(p, 2 * j + 1);
    struct ex_entries entries;
    ex_lookup(&entries, grid, 256, EX_VEC(p, 2 * j), vi_set1(0), 0);
    ex_iq2_groups(s->w, grid, &entries, ex_even_signs(ex_fields7(aux)), false);
    s->scale[0] = ex_odd(vi_shr(aux, 28), 4);
}

/* Two scales of four bits in a byte. */
KERNELS_ALWAYS_INLINE void ex_scales4(vi scale[2], vi x)
{
    scale[0] = ex_odd(x, 4);
    scale[1] = ex_odd(vi_shr(x, 4), 4);
}

KERNELS_ALWAYS_INLINE void ex_iq2_xs(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi words[2] = {EX_VEC(p, 2 * j), EX_VEC(p, 2 * j + 1)}; /* in each word: nine bits of an index, then seven signs */
    vi signs = vi_or(vi_and(vi_shr(words[0], 9), EX_PAIR(127)), vi_and(vi_shr(words[1], 1), EX_PAIR(127 << 8)));
    struct ex_entries entries;
    ex_lookup9(&entries, grid, words);
    ex_iq2_groups(s->w, grid, &entries, ex_even_signs(signs), true);
    ex_scales4(s->scale, ex_byte_of(p, 16, j));
}

KERNELS_ALWAYS_INLINE void ex_iq2_s(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    struct ex_entries entries;
    ex_lookup(&entries, grid, 1024, EX_VEC(p, j), ex_byte_of(p, 16, j), 2);
    ex_iq2_groups(s->w, grid, &entries, EX_VEC(p, 8 + j), false);
    ex_scales4(s->scale, ex_byte_of(p, 18, j));
}

/* Expands eight groups of four weights. The low bytes of their indices are in two vectors from p on, the ninth bits in
 * `high`; two groups share a byte of signs. */
KERNELS_ALWAYS_INLINE void ex_iq3_groups(vi w[8], const struct ex_grid *grid, int n, const uint8_t *levels,
                                         const uint8_t *p, vi high, vi signs)
{
    vi twice = EX_BYTES(2 * EX_NARROW_OFFSET), sign = signs;
    struct ex_entries entries;
    KERNELS_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i % 4 == 0)
            ex_lookup(&entries, grid, n, EX_VEC(p, i / 4), vi_shr(high, i), 1);
        if (i % 2 == 0)
            sign = ex_spread(signs, i / 2);
        w[i] = ex_reflect(ex_entry4(grid, &entries, i % 4, levels), sign, ex_bits(i % 2), twice);
    }
}

KERNELS_ALWAYS_INLINE void ex_iq3_xxs(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi aux = EX_VEC(p, 16 + j);
    ex_iq3_groups(s->w, grid, 256, ex_levels_iq3_xxs, p + 2 * j * 64, vi_set1(0), ex_even_signs(ex_fields7(aux)));
    s->scale[0] = ex_odd(vi_shr(aux, 28), 4);
}

KERNELS_ALWAYS_INLINE void ex_iq3_s(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    ex_iq3_groups(s->w, grid, 512, ex_levels_iq3_s, p + 2 * j * 64, ex_byte_of(p, 16, j), EX_VEC(p, 18 + j));
    s->scale[0] = ex_odd(vi_shr(EX_VEC(p, 26), 4 * j), 4);
}

/* ---- IQ1 ---------------------------------------------------------------------------------------------------- */

/* Expands four groups of eight weights, in eighths: 8 * level + 1, or 8 * level - 1 where bit step * i of `down` is
 * set. */
KERNELS_ALWAYS_INLINE void ex_iq1_groups(vi w[8], const struct ex_grid *grid, const struct ex_entries *entries, vi down,
                                         int step)
{
    vi one = vi_set1(1), minus = one;
    KERNELS_UNROLL
    for (int i = 0; i < 4; i++) {
        if (i == 0 || step) /* 1 where down, else -1 */
            minus = vi_or(vi_sub(vi_and(vi_shr(down, step * i), one), one), EX_BYTES(1));
        ex_entry8(w + 2 * i, grid, entries, i, ex_levels_iq1);
        w[2 * i] = vi_sub8(w[2 * i], minus);
        w[2 * i + 1] = vi_sub8(w[2 * i + 1], minus);
    }
}

KERNELS_ALWAYS_INLINE void ex_iq1_s(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi high = vi_shr(EX_VEC(p, 8 + j / 2), j % 2 * 16);
    struct ex_entries entries;
    ex_lookup(&entries, grid, 2048, EX_VEC(p, j), high, 3);
    ex_iq1_groups(s->w, grid, &entries, vi_shr(high, 15), 0);
    s->scale[0] = ex_odd(vi_shr(high, 12), 3);
}

KERNELS_ALWAYS_INLINE void ex_iq1_m(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi high = vi_shr(EX_VEC(p, 8 + j / 2), j % 2 * 16);
    struct ex_entries entries;
    vi scales = vi_shr(EX_VEC(p, 12 + j / 4), j / 2 % 2 * 16 + j % 2 * 6);
    ex_lookup(&entries, grid, 2048, EX_VEC(p, j), high, 4);
    ex_iq1_groups(s->w, grid, &entries, vi_shr(high, 3), 4);
    s->scale[0] = ex_odd(scales, 3);
    s->scale[1] = ex_odd(vi_shr(scales, 3), 3);
}

/* quant_iq1m_half of each lane, divided by eight, as weights are in eighths */
KERNELS_ALWAYS_INLINE vf ex_iq1m_d(const uint8_t *p)
{
    vi a = EX_VEC(p, 12), b = EX_VEC(p, 13);
    vi low = vi_or(vi_and(vi_shr(a, 12), vi_set1(0xf)), vi_and(vi_shr(a, 24), vi_set1(0xf0)));
    vi high = vi_or(vi_and(vi_shr(b, 4), vi_set1(0xf00)), vi_and(vi_shr(b, 16), vi_set1(0xf000)));
    return vf_mul(vf_low_half(vi_or(low, high)), vf_set1(0.125f));
}

/* ---- ternary and smaller ------------------------------------------------------------------------------------ */

/* A base-three digit of each byte, as a weight (quant/blocks.h: block_tq1_0). It is the whole part of three times the
 * fraction that the digits before it leave. */
KERNELS_ALWAYS_INLINE vi ex_ternary(vi bytes, int digit)
{
    static const int32_t power[5] = {1, 3, 9, 27, 81};
    vi even = vi_mul(vi_and(bytes, EX_PAIR(255)), vi_set1(power[digit]));
    vi odd = vi_mul(vi_and(vi_shr(bytes, 8), EX_PAIR(255)), vi_set1(power[digit]));
    even = vi_mul(vi_and(even, EX_PAIR(255)), vi_set1(3));
    odd = vi_mul(vi_and(odd, EX_PAIR(255)), vi_set1(3));
    vi digits = vi_or(vi_and(vi_shr(even, 8), EX_PAIR(3)), vi_and(odd, EX_PAIR(0x300)));
    return vi_sub8(digits, EX_BYTES(1 - EX_NARROW_OFFSET));
}

KERNELS_ALWAYS_INLINE void ex_tq1_0(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    (void)grid;
    if (j < 5) { /* eight vectors with five digits a byte */
        for (int i = 0; i < 8; i++)
            s->w[i] = ex_ternary(EX_VEC(p, i), j);
    } else { /* four vectors with five digits a byte, and one with four */
        for (int i = 0; i < 4; i++) {
            s->w[i] = ex_ternary(EX_VEC(p, 8 + i), 2 * (j - 5));
            s->w[4 + i] = j < 7 ? ex_ternary(EX_VEC(p, 8 + i), 2 * (j - 5) + 1) : ex_ternary(EX_VEC(p, 12), i);
        }
    }
    s->scale[0] = vi_set1(1);
}

KERNELS_ALWAYS_INLINE void ex_tq2_0(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    (void)grid;
    for (int i = 0; i < 8; i++) {
        vi two = vi_and(vi_shr(EX_VEC(p, j / 4 * 8 + i), j % 4 * 2), EX_BYTES(3));
        s->w[i] = vi_sub8(two, EX_BYTES(1 - EX_NARROW_OFFSET));
    }
    s->scale[0] = vi_set1(1);
}

KERNELS_ALWAYS_INLINE void ex_q1_0(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi twice = EX_BYTES(2), minus_one = EX_BYTES(1 - EX_NARROW_OFFSET);
    (void)grid;
    for (int i = 0; i < 8; i++) {
        vi bits = ex_spread(EX_VEC(p, j), i / 2);
        s->w[i] = vi_sub8(ex_reflect(vi_set1(0), bits, ex_bits(i % 2), twice), minus_one);
    }
}

KERNELS_ALWAYS_INLINE void ex_q2_0(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    static const uint8_t levels[16] = EX_LEVELS2(-1, 0, 1, 2);
    (void)grid;
    KERNELS_UNROLL
    for (int i = 0; i < 8; i++)
        s->w[i] = ex_levels2(EX_VEC(p, 2 * j + i / 4), i % 4, levels);
}

KERNELS_ALWAYS_INLINE void ex_nvfp4(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    static const uint8_t levels[16] = {EX_NARROW(0),  EX_NARROW(1),  EX_NARROW(2),  EX_NARROW(3),
                                       EX_NARROW(4),  EX_NARROW(6),  EX_NARROW(8),  EX_NARROW(12),
                                       EX_NARROW(0),  EX_NARROW(-1), EX_NARROW(-2), EX_NARROW(-3),
                                       EX_NARROW(-4), EX_NARROW(-6), EX_NARROW(-8), EX_NARROW(-12)};
    (void)grid;
    KERNELS_UNROLL
    for (int half = 0; half < 2; half++) {
        s->d[half] = ex_nvfp4_scale(vi_and(vi_shr(EX_VEC(p, 0), 8 * (2 * j + half)), vi_set1(255)));
        for (int i = 0; i < 4; i++) {
            vi codes = vi_and(vi_shr(EX_VEC(p, 1 + 4 * j + 2 * half + i % 2), i / 2 * 4), EX_BYTES(15));
            s->w[4 * half + i] = vi_shuffle8(vi_mask16(levels), codes);
        }
    }
}

/* ---- trellises ---------------------------------------------------------------------------------------------- */

/* The next four weights of the sequence, as signed bytes; advances the state. */
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

KERNELS_ALWAYS_INLINE void ex_iq2_kt(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    (void)grid;
    for (int i = 0; i < 4; i++) {
        vi seed = vi_and(vi_shr(EX_VEC(p, 1 + 2 * j + i / 2), i % 2 * 16), vi_set1(0xffff));
        vi state = vi_add(seed, vi_set1(QUANT_TRELLIS_START));
        s->w[2 * i] = ex_wide(ex_trellis(&state));
        s->w[2 * i + 1] = ex_wide(ex_trellis(&state));
    }
    vi code = vi_and(vi_shr(EX_VEC(p, 0), j % 4 * 8 + j / 4 * 4), vi_set1(15));
    vi value = vi_shuffle8(vi_mask16((const uint8_t *)quant_iq4_values), code);
    s->scale[0] = vi_sar(vi_shl(value, 24), 24);
}

KERNELS_ALWAYS_INLINE void ex_iq3_kt(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    (void)grid;
    for (int i = 0; i < 4; i++) {
        vi seed = vi_and(vi_shr(EX_VEC(p, 1 + 2 * j + i / 2), i % 2 * 16), vi_set1(0xffff));
        vi state = vi_add(seed, vi_set1(QUANT_TRELLIS_START)), minus = EX_BYTES(1 << j);
        for (int half = 0; half < 2; half++) {
            vi size = ex_wide(vi_abs8(ex_trellis(&state)));
            s->w[2 * i + half] = ex_reflect(size, EX_VEC(p, 17 + i * 2 + half), minus, vi_set1(0));
        }
    }
    s->scale[0] = vi_and(vi_shr(EX_VEC(p, 0), j % 4 * 8 + j / 4 * 4), vi_set1(15));
}

KERNELS_ALWAYS_INLINE void ex_iq4_kt(struct ex_sub *s, const struct ex_grid *grid, const uint8_t *p, int j)
{
    vi head = EX_VEC(p, j), start = vi_shl(vi_and(head, vi_set1(1)), 15);
    (void)grid;
    start = vi_add(start, vi_set1(QUANT_TRELLIS_START));
    for (int i = 0; i < 8; i++) {
        vi low = vi_and(vi_shr(EX_VEC(p, 8 + 2 * j + i / 4), i % 4 * 8), vi_set1(255));
        vi mid = vi_and(vi_shr(EX_VEC(p, 24 + j % 4 * 2 + i / 4), i % 4 * 8 + j / 4 * 4), vi_set1(15));
        vi high = vi_and(vi_shr(head, 8 + 3 * i), vi_set1(7));
        vi state = vi_add(start, vi_or(low, vi_or(vi_shl(mid, 8), vi_shl(high, 12))));
        s->w[i] = ex_wide(ex_trellis(&state));
    }
    s->scale[0] = vi_sub(vi_and(vi_shr(head, 1), vi_set1(127)), vi_set1(64));
}

#endif
