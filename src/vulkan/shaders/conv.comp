#version 460
#extension GL_GOOGLE_include_directive : require
/* CONV: a thread takes a channel through all rows, run by run. */
#include "common.glsl"
#include "paged.glsl"

layout(constant_id = 1) const uint N_TAP = 2;
layout(constant_id = 2) const uint HAS_SILU = 1;

layout(push_constant) uniform Push {
    Floats x;
    Ints from, to;
    Floats y, taps, bias; /* bias may be null */
    Paged state;
    uint n, m;
} p;

void main()
{
    uint c = gl_GlobalInvocationID.x;
    if (c >= p.n)
        return;
    float past[N_TAP], tap[N_TAP]; /* the inputs of a row, the oldest first */
    for (uint j = 0; j < N_TAP; j++)
        tap[j] = p.taps.d[j * p.n + c];
    for (uint t = 0; t < p.m; t++) {
        if (t == 0 || p.to.d[t] != p.to.d[t - 1]) {
            int from = p.from.d[t];
            for (uint j = 0; j + 1 < N_TAP; j++)
                past[j + 1] = from < 0 ? 0.0 : Floats(part_address(p.state, uint(from), 0)).d[j * p.n + c];
        }
        for (uint j = 0; j + 1 < N_TAP; j++)
            past[j] = past[j + 1];
        past[N_TAP - 1] = p.x.d[t * p.n + c];
        precise float sum = is_null(p.bias) ? 0.0 : p.bias.d[c];
        for (uint j = 0; j < N_TAP; j++)
            sum = fma(tap[j], past[j], sum);
        p.y.d[t * p.n + c] = HAS_SILU != 0 ? sum * sigmoid(sum) : sum;
        if (t + 1 == p.m || p.to.d[t + 1] != p.to.d[t]) {
            Floats state = Floats(part_address(p.state, uint(p.to.d[t]), 0));
            for (uint j = 0; j + 1 < N_TAP; j++)
                state.d[j * p.n + c] = past[j + 1];
        }
    }
}
