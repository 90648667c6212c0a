/* A product of sixteen rows of weights with up to TILE rows of activations, by a workgroup of 128 threads.
 *
 * Thread (split, lane) multiplies units split, split + SPLIT, ... of rows MINE * lane to MINE * lane + MINE - 1: for each
 * four chains of fused multiply-adds, a chain for each place of four. They are added as (0 + 1) + (2 + 3), and then the
 * splits in ascending order. An element depends on nothing else, so that a row of activations gives the same bits alone
 * and among others. What a thread has loaded of the activations serves all its rows, and what it has unpacked of the
 * weights all activations. */
#include "types.glsl"

layout(constant_id = 2) const uint TILE = 1;
layout(constant_id = 3) const uint STAGED = 0; /* elements of one row of x that are in `staged`; 0: x is in memory */

const uint N_THREAD = 128, LANES = ROWS / MINE, SPLIT = N_THREAD / LANES;

shared float partial_sums[TILE * ROWS * SPLIT], staged[STAGED + 1];
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
    uint tid = gl_LocalInvocationID.x, first = tid % LANES * MINE, split = tid / LANES;
    precise vec4 acc[TILE * MINE];
    for (uint i = 0; i < TILE * MINE; i++)
        acc[i] = vec4(0);
    for (uint u = split; u < row_units(k); u += SPLIT) {
        [[unroll]] for (uint r = 0; r < MINE; r++) {
            use_row(first, r);
            begin_unit(w, group, u);
        }
        for (uint i = 0; i < UNIT / 4; i++) {
            vec4 xs[TILE];
            for (uint t = 0; t < TILE; t++)
                xs[t] = load_x(x, x_at[t], u * UNIT + 4 * i, k);
            [[unroll]] for (uint r = 0; r < MINE; r++) {
                use_row(first, r);
                vec4 four = weights(i);
                for (uint t = 0; t < TILE; t++)
                    acc[t * MINE + r] = fma(four, xs[t], acc[t * MINE + r]);
            }
        }
    }
    barrier(); /* who calls may still read the sums of the product before */
    for (uint t = 0; t < TILE; t++)
        for (uint r = 0; r < MINE; r++) {
            vec4 sum = acc[t * MINE + r];
            partial_sums[(t * SPLIT + split) * ROWS + first + r] = (sum.x + sum.y) + (sum.z + sum.w);
        }
    barrier();
}

/* Of row i % 16 of the weights with row i / 16 of the activations. */
float result(uint i)
{
    uint at = i / ROWS * SPLIT * ROWS + i % ROWS;
    precise float sum = partial_sums[at];
    for (uint s = 1; s < SPLIT; s++)
        sum += partial_sums[at + s * ROWS];
    return sum;
}
