#version 460
#extension GL_GOOGLE_include_directive : require
/* EXPERTS: workgroup (g, i) computes rows 16 g of an expert's matrix for pair i (direct) or tile i of its pairs
 * (IS_SORTED, after sort.comp). A pair is a token's expert of some rank. (Down of direct dispatch is down.comp.) */
#include "common.glsl"
#include "experts.glsl"

const uint N_PART = STEP == GATE_UP ? 2 : 1;
#include "product.glsl"

void stage_row()
{
    if (ROUNDS_HERE)
        stage_runs(p.x, x_at[0], 1.0, Floats(uvec2(0)), Floats(uvec2(0)), p.k);
}

void main()
{
    if (!find_pairs())
        return;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = pair_at(t) / p.n_used * p.k;
    Words w = Words(address_at(uvec2(matrix(my_part())), gl_WorkGroupID.x, 4 * group_dwords(p.k)));
    multiply(w, 0, p.x, p.k);
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = gl_WorkGroupID.x * ROWS + e % ROWS, t = e / ROWS;
        if (row >= p.n_row || t >= n_pair)
            continue;
        uint pair = pair_at(t);
        if (STEP == GATE_UP && IS_UNGATED == 0) {
            float gate = finished(products[e], 0, row, pair), up = finished(products[TILE * ROWS + e], 1, row, pair);
            p.y.d[pair * p.n_y + row] = activate(ACTIVATION, LIMIT, UP_LIMIT, gate, up);
            continue;
        }
        put_finished(products[e], 0, row, pair);
        if (STEP == GATE_UP)
            put_finished(products[TILE * ROWS + e], 1, row, pair);
    }
}
