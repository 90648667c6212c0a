#version 460
#extension GL_GOOGLE_include_directive : require
/* MATMUL: workgroup (g, t) computes rows 16 g of up to three matrices, which stand one after the other, with rows
 * TILE t of x. A matrix that is too large for one allocation comes in parts, each a matrix here. With STAGED x is one
 * row, which is normed first (RMS_NORM and MATMUL), or rounded. THEN says what is done with the products:
 *
 * ADD: the one matrix's product is written to y[0], and added to bias[2] in y[2].
 * ACT_MUL: workgroup g has rows 16 g of two matrices; y[1] is the second one's product, and act(first) * second is
 * written to y[0]. */
#include "common.glsl"
#include "product.glsl"
#include "product_norm.glsl"

layout(constant_id = 6) const float EPS = 0;
layout(constant_id = 7) const uint THEN = 0;
layout(constant_id = 8) const uint ACTIVATION = 0;

const uint ADD = 1, ACT_MUL = 2; /* as enum vk_then */

layout(push_constant) uniform Push {
    Floats x;
    Words w[3];
    Floats y[3], bias[3];
    uint n_row[3], stride[3]; /* rows of a matrix; from one row of y to the next */
    uint k, m;
    Floats norm_w, normed; /* of the norm: weights, and where its result goes; or null */
} p;

shared float gates[THEN == ACT_MUL ? TILE * ROWS : 1];

float finished(uint e, uint i, uint row)
{
    precise float y = products[e];
    if (row < p.n_row[i] && !is_null(p.bias[i]))
        y += p.bias[i].d[row];
    return y;
}

void main()
{
    uint group = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * TILE, i = 0;
    if (STAGED != 0 && INTEGER != ROUNDED)
        stage_norm(p.x, p.norm_w, EPS, p.normed, p.k, group == 0);
    if (THEN == 0)
        while (i < 2 && group >= (p.n_row[i] + ROWS - 1) / ROWS)
            group -= (p.n_row[i++] + ROWS - 1) / ROWS;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = min(t0 + t, p.m - 1) * p.k;
    if (ROUNDS_HERE)
        stage_runs(p.x);
    [[dont_unroll]] while (true) {
        multiply(Words(address_at(uvec2(p.w[i]), group, 4 * group_dwords(p.k))), 0, p.x, p.k);
        if (THEN != ACT_MUL || i == 1)
            break;
        for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD)
            gates[e] = finished(e, 0, group * ROWS + e % ROWS);
        i = 1;
    }
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = group * ROWS + e % ROWS, t = t0 + e / ROWS;
        if (row >= p.n_row[i] || t >= p.m)
            continue;
        precise float y = finished(e, i, row);
        p.y[i].d[t * p.stride[i] + row] = y;
        if (THEN == ACT_MUL)
            p.y[0].d[t * p.stride[i] + row] = activate(ACTIVATION, gates[e], y);
        if (THEN == ADD)
            p.y[2].d[t * p.stride[0] + row] = p.bias[2].d[t * p.stride[0] + row] + y;
    }
}
