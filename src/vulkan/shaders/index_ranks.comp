#version 460
#extension GL_GOOGLE_include_directive : require
/* INDEX, first part: a workgroup of 64 threads takes a token (y) and a page of positions (x), a thread a position. A rank
 * stands for a score, in the same order; NaN is the lowest. Tokens that see no more positions than are chosen have none.
 *
 * With PAGES blocks of so many pages are chosen: a workgroup takes one (x), which has a rank for each head, that of the
 * largest product with a position of it. Blocks that are seen in any case are above all scores. */
#include "common.glsl"
#include "cache.glsl"
#include "counters.glsl"

layout(constant_id = 2) const uint DIM = 1;
layout(constant_id = 3) const uint N_HEAD = 1;
layout(constant_id = 4) const uint COUNTER = 0; /* of positions (counters.glsl) */
layout(constant_id = 5) const uint PAGES = 0;   /* of a block; 0: positions are chosen */

const uint PAGE = 64;

layout(push_constant) uniform Push {
    Floats q, weights; /* weights may be null: 1 */
    Ints pos, table, pages;
    Words ranks; /* [workgroups in x * PAGE] for each token; of blocks [workgroups in x] for each of its heads */
    Paged k;
    uint m, n_chosen;
    uint ratio;   /* positions of the text for each of the cache's, which are what is meant here */
    uint n_local; /* blocks that are seen in any case */
} p;

shared float query[DIM], largest[PAGE];

uint rank_of(float score)
{
    if (isnan(score))
        return 0;
    uint bits = floatBitsToUint(score == 0.0 ? 0.0 : score);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

uvec2 page_keys(uint t, uint page)
{
    return part_address(p.k, uint(p.pages.d[p.table.d[t] + int(page)]), 0);
}

void load_query(uint t, uint head)
{
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < DIM; i += PAGE)
        query[i] = p.q.d[(t * N_HEAD + head) * DIM + i];
    barrier();
}

/* The product of the query and the thread's key. */
float product(uvec2 keys)
{
    precise float y = 0;
    for (uint i = 0; i < DIM; i++)
        y = fma(query[i], load(keys, DIM, gl_LocalInvocationID.x, i), y);
    return y;
}

void rank_position(uint t, uint page)
{
    uvec2 keys = page_keys(t, page);
    precise float sum = 0;
    for (uint head = 0; head < N_HEAD; head++) {
        load_query(t, head);
        float score = product(keys);
        sum = fma(is_null(p.weights) ? 1.0 : p.weights.d[t * N_HEAD + head], score < 0.0 ? 0.0 : score, sum);
    }
    p.ranks.d[(t * gl_NumWorkGroups.x + page) * PAGE + gl_LocalInvocationID.x] = rank_of(sum);
}

/* The largest of the threads' numbers, for the first thread; none of them is a NaN. */
float find_largest(float x)
{
    uint tid = gl_LocalInvocationID.x;
    largest[tid] = x;
    for (uint step = PAGE / 2; step > 0; step /= 2) {
        barrier();
        if (tid < step)
            largest[tid] = max(largest[tid], largest[tid + step]);
    }
    return largest[tid];
}

/* n: positions that token t sees. */
void rank_block(uint t, uint block, uint n)
{
    const float lowest = uintBitsToFloat(0xff800000u);
    uint tid = gl_LocalInvocationID.x, first = block * PAGES, end = min(first + PAGES, (n + PAGE - 1) / PAGE);
    bool is_local = block + p.n_local >= (n + PAGES * PAGE - 1) / (PAGES * PAGE);
    for (uint head = 0; head < N_HEAD; head++) {
        float most = lowest;
        load_query(t, head);
        for (uint page = first; page < end; page++) {
            float y = product(page_keys(t, page));
            most = page * PAGE + tid < n && y > most ? y : most;
        }
        most = find_largest(most);
        if (tid == 0)
            p.ranks.d[(t * N_HEAD + head) * gl_NumWorkGroups.x + block] = is_local ? 0xffffffffu : rank_of(most);
    }
}

void main()
{
    uint t = gl_WorkGroupID.y, part = gl_WorkGroupID.x, n = (uint(p.pos.d[t]) + 1) / p.ratio;
    uint n_position = PAGES == 0 ? 1 : PAGES * PAGE, n_rank = PAGES == 0 ? PAGE : 1; /* of what is chosen; of a workgroup */
    if ((n + n_position - 1) / n_position <= p.n_chosen || part * n_rank * n_position >= n)
        return;
    if (gl_LocalInvocationID.x == 0 && part == 0) /* of a text's positions each is read for its last token */
        count_work(COUNTER, n, t + 1 == p.m || p.table.d[t + 1] != p.table.d[t] ? n : 0);
    if (PAGES == 0)
        rank_position(t, part);
    else
        rank_block(t, part, n);
}
