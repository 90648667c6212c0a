#version 460
#extension GL_GOOGLE_include_directive : require
/* INDEX, first part: a workgroup of 64 threads takes a token (y) and a block of positions (x), a thread a position. A rank
 * stands for a score, in the same order; NaN is the lowest. Tokens that see no more positions than are chosen have none.
 */
#include "common.glsl"
#include "cache.glsl"
#include "counters.glsl"

layout(constant_id = 2) const uint DIM = 1;
layout(constant_id = 3) const uint N_HEAD = 1;
layout(constant_id = 4) const uint COUNTER = 0; /* of positions (counters.glsl) */

const uint BLOCK = 64;

layout(push_constant) uniform Push {
    Floats q, weights;
    Ints pos, table, pages;
    Words ranks; /* [workgroups in x * BLOCK] for each token */
    Paged k;
    uint m, n_chosen;
    uint ratio; /* positions of the text for each of the cache's, which are what is meant here */
} p;

shared float query[DIM];

uint rank_of(float score)
{
    if (isnan(score))
        return 0;
    uint bits = floatBitsToUint(score == 0.0 ? 0.0 : score);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y, block = gl_WorkGroupID.x;
    uint n = (uint(p.pos.d[t]) + 1) / p.ratio;
    if (n <= p.n_chosen || block * BLOCK >= n)
        return;
    if (tid == 0 && block == 0) /* of a text's positions each is read for its last token */
        count_work(COUNTER, n, t + 1 == p.m || p.table.d[t + 1] != p.table.d[t] ? n : 0);
    uvec2 keys = part_address(p.k, uint(p.pages.d[p.table.d[t] + int(block)]), 0);
    precise float sum = 0;
    for (uint head = 0; head < N_HEAD; head++) {
        barrier();
        for (uint i = tid; i < DIM; i += BLOCK)
            query[i] = p.q.d[(t * N_HEAD + head) * DIM + i];
        barrier();
        precise float score = 0;
        for (uint i = 0; i < DIM; i++)
            score = fma(query[i], load(keys, DIM, tid, i), score);
        sum = fma(p.weights.d[t * N_HEAD + head], score < 0.0 ? 0.0 : score, sum);
    }
    p.ranks.d[(t * gl_NumWorkGroups.x + block) * BLOCK + tid] = rank_of(sum);
}
