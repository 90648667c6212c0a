/* AVX-VNNI: dots on the vectors of lanes_avx2.h. The functions are vnni_avx512.h's, and assembly for the same reason;
 * {vex} keeps assemblers from AVX-512's encoding of the same instructions. */
#ifndef KERNELS_X86_VNNI_AVX2_H
#define KERNELS_X86_VNNI_AVX2_H

#include "kernels/x86/lanes_avx2.h"

static inline vi vnni_load(const void *p)
{
    vi a = vi_load(p);
    __asm__("" : "+x"(a));
    return a;
}

static inline vi vnni_bytes(vi acc, vi w, vi x)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    return acc;
}

static inline vi vnni_bytes_at(vi acc, vi w, const int8_t *q)
{
    return vnni_bytes(acc, w, vi_bcast(q));
}

static inline vi vnni_words(vi acc, vi a, vi b)
{
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
}

static inline vi vnni_words_at(vi acc, vi a, const int16_t *x)
{
    return vnni_words(acc, a, vi_bcast(x));
}

#endif
