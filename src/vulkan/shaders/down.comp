#version 460
#extension GL_GOOGLE_include_directive : require
/* The last step of EXPERTS in direct dispatch: workgroup (g, i) computes rows 16 g of an expert's down matrix for pair
 * i, a token's expert of some rank. With `out_` the last workgroup of a token's rows adds its experts in the order of
 * their ranks, then the shared one (COMBINE); with `total` that is added to `residual` (ADD). */
#include "common.glsl"

const uint N_PART = 1;
#include "product.glsl"
#include "done.glsl"

layout(push_constant) uniform Push {
    Floats x; /* [k] for each pair */
    Ints ids, slots;
    Addresses addresses; /* of each slot */
    Words counter;       /* as in sort.comp */
    Floats bias;         /* by expert, or null */
    SharedFloats y;      /* [n_row] for each pair */
    Floats weights;      /* of pairs, or null: 1 */
    Floats shared_, shared_gate, out_, residual, total;
    SharedWords done; /* a counter for each token's groups of rows */
    uint off;         /* of the matrix in a slot, bytes */
    uint k, n_row, n_used;
} p;

shared bool is_repeated;

/* Counts the pair, and its expert if no pair before names it. */
void count(int expert)
{
    uint tid = gl_LocalInvocationID.x;
    if (gl_WorkGroupID.x != 0)
        return;
    is_repeated = false;
    barrier();
    for (uint i = tid; i < gl_WorkGroupID.y; i += N_THREAD)
        if (p.ids.d[i] == expert)
            is_repeated = true;
    barrier();
    if (tid != 0)
        return;
    atomicAdd(p.counter.d[0], 1);
    if (!is_repeated)
        atomicAdd(p.counter.d[2], 1);
}

void stage_row()
{
    if (ROUNDS_HERE)
        stage_runs(p.x, x_at[0], 1.0, Floats(uvec2(0)), Floats(uvec2(0)), p.k);
}

void multiply_expert(int expert, int slot, uint row)
{
    uint tid = gl_LocalInvocationID.x, pair = gl_WorkGroupID.y;
    Words w = Words(
        address_at(address_at(p.addresses.d[slot], p.off, 1), gl_WorkGroupID.x, 4 * group_dwords(p.k)));
    x_at[0] = pair * p.k;
    multiply(w, 0, p.x, p.k);
    if (tid >= ROWS || row >= p.n_row)
        return;
    precise float y = products[tid];
    if (!is_null(p.bias))
        y += p.bias.d[uint(expert) * p.n_row + row];
    p.y.d[pair * p.n_row + row] = y;
}

void combine(uint t, uint row)
{
    uint at = t * p.n_row + row;
    precise float sum = 0;
    for (uint r = t * p.n_used; r < (t + 1) * p.n_used; r++)
        sum = fma(is_null(p.weights) ? 1.0 : p.weights.d[r], p.y.d[r * p.n_row + row], sum);
    if (!is_null(p.shared_gate))
        sum = fma(p.shared_.d[at], sigmoid(p.shared_gate.d[t]), sum);
    else if (!is_null(p.shared_))
        sum += p.shared_.d[at];
    p.out_.d[at] = sum;
    if (!is_null(p.total))
        p.total.d[at] = p.residual.d[at] + sum;
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y / p.n_used, row = gl_WorkGroupID.x * ROWS + tid;
    int expert = p.ids.d[gl_WorkGroupID.y], slot = expert < 0 ? -1 : p.slots.d[expert];
    if (slot >= 0) {
        count(expert);
        multiply_expert(expert, slot, row);
    }
    if (is_null(p.out_) || !last_done(p.done, t * gl_NumWorkGroups.x + gl_WorkGroupID.x, p.n_used))
        return;
    if (tid < ROWS && row < p.n_row)
        combine(t, row);
}
