#version 460
#extension GL_GOOGLE_include_directive : require
/* DELTA and SSM: a workgroup of 64 threads takes DIMS value dimensions of a head through all rows, run by run; each dimension
 * has 64 / DIMS threads, whose sums are added in ascending order. */
#include "common.glsl"
#include "counters.glsl"
#include "paged.glsl"

layout(constant_id = 1) const uint DK = 1;
layout(constant_id = 2) const uint DIMS = 16;
layout(constant_id = 3) const uint COUNTER = 0;  /* of states that are read and written (counters.glsl) */
layout(constant_id = 4) const uint IS_SPACE = 0; /* SSM */
layout(constant_id = 5) const uint N_DECAY = 1;  /* of a head: one, or one for each key dimension */
layout(constant_id = 6) const uint IS_SELECTIVE = 0; /* SSM, each value dimension with steps of its own; of one head */
layout(constant_id = 7) const uint IS_FIXED = 0;     /* SSM without alpha: steps are 1 */

layout(push_constant) uniform Push {
    Floats x, qk, alpha, beta; /* qk: x, or apart where x is v alone; SSM: beta is the heads' skip */
    Ints from, to;
    Floats y, dt, a;
    Paged state;
    uint n_head_k, n_head_v, dv, is_grouped, m;
    float eps, min_log_decay;
} p;

const uint N_THREAD = 64, LANES = N_THREAD / DIMS;

shared float state[DIMS * DK], qk[2 * DK], sums[2 * N_THREAD], decays[N_DECAY];

/* q and k of a key head at row t; DELTA's are made of length 1, q also divided by sqrt(DK). */
void load_qk(uint t, uint head_k)
{
    uint tid = gl_LocalInvocationID.x, row = t * (2 * p.n_head_k * DK + (IS_SELECTIVE != 0 ? 0 : p.n_head_v * p.dv));
    for (uint i = tid; i < 2 * DK; i += N_THREAD)
        qk[i] = p.qk.d[row + (i / DK * p.n_head_k + head_k) * DK + i % DK];
    barrier();
    if (IS_SPACE != 0)
        return;
    for (uint w = 0; w < 2; w++) {
        precise float sum = 0;
        for (uint i = tid; i < DK; i += N_THREAD)
            sum = fma(qk[w * DK + i], qk[w * DK + i], sum);
        sums[w * N_THREAD + tid] = sum;
    }
    for (uint width = N_THREAD / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width) {
            sums[tid] += sums[tid + width];
            sums[N_THREAD + tid] += sums[N_THREAD + tid + width];
        }
    }
    barrier();
    precise float q_scale = 1.0 / (sqrt(sums[0] + p.eps) * sqrt(float(DK))), k_scale = 1.0 / sqrt(sums[N_THREAD] + p.eps);
    for (uint i = tid; i < 2 * DK; i += N_THREAD)
        qk[i] *= i < DK ? q_scale : k_scale;
    barrier();
}

/* One of a head's decays at row t, and of SSM the softplus that it is made of. */
float decay_of(uint t, uint head, uint i, out float step_size)
{
    uint at = head * N_DECAY + i;
    if (IS_FIXED != 0) {
        step_size = 1.0;
        return exp_of(p.a.d[head]);
    }
    step_size = p.alpha.d[t * p.n_head_v * N_DECAY + at] + p.dt.d[at];
    if (p.min_log_decay < 0.0)
        return exp_of(p.min_log_decay * sigmoid(p.a.d[head] * step_size));
    step_size = softplus(step_size);
    precise float decay = exp_of(step_size * p.a.d[head]);
    return decay;
}

/* The decay of element i of a value dimension's state, where the dimension has a step of its own. */
float selective_decay(float step_size, uint dim, uint i)
{
    precise float decay = exp_of(step_size * p.a.d[dim * DK + i]);
    return decay;
}

/* The sum of what the threads of this thread's dimension have. */
float add_lanes(float x)
{
    uint tid = gl_LocalInvocationID.x, first = tid / LANES * LANES;
    barrier();
    sums[tid] = x;
    barrier();
    precise float sum = 0;
    for (uint i = 0; i < LANES; i++)
        sum += sums[first + i];
    return sum;
}

void main()
{
    uint tid = gl_LocalInvocationID.x, head = gl_WorkGroupID.y, lane = tid % LANES, d = tid / LANES;
    uint dim = gl_WorkGroupID.x * DIMS + d, ratio = p.n_head_v / p.n_head_k;
    uint head_k = p.is_grouped != 0 ? head / ratio : head % p.n_head_k;
    bool is_there = dim < p.dv;
    for (uint t = 0; t < p.m; t++) {
        if (t == 0 || p.to.d[t] != p.to.d[t - 1]) {
            int from = p.from.d[t];
            if (tid == 0 && gl_WorkGroupID.x == 0 && head == 0)
                count_work(COUNTER, 0, 1);
            for (uint j = lane; j < DK; j += LANES)
                state[d * DK + j] = from < 0 || !is_there
                                        ? 0.0
                                        : Floats(part_address(p.state, uint(from), head)).d[dim * DK + j];
        }
        float step_size = 0.0, decay = 1.0;
        if (IS_SELECTIVE != 0 && is_there)
            step_size = softplus(p.alpha.d[t * p.dv + dim] + p.dt.d[dim]);
        else if (IS_SELECTIVE == 0 && N_DECAY == 1)
            decay = decay_of(t, head, 0, step_size);
        for (uint j = tid; N_DECAY > 1 && j < DK; j += N_THREAD)
            decays[j] = decay_of(t, head, j, step_size);
        load_qk(t, head_k);
        uint gate = t * p.n_head_v + head;
        precise float known = 0, o = 0;
        for (uint j = lane; j < DK; j += LANES) {
            if (IS_SELECTIVE != 0 && is_there)
                decay = selective_decay(step_size, dim, j);
            state[d * DK + j] *= N_DECAY > 1 ? decays[j] : decay;
            known = fma(state[d * DK + j], qk[DK + j], known);
        }
        if (IS_SPACE == 0)
            known = add_lanes(known);
        uint before = IS_SELECTIVE != 0 ? 0 : 2 * p.n_head_k * DK;
        uint row = t * (before + p.n_head_v * p.dv) + before + head * p.dv;
        precise float v = is_there ? p.x.d[row + dim] : 0.0;
        precise float learnt = IS_SPACE != 0 ? v * step_size : (v - known) * sigmoid(p.beta.d[gate]);
        for (uint j = lane; j < DK; j += LANES) {
            state[d * DK + j] = fma(qk[DK + j], learnt, state[d * DK + j]);
            o = fma(state[d * DK + j], qk[j], o);
        }
        o = add_lanes(o);
        if (lane == 0 && is_there)
            p.y.d[gate * p.dv + dim] = IS_SPACE != 0 ? fma(p.beta.d[IS_SELECTIVE != 0 ? dim : head], v, o) : o;
        if (is_there && (t + 1 == p.m || p.to.d[t + 1] != p.to.d[t]))
            for (uint j = lane; j < DK; j += LANES)
                Floats(part_address(p.state, uint(p.to.d[t]), head)).d[dim * DK + j] = state[d * DK + j];
        barrier();
    }
}
