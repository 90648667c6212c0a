/* What tile.glsl does with integers, by the device's products of matrices of bytes (MATRIX 1), or by a model of them for
 * tests (MATRIX 0). Sums of bytes are exact in any order, so that they are what they are without, to the bit.
 *
 * A product is of eight quads: weights lie row by row, of types with two halves first the low ones; activations lie sum
 * by sum, zeros where a sum leaves out weights of the same eight quads. */
#if MATRIX
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
layout(constant_id = 12) const uint MATRIX_ROWS = 16;
layout(constant_id = 13) const uint MATRIX_COLUMNS = 16;
layout(constant_id = 14) const uint MATRIX_DEEP = 32; /* bytes; divides 32, and the others their side of the tile */
#define QUAD i8vec4
#else
#define QUAD uint
#endif

const uint DEEP = 8;                                     /* quads of a product */
const uint N_SUM = TYPE == Q6_K ? 4 : IS_LONG ? 2 : 1;   /* of a unit, each with a scale of its own */
const uint W_STRIDE = (HAS_SUBSCALES ? 2 * DEEP : DEEP) + 4; /* rows begin in other banks */
const uint SUM_STRIDE = ROW_FOURS + 1;                   /* from a column to the next, likewise */

shared QUAD tile_w[TILE_ROWS * W_STRIDE];
shared QUAD tile_x[N_SUM * TILE * DEEP];
shared ivec4 tile_sums[TILE * SUM_STRIDE]; /* of one of a unit's sums: four rows of weights, column by column */
shared vec4 x_head[TILE];                  /* the low run's scale and sum, the high run's sum */

QUAD quad_of(uint x)
{
#if MATRIX
    return unpack8(int(x));
#else
    return x;
#endif
}

/* The half of a unit that a sum is of. */
uint half_of(uint s)
{
    return TYPE == Q6_K ? s / 2 : s;
}

void put_w(uint quad, uvec4 rows)
{
    [[unroll]] for (uint r = 0; r < 4; r++)
        tile_w[(4 * my_four() + r) * W_STRIDE + quad] = quad_of(rows[r]);
}

void load_integers(Words w, Floats x, uint u)
{
    uint tid = gl_LocalInvocationID.x;
    load_w(w, u);
    for (uint i = tid; i < N_SUM * (DEEP / 4) * TILE; i += N_THREAD) {
        uint t = i % TILE, four = i / TILE % (DEEP / 4), s = i / (DEEP / 4 * TILE);
        bool is_left_out = TYPE == Q6_K && four != s % 2;
        uvec4 quads = is_left_out ? uvec4(0) : run_four(x, t, half_of(s) == 0 ? low_run : high_run, four);
        [[unroll]] for (uint c = 0; c < 4; c++)
            tile_x[(s * TILE + t) * DEEP + 4 * four + c] = quad_of(quads[c]);
    }
    for (uint t = tid; t < TILE; t += N_THREAD) {
        uvec4 low = run_four(x, t, low_run, DEEP / 4), high = run_four(x, t, high_run, DEEP / 4);
        x_head[t] = uintBitsToFloat(uvec4(low.xy, high.y, 0));
    }
}

/* The products of one of the unit's sums. */
#if MATRIX
void multiply_matrices(uint s)
{
    const uint N_ACROSS = TILE / MATRIX_COLUMNS, N_MATRIX = TILE_ROWS / MATRIX_ROWS * N_ACROSS;
    for (uint i = gl_SubgroupID; i < N_MATRIX; i += gl_NumSubgroups) {
        uint row = i / N_ACROSS * MATRIX_ROWS, t = i % N_ACROSS * MATRIX_COLUMNS;
        coopmat<int, gl_ScopeSubgroup, MATRIX_ROWS, MATRIX_COLUMNS, gl_MatrixUseAccumulator> sum =
            coopmat<int, gl_ScopeSubgroup, MATRIX_ROWS, MATRIX_COLUMNS, gl_MatrixUseAccumulator>(0);
        for (uint q = 0; q < DEEP; q += MATRIX_DEEP / 4) {
            coopmat<int8_t, gl_ScopeSubgroup, MATRIX_ROWS, MATRIX_DEEP, gl_MatrixUseA> a;
            coopmat<int8_t, gl_ScopeSubgroup, MATRIX_DEEP, MATRIX_COLUMNS, gl_MatrixUseB> b;
            coopMatLoad(a, tile_w, row * W_STRIDE + half_of(s) * DEEP + q, W_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            coopMatLoad(b, tile_x, (s * TILE + t) * DEEP + q, DEEP, gl_CooperativeMatrixLayoutColumnMajor);
            sum = coopMatMulAdd(a, b, sum);
        }
        coopMatStore(sum, tile_sums, t * SUM_STRIDE + row / 4, SUM_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
    }
}
#else
void multiply_matrices(uint s)
{
    for (uint i = gl_LocalInvocationID.x; i < TILE * ROW_FOURS; i += N_THREAD) {
        uint four = i % ROW_FOURS, t = i / ROW_FOURS;
        ivec4 sum = ivec4(0);
        for (uint q = 0; q < DEEP; q++) {
            uint at = 4 * four * W_STRIDE + half_of(s) * DEEP + q;
            sum = add_dots(uvec4(tile_w[at], tile_w[at + W_STRIDE], tile_w[at + 2 * W_STRIDE], tile_w[at + 3 * W_STRIDE]),
                           tile_x[(s * TILE + t) * DEEP + q], sum);
        }
        tile_sums[t * SUM_STRIDE + four] = sum;
    }
}
#endif

/* Adds the unit to the chains, as all threads do their part of its products. */
void multiply_unit(bool has_any, precise inout vec4 acc[MY_TILE])
{
    UnitSum sum[MY_TILE];
    [[unroll]] for (uint t = 0; t < MY_TILE; t++)
        sum[t] = no_sum();
    [[unroll]] for (uint s = 0; s < 4; s++) {
        if (s >= N_SUM)
            continue;
        multiply_matrices(s);
        barrier();
        if (has_any)
            [[unroll]] for (uint t = 0; t < MY_TILE; t++)
                add_scaled(sum[t], TYPE == Q6_K ? s / 2 : s % 2, s % 2,
                           tile_sums[(my_part() * MY_TILE + t) * SUM_STRIDE + my_four()] + NO_BITS);
        if (s + 1 < N_SUM)
            barrier();
    }
    if (!has_any)
        return;
    for (uint t = 0; t < MY_TILE; t++) { /* glslc's own copies of a loop are no longer precise */
        vec4 head = x_head[my_part() * MY_TILE + t];
        acc[t] = add_unit(sum[t], head.x, head.y, head.z, acc[t]);
    }
}
