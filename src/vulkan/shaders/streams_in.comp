#version 460
#extension GL_GOOGLE_include_directive : require
/* STREAMS_IN: a workgroup of 128 threads takes a token (row_of_group). What the token's mix becomes lies in shared memory
 * until all of it is there; each number is one thread's. */
#include "common.glsl"

layout(constant_id = 1) const uint N_STREAM = 1;
layout(constant_id = 2) const uint N_PART = 1; /* numbers of a mix for each stream: 1, 2 or 2 + N_STREAM */
layout(constant_id = 3) const uint N_ITERATION = 0;

const uint N_THREAD = 128, N_PAIR = N_STREAM * N_STREAM;

layout(push_constant) uniform Push {
    Floats x, mix, y;   /* [N_STREAM * n], [k], [n] for each token */
    Floats scale, base; /* [1 to 3], [k] */
    uint n, m;
    float eps, magnitude;
} p;

shared float by[N_STREAM * (2 + N_STREAM)]; /* what x, y of STREAMS_OUT, and the streams there are multiplied by */
shared float pairs[N_PAIR];                 /* the last of these, as they were */

/* Element `first` and those `step` apart, N_STREAM of them, in that order. */
float sum_of(uint first, uint step)
{
    precise float sum = 0;
    for (uint i = 0; i < N_STREAM; i++)
        sum += pairs[first + i * step];
    return sum;
}

/* Weights from each stream to each: the softmax of rows, then Sinkhorn's algorithm on columns and rows by turns. */
void balance()
{
    uint tid = gl_LocalInvocationID.x, row = tid / N_STREAM * N_STREAM, column = tid % N_STREAM, at = 2 * N_STREAM + tid;
    bool is_mine = tid < N_PAIR;
    precise float x = 0;
    if (is_mine)
        pairs[tid] = x = by[at];
    barrier();
    float most = x;
    for (uint i = 0; is_mine && i < N_STREAM; i++)
        most = max(most, pairs[row + i]);
    barrier();
    if (is_mine)
        pairs[tid] = x = exp_of(x - most);
    barrier();
    if (is_mine)
        x = x / sum_of(row, 1) + p.eps;
    for (uint i = 0; i < 2 * N_ITERATION - 1; i++) {
        barrier();
        if (is_mine)
            pairs[tid] = x;
        barrier();
        if (is_mine)
            x = x / ((i % 2 == 0 ? sum_of(column, N_STREAM) : sum_of(row, 1)) + p.eps);
    }
    if (is_mine)
        by[at] = x;
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = row_of_group(), n_mix = N_STREAM * N_PART;
    if (t >= p.m)
        return;
    if (tid < n_mix) {
        uint part = min(tid / N_STREAM, 2);
        precise float x = fma(p.mix.d[t * n_mix + tid], p.scale.d[part], p.base.d[tid]);
        if (part == 0)
            x = sigmoid(x) + p.eps;
        else if (part == 1)
            x = sigmoid(x) * p.magnitude + (N_PART > 2 ? 0.0 : p.eps);
        by[tid] = x;
    }
    barrier();
    if (N_PART > 2)
        balance();
    barrier();
    if (tid < n_mix)
        p.mix.d[t * n_mix + tid] = by[tid];
    for (uint i = tid; i < p.n; i += N_THREAD) {
        precise float y = 0;
        for (uint s = 0; s < N_STREAM; s++)
            y = fma(by[s], p.x.d[(t * N_STREAM + s) * p.n + i], y);
        p.y.d[t * p.n + i] = y;
    }
}
