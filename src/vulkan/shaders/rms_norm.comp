#version 460
#extension GL_GOOGLE_include_directive : require
/* RMS_NORM: a workgroup takes n elements of one of m rows; with a gate, ACT_MUL of that and the row. */
#include "common.glsl"
#include "norm.glsl"

layout(constant_id = 1) const uint ACTIVATION = 0;

layout(push_constant) uniform Push {
    Floats x, w, bias, gate, y; /* w and bias may be null; gate: like y, or null */
    uint n;
    float eps;
    uint m, w_step; /* from a part's weights to the next one's of the row: 0 or n */
} p;

void main()
{
    uint tid = gl_LocalInvocationID.x, t = row_of_group(), at = (t * gl_NumWorkGroups.x + gl_WorkGroupID.x) * p.n;
    if (t >= p.m)
        return;
    precise float sum = 0;
    for (uint i = 4 * tid; i < p.n; i = norm_next(i))
        sum = fma(p.x.d[at + i], p.x.d[at + i], sum);
    float s = norm_scale(sum, p.n, p.eps);
    for (uint i = tid; i < p.n; i += NORM_THREADS) {
        precise float y = normed(p.x.d[at + i], s, p.w, gl_WorkGroupID.x * p.w_step + i);
        if (!is_null(p.bias))
            y = y + p.bias.d[i];
        p.y.d[at + i] = is_null(p.gate) ? y : activate(ACTIVATION, 0.0, 0.0, p.gate.d[at + i], y);
    }
}
