/* What both kernels of MATMUL share: what they are given, and what is done with the products (THEN):
 *
 * ADD: the one matrix's product is written to y[0], and added to bias[2] in y[2].
 * ACT_MUL: a workgroup has the same rows of two matrices; y[1] is the second one's product, and act(first) * second is
 * written to y[0]. */
layout(constant_id = 7) const uint THEN = 0;
layout(constant_id = 8) const uint ACTIVATION = 0;
layout(constant_id = 9) const float LIMIT = 0;
layout(constant_id = 10) const float UP_LIMIT = 0;

const uint ADD = 1, ACT_MUL = 2; /* as enum vk_then */

layout(push_constant) uniform Push {
    Floats x;
    Words w[3];
    Floats y[3], bias[3];
    uint n_row[3], stride[3]; /* rows of a matrix; from one row of y to the next */
    uint k, m;
    Floats norm_w, normed; /* of the norm: weights, and where its result goes; or null */
} p;

/* The matrix of a workgroup that has `rows` rows of one; `group` becomes its number among that matrix's. */
uint find_matrix(inout uint group, uint rows)
{
    uint i = 0;
    if (THEN == 0)
        while (i < 2 && group >= (p.n_row[i] + rows - 1) / rows)
            group -= (p.n_row[i++] + rows - 1) / rows;
    return i;
}

/* A product of matrix i with its bias. */
float finished(float product, uint i, uint row)
{
    precise float y = product;
    if (row < p.n_row[i] && !is_null(p.bias[i]))
        y += p.bias[i].d[row];
    return y;
}

/* Writes the last matrix's finished product. gate: the first one's, of ACT_MUL. */
void put(float y, float gate, uint i, uint row, uint t)
{
    p.y[i].d[t * p.stride[i] + row] = y;
    if (THEN == ACT_MUL)
        p.y[0].d[t * p.stride[i] + row] = activate(ACTIVATION, LIMIT, UP_LIMIT, gate, y);
    if (THEN == ADD) {
        precise float sum = p.bias[2].d[t * p.stride[0] + row] + y;
        p.y[2].d[t * p.stride[0] + row] = sum;
    }
}
