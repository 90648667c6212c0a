#version 460
#extension GL_GOOGLE_include_directive : require
/* STREAMS_OUT: a thread takes an element of each of a token's streams. */
#include "common.glsl"

layout(constant_id = 1) const uint N_STREAM = 1;
layout(constant_id = 2) const uint N_PART = 2; /* numbers of a mix for each stream: 1, 2, or 2 + N_STREAM */

layout(push_constant) uniform Push {
    Floats y, x, mix; /* as STREAMS_IN leaves mix */
    uint n, m;
} p;

void main()
{
    uint i = gl_GlobalInvocationID.x, t = row_of_group();
    if (i >= p.n || t >= p.m)
        return;
    uint by_y = t * N_STREAM * N_PART + (N_PART > 1 ? N_STREAM : 0), by_x = by_y + N_STREAM;
    float y = p.y.d[t * p.n + i], old[N_STREAM];
    for (uint s = 0; s < N_STREAM; s++)
        old[s] = p.x.d[(t * N_STREAM + s) * p.n + i];
    for (uint s = 0; s < N_STREAM; s++) {
        precise float sum = N_PART <= 2 ? fma(p.mix.d[by_y + s], y, old[s]) : p.mix.d[by_y + s] * y;
        for (uint from = 0; N_PART > 2 && from < N_STREAM; from++)
            sum = fma(p.mix.d[by_x + from * N_STREAM + s], old[from], sum);
        p.x.d[(t * N_STREAM + s) * p.n + i] = sum;
    }
}
