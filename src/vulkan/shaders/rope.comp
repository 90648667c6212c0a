#version 460
#extension GL_GOOGLE_include_directive : require
/* ROPE: a thread rotates a pair of a head, in place. */
#include "common.glsl"

layout(constant_id = 1) const uint IS_NEOX = 0;

layout(push_constant) uniform Push {
    Floats x, table;
    uint head_dim, n_pair, n_head, m;
} p;

void main()
{
    uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= p.n_pair * p.n_head)
        return;
    uint pair = i % p.n_pair, head = t * p.n_head * p.head_dim + i / p.n_pair * p.head_dim;
    uint first = head + (IS_NEOX != 0 ? pair : 2 * pair), second = first + (IS_NEOX != 0 ? p.n_pair : 1);
    float c = p.table.d[2 * (t * p.n_pair + pair)], s = p.table.d[2 * (t * p.n_pair + pair) + 1];
    precise float a = p.x.d[first], b = p.x.d[second];
    precise float x = fma(a, c, -(b * s)), y = fma(a, s, b * c);
    p.x.d[first] = x;
    p.x.d[second] = y;
}
