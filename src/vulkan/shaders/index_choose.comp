#version 460
#extension GL_GOOGLE_include_directive : require
/* INDEX, second part: a workgroup of 256 threads writes a list (x) of a token (y), the positions or blocks that are chosen,
 * ascending: all that it sees, and -1, or those with the largest ranks, of equal ones the first. The least rank that is
 * chosen is found digit by digit, the highest first. Where SPREADS, an entry of a compressed cache is put out as its
 * positions, and those behind the last entry follow. */
#include "common.glsl"

layout(constant_id = 1) const bool SPREADS = false;

const uint N_THREAD = 256, DIGIT_BITS = 8, N_DIGIT = 256;
const uint RUN = 16; /* consecutive ranks of a thread */

layout(push_constant) uniform Push {
    Ints pos;
    Words ranks; /* [stride] for each list of each token */
    Ints chosen; /* [n_chosen] likewise; where SPREADS [(n_chosen + 1) * ratio - 1] */
    uint stride, n_chosen;
    uint ratio, more; /* a token at pos chooses from (pos + more) / ratio */
} p;

shared uint counts[N_DIGIT], sums[N_THREAD], found_digit, found_left;

/* The least rank, and how many that equal it are chosen. */
uvec2 find_least(uint at, uint n)
{
    uint tid = gl_LocalInvocationID.x, least = 0, known = 0, left = p.n_chosen;
    for (int shift = 32 - int(DIGIT_BITS); shift >= 0; shift -= int(DIGIT_BITS)) {
        counts[tid] = 0;
        barrier();
        for (uint i = tid; i < n; i += N_THREAD) {
            uint rank = p.ranks.d[at + i];
            if ((rank & known) == least)
                atomicAdd(counts[rank >> shift & (N_DIGIT - 1)], 1);
        }
        barrier();
        if (tid == 0) {
            uint digit = N_DIGIT - 1;
            for (; counts[digit] < left; digit--)
                left -= counts[digit];
            found_digit = digit;
            found_left = left;
        }
        barrier();
        left = found_left;
        least |= found_digit << shift;
        known |= (N_DIGIT - 1) << shift;
        barrier();
    }
    return uvec2(least, left);
}

/* The sum of x over this thread and those before it. x: a number below 2^16 in each half. */
uint add_before(uint x)
{
    uint tid = gl_LocalInvocationID.x;
    sums[tid] = x;
    for (uint step = 1; step < N_THREAD; step *= 2) {
        barrier();
        uint more = tid >= step ? sums[tid - step] : 0;
        barrier();
        sums[tid] += more;
    }
    barrier();
    return sums[tid];
}

/* Puts x in place i of the list that begins at `to`. */
void put(uint to, uint i, uint x)
{
    if (!SPREADS) {
        p.chosen.d[to + i] = int(x);
        return;
    }
    for (uint j = 0; j < p.ratio; j++)
        p.chosen.d[to + i * p.ratio + j] = int(x * p.ratio + j);
}

/* Ends the list of a token at pos, which sees n entries and has n_put listed: puts the positions behind the last entry,
 * and then the largest integer. */
void put_rest(uint to, uint n_put, uint n, uint pos)
{
    uint first = n * p.ratio, n_rest = pos + 1 - first, end = (p.n_chosen + 1) * p.ratio - 1;
    for (uint i = n_put * p.ratio + gl_LocalInvocationID.x; i < end; i += N_THREAD) {
        uint j = i - n_put * p.ratio;
        p.chosen.d[to + i] = j < n_rest ? int(first + j) : 0x7fffffff;
    }
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y, list = t * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint pos = uint(p.pos.d[t]), n = (pos + p.more) / p.ratio;
    uint at = list * p.stride, to = list * (SPREADS ? (p.n_chosen + 1) * p.ratio - 1 : p.n_chosen);
    if (SPREADS)
        put_rest(to, min(n, p.n_chosen), n, pos);
    if (n <= p.n_chosen) {
        for (uint i = tid; i < (SPREADS ? n : p.n_chosen); i += N_THREAD)
            put(to, i, i < n ? i : 0xffffffffu);
        return;
    }
    uvec2 least = find_least(at, n);
    uint n_above = 0, n_equal = 0; /* in the parts before, of any number of equal ones */
    for (uint first = 0; first < n; first += N_THREAD * RUN) {
        uint from = first + tid * RUN, end = min(from + RUN, n), mine = 0;
        for (uint i = from; i < end; i++) {
            uint rank = p.ranks.d[at + i];
            mine += rank > least.x ? 1u << 16 : uint(rank == least.x);
        }
        uint before = add_before(mine) - mine;
        uint above = n_above + (before >> 16), equal = n_equal + (before & 0xffffu);
        for (uint i = from; i < end; i++) {
            uint rank = p.ranks.d[at + i];
            above += uint(rank > least.x);
            equal += uint(rank == least.x);
            if (rank > least.x || (rank == least.x && equal <= least.y))
                put(to, above + min(equal, least.y) - 1, i);
        }
        uint all = sums[N_THREAD - 1];
        n_above += all >> 16;
        n_equal += all & 0xffffu;
        barrier();
    }
}
