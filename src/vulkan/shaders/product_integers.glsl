/* Products on integers: weights as bytes with activations as bytes, the sums of a unit scaled once (docs/numerics.md).
 *
 * A thread takes a unit of four rows in rounds of eight quads: four of the unit's low half and four of its high half,
 * which 4-bit types hold in the same dwords. Types whose scales are for sub-blocks have units of two runs, others of one,
 * whose halves are half a run each. */
#include "unit_integers.glsl"

const bool ROUNDS_HERE = INTEGER == ROUNDED || INTEGER == ROUNDED_STAGED;
const uint N_RUN = ROUNDS_HERE ? STAGED / RUN : 1;

/* The row's runs, and the largest activation of each block, as bits, which compare as numbers do. */
shared FOUR runs[RUN_FOURS * N_RUN];
shared uint block_most[N_RUN];

/* Rounds row x_at[0] of x, or the one that is staged. */
void stage_runs(Floats x)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint b = tid; b < N_RUN / BLOCK_RUNS && BLOCK_RUNS > 1; b += N_THREAD)
        block_most[b] = 0;
    barrier();
    uint run = tid;
    do {
        vec4 four[8];
        float most = 0;
        if (run < N_RUN) {
            [[unroll]] for (uint i = 0; i < 8; i++)
                four[i] = INTEGER == ROUNDED_STAGED
                              ? staged_four(run * 8 + i)
                              : uintBitsToFloat(four_at(uvec2(x), x_at[0] + run * RUN + 4 * i));
            most = largest(four);
        }
        if (BLOCK_RUNS > 1) {
            if (run < N_RUN)
                atomicMax(block_most[run / BLOCK_RUNS], floatBitsToUint(most));
            barrier();
        }
        if (run < N_RUN) {
            Run r = rounded_run(four, BLOCK_RUNS > 1 ? uintBitsToFloat(block_most[run / BLOCK_RUNS]) : most);
            runs[run * RUN_FOURS] = pack_four(r.q[0]);
            runs[run * RUN_FOURS + 1] = pack_four(r.q[1]);
            runs[run * RUN_FOURS + 2] = pack_four(uvec4(r.scale, r.sum, 0, 0));
        }
        run += N_THREAD;
    } while (run - tid < N_RUN);
    barrier();
}

/* Four dwords, and two, of the runs of tile row t. */
uvec4 run_four(Floats x, uint t, uint i)
{
    return ROUNDS_HERE ? unpack_four(runs[i]) : four_at(uvec2(x), 4 * (x_at[t] / RUN * RUN_FOURS + i));
}

uvec2 run_two(Floats x, uint t, uint i)
{
    return ROUNDS_HERE ? unpack_four(runs[i]).xy : two_at(uvec2(x), 4 * (x_at[t] / RUN * RUN_FOURS + i));
}

/* What a thread adds up: a chain of its units. */
void multiply_integers(Words w, uint group, Floats x, uint k, out vec4 sums[TILE])
{
    uint tid = gl_LocalInvocationID.x;
    precise vec4 acc[TILE];
    [[unroll]] for (uint t = 0; t < TILE; t++)
        acc[t] = vec4(0);
    uint u = tid / LANES, n_unit = k / (RUN * INT_UNIT_RUNS);
    if (u < n_unit) do {
        begin_integers(w, group, tid % LANES * MINE, u);
        ivec4 sum[TILE];
        [[unroll]] for (uint t = 0; t < TILE; t++)
            sum[t] = ivec4(0);
        [[unroll]] for (uint r = 0; r < INT_ROUNDS; r++) {
            uvec4 low[4], high[4];
            [[unroll]] for (uint j = 0; j < 4; j++)
                quads_of(r, j, low[j], high[j]);
            [[unroll]] for (uint t = 0; t < TILE; t++) {
                uvec4 a = run_four(x, t, low_run * RUN_FOURS + r),
                      b = run_four(x, t, high_run * RUN_FOURS + (HAS_SUBSCALES ? r : 1));
                ivec4 s[2] = ivec4[](ivec4(0), ivec4(0));
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    s[0] = add_dots(low[j], a[j], s[0]);
                    s[1] = add_dots(high[j], b[j], s[1]);
                }
                sum[t] += HAS_SUBSCALES ? sub_scale[0][r] * s[0] + sub_scale[1][r] * s[1] : s[0] + s[1];
            }
        }
        [[unroll]] for (uint t = 0; t < TILE; t++) {
            uvec2 head = run_two(x, t, low_run * RUN_FOURS + 2);
            int high_sum = IS_LONG ? int(run_two(x, t, high_run * RUN_FOURS + 2).y) : 0;
            acc[t] = add_unit(sum[t], uintBitsToFloat(head.x), int(head.y), high_sum, acc[t]);
        }
        u += SPLIT;
    } while (u < n_unit);
    [[unroll]] for (uint t = 0; t < TILE; t++)
        sums[t] = acc[t];
}
