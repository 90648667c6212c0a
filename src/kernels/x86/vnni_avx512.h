/* AVX-512 VNNI: dots on the vectors of lanes_avx512.h.
 *
 * The instructions are spelled as assembly because gcc 12 copies the accumulator around its builtins, which halves the
 * speed of tiles that fill the register file. */
#ifndef KERNELS_X86_VNNI_AVX512_H
#define KERNELS_X86_VNNI_AVX512_H

#include "kernels/x86/lanes_avx512.h"

/* What is broadcast, as operands of assembly. */
struct vnni_bytes4 {
    int8_t b[4];
};
struct vnni_words2 {
    int16_t w[2];
};

/* A vector that is loaded into a register, whatever uses it. */
static inline vi vnni_load(const void *p)
{
    vi a = vi_load(p);
    __asm__("" : "+v"(a));
    return a;
}

/* acc + the products of four unsigned bytes w with four signed bytes x */
static inline vi vnni_bytes(vi acc, vi w, vi x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
}

/* The same with the four signed bytes at q in every lane. */
static inline vi vnni_bytes_at(vi acc, vi w, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const struct vnni_bytes4 *)q));
    return acc;
}

/* acc + a.lo * b.lo + a.hi * b.hi over the words of each lane */
static inline vi vnni_words(vi acc, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

/* The same with the two words at x in every lane. */
static inline vi vnni_words_at(vi acc, vi a, const int16_t *x)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(a), "m"(*(const struct vnni_words2 *)x));
    return acc;
}

#endif
