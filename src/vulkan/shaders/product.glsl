/* A product of sixteen rows of weights with up to TILE rows of activations, by a workgroup of 16 * SPLIT threads.
 *
 * Thread (split, lane) multiplies units split, split + SPLIT, ... of row `lane`: four chains of fused multiply-adds, a
 * chain for each place of four. They are added as (0 + 1) + (2 + 3), and then the splits in ascending order. An element
 * depends on nothing else, so that a row of activations gives the same bits alone and among others. */
#include "types.glsl"

layout(constant_id = 2) const uint TILE = 1;
layout(constant_id = 3) const uint STAGED = 0; /* elements of one row of x that are in `staged`; 0: x is in memory */

const uint SPLIT = 8, N_THREAD = ROWS * SPLIT;

shared float partial_sums[TILE * N_THREAD], staged[STAGED + 1];
uint x_at[TILE]; /* where each row of activations begins, in floats */

vec4 load_x(Floats x, uint at, uint e, uint k)
{
    if (STAGED != 0)
        return vec4(staged[e], staged[e + 1], staged[e + 2], staged[e + 3]);
    if (!IS_FLOAT)
        return vec4(x.d[at + e], x.d[at + e + 1], x.d[at + e + 2], x.d[at + e + 3]);
    vec4 y = vec4(0);
    [[unroll]] for (uint j = 0; j < 4; j++)
        if (e + j < k)
            y[j] = x.d[at + e + j];
    return y;
}

/* Leaves the sums where `result` finds them. group: the first dword of the sixteen rows. */
void multiply(Words w, uint group, Floats x, uint k)
{
    uint tid = gl_LocalInvocationID.x, lane = tid % ROWS;
    precise vec4 acc[TILE];
    for (uint t = 0; t < TILE; t++)
        acc[t] = vec4(0);
    for (uint u = tid / ROWS; u < row_units(k); u += SPLIT) {
        begin_unit(w, group, lane, u);
        for (uint i = 0; i < UNIT / 4; i++) {
            vec4 four = weights(i);
            for (uint t = 0; t < TILE; t++)
                acc[t] = fma(four, load_x(x, x_at[t], u * UNIT + 4 * i, k), acc[t]);
        }
    }
    barrier(); /* who calls may still read the sums of the product before */
    for (uint t = 0; t < TILE; t++)
        partial_sums[t * N_THREAD + tid] = (acc[t].x + acc[t].y) + (acc[t].z + acc[t].w);
    barrier();
}

/* Of row i % 16 of the weights with row i / 16 of the activations. */
float result(uint i)
{
    uint at = i / ROWS * N_THREAD + i % ROWS;
    precise float sum = partial_sums[at];
    for (uint s = 1; s < SPLIT; s++)
        sum += partial_sums[at + s * ROWS];
    return sum;
}
