/* Products on integers: weights as bytes with activations as bytes, the sums of a unit scaled once (docs/numerics.md).
 *
 * A thread takes a unit of four rows in rounds of eight quads: four of the unit's low half and four of its high half,
 * which 4-bit types hold in the same dwords. Types whose scales are for sub-blocks have units of two runs, others of one,
 * whose halves are half a run each. */
#include "unit_integers.glsl"

const uint N_RUN = ROUNDS_HERE ? STAGED / RUN : 1, HALF = RUN / 2;

/* The row's runs, and of each block the largest activation, as bits, which compare as numbers do. */
shared FOUR runs[RUN_FOURS * N_RUN];
shared uint block_most[N_RUN];
shared int run_sum[N_RUN];

/* Rounds a row of k that begins at element `at` of x, or its norm: x * s * w, or without w where that is null. A thread
 * takes half a run at a time. The normed row goes to out_, unless that is null. */
void stage_runs(Floats x, uint at, float s, Floats w, Floats out_, uint k)
{
    uint tid = gl_LocalInvocationID.x;
    bool has_w = !is_null(w);
    w = has_w ? w : x; /* so that no load has a condition */
    for (uint i = tid; i < N_RUN; i += N_THREAD) {
        block_most[i] = 0;
        run_sum[i] = 0;
    }
    barrier();
    for (uint first = 0; first < 2 * N_RUN; first += N_THREAD) {
        uint i = first + tid, e = min(i, 2 * N_RUN - 1) * HALF, block = i / (2 * BLOCK_RUNS);
        bool is_there = i < 2 * N_RUN;
        vec4 y[4];
        [[unroll]] for (uint j = 0; j < 4; j++)
            y[j] = uintBitsToFloat(four_at(uvec2(x), at + e + 4 * j));
        if (INTEGER == ROUNDED_NORMED) {
            vec4 ws[4];
            [[unroll]] for (uint j = 0; j < 4; j++)
                ws[j] = uintBitsToFloat(four_at(uvec2(w), e + 4 * j));
            for (uint j = 0; j < 4; j++) {
                y[j] = normed_four(y[j], s, has_w, ws[j]);
                if (is_there && !is_null(out_))
                    put_normed(out_, e + 4 * j, k, y[j]);
            }
        }
        if (is_there)
            atomicMax(block_most[block], floatBitsToUint(largest(y)));
        barrier();
        if (is_there) {
            uvec4 q = rounded_sixteen(y, inverse_of(uintBitsToFloat(block_most[block])));
            runs[i / 2 * RUN_FOURS + i % 2] = pack_four(q);
            atomicAdd(run_sum[i / 2], sum_of_bytes(q));
        }
    }
    barrier();
    for (uint i = tid; i < N_RUN; i += N_THREAD) {
        vec2 head = vec2(scale_of(uintBitsToFloat(block_most[i / BLOCK_RUNS])), float(run_sum[i]));
        runs[i * RUN_FOURS + 2] = pack_four(uvec4(floatBitsToUint(head), 0, 0));
    }
    barrier();
}

/* Four, or two, of the dwords that are runs of row t of the tile. */
uvec4 run_four(Floats x, uint t, uint i)
{
    return ROUNDS_HERE ? unpack_four(runs[i]) : four_at(uvec2(x), 4 * (x_at[t] / RUN * RUN_FOURS + i));
}

uvec2 run_two(Floats x, uint t, uint i)
{
    return ROUNDS_HERE ? unpack_four(runs[i]).xy : two_at(uvec2(x), 4 * (x_at[t] / RUN * RUN_FOURS + i));
}

/* Adds a unit to the chains. */
void multiply_unit(Unit unit, Floats x, precise inout vec4 acc[TILE])
{
    begin_integers(unit);
    UnitSum sum[TILE];
    [[unroll]] for (uint t = 0; t < TILE; t++)
        sum[t] = no_sum();
    [[unroll]] for (uint r = 0; r < INT_ROUNDS; r++) {
        uvec4 low[4], high[4];
        [[unroll]] for (uint j = 0; j < 4; j++)
            unpack_quads(j, unit.quads[4 * r + j], unit.more[HAS_MORE ? 4 * r + j : 0], low[j], high[j]);
        [[unroll]] for (uint t = 0; t < TILE; t++) {
            uvec4 a = run_four(x, t, low_run * RUN_FOURS + r),
                  b = run_four(x, t, high_run * RUN_FOURS + (HAS_SUBSCALES ? r : 1));
            ivec4 s[2] = ivec4[](NO_BITS, NO_BITS);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                s[0] = add_dots(low[j], a[j], s[0]);
                s[1] = add_dots(high[j], b[j], s[1]);
            }
            add_scaled(sum[t], 0, r, s[0]);
            add_scaled(sum[t], 1, r, s[1]);
        }
    }
    for (uint t = 0; t < TILE; t++) { /* glslc's own copies of a loop are no longer precise */
        vec2 head = uintBitsToFloat(run_two(x, t, low_run * RUN_FOURS + 2));
        float high_sum = IS_LONG ? uintBitsToFloat(run_two(x, t, high_run * RUN_FOURS + 2).y) : 0.0;
        acc[t] = add_unit(sum[t], head.x, head.y, high_sum, acc[t]);
    }
}

/* What a thread adds up: a chain of its units. The first one is under way while the row is staged; threads that have none
 * load the last one. */
void multiply_integers(Words w, uint row0, Floats x, uint k, out vec4 sums[TILE])
{
    precise vec4 acc[TILE];
    for (uint t = 0; t < TILE; t++)
        acc[t] = vec4(0);
    uint first = part_tid() / LANES, u = first, n_unit = k / (RUN * INT_UNIT_RUNS);
    [[dont_unroll]] do {
        Unit unit;
        find_integers(w, row0 + part_tid() % LANES * MINE, min(u, n_unit - 1));
        load_unit(unit);
        if (u == first)
            stage_row();
        if (u < n_unit)
            multiply_unit(unit, x, acc);
        u += SPLIT;
    } while (u < n_unit);
    [[unroll]] for (uint t = 0; t < TILE; t++)
        sums[t] = acc[t];
}
