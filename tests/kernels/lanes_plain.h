/* Sixteen rows at a time in plain C: the functions of x86/lanes_avx512.h that tiles_template.h uses, so that it is
 * tested on any machine. */
#ifndef LANES_PLAIN_H
#define LANES_PLAIN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"

enum { LANES = 16 }; /* rows of a vector */

typedef union {
    int32_t i[16];
    uint32_t u[16];
    int16_t w[32];
    uint16_t uw[32];
    uint8_t b[64];
} vi;
typedef struct {
    float f[16];
} vf;

/* A function of one vector or two and a number n, element by element. */
#define LANES_PLAIN_1(name, part, count, expression)                                                                   \
    static inline vi name(vi a, int n)                                                                                 \
    {                                                                                                                  \
        vi r;                                                                                                          \
        for (int l = 0; l < (count); l++)                                                                              \
            r.part[l] = expression;                                                                                    \
        return r;                                                                                                      \
    }
#define LANES_PLAIN_2(name, part, count, expression)                                                                   \
    static inline vi name(vi a, vi b)                                                                                  \
    {                                                                                                                  \
        vi r;                                                                                                          \
        for (int l = 0; l < (count); l++)                                                                              \
            r.part[l] = expression;                                                                                    \
        return r;                                                                                                      \
    }
LANES_PLAIN_1(vi_shl, u, 16, a.u[l] << n)
LANES_PLAIN_1(vi_shr, u, 16, a.u[l] >> n)
LANES_PLAIN_1(vi_sar, i, 16, a.i[l] >> n)
LANES_PLAIN_1(vi_sar16, w, 32, (int16_t)(a.w[l] >> n))
LANES_PLAIN_2(vi_and, u, 16, a.u[l] & b.u[l])
LANES_PLAIN_2(vi_or, u, 16, a.u[l] | b.u[l])
LANES_PLAIN_2(vi_xor, u, 16, a.u[l] ^ b.u[l])
LANES_PLAIN_2(vi_add, u, 16, a.u[l] + b.u[l])
LANES_PLAIN_2(vi_sub, u, 16, a.u[l] - b.u[l])
LANES_PLAIN_2(vi_sub16, uw, 32, (uint16_t)(a.uw[l] - b.uw[l]))
LANES_PLAIN_2(vi_sub8, b, 64, (uint8_t)(a.b[l] - b.b[l]))
LANES_PLAIN_2(vi_mul16, uw, 32, (uint16_t)((uint32_t)a.uw[l] * b.uw[l]))
LANES_PLAIN_2(vi_maddubs, w, 32, (int16_t)(a.b[2 * l] * (int8_t)b.b[2 * l] + a.b[2 * l + 1] * (int8_t)b.b[2 * l + 1]))
LANES_PLAIN_2(vi_shuffle8, b, 64, b.b[l] & 128 ? 0 : a.b[(l & ~15) | (b.b[l] & 15)])

static inline vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void vi_store(void *p, vi a)
{
    memcpy(p, &a, sizeof a);
}
static inline vi vi_load16(const int16_t p[16])
{
    vi r;
    for (int l = 0; l < 16; l++)
        r.i[l] = p[l];
    return r;
}
static inline vi vi_load_twice(const void *p)
{
    vi r;
    memcpy(&r, p, 32);
    memcpy((char *)&r + 32, p, 32);
    return r;
}
static inline vi vi_set1(int32_t x)
{
    vi r;
    for (int l = 0; l < 16; l++)
        r.i[l] = x;
    return r;
}
static inline vi vi_mask16(const uint8_t mask[16])
{
    vi r;
    for (int l = 0; l < 64; l++)
        r.b[l] = mask[l % 16];
    return r;
}
static inline vi vi_select(vi mask, vi a, vi b)
{
    return vi_or(vi_and(mask, a), vi_and(vi_xor(mask, vi_set1(-1)), b));
}

static inline vf vf_zero(void)
{
    return (vf){{0}};
}
static inline vf vf_load(const void *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline vf vf_bcast(const float *p)
{
    vf r;
    for (int l = 0; l < 16; l++)
        r.f[l] = *p;
    return r;
}
static inline vf vf_of(vi a)
{
    vf r;
    for (int l = 0; l < 16; l++)
        r.f[l] = (float)a.i[l];
    return r;
}
static inline vi vf_bits(vf a)
{
    return vi_load(&a);
}
static inline vf vf_mul(vf a, vf b)
{
    for (int l = 0; l < 16; l++)
        a.f[l] *= b.f[l];
    return a;
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    for (int l = 0; l < 16; l++)
        c.f[l] = fmaf(a.f[l], b.f[l], c.f[l]);
    return c;
}
static inline vf vf_fnma(vf a, vf b, vf c)
{
    for (int l = 0; l < 16; l++)
        c.f[l] = fmaf(-a.f[l], b.f[l], c.f[l]);
    return c;
}
static inline vf vf_load_half(const void *p)
{
    vf r;
    for (int l = 0; l < 16; l++)
        r.f[l] = quant_half_to_float(quant_load16((const uint8_t *)p + 2 * l));
    return r;
}
static inline vf vf_low_half(vi a)
{
    vf r;
    for (int l = 0; l < 16; l++)
        r.f[l] = quant_half_to_float((uint16_t)a.u[l]);
    return r;
}
static inline vf vf_load_mxfp4(const uint8_t *p)
{
    vf r;
    for (int l = 0; l < 16; l++)
        r.f[l] = quant_mxfp4_scale(p[l]);
    return r;
}
static inline void vf_store(float *p, vf a, int64_t n)
{
    memcpy(p, &a, (size_t)(n < LANES ? n : LANES) * sizeof *p);
}

#endif
