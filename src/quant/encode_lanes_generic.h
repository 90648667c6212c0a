/* Four numbers side by side, a vector on every machine that has vectors: what encode_*.h are written in.
 * encode_lanes_avx2.h and encode_lanes_avx512.h are the same with more lanes; a lane's result doesn't depend on how
 * many there are. */
#ifndef QUANT_ENCODE_LANES_GENERIC_H
#define QUANT_ENCODE_LANES_GENERIC_H

#include <stdint.h>

#define QUANT_LANES

enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef vi vm; /* of a comparison: true or false in each lane */

static inline vm v_less(vf a, vf b)
{
    return (vm)(a < b);
}

/* where m: a, else b */
static inline vf v_choose(vm m, vf a, vf b)
{
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}

static inline vi v_choose_int(vm m, vi a, vi b)
{
    return (a & m) | (b & ~m);
}

static inline vf v_min(vf a, vf b) /* b when either is not a number */
{
    return v_choose(v_less(a, b), a, b);
}

static inline vf v_max(vf a, vf b)
{
    return v_choose(v_less(b, a), a, b);
}

static inline int v_any(vm m)
{
    return (m[0] | m[1] | m[2] | m[3]) != 0;
}

/* out[k]: number i + k of each row */
static inline void v_columns(const float *const row[LANES], int i, vf out[4])
{
    for (int k = 0; k < 4; k++)
        out[k] = (vf){row[0][i + k], row[1][i + k], row[2][i + k], row[3][i + k]};
}

#endif
