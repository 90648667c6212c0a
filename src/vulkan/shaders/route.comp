#version 460
#extension GL_GOOGLE_include_directive : require
/* ROUTE: a workgroup of 64 threads chooses the experts of a token from its logits, by the rules of backend/route.c. */
#include "common.glsl"

layout(constant_id = 1) const uint N = 1; /* experts */

const uint N_THREAD = 64, MAX_GROUP = 256;
const uint SOFTMAX = 0, SIGMOID = 1, SOFTMAX_CHOSEN = 2; /* as enum route_score */
const float LOWEST = -3.402823466e38, SMALLEST_SUM = 6.103515625e-5;
const uint OUT_BITS = 0xff800000u; /* minus infinity: out of the choice */

layout(push_constant) uniform Push {
    Floats logits, bias, expert_scale;
    Ints ids;
    Floats weights, scores;
    uint k, score, is_normed, n_group, n_group_used;
    float scale;
} p;

shared float score[N], choice[N], sums[N_THREAD], group_value[MAX_GROUP];
shared int best[N_THREAD];

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
    uint tid = gl_LocalInvocationID.x, size = N / p.n_group;
    for (uint g = tid; g < p.n_group; g += N_THREAD)
        group_value[g] = worth(g * size, size);
    barrier();
    if (tid == 0)
        for (uint i = 0; i < p.n_group_used; i++) {
            int b = -1;
            for (uint g = 0; g < p.n_group; g++)
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

/* The best expert that is still in the choice. */
int find_best()
{
    uint tid = gl_LocalInvocationID.x;
    int b = -1;
    for (uint i = tid; i < N; i += N_THREAD)
        if (!is_out(choice[i]) && is_before(choice[i], int(i), b < 0 ? 0 : choice[b], b))
            b = int(i);
    barrier();
    best[tid] = b;
    for (uint width = N_THREAD / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width) {
            int other = best[tid + width];
            if (is_before(other < 0 ? 0 : choice[other], other, best[tid] < 0 ? 0 : choice[best[tid]], best[tid]))
                best[tid] = other;
        }
    }
    barrier();
    return best[0];
}

/* Turns the scores of the chosen, which are in `weights`, into what they are weighed by. */
void weigh(uint at)
{
    float most = LOWEST, sum = 0;
    for (uint r = 0; r < p.k; r++)
        most = max(most, p.weights.d[at + r]);
    for (uint r = 0; r < p.k; r++) {
        if (p.score == SOFTMAX_CHOSEN)
            p.weights.d[at + r] = exp_of(p.weights.d[at + r] - most);
        sum += p.weights.d[at + r];
    }
    if (p.score == SOFTMAX_CHOSEN) {
        float all = sum;
        sum = 0;
        for (uint r = 0; r < p.k; r++) {
            p.weights.d[at + r] = p.weights.d[at + r] / all;
            sum += p.weights.d[at + r];
        }
    }
    sum = sum < SMALLEST_SUM ? SMALLEST_SUM : sum;
    for (uint r = 0; r < p.k; r++) {
        float w = p.weights.d[at + r];
        if (p.is_normed != 0)
            w = w / sum;
        w = w * p.scale;
        if (!is_null(p.expert_scale))
            w = w * p.expert_scale.d[p.ids.d[at + r]];
        p.weights.d[at + r] = w;
    }
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y;
    for (uint i = tid; i < N; i += N_THREAD) {
        float x = p.logits.d[t * N + i];
        score[i] = p.score == SIGMOID ? sigmoid(x) : x;
    }
    barrier();
    if (p.score == SOFTMAX)
        softmax_all();
    for (uint i = tid; i < N; i += N_THREAD) {
        float x = is_null(p.bias) ? score[i] : score[i] + p.bias.d[i];
        choice[i] = is_out(x) ? LOWEST : x;
    }
    barrier();
    if (p.n_group > 1)
        keep_groups();
    uint at = t * p.k;
    if (!is_null(p.scores) && p.score != SOFTMAX_CHOSEN)
        for (uint i = tid; i < N; i += N_THREAD)
            p.scores.d[t * N + i] = is_out(choice[i]) ? 0.0 : score[i];
    uint kept[(N + N_THREAD - 1) / N_THREAD]; /* whether experts were in the choice before any was taken */
    for (uint i = tid; i < N; i += N_THREAD)
        kept[i / N_THREAD] = is_out(choice[i]) ? 0 : 1;
    for (uint r = 0; r < p.k; r++) {
        int id = find_best();
        if (tid == 0) {
            p.ids.d[at + r] = id;
            p.weights.d[at + r] = score[id];
            choice[id] = uintBitsToFloat(OUT_BITS);
        }
        barrier();
    }
    if (tid == 0)
        weigh(at);
    if (!is_null(p.scores) && p.score == SOFTMAX_CHOSEN) {
        softmax_all();
        for (uint i = tid; i < N; i += N_THREAD)
            p.scores.d[t * N + i] = kept[i / N_THREAD] != 0 ? score[i] : 0.0;
    }
}
