#version 460
#extension GL_GOOGLE_include_directive : require
/* STREAMS_MATCH: a workgroup of 128 threads takes a stream (x) of a token (row_of_group). */
#include "common.glsl"

const uint N_THREAD = 128;

layout(push_constant) uniform Push {
    Floats key, query, value, y; /* [streams * n] twice, [n], [streams * n] for each token */
    uint n, m;
} p;

shared float sums[N_THREAD];

void main()
{
    uint tid = gl_LocalInvocationID.x, t = row_of_group();
    uint at = (t * gl_NumWorkGroups.x + gl_WorkGroupID.x) * p.n;
    if (t >= p.m)
        return;
    precise float sum = 0;
    for (uint i = tid; i < p.n; i += N_THREAD)
        sum = fma(p.key.d[at + i], p.query.d[at + i], sum);
    sums[tid] = sum;
    for (uint width = N_THREAD / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width)
            sums[tid] += sums[tid + width];
    }
    barrier();
    precise float s = sums[0] / sqrt(float(p.n)), root = sqrt(max(abs(s), 1e-6));
    float by = sigmoid(s < 0.0 ? -root : root);
    for (uint i = tid; i < p.n; i += N_THREAD)
        p.y.d[at + i] = by * p.value.d[t * p.n + i];
}
