#version 460
#extension GL_GOOGLE_include_directive : require
/* RMS_NORM and ROPE of the same heads, in place: a workgroup takes a head of a token. */
#include "common.glsl"

layout(constant_id = 1) const uint IS_NEOX = 0;
layout(constant_id = 2) const uint N = 1; /* elements of a head */

const uint N_THREAD = 64;
shared float sums[N_THREAD], head[N];

layout(push_constant) uniform Push {
    Floats x, w, table;
    uint n_pair;
    float eps;
} p;

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y, at = (t * gl_NumWorkGroups.x + gl_WorkGroupID.x) * N;
    precise float sum = 0;
    for (uint i = tid; i < N; i += N_THREAD) {
        head[i] = p.x.d[at + i];
        sum = fma(head[i], head[i], sum);
    }
    sums[tid] = sum;
    for (uint width = N_THREAD / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width)
            sums[tid] += sums[tid + width];
    }
    barrier();
    precise float s = 1.0 / sqrt(sums[0] / float(N) + p.eps);
    for (uint i = tid; i < N; i += N_THREAD) {
        precise float y = head[i] * s;
        head[i] = is_null(p.w) ? y : y * p.w.d[i];
    }
    barrier();
    for (uint i = tid; i < p.n_pair; i += N_THREAD) {
        uint first = IS_NEOX != 0 ? i : 2 * i, second = first + (IS_NEOX != 0 ? p.n_pair : 1);
        float c = p.table.d[2 * (t * p.n_pair + i)], s = p.table.d[2 * (t * p.n_pair + i) + 1];
        precise float a = head[first], b = head[second];
        precise float x = fma(a, c, -(b * s)), y = fma(a, s, b * c);
        p.x.d[at + first] = x;
        p.x.d[at + second] = y;
    }
    for (uint i = 2 * p.n_pair + tid; i < N; i += N_THREAD)
        p.x.d[at + i] = head[i];
}
