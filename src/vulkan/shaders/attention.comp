#version 460
#extension GL_GOOGLE_include_directive : require
/* ATTENTION: a workgroup of 64 threads takes a token and up to HEADS query heads that share a KV head. Blocks of 64
 * positions are folded in ascending order into one softmax for each span, spans into the whole (docs/numerics.md). With
 * HAS_GATE the result is multiplied by a gate (ACT_MUL).
 *
 * IS_SPLIT: each span is a workgroup of its own (z), which leaves [dv] values, the maximum and the sum in `spans`; the
 * last one folds them. The same operations in the same order, so that the bits are the same. */
#include "common.glsl"
#include "paged.glsl"
#include "softmax.glsl"
#include "done.glsl"

layout(constant_id = 1) const uint CACHE = 0;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint COLUMNS = 1; /* elements of a value that a thread computes */
layout(constant_id = 4) const uint DK = 1;
layout(constant_id = 5) const uint IS_SPLIT = 0;
layout(constant_id = 6) const uint N_HEAD = 1;
layout(constant_id = 7) const uint N_GROUP = 1; /* query heads of a KV head */
layout(constant_id = 8) const uint DV = 1;
layout(constant_id = 9) const uint HAS_GATE = 0;
layout(constant_id = 10) const uint ACTIVATION = 0;

const uint BLOCK = 64, SPAN = 512, N_SHARE = (N_GROUP + HEADS - 1) / HEADS;

layout(push_constant) uniform Push {
    Floats q;
    Ints pos, table, pages;
    Floats out_, sinks, gate;
    SharedFloats spans; /* [DV + 2] for each span of each head of each token */
    SharedWords done;   /* a counter for each token's workgroups but for z */
    Paged k, v;
    int window; /* positions that a token sees at most; less than 0: its chunk of so many; 0: all */
    float scale;
} p;

shared float queries[HEADS * DK], scores[HEADS * BLOCK];
shared Softmax block_softmax[HEADS];

Softmax span[HEADS], whole[HEADS];
float span_values[HEADS * COLUMNS], values[HEADS * COLUMNS];

float load(uvec2 part, uint dim, uint row, uint i)
{
    uint at = row * dim + i;
    if (CACHE == CACHE_F32)
        return Floats(part).d[at];
    if (CACHE == CACHE_F16)
        return half_to_float(Words(part).d[at / 2] >> at % 2 * 16 & 0xffffu);
    uint block = at / 32 * 34, byte = block + 2 + at % 32;
    float d = half_to_float(Words(part).d[block / 4] >> block % 4 * 8 & 0xffffu);
    return d * float(bitfieldExtract(int(Words(part).d[byte / 4]), int(byte % 4 * 8), 8));
}

int first_position(int pos)
{
    if (p.window < 0)
        return pos / -p.window * -p.window;
    return p.window != 0 && pos >= p.window ? pos - p.window + 1 : 0;
}

/* The scores of rows [from, end) of a block, and their softmaxes' maxima and sums. */
void score(uvec2 part, uint from, uint end)
{
    uint tid = gl_LocalInvocationID.x;
    bool is_seen = tid >= from && tid < end;
    float s[HEADS];
    for (uint g = 0; g < HEADS; g++)
        s[g] = 0;
    for (uint i = 0; is_seen && i < DK; i++) {
        float k = load(part, DK, tid, i);
        for (uint g = 0; g < HEADS; g++)
            s[g] = fma(queries[g * DK + i], k, s[g]);
    }
    for (uint g = 0; g < HEADS; g++)
        scores[g * BLOCK + tid] = s[g] * p.scale;
    barrier();
    if (tid < HEADS) {
        float most = NOTHING;
        for (uint i = from; i < end; i++)
            most = max(most, scores[tid * BLOCK + i]);
        block_softmax[tid].most = most;
    }
    barrier();
    for (uint g = 0; g < HEADS; g++)
        scores[g * BLOCK + tid] = is_seen ? exp_of(scores[g * BLOCK + tid] - block_softmax[g].most) : 0.0;
    barrier();
    if (tid < HEADS) {
        precise float sum = 0;
        for (uint i = from; i < end; i++)
            sum += scores[tid * BLOCK + i];
        block_softmax[tid].sum = sum;
    }
    barrier();
}

/* Folds rows [from, end) of a block into the span. */
void visit_block(uint page, uint head_kv, uint from, uint end)
{
    uint tid = gl_LocalInvocationID.x;
    uvec2 v = part_address(p.v, page, head_kv);
    vec2 f[HEADS];
    score(part_address(p.k, page, head_kv), from, end);
    for (uint g = 0; g < HEADS; g++)
        f[g] = fold(span[g], block_softmax[g]);
    for (uint c = 0; c < COLUMNS; c++) {
        uint j = tid + c * BLOCK;
        float o[HEADS];
        for (uint g = 0; g < HEADS; g++)
            o[g] = 0;
        for (uint i = from; j < DV && i < end; i++) {
            float x = load(v, DV, i, j);
            for (uint g = 0; g < HEADS; g++)
                o[g] = fma(scores[g * BLOCK + i], x, o[g]);
        }
        for (uint g = 0; g < HEADS; g++)
            span_values[g * COLUMNS + c] = fold_value(f[g], span_values[g * COLUMNS + c], o[g]);
    }
    barrier(); /* the next block's scores come where this one's were */
}

void visit_span(int which, int first, int last, int pages, uint head_kv)
{
    for (uint g = 0; g < HEADS; g++)
        span[g] = Softmax(NOTHING, 0);
    for (uint i = 0; i < HEADS * COLUMNS; i++)
        span_values[i] = 0;
    int begin = max(which * int(SPAN), first / int(BLOCK) * int(BLOCK)), end = min((which + 1) * int(SPAN), last + 1);
    for (int p0 = begin; p0 < end; p0 += int(BLOCK))
        visit_block(uint(p.pages.d[pages + p0 / int(BLOCK)]), head_kv, uint(max(first - p0, 0)),
                    uint(min(last + 1 - p0, int(BLOCK))));
}

/* Folds the span into those before it; the first is taken as it is. */
void add_span(bool is_first)
{
    for (uint g = 0; g < HEADS; g++) {
        vec2 f = vec2(0, 1);
        if (is_first)
            whole[g] = span[g];
        else
            f = fold(whole[g], span[g]);
        for (uint c = 0; c < COLUMNS; c++) {
            uint i = g * COLUMNS + c;
            values[i] = is_first ? span_values[i] : fold_value(f, values[i], span_values[i]);
        }
    }
}

/* Where a head's span i of token t is. */
uint span_at(uint t, uint head, uint i)
{
    return ((t * N_HEAD + head) * gl_NumWorkGroups.z + i) * (DV + 2);
}

void leave_span(uint t, uint head, uint n)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint g = 0; g < n; g++) {
        uint at = span_at(t, head + g, gl_WorkGroupID.z);
        for (uint c = 0; c < COLUMNS && tid + c * BLOCK < DV; c++)
            p.spans.d[at + tid + c * BLOCK] = values[g * COLUMNS + c];
        p.spans.d[at + DV] = whole[g].most;
        p.spans.d[at + DV + 1] = whole[g].sum;
    }
}

/* Folds what the workgroups of n_span spans have left. */
void fold_spans(uint t, uint head, uint n, uint n_span)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint i = 0; i < n_span; i++) {
        for (uint g = 0; g < n; g++) {
            uint at = span_at(t, head + g, i);
            span[g] = Softmax(p.spans.d[at + DV], p.spans.d[at + DV + 1]);
            for (uint c = 0; c < COLUMNS && tid + c * BLOCK < DV; c++)
                span_values[g * COLUMNS + c] = p.spans.d[at + tid + c * BLOCK];
        }
        add_span(i == 0);
    }
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y;
    uint head_kv = gl_WorkGroupID.x / N_SHARE, head0 = gl_WorkGroupID.x % N_SHARE * HEADS;
    uint n = min(N_GROUP - head0, HEADS), head = head_kv * N_GROUP + head0;
    int pos = p.pos.d[t], first = first_position(pos), first_span = first / int(SPAN), last_span = pos / int(SPAN);
    uint n_span = uint(last_span - first_span + 1);
    if (IS_SPLIT != 0) {
        first_span += int(gl_WorkGroupID.z);
        if (first_span > last_span)
            return;
        last_span = first_span;
    }
    for (uint i = tid; i < HEADS * DK; i += BLOCK) /* of heads that are not there: the last one again */
        queries[i] = p.q.d[(t * N_HEAD + head + min(i / DK, n - 1)) * DK + i % DK];
    barrier();
    for (int s = first_span; s <= last_span; s++) {
        visit_span(s, first, pos, p.table.d[t], head_kv);
        add_span(s == first_span);
    }
    if (IS_SPLIT != 0 && n_span > 1) {
        leave_span(t, head, n);
        if (!last_done(p.done, t * gl_NumWorkGroups.x + gl_WorkGroupID.x, n_span))
            return;
        fold_spans(t, head, n, n_span);
    }
    for (uint g = 0; g < n; g++) {
        uint row = (t * N_HEAD + head + g) * DV;
        vec2 f = vec2(1, 0);
        if (!is_null(p.sinks))
            f = fold(whole[g], Softmax(p.sinks.d[head + g], 1));
        precise float inverse = 1.0 / whole[g].sum;
        for (uint c = 0; c < COLUMNS && tid + c * BLOCK < DV; c++) {
            uint j = tid + c * BLOCK;
            precise float y = is_null(p.sinks) ? values[g * COLUMNS + c] : fold_value(f, values[g * COLUMNS + c], 0);
            y = y * inverse;
            p.out_.d[row + j] = HAS_GATE != 0 ? activate(ACTIVATION, p.gate.d[row + j], y) : y;
        }
    }
}
