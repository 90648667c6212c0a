#version 460
#extension GL_GOOGLE_include_directive : require
/* Sorts pairs of a token and an expert by expert, in one workgroup, and cuts each expert's into tiles. An expert's
 * pairs come in any order, as no result depends on it. */
#include "common.glsl"

layout(constant_id = 1) const uint N = 1; /* experts */
layout(constant_id = 2) const uint TILE = 1;

layout(push_constant) uniform Push {
    Ints ids, slots;
    Words sorted;   /* the number of tiles; pairs [n_pair]; tiles of expert, first pair, pairs */
    Words counter;  /* as in counters.glsl: pairs computed, and experts that these were of, as low parts */
    uint n_pair;
} p;

shared uint count[N], next[N];

void main()
{
    uint tid = gl_LocalInvocationID.x;
    for (uint i = tid; i < N; i += gl_WorkGroupSize.x)
        count[i] = 0;
    barrier();
    for (uint i = tid; i < p.n_pair; i += gl_WorkGroupSize.x) {
        int id = p.ids.d[i];
        if (id >= 0 && p.slots.d[id] >= 0)
            atomicAdd(count[id], 1);
    }
    barrier();
    if (tid == 0) {
        uint first = 0, n_tile = 0, n_expert = 0;
        for (uint e = 0; e < N; e++) {
            next[e] = first;
            n_expert += count[e] > 0 ? 1 : 0;
            for (uint i = 0; i < count[e]; i += TILE) {
                uint at = 1 + p.n_pair + 3 * n_tile++;
                p.sorted.d[at] = e;
                p.sorted.d[at + 1] = first + i;
                p.sorted.d[at + 2] = min(count[e] - i, TILE);
            }
            first += count[e];
        }
        p.sorted.d[0] = n_tile;
        p.counter.d[0] += first;
        p.counter.d[2] += n_expert;
    }
    barrier();
    for (uint i = tid; i < p.n_pair; i += gl_WorkGroupSize.x) {
        int id = p.ids.d[i];
        if (id >= 0 && p.slots.d[id] >= 0)
            p.sorted.d[1 + atomicAdd(next[id], 1)] = i;
    }
}
