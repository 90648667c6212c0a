#version 460
#extension GL_GOOGLE_include_directive : require
/* RMS_NORM: a workgroup takes a row of n. */
#include "common.glsl"

const uint N_THREAD = 64;
shared float sums[N_THREAD];

layout(push_constant) uniform Push {
    Floats x, w, y;
    uint n;
    float eps;
} p;

void main()
{
    uint tid = gl_LocalInvocationID.x, at = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * p.n;
    precise float sum = 0;
    for (uint i = tid; i < p.n; i += N_THREAD)
        sum = fma(p.x.d[at + i], p.x.d[at + i], sum);
    sums[tid] = sum;
    for (uint width = N_THREAD / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width)
            sums[tid] += sums[tid + width];
    }
    barrier();
    precise float s = 1.0 / sqrt(sums[0] / float(p.n) + p.eps);
    for (uint i = tid; i < p.n; i += N_THREAD) {
        precise float y = p.x.d[at + i] * s;
        p.y.d[at + i] = is_null(p.w) ? y : y * p.w.d[i];
    }
}
