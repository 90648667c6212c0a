#version 460
#extension GL_GOOGLE_include_directive : require
/* HEADS without matrices: a thread copies an element. */
#include "common.glsl"

layout(push_constant) uniform Push {
    Floats x, y;
    uint in_dim, in_off, out_dim, out_off, n;
    uint n_head;
} p;

void main()
{
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.z * p.n_head + gl_WorkGroupID.y; /* a head of a token */
    if (i < p.n)
        p.y.d[row * p.out_dim + p.out_off + i] = p.x.d[row * p.in_dim + p.in_off + i];
}
