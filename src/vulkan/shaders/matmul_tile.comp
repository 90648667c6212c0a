#version 460
#extension GL_GOOGLE_include_directive : require
/* MATMUL of a prompt: workgroup (g, t) computes rows 128 g of up to three matrices with rows TILE t of x, as matmul.comp
 * does with fewer. */
#include "common.glsl"
#include "tile.glsl"
#include "matmul.glsl"

/* Element (row, t). A gate is kept where the result goes: by the thread that reads it. */
void put_element(float product, uint i, uint row, uint t)
{
    if (row >= p.n_row[i] || t >= p.m)
        return;
    float y = finished(product, i, row);
    if (THEN == ACT_MUL && i == 0)
        p.y[0].d[t * p.stride[0] + row] = y;
    else
        put(y, THEN == ACT_MUL ? p.y[0].d[t * p.stride[0] + row] : 0.0, i, row, t);
}

void main()
{
    uint group = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * TILE, i = find_matrix(group, TILE_ROWS);
    for (uint t = gl_LocalInvocationID.x; t < TILE; t += N_THREAD)
        x_at[t] = min(t0 + t, p.m - 1) * p.k;
    [[dont_unroll]] while (true) {
        vec4 y[MY_TILE];
        multiply_tile(p.w[i], (p.n_row[i] + ROWS - 1) / ROWS, group, p.x, p.m - t0, p.k, y);
        for (uint t = 0; t < MY_TILE; t++)
            for (uint r = 0; r < 4; r++) /* glslc's own copies of a loop are no longer precise */
                put_element(y[t][r], i, group * TILE_ROWS + 4 * my_four() + r, t0 + my_part() * MY_TILE + t);
        if (THEN != ACT_MUL || i == 1)
            break;
        i = 1;
    }
}
