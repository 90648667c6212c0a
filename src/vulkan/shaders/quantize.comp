#version 460
#extension GL_GOOGLE_include_directive : require
/* Rounds rows of activations for integer products: workgroup (g, t) has runs 64 g and on of row t, and of those that are
 * as many rows farther as there are workgroups. */
#include "common.glsl"
#include "types.glsl"
#include "integers.glsl"

layout(constant_id = 2) const uint BY_FOUR = 0;

layout(push_constant) uniform Push {
    Floats x;
    Words runs;
    uint k, m;
} p;

const uint N_THREAD = 64;
shared float run_most[N_THREAD];

vec4 load_x(uint at)
{
    if (BY_FOUR != 0)
        return uintBitsToFloat(four_at(uvec2(p.x), at));
    return vec4(p.x.d[at], p.x.d[at + 1], p.x.d[at + 2], p.x.d[at + 3]);
}

void put_half(uint at, uvec4 q)
{
    [[unroll]] for (uint i = 0; i < 4; i++)
        p.runs.d[at + i] = q[i];
}

void put_run(uint at, vec4 x[2][4], float most)
{
    uvec4 low = rounded_sixteen(x[0], inverse_of(most)), high = rounded_sixteen(x[1], inverse_of(most));
    put_half(at, low);
    put_half(at + 4, high);
    p.runs.d[at + 8] = floatBitsToUint(scale_of(most));
    p.runs.d[at + 9] = floatBitsToUint(float(sum_of_bytes(low) + sum_of_bytes(high)));
}

void main()
{
    uint tid = gl_LocalInvocationID.x, run = gl_WorkGroupID.x * N_THREAD + tid, n_run = p.k / RUN;
    for (uint t = gl_WorkGroupID.y; t < p.m; t += gl_NumWorkGroups.y) {
        vec4 x[2][4];
        [[unroll]] for (uint i = 0; i < 8; i++)
            x[i / 4][i % 4] = run < n_run ? load_x(t * p.k + run * RUN + 4 * i) : vec4(0);
        float most = max(largest(x[0]), largest(x[1]));
        if (BLOCK_RUNS > 1) {
            barrier(); /* the row before is done */
            run_most[tid] = most;
            barrier();
            for (uint i = tid / BLOCK_RUNS * BLOCK_RUNS; i < (tid / BLOCK_RUNS + 1) * BLOCK_RUNS; i++)
                most = max(most, run_most[i]);
        }
        if (run < n_run)
            put_run((t * n_run + run) * RUN_FOURS * 4, x, most);
    }
}
