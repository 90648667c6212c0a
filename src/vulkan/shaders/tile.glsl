/* A product of 128 rows of weights with TILE rows of activations, by a workgroup of 128 threads: for prompts.
 *
 * Part by part the weights are unpacked to shared memory once, and the activations come there, too. Thread (part, four) has
 * rows 4 four to 4 four + 3 with a quarter of the activations; where these are fewer than TILE, threads without any only
 * unpack. What an element adds up, and in which order, is what it is in product.glsl, to the bit: one after the other the
 * thirty-two chains of units, whose sums are added as they are done. A chain without units is a sum of zero, there as here. */
#include "types.glsl"
#include "integers.glsl"
#include "unit_integers.glsl"

layout(constant_id = 2) const uint TILE = 32; /* a multiple of 16 */
layout(constant_id = 5) const uint INTEGER = 0; /* FLOATS or IN_MEMORY */

const uint TILE_ROWS = 128, N_THREAD = 128, N_CHAIN = 32;
const uint ROW_FOURS = TILE_ROWS / 4, PARTS = N_THREAD / ROW_FOURS;
const uint X_FOURS = TILE / 4, MY_FOURS = X_FOURS / PARTS, MY_TILE = 4 * MY_FOURS;
/* Of integers a part is a unit, of floats 32 weights of one, which is eight quads. Weights lie by quads (of floats by
 * numbers), for each all rows; activations so, too, with the heads of their runs. */
const uint PART_QUADS = 8;
const uint W_DEEP = INTEGER == FLOATS ? 4 * PART_QUADS : 8 * INT_UNIT_RUNS,
           X_DEEP = INTEGER == FLOATS ? 4 * PART_QUADS : 4 * RUN_FOURS * INT_UNIT_RUNS;

shared uint x_at[TILE]; /* where each row of activations begins, in floats */

uint my_four()
{
    return gl_LocalInvocationID.x % ROW_FOURS;
}

uint my_part()
{
    return gl_LocalInvocationID.x / ROW_FOURS;
}

/* ---- a unit's integers ------------------------------------------------------------------------------------------- */

/* A unit's bytes: quads 4 r + j of its low half, then those of its high half. */
const uint HALF_QUADS = 4 * INT_ROUNDS;

/* Puts a quad of each of the thread's four rows of weights into shared memory. */
void put_w(uint quad, uvec4 rows);

void load_w(Words w, uint u)
{
    uint j = my_part();
    Unit unit;
    find_integers(w, my_four() % (ROWS / MINE) * MINE, u);
    load_head(unit);
    begin_integers(unit);
    [[unroll]] for (uint r = 0; r < INT_ROUNDS; r++) {
        uvec4 low, high;
        unpack_quads(j, load_quads(r, j), HAS_MORE ? load_more(r, j) : uvec4(0), low, high);
        put_w(4 * r + j, low);
        put_w(HALF_QUADS + 4 * r + j, high);
    }
}

/* Four dwords of a run of activations of row t. */
uvec4 run_four(Floats x, uint t, uint run, uint four)
{
    return four_at(uvec2(x), 4 * ((x_at[t] / RUN + run) * RUN_FOURS + four));
}

#ifdef MATRIX
#include "matrix.glsl"
#else
shared FOUR part_w[W_DEEP * ROW_FOURS];
shared FOUR part_x[X_DEEP * X_FOURS];

/* The thread's four rows of weights, and four of its activations: each a quad, or a number. */
uvec4 w_at(uint deep)
{
    return unpack_four(part_w[deep * ROW_FOURS + my_four()]);
}

uvec4 x_four(uint deep, uint f)
{
    return unpack_four(part_x[deep * X_FOURS + my_part() * MY_FOURS + f]);
}

/* Four dwords of each of four rows of activations become four columns of these. */
void put_x(uint deep, uint f, uvec4 rows[4])
{
    [[unroll]] for (uint c = 0; c < 4; c++)
        part_x[(deep + c) * X_FOURS + f] = pack_four(uvec4(rows[0][c], rows[1][c], rows[2][c], rows[3][c]));
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

void put_w(uint quad, uvec4 rows)
{
    part_w[quad * ROW_FOURS + my_four()] = pack_four(rows);
}

void load_integers(Words w, Floats x, uint u)
{
    load_w(w, u);
    for (uint i = gl_LocalInvocationID.x; i < RUN_FOURS * INT_UNIT_RUNS * X_FOURS; i += N_THREAD) {
        uint f = i % X_FOURS, four = i / X_FOURS, run = four < RUN_FOURS ? low_run : high_run;
        uvec4 rows[4];
        [[unroll]] for (uint c = 0; c < 4; c++)
            rows[c] = run_four(x, 4 * f + c, run, four % RUN_FOURS);
        put_x(4 * four, f, rows);
    }
}

/* Adds the unit to the chains. Rounds that share a scale, as those of Q4_K's halves do, are added up before that. */
void multiply_unit(precise inout vec4 acc[MY_TILE])
{
    const uint N_GROUP = TYPE == Q6_K ? 2 : 1; /* of a half's quads */
    const uint X_HALF = HAS_SUBSCALES ? 4 * RUN_FOURS : 4;
    UnitSum sum[MY_TILE];
    [[unroll]] for (uint t = 0; t < MY_TILE; t++)
        sum[t] = no_sum();
    [[unroll]] for (uint h = 0; h < 2; h++)
        [[unroll]] for (uint g = 0; g < 2; g++) {
            if (g >= N_GROUP)
                continue;
            ivec4 s[MY_TILE];
            [[unroll]] for (uint t = 0; t < MY_TILE; t++)
                s[t] = NO_BITS;
            for (uint j = 0; j < HALF_QUADS / N_GROUP; j++) {
                uint q = HALF_QUADS / N_GROUP * g + j;
                uvec4 four = w_at(HALF_QUADS * h + q);
                [[unroll]] for (uint f = 0; f < MY_FOURS; f++) {
                    uvec4 xs = x_four(X_HALF * h + q, f);
                    [[unroll]] for (uint c = 0; c < 4; c++)
                        s[4 * f + c] = add_dots(four, xs[c], s[4 * f + c]);
                }
            }
            [[unroll]] for (uint t = 0; t < MY_TILE; t++)
                add_scaled(sum[t], h, g, s[t]);
        }
    const uint HEAD = 8, OTHER = IS_LONG ? 4 * RUN_FOURS : 0; /* of the low run; from there to the high one */
    [[unroll]] for (uint f = 0; f < MY_FOURS; f++) {
        vec4 scale = uintBitsToFloat(x_four(HEAD, f)), low_sum = uintBitsToFloat(x_four(HEAD + 1, f)),
             high_sum = uintBitsToFloat(x_four(OTHER + HEAD + 1, f));
        for (uint c = 0; c < 4; c++) /* glslc's own copies of a loop are no longer precise */
            acc[4 * f + c] = add_unit(sum[4 * f + c], scale[c], low_sum[c], high_sum[c], acc[4 * f + c]);
    }
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

/* Quads of the chain from number `first` of the unit on. */
void load_floats(Words w, Floats x, uint u, uint first)
{
    begin_unit(w, my_four() % (ROWS / MINE) * MINE, u);
    for (uint q = 2 * my_part(); q < 2 * my_part() + 2; q++) {
        uint step = (first + q) / STEP_QUADS;
        begin_step(step);
        mat4 four = weights(step, q % STEP_QUADS);
        [[unroll]] for (uint c = 0; c < 4; c++)
            part_w[(4 * q + c) * ROW_FOURS + my_four()] = pack_four(floatBitsToUint(four[c]));
    }
    for (uint i = gl_LocalInvocationID.x; i < PART_QUADS * X_FOURS; i += N_THREAD) {
        uint f = i % X_FOURS, deep = i / X_FOURS, at = first + deep;
        uvec4 rows[4];
        [[unroll]] for (uint c = 0; c < 4; c++)
            rows[c] = four_at(uvec2(x), x_at[4 * f + c] + u * UNIT + 4 * (at / STEP_QUADS + at % STEP_QUADS * STEPS));
        put_x(4 * deep, f, rows);
    }
}

/* Adds the quads to the chains. */
void multiply_quads(precise inout vec4 acc[MY_TILE])
{
    for (uint deep = 0; deep < 4 * PART_QUADS; deep++) {
        vec4 four = uintBitsToFloat(w_at(deep));
        [[unroll]] for (uint f = 0; f < MY_FOURS; f++) {
            vec4 xs = uintBitsToFloat(x_four(deep, f));
            [[unroll]] for (uint c = 0; c < 4; c++)
                acc[4 * f + c] = fma(four, vec4(xs[c]), acc[4 * f + c]);
        }
    }
}

#endif

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* The thread's elements: four rows of weights with each of MY_TILE rows of activations, of which n are there. w: the
 * matrix, whose sixteens of rows are n_group. group: the workgroup's number among TILE_ROWS of them. x: rounded rows where
 * the product is one of integers. Rows behind the last are computed as some that are there. */
void multiply_tile(Words w, uint n_group, uint group, Floats x, uint n, uint k, out vec4 y[MY_TILE])
{
    bool has_any = my_part() * MY_TILE < n;
    uint mine = min(group * (TILE_ROWS / ROWS) + my_four() / (ROWS / MINE), n_group - 1);
    uint n_unit = INTEGER == FLOATS ? k / UNIT : k / (RUN * INT_UNIT_RUNS);
    w = Words(address_at(uvec2(w), mine, 4 * group_dwords(k)));
    precise vec4 total[MY_TILE];
    for (uint chain = 0; chain < N_CHAIN; chain++) {
        precise vec4 acc[MY_TILE];
        [[unroll]] for (uint t = 0; t < MY_TILE; t++)
            acc[t] = vec4(0);
        for (uint u = chain; u < n_unit; u += N_CHAIN)
            for (uint first = 0; first < (INTEGER == FLOATS ? UNIT / 4 : 1); first += PART_QUADS) {
                barrier(); /* all are done with the part before */
#ifdef MATRIX
                load_integers(w, x, u);
                barrier();
                multiply_unit(has_any, acc);
#else
                if (INTEGER == FLOATS)
                    load_floats(w, x, u, first);
                else
                    load_integers(w, x, u);
                barrier();
                if (!has_any)
                    continue;
                if (INTEGER == FLOATS)
                    multiply_quads(acc);
                else
                    multiply_unit(acc);
#endif
            }
        [[unroll]] for (uint t = 0; t < MY_TILE; t++) /* a sum that began at 0 would lose the sign of -0 */
            total[t] = chain == 0 ? acc[t] : total[t] + acc[t];
    }
    [[unroll]] for (uint t = 0; t < MY_TILE; t++)
        y[t] = total[t];
}
