#version 460
#extension GL_GOOGLE_include_directive : require
/* ROUTE: workgroup (g, t) computes logits 8 g of TILE tokens; the last one of a tile chooses the experts of its tokens,
 * by the rules of backend/route.c. With STAGED x is one row, which is normed first (RMS_NORM and ROUTE). Another matrix
 * of up to sixteen rows may be multiplied along with it. With IS_GIVEN nothing is chosen: a table has each token's
 * experts. */
#include "common.glsl"
#include "done.glsl"

#define LANES 2 /* few rows a workgroup, as there are few of them */
const uint N_PART = 1;
#include "product.glsl"

layout(constant_id = 6) const float EPS = 0;
layout(constant_id = 7) const uint N = 1; /* experts */
layout(constant_id = 8) const uint N_USED = 1;
layout(constant_id = 9) const uint SCORE = 0;
layout(constant_id = 10) const uint IS_NORMED = 0;
layout(constant_id = 11) const uint N_GROUP = 1;
layout(constant_id = 12) const uint N_GROUP_USED = 1;
layout(constant_id = 13) const float SCALE = 1;
layout(constant_id = 14) const uint IS_GIVEN = 0;

const uint SOFTMAX = 0, SIGMOID = 1, SOFTMAX_CHOSEN = 2, SQRT_SOFTPLUS = 3; /* as enum route_score */
const float LOWEST = -3.402823466e38, SMALLEST_SUM = 6.103515625e-5;
const uint OUT_BITS = 0xff800000u; /* minus infinity: out of the choice */

layout(push_constant) uniform Push {
    Floats x, norm_w, normed; /* as in matmul.glsl */
    Words router;
    Floats router_bias;
    SharedFloats logits; /* [N] for each token */
    Floats bias, expert_scale;
    Ints ids;
    Floats weights, scores;
    SharedWords done; /* a counter for each tile */
    Words other;      /* the other matrix, or null, and its product; with IS_GIVEN the tokens' ids, and the table */
    Floats other_y;
    uint k, m, n_other; /* n_other: its rows */
} p;

shared float score[N], choice[N], sums[N_THREAD], group_value[N_GROUP];
shared int chosen[N_USED];
const uint KEY_FOURS = (N + 3) / 4;
shared uvec4 keys[KEY_FOURS]; /* of four experts each */
shared float weight[N_USED]; /* of the chosen; at first their scores */

bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool is_out(float x)
{
    return floatBitsToUint(x) == OUT_BITS;
}

/* Whether a is chosen before b: of two scores the higher, ties to the lower index, NaN last. -1: nobody. */
bool is_before(float x, int a, float y, int b)
{
    if (b < 0 || a < 0)
        return a >= 0;
    if (is_nan(x) || is_nan(y))
        return is_nan(x) ? is_nan(y) && a < b : true;
    return x != y ? x > y : a < b;
}

/* The greatest, or the sum, of what all threads have. */
float reduce(float x, bool is_max)
{
    uint tid = gl_LocalInvocationID.x;
    barrier();
    sums[tid] = x;
    for (uint width = N_THREAD / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width)
            sums[tid] = is_max ? max(sums[tid], sums[tid + width]) : sums[tid] + sums[tid + width];
    }
    barrier();
    return sums[0];
}

/* score[] becomes the softmax of itself. */
void softmax_all()
{
    uint tid = gl_LocalInvocationID.x;
    float most = LOWEST, sum = 0;
    for (uint i = tid; i < N; i += N_THREAD)
        most = max(most, score[i]);
    most = reduce(most, true);
    for (uint i = tid; i < N; i += N_THREAD) {
        score[i] = exp_of(score[i] - most);
        sum += score[i];
    }
    sum = reduce(sum, false);
    for (uint i = tid; i < N; i += N_THREAD)
        score[i] = score[i] / sum;
    barrier();
}

/* A group is as good as the sum of its two best scores; of an expert that is alone, its score. */
float worth(uint first, uint size)
{
    int a = -1, b = -1;
    for (uint i = first; i < first + size; i++) {
        if (is_before(choice[i], int(i), a < 0 ? 0 : choice[a], a)) {
            b = a;
            a = int(i);
        } else if (is_before(choice[i], int(i), b < 0 ? 0 : choice[b], b)) {
            b = int(i);
        }
    }
    float sum = b < 0 ? choice[a] : choice[a] + choice[b];
    return is_out(sum) ? LOWEST : sum;
}

void keep_groups()
{
    uint tid = gl_LocalInvocationID.x, size = N / N_GROUP;
    for (uint g = tid; g < N_GROUP; g += N_THREAD)
        group_value[g] = worth(g * size, size);
    barrier();
    if (tid == 0)
        for (uint i = 0; i < N_GROUP_USED; i++) {
            int b = -1;
            for (uint g = 0; g < N_GROUP; g++)
                if (!is_out(group_value[g]) && is_before(group_value[g], int(g), b < 0 ? 0 : group_value[b], b))
                    b = int(g);
            group_value[b] = uintBitsToFloat(OUT_BITS);
        }
    barrier();
    for (uint i = tid; i < N; i += N_THREAD)
        if (!is_out(group_value[i / size]))
            choice[i] = uintBitsToFloat(OUT_BITS);
    barrier();
}

/* A number that is greater for the expert that is chosen first; NaN comes last. 0: the expert can't be chosen. */
uint key_of(float x)
{
    uint bits = floatBitsToUint(x == 0.0 ? 0.0 : x);
    if (is_out(x))
        return 0;
    return is_nan(x) ? 1 : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Chooses the best N_USED: each expert counts those that come before it. Of equal ones these have lower indices. */
void choose_best()
{
    uint tid = gl_LocalInvocationID.x;
    for (uint i = tid; i < 4 * KEY_FOURS; i += N_THREAD)
        keys[i / 4][i % 4] = i < N ? key_of(choice[i]) : 0;
    barrier();
    for (uint i = tid; i < N; i += N_THREAD) {
        uint mine = keys[i / 4][i % 4], rank = 0;
        for (uint j = 0; j < KEY_FOURS; j++) {
            uvec4 other = keys[j] + uvec4(lessThan(4 * j + uvec4(0, 1, 2, 3), uvec4(i)));
            uvec4 is_better = uvec4(greaterThan(other, uvec4(mine)));
            rank += is_better.x + is_better.y + is_better.z + is_better.w;
        }
        if (rank < N_USED) {
            chosen[rank] = int(i);
            weight[rank] = score[i];
        }
    }
    barrier();
}

/* Takes the experts that the table has for token t. */
void take_given(uint t)
{
    uint at = p.other.d[t] * N_USED;
    for (uint r = gl_LocalInvocationID.x; r < N_USED; r += N_THREAD) {
        int expert = Ints(uvec2(p.other_y)).d[at + r];
        chosen[r] = expert;
        weight[r] = score[expert];
    }
    barrier();
}

/* The weight of the chosen expert of rank r, whose score is in weight[]. */
float weighed(uint r)
{
    float most = LOWEST, sum = 0;
    if (SCORE == SOFTMAX_CHOSEN) {
        for (uint i = 0; i < N_USED; i++)
            most = max(most, weight[i]);
        for (uint i = 0; i < N_USED; i++)
            sum += exp_of(weight[i] - most);
    }
    float all = sum, w = 0;
    sum = 0;
    for (uint i = 0; i < N_USED; i++) {
        float x = SCORE == SOFTMAX_CHOSEN ? exp_of(weight[i] - most) / all : weight[i];
        sum += x;
        w = i == r ? x : w;
    }
    sum = sum < SMALLEST_SUM ? SMALLEST_SUM : sum;
    if (IS_NORMED != 0)
        w = w / sum;
    w = w * SCALE;
    return is_null(p.expert_scale) ? w : w * p.expert_scale.d[chosen[r]];
}

/* Chooses the experts of token t. */
void choose(uint t)
{
    uint tid = gl_LocalInvocationID.x, at = t * N_USED;
    barrier(); /* the token before is done */
    for (uint i = tid; i < N; i += N_THREAD) {
        float x = p.logits.d[t * N + i];
        score[i] = SCORE == SIGMOID ? sigmoid(x) : SCORE == SQRT_SOFTPLUS ? sqrt(softplus(x)) : x;
    }
    barrier();
    if (SCORE == SOFTMAX)
        softmax_all();
    for (uint i = tid; i < N; i += N_THREAD) {
        float x = is_null(p.bias) ? score[i] : score[i] + p.bias.d[i];
        choice[i] = is_out(x) ? LOWEST : x;
    }
    barrier();
    if (N_GROUP > 1)
        keep_groups();
    if (!is_null(p.scores) && SCORE != SOFTMAX_CHOSEN)
        for (uint i = tid; i < N; i += N_THREAD)
            p.scores.d[t * N + i] = is_out(choice[i]) ? 0.0 : score[i];
    if (IS_GIVEN != 0)
        take_given(t);
    else
        choose_best();
    for (uint r = tid; r < N_USED; r += N_THREAD) {
        p.ids.d[at + r] = chosen[r];
        p.weights.d[at + r] = weighed(r);
    }
    if (!is_null(p.scores) && SCORE == SOFTMAX_CHOSEN) {
        softmax_all();
        for (uint i = tid; i < N; i += N_THREAD)
            p.scores.d[t * N + i] = is_out(choice[i]) ? 0.0 : score[i];
    }
}

void stage_row()
{
    if (STAGED != 0)
        stage_norm(p.x, p.norm_w, EPS, p.normed, p.k, gl_WorkGroupID.x == 0);
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t0 = gl_WorkGroupID.y * TILE, group = gl_WorkGroupID.x;
    const uint n_group = (N + PART_ROWS - 1) / PART_ROWS;
    for (uint t = 0; t < TILE; t++)
        x_at[t] = min(t0 + t, p.m - 1) * p.k;
    bool is_other = group >= n_group;
    uint first = (is_other ? group - n_group : group) * PART_ROWS; /* row of the router, or of the other matrix */
    uvec2 rows = address_at(uvec2(is_other ? p.other : p.router), first / ROWS, 4 * group_dwords(p.k));
    multiply(Words(rows), first % ROWS, p.x, p.k);
    for (uint e = tid; e < TILE * PART_ROWS; e += N_THREAD) {
        uint row = first + e % PART_ROWS, t = t0 + e / PART_ROWS;
        if (row >= (is_other ? p.n_other : N) || t >= p.m)
            continue;
        precise float y = products[e];
        if (is_other) {
            p.other_y.d[t * p.n_other + row] = y;
            continue;
        }
        if (!is_null(p.router_bias))
            y += p.router_bias.d[row];
        p.logits.d[t * N + row] = y;
    }
    if (is_other || !last_done(p.done, gl_WorkGroupID.y, n_group))
        return;
    for (uint t = t0; t < min(t0 + TILE, p.m); t++)
        choose(t);
}
