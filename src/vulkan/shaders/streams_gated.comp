#version 460
#extension GL_GOOGLE_include_directive : require
/* STREAMS_IN where streams are gated, or gate is null and their mean a plain one: a thread takes an element of a token's
 * streams, and the first threads a number of its mix, which may be null. */
#include "common.glsl"

layout(constant_id = 1) const uint N_STREAM = 1;

layout(push_constant) uniform Push {
    Floats x, mix, gate, y; /* [N_STREAM * n], [N_STREAM], [N_STREAM * n], [n] for each token */
    uint n, m;
    float magnitude;
} p;

void main()
{
    uint i = gl_GlobalInvocationID.x, t = row_of_group();
    const float share = 1.0 / float(N_STREAM);
    if (t >= p.m)
        return;
    if (!is_null(p.mix) && i < N_STREAM) {
        precise float by = sigmoid(p.mix.d[t * N_STREAM + i] * share) * p.magnitude;
        p.mix.d[t * N_STREAM + i] = by;
    }
    if (i >= p.n)
        return;
    precise float y = 0;
    for (uint s = 0; s < N_STREAM; s++) {
        uint at = (t * N_STREAM + s) * p.n + i;
        precise float x = is_null(p.gate) ? p.x.d[at] : sigmoid(p.gate.d[at]) * p.x.d[at];
        y = fma(x, share, y);
    }
    p.y.d[t * p.n + i] = y;
}
