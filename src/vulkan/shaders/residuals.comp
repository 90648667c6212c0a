#version 460
#extension GL_GOOGLE_include_directive : require
/* RESIDUALS: a workgroup of 128 threads takes a token (row_of_group). A thread has the same elements in all residuals, so
 * that y may be x. */
#include "common.glsl"
#include "norm.glsl"

const uint MAX_RESIDUAL = 65; /* OP_MAX_BANK, and x */

layout(push_constant) uniform Push {
    Floats x, bank, w, y; /* [n], [n_bank * n], [n], [n] */
    uint n, n_bank, n_banked, m;
    float eps;
} p;

shared float scores[MAX_RESIDUAL], by[MAX_RESIDUAL];

float element(uint t, uint r, uint i)
{
    return r < p.n_banked ? p.bank.d[(t * p.n_bank + r) * p.n + i] : p.x.d[t * p.n + i];
}

float score(uint t, uint r)
{
    precise float squares = 0, products = 0;
    for (uint i = gl_LocalInvocationID.x; i < p.n; i += NORM_THREADS) {
        float x = element(t, r, i);
        squares = fma(x, x, squares);
        products = fma(x, p.w.d[i], products);
    }
    precise float product = tree_sum_again(products), s = 1.0 / sqrt(tree_sum_again(squares) / float(p.n) + p.eps);
    return product * s;
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = row_of_group();
    if (t >= p.m)
        return;
    for (uint r = 0; r <= p.n_banked; r++) {
        float s = score(t, r);
        if (tid == 0)
            scores[r] = s;
    }
    barrier();
    if (tid <= p.n_banked) {
        precise float most = scores[0], sum = 0;
        for (uint r = 1; r <= p.n_banked; r++)
            most = max(most, scores[r]);
        for (uint r = 0; r <= p.n_banked; r++)
            sum += exp_of(scores[r] - most);
        by[tid] = exp_of(scores[tid] - most) / sum;
    }
    barrier();
    for (uint i = tid; i < p.n; i += NORM_THREADS) {
        precise float y = 0;
        for (uint r = 0; r <= p.n_banked; r++)
            y = fma(by[r], element(t, r, i), y);
        p.y.d[t * p.n + i] = y;
    }
}
