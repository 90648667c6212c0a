#version 460
#extension GL_GOOGLE_include_directive : require
/* MATMUL: workgroup (g, t) computes rows 16 g of up to three matrices, which stand one after the other, with rows
 * TILE t of x. A matrix that is too large for one allocation comes in parts, each a matrix here. With `total` the first
 * matrix's product is added to `residual`, too (MATMUL and ADD). */
#include "common.glsl"
#include "product.glsl"

layout(push_constant) uniform Push {
    Floats x;
    Words w[3];
    Floats y[3], bias[3];
    uint n_row[3], stride[3]; /* rows of a matrix; from one row of y to the next */
    uint k, m;
    Floats residual, total; /* [n_row[0]] for each token, or null */
} p;

void main()
{
    uint group = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * TILE, i = 0;
    while (i < 2 && group >= (p.n_row[i] + ROWS - 1) / ROWS)
        group -= (p.n_row[i++] + ROWS - 1) / ROWS;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = min(t0 + t, p.m - 1) * p.k;
    Words w = Words(address_at(uvec2(p.w[i]), group, 4 * group_dwords(p.k)));
    multiply(w, 0, p.x, p.k);
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = group * ROWS + e % ROWS, t = t0 + e / ROWS;
        if (row >= p.n_row[i] || t >= p.m)
            continue;
        precise float y = result(e);
        if (!is_null(p.bias[i]))
            y += p.bias[i].d[row];
        p.y[i].d[t * p.stride[i] + row] = y;
        if (!is_null(p.total))
            p.total.d[t * p.stride[i] + row] = p.residual.d[t * p.stride[i] + row] + y;
    }
}
