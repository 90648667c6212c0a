#version 460
#extension GL_GOOGLE_include_directive : require
/* ADD, ACT_MUL, SCALE, SOFTCAP, CLAMP: a thread computes an element. */
#include "common.glsl"

layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const uint ACTIVATION = 0;
const uint ADD = 0, ACT_MUL = 1, SCALE = 2, SOFTCAP = 3, CLAMP = 4; /* as enum vk_elements */

layout(push_constant) uniform Push {
    Floats a, b, y; /* b of SCALE: one number, or null */
    uint n;
    uint n_each; /* ACT_MUL: elements of b that one of a is for */
    float scale; /* ACT_MUL: the limit */
    float up_limit;
} p;

void main()
{
    uint i = gl_WorkGroupID.y * (gl_NumWorkGroups.x * gl_WorkGroupSize.x) + gl_GlobalInvocationID.x;
    if (i >= p.n)
        return;
    precise float a = p.a.d[KIND == ACT_MUL ? i / p.n_each : i], y;
    if (KIND == ADD) {
        y = a + p.b.d[i];
    } else if (KIND == ACT_MUL) {
        y = activate(ACTIVATION, p.scale, p.up_limit, a, p.b.d[i]);
    } else if (KIND == SCALE) {
        float scale = is_null(p.b) ? p.scale : p.scale * p.b.d[0];
        y = a * scale;
    } else if (KIND == CLAMP) {
        y = a < -p.scale ? -p.scale : a > p.scale ? p.scale : a;
    } else {
        y = p.scale * tanh_of(a / p.scale);
    }
    p.y.d[i] = y;
}
