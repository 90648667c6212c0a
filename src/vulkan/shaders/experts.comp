#version 460
#extension GL_GOOGLE_include_directive : require
/* EXPERTS: workgroup (g, i) computes rows 16 g of an expert's matrix for pair i (direct) or tile i of its pairs
 * (IS_SORTED, after sort.comp). A pair is a token's expert of some rank. (Down of direct dispatch is down.comp.) */
#include "common.glsl"
#include "product.glsl"
#include "experts.glsl"

shared float gates[TILE * ROWS];

void multiply_matrix(uint i)
{
    multiply(Words(address_at(uvec2(matrix(i)), gl_WorkGroupID.x, 4 * group_dwords(p.k))), 0, p.x, p.k);
}

void main()
{
    if (!find_pairs())
        return;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = pair_at(t) / p.n_used * p.k;
    if (ROUNDS_HERE)
        stage_runs(p.x);
    uint i = 0;
    [[dont_unroll]] while (true) {
        multiply_matrix(i);
        if (STEP != GATE_UP || i == 1)
            break;
        for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
            uint row = gl_WorkGroupID.x * ROWS + e % ROWS;
            gates[e] = row < p.n_row ? finished(products[e], 0, row, pair_at(e / ROWS)) : 0.0;
        }
        i = 1;
    }
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = gl_WorkGroupID.x * ROWS + e % ROWS, t = e / ROWS;
        if (row >= p.n_row || t >= n_pair)
            continue;
        uint pair = pair_at(t), at = pair * p.n_row + row;
        precise float y = finished(products[e], i, row, pair);
        if (STEP == GATE_UP)
            y = activate(ACTIVATION, gates[e], y);
        else if (STEP == UP)
            y = activate(ACTIVATION, p.y.d[at], y);
        p.y.d[at] = y;
    }
}
