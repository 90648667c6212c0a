/* What both kernels of EXPERTS share: what they are given, the pairs of a workgroup, and what is done with the products.
 *
 * STEP: gate and up with the activation; where these are of two types, gate alone, then up with the activation of what
 * gate has left; down. In experts without a gate (IS_UNGATED) gate and up are halves of one matrix: each product y goes
 * to a place of its own as act(y) * y. */
layout(constant_id = 6) const uint STEP = 0;
layout(constant_id = 7) const uint IS_SORTED = 0;
layout(constant_id = 8) const uint ACTIVATION = 0;
layout(constant_id = 9) const uint IS_UNGATED = 0;
layout(constant_id = 10) const float LIMIT = 0;
layout(constant_id = 11) const float UP_LIMIT = 0;

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
    uint n_y, unused;        /* elements of a pair's row of y */
} p;

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

/* The expert's matrix i of this step. */
Words matrix(uint i)
{
    return Words(address_at(p.addresses.d[p.slots.d[expert]], p.off[i], 1));
}

/* A product of matrix i with its bias and, for gate and up, its pair's weight. */
float finished(float product, uint i, uint row, uint pair)
{
    precise float y = product;
    if (!is_null(p.bias[i]))
        y += p.bias[i].d[uint(expert) * p.n_row + row];
    if (STEP != DOWN && !is_null(p.weights))
        y *= p.weights.d[pair];
    return y;
}

/* Puts product i's element of a pair's row where it belongs. Up's product is multiplied by what is already in its
 * place: gate's, from the same thread or from the step before. */
void put_finished(float product, uint i, uint row, uint pair)
{
    precise float y = finished(product, i, row, pair);
    bool is_up = STEP == UP || i == 1;
    uint at = pair * p.n_y + row;
    if (IS_UNGATED != 0 && STEP != DOWN)
        p.y.d[at + (is_up ? p.n_row : 0)] = activate(ACTIVATION, LIMIT, UP_LIMIT, y, y);
    else
        p.y.d[at] = is_up ? activate(ACTIVATION, LIMIT, UP_LIMIT, p.y.d[at], y) : y;
}
