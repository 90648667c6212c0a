#version 460
#extension GL_GOOGLE_include_directive : require
/* MATMUL: workgroup (g, t) computes rows 16 g of up to three matrices, which stand one after the other, with rows
 * TILE t of x. A matrix that is too large for one allocation comes in parts, each a matrix here. With STAGED x is one
 * row, which is normed first (RMS_NORM and MATMUL), or rounded. */
#include "common.glsl"
#include "matmul.glsl"

layout(constant_id = 6) const float EPS = 0;

const uint N_PART = THEN == ACT_MUL ? 2 : 1;
#include "product.glsl"

void stage_row()
{
    bool is_writer = gl_WorkGroupID.x == 0;
    if (INTEGER == FLOATS && STAGED != 0)
        stage_norm(p.x, p.norm_w, EPS, p.normed, p.k, is_writer);
    if (!ROUNDS_HERE)
        return;
    float s = INTEGER == ROUNDED_NORMED ? norm_of_row(p.x, EPS, p.k) : 1.0;
    stage_runs(p.x, 0, s, p.norm_w, is_writer ? p.normed : Floats(uvec2(0)), p.k);
}

void main()
{
    uint group = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * TILE, i = find_matrix(group, ROWS);
    for (uint t = 0; t < TILE; t++)
        x_at[t] = min(t0 + t, p.m - 1) * p.k;
    Words w = THEN == ACT_MUL && my_part() == 1 ? p.w[1] : p.w[i];
    w = Words(address_at(uvec2(w), group, 4 * group_dwords(p.k)));
    multiply(w, 0, p.x, p.k);
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = group * ROWS + e % ROWS, t = t0 + e / ROWS;
        if (row >= p.n_row[i] || t >= p.m)
            continue;
        if (THEN == ACT_MUL)
            put(finished(products[TILE * ROWS + e], 1, row), finished(products[e], 0, row), 1, row, t);
        else
            put(finished(products[e], i, row), 0.0, i, row, t);
    }
}
