#version 460
#extension GL_GOOGLE_include_directive : require
/* EXPERTS: workgroup (g, i) computes rows 16 g of an expert's matrix for pair i (direct) or tile i of its pairs
 * (IS_SORTED, after sort.comp). A pair is a token's expert of some rank. (Down of direct dispatch is down.comp.)
 *
 * STEP: gate and up with the activation; where these are of two types, gate alone, then up with the activation of what
 * gate has left; down. */
#include "common.glsl"
#include "product.glsl"

layout(constant_id = 6) const uint STEP = 0;
layout(constant_id = 7) const uint IS_SORTED = 0;
layout(constant_id = 8) const uint ACTIVATION = 0;

const uint GATE_UP = 0, GATE = 1, UP = 2, DOWN = 3; /* as enum vk_expert_step */

layout(push_constant) uniform Push {
    Floats x;
    Ints ids, slots;
    Addresses addresses;     /* of each slot */
    Words sorted;            /* as in sort.comp */
    Floats weights;          /* of pairs, or null */
    Floats bias[2];          /* by expert, or null: of this step's matrices */
    Floats y;                /* by pair */
    uint off[2];             /* of the matrices in a slot, bytes */
    uint k, n_row, n_used;   /* n_used: pairs that share a row of x */
    uint n_all;              /* pairs of the operation */
} p;

shared float gates[TILE * ROWS];

/* The pairs of this workgroup: its expert, how many, and where they are listed. */
int expert;
uint n_pair, first_pair;

uint pair_at(uint t)
{
    return IS_SORTED != 0 ? p.sorted.d[1 + first_pair + min(t, n_pair - 1)] : row_of_group();
}

bool find_pairs()
{
    if (IS_SORTED == 0) {
        expert = p.ids.d[row_of_group()];
        n_pair = 1;
        return expert >= 0 && p.slots.d[expert] >= 0;
    }
    if (row_of_group() >= p.sorted.d[0])
        return false;
    uint at = 1 + p.n_all + 3 * row_of_group();
    expert = int(p.sorted.d[at]);
    first_pair = p.sorted.d[at + 1];
    n_pair = p.sorted.d[at + 2];
    return true;
}

void multiply_matrix(uint i)
{
    uvec2 slot = p.addresses.d[p.slots.d[expert]];
    slot = address_at(slot, p.off[i], 1);
    multiply(Words(address_at(slot, gl_WorkGroupID.x, 4 * group_dwords(p.k))), 0, p.x, p.k);
}

/* Element e of a product, with its bias and, for gate and up, its pair's weight. */
float finished(uint e, uint i, uint row, uint pair)
{
    precise float y = products[e];
    if (!is_null(p.bias[i]))
        y += p.bias[i].d[uint(expert) * p.n_row + row];
    if (STEP != DOWN && !is_null(p.weights))
        y *= p.weights.d[pair];
    return y;
}

void main()
{
    if (!find_pairs())
        return;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = pair_at(t) / p.n_used * p.k;
    if (ROUNDS_HERE)
        stage_runs(p.x);
    uint i = 0;
    [[dont_unroll]] while (true) {
        multiply_matrix(i);
        if (STEP != GATE_UP || i == 1)
            break;
        for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
            uint row = gl_WorkGroupID.x * ROWS + e % ROWS;
            gates[e] = row < p.n_row ? finished(e, 0, row, pair_at(e / ROWS)) : 0.0;
        }
        i = 1;
    }
    for (uint e = gl_LocalInvocationID.x; e < TILE * ROWS; e += N_THREAD) {
        uint row = gl_WorkGroupID.x * ROWS + e % ROWS, t = e / ROWS;
        if (row >= p.n_row || t >= n_pair)
            continue;
        uint pair = pair_at(t), at = pair * p.n_row + row;
        precise float y = finished(e, i, row, pair);
        if (STEP == GATE_UP)
            y = activate(ACTIVATION, gates[e], y);
        else if (STEP == UP)
            y = activate(ACTIVATION, p.y.d[at], y);
        p.y.d[at] = y;
    }
}
