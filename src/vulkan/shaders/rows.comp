#version 460
#extension GL_GOOGLE_include_directive : require
/* SLICE and SCATTER: a thread copies an element of a row; the list says which row it comes from, or goes to. */
#include "common.glsl"

layout(push_constant) uniform Push {
    Floats x, y;
    Ints from, to;         /* NULL: row t */
    uint n, stride, first; /* elements copied; of x's row; the first of them */
    uint out_stride, m;
} p;

void main()
{
    uint i = gl_GlobalInvocationID.x, t = row_of_group();
    if (i >= p.n || t >= p.m)
        return;
    uint from = uvec2(p.from) == uvec2(0) ? t : uint(p.from.d[t]), to = uvec2(p.to) == uvec2(0) ? t : uint(p.to.d[t]);
    p.y.d[to * p.out_stride + i] = p.x.d[from * p.stride + p.first + i];
}
