#version 460
#extension GL_GOOGLE_include_directive : require
/* LAYER_NORM: a workgroup of 128 threads takes one of m rows of n elements. */
#include "common.glsl"
#include "norm.glsl"

layout(push_constant) uniform Push {
    Floats x, w, bias, y; /* w and bias may be null */
    uint n;
    float eps;
    uint m;
} p;

void main()
{
    uint tid = gl_LocalInvocationID.x, t = row_of_group(), at = t * p.n;
    if (t >= p.m)
        return;
    precise float sum = 0, squares = 0;
    for (uint i = tid; i < p.n; i += NORM_THREADS)
        sum += p.x.d[at + i];
    precise float mean = tree_sum_again(sum) / float(p.n);
    for (uint i = tid; i < p.n; i += NORM_THREADS) {
        precise float x = p.x.d[at + i] - mean;
        squares = fma(x, x, squares);
    }
    precise float s = 1.0 / sqrt(tree_sum_again(squares) / float(p.n) + p.eps);
    for (uint i = tid; i < p.n; i += NORM_THREADS) {
        precise float x = p.x.d[at + i] - mean;
        float y = normed(x, s, p.w, i);
        p.y.d[at + i] = is_null(p.bias) ? y : y + p.bias.d[i];
    }
}
