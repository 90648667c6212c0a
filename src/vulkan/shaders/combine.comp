#version 460
#extension GL_GOOGLE_include_directive : require
/* COMBINE: a thread adds an element of a token's experts in the order of their ranks, then the shared one; with `total`
 * that is added to `residual`, too (COMBINE and ADD). */
#include "common.glsl"

layout(push_constant) uniform Push {
    Floats y, weights, shared_, shared_gate, out_, residual, total;
    uint n, k, m;
} p;

void main()
{
    uint i = gl_GlobalInvocationID.x, t = row_of_group();
    if (i >= p.n || t >= p.m)
        return;
    precise float sum = 0;
    for (uint r = 0; r < p.k; r++)
        sum = fma(is_null(p.weights) ? 1.0 : p.weights.d[t * p.k + r], p.y.d[(t * p.k + r) * p.n + i], sum);
    if (!is_null(p.shared_gate))
        sum = fma(p.shared_.d[t * p.n + i], sigmoid(p.shared_gate.d[t]), sum);
    else if (!is_null(p.shared_))
        sum += p.shared_.d[t * p.n + i];
    p.out_.d[t * p.n + i] = sum;
    if (!is_null(p.total))
        p.total.d[t * p.n + i] = p.residual.d[t * p.n + i] + sum;
}
