#version 460
#extension GL_GOOGLE_include_directive : require
/* HEADS with matrices: workgroup (g, t, head) computes rows 16 g of a head's matrix with rows TILE t of x. */
#include "common.glsl"

const uint N_PART = 1;
#include "product.glsl"

layout(push_constant) uniform Push {
    Floats x;
    Words w;
    Floats y;
    uint in_dim, in_off, n_in, out_dim, out_off, n_out;
    uint n_head, m;
} p;

void stage_row()
{
}

void main()
{
    uint group = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * TILE, head = gl_WorkGroupID.z;
    uint groups = (p.n_out + ROWS - 1) / ROWS;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = (min(t0 + t, p.m - 1) * p.n_head + head) * p.in_dim + p.in_off;
    Words w = Words(address_at(uvec2(p.w), head * groups + group, 4 * group_dwords(p.n_in)));
    multiply(w, 0, p.x, p.n_in);
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = group * ROWS + e % ROWS, t = t0 + e / ROWS;
        if (row < p.n_out && t < p.m)
            p.y.d[(t * p.n_head + head) * p.out_dim + p.out_off + row] = products[e];
    }
}
