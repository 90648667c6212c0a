#version 460
#extension GL_GOOGLE_include_directive : require
/* EXPERTS of a prompt, sorted: workgroup (g, i) computes rows 128 g of an expert's matrix for tile i of its pairs, as
 * experts.comp does with fewer. */
#include "common.glsl"
#include "tile.glsl"
#include "experts.glsl"

void put_element(float product, uint i, uint row, uint t)
{
    if (row < p.n_row && t < n_pair)
        put_finished(product, i, row, pair_at(t));
}

void main()
{
    if (!find_pairs())
        return;
    for (uint t = gl_LocalInvocationID.x; t < TILE; t += N_THREAD)
        x_at[t] = pair_at(t) / p.n_used * p.k;
    uint i = 0;
    [[dont_unroll]] while (true) {
        vec4 y[MY_TILE];
        multiply_tile(matrix(i), (p.n_row + ROWS - 1) / ROWS, gl_WorkGroupID.x, p.x, n_pair, p.k, y);
        for (uint t = 0; t < MY_TILE; t++)
            for (uint r = 0; r < 4; r++) /* glslc's own copies of a loop are no longer precise */
                put_element(y[t][r], i, gl_WorkGroupID.x * TILE_ROWS + 4 * my_four() + r, my_part() * MY_TILE + t);
        if (STEP != GATE_UP || i == 1)
            break;
        i = 1;
    }
}
