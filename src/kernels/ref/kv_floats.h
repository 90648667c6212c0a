/* Keys and values as floats, a piece of a row at a time, for attention without vectors. */
#ifndef KERNELS_REF_KV_FLOATS_H
#define KERNELS_REF_KV_FLOATS_H

#include "kernels/kernels_internal.h"

enum { KV_PIECE = 64 }; /* a multiple of the lanes that dots have */

/* Elements [i, i + n) of a cache of floats, or of halves, which are widened into `room`; n is at most KV_PIECE. */
static inline const float *kv_floats(const void *kv, int64_t i, int64_t n, bool half, float room[KV_PIECE])
{
    if (!half)
        return (const float *)kv + i;
    f16_to_f32_scalar(room, (const uint16_t *)kv + i, n);
    return room;
}

#endif
