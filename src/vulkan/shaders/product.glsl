/* A product of sixteen rows of weights with up to TILE rows of activations, by a workgroup of 64 threads.
 *
 * Thread (split, lane) multiplies units split, split + SPLIT, ... of rows 4 lane to 4 lane + 3: for each a chain of fused
 * multiply-adds, step by step. The splits' sums are added in ascending order. An element depends on nothing else, so that
 * a row of activations gives the same bits alone and among others. What a thread loads of the activations serves its
 * four rows, and what it unpacks of the weights all activations. */
#include "types.glsl"

layout(constant_id = 2) const uint TILE = 1;
layout(constant_id = 3) const uint STAGED = 0; /* elements of one row of x that are in `staged`; 0: x is in memory */
layout(constant_id = 4) const uint BY_FOUR = 0; /* rows of x are whole units and begin at multiples of 16 bytes */

const uint N_THREAD = 64, LANES = ROWS / MINE, SPLIT = N_THREAD / LANES;
const uint ADD_TILE = TILE < 4 ? TILE : 4; /* rows of activations whose sums are added at a time */

shared float partial_sums[ADD_TILE * SPLIT * ROWS], products[TILE * ROWS];
shared vec4 staged[STAGED / 4 + 1];
uint x_at[TILE]; /* where each row of activations begins, in floats */

vec4 load_x(Floats x, uint at, uint e, uint k)
{
    if (STAGED != 0)
        return staged[e / 4];
    if (BY_FOUR != 0)
        return uintBitsToFloat(four_at(uvec2(x), at + e));
    vec4 y = vec4(0);
    [[unroll]] for (uint j = 0; j < 4; j++)
        if (e + j < k)
            y[j] = x.d[at + e + j];
    return y;
}

/* Adds the splits' sums of rows t0 and on of the activations. */
void add_sums(vec4 sums[TILE], uint t0)
{
    uint tid = gl_LocalInvocationID.x, at = tid / LANES * ROWS + tid % LANES * MINE;
    barrier(); /* all have read what was there before */
    [[unroll]] for (uint t = 0; t < ADD_TILE && t0 + t < TILE; t++)
        [[unroll]] for (uint r = 0; r < MINE; r++)
            partial_sums[t * SPLIT * ROWS + at + r] = sums[t0 + t][r];
    barrier();
    for (uint i = tid; i < ADD_TILE * ROWS && t0 * ROWS + i < TILE * ROWS; i += N_THREAD) {
        uint from = i / ROWS * SPLIT * ROWS + i % ROWS;
        precise float sum = partial_sums[from];
        for (uint s = 1; s < SPLIT; s++)
            sum += partial_sums[from + s * ROWS];
        products[t0 * ROWS + i] = sum;
    }
}

/* Leaves row i % 16 of the weights with row i / 16 of the activations in products[i]. group: the first dword of the
 * sixteen rows. */
void multiply(Words w, uint group, Floats x, uint k)
{
    uint tid = gl_LocalInvocationID.x;
    precise vec4 acc[TILE];
    for (uint t = 0; t < TILE; t++)
        acc[t] = vec4(0);
    for (uint u = tid / LANES; u < row_units(k); u += SPLIT) {
        begin_unit(w, group, tid % LANES * MINE, u);
        for (uint step = 0; step < STEPS; step++) {
            begin_step(step);
            [[unroll]] for (uint h = 0; h < STEP_QUADS; h++) {
                mat4 four = weights(step, h);
                [[unroll]] for (uint t = 0; t < TILE; t++) {
                    vec4 xs = load_x(x, x_at[t], u * UNIT + 4 * (step + h * STEPS), k);
                    [[unroll]] for (uint j = 0; j < 4; j++)
                        acc[t] = fma(four[j], vec4(xs[j]), acc[t]);
                }
            }
        }
    }
    [[unroll]] for (uint t0 = 0; t0 < TILE; t0 += ADD_TILE)
        add_sums(acc, t0);
    barrier();
}
