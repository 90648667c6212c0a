#version 460
#extension GL_GOOGLE_include_directive : require
/* MATMUL: workgroup (g, t) computes rows 16 g of up to three matrices, which stand one after the other, with rows
 * TILE t of x. A matrix that is too large for one allocation comes in parts, each a matrix here. With STAGED x is one
 * row, which is normed first (RMS_NORM and MATMUL), or rounded. */
#include "common.glsl"
#include "product.glsl"
#include "product_norm.glsl"
#include "matmul.glsl"

layout(constant_id = 6) const float EPS = 0;

shared float gates[THEN == ACT_MUL ? TILE * ROWS : 1];

void main()
{
    uint group = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * TILE;
    if (STAGED != 0 && INTEGER != ROUNDED)
        stage_norm(p.x, p.norm_w, EPS, p.normed, p.k, group == 0);
    uint i = find_matrix(group, ROWS);
    for (uint t = 0; t < TILE; t++)
        x_at[t] = min(t0 + t, p.m - 1) * p.k;
    if (ROUNDS_HERE)
        stage_runs(p.x);
    [[dont_unroll]] while (true) {
        multiply(Words(address_at(uvec2(p.w[i]), group, 4 * group_dwords(p.k))), 0, p.x, p.k);
        if (THEN != ACT_MUL || i == 1)
            break;
        for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD)
            gates[e] = finished(products[e], 0, group * ROWS + e % ROWS);
        i = 1;
    }
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = group * ROWS + e % ROWS, t = t0 + e / ROWS;
        if (row < p.n_row[i] && t < p.m)
            put(finished(products[e], i, row), THEN == ACT_MUL ? gates[e] : 0.0, i, row, t);
    }
}
