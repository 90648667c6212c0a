#version 460
#extension GL_GOOGLE_include_directive : require
/* ATTENTION: a workgroup of 64 threads takes a token and up to HEADS query heads that share a KV head. Blocks of 64
 * positions are folded in ascending order into one softmax for each span, spans into the whole (docs/numerics.md). With
 * HAS_GATE the result is multiplied by a gate (ACT_MUL).
 *
 * IS_SPLIT: each block is a workgroup of its own (z), which leaves [dv] values, the maximum and the sum in `blocks`; the
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

const uint BLOCK = 64, SPAN_BLOCKS = 8, N_SHARE = (N_GROUP + HEADS - 1) / HEADS;

layout(push_constant) uniform Push {
    Floats q;
    Ints pos, table, pages;
    Floats out_, sinks, gate;
    SharedFloats blocks; /* [DV + 2] for each block of each head of each token */
    SharedWords done;   /* a counter for each token's workgroups but for z */
    Paged k, v;
    int window; /* positions that a token sees at most; less than 0: its chunk of so many; 0: all */
    float scale;
} p;

shared float queries[HEADS * DK], scores[HEADS * BLOCK];
shared Softmax block_softmax[HEADS];

Softmax block[HEADS], span[HEADS], whole[HEADS];
float block_values[HEADS * COLUMNS], span_values[HEADS * COLUMNS], values[HEADS * COLUMNS];

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

/* Elements i and on of a key: as many as 16 bytes of halves hold, where a row has them by such steps. */
const uint STEP = DK % 8 == 0 ? 8 : 1;

void load_step(uvec2 part, uint row, uint i, out float x[STEP])
{
    if (CACHE == CACHE_F16 && STEP == 8) {
        uvec4 halves = four_at(part, (row * DK + i) / 2);
        for (uint j = 0; j < STEP; j++)
            x[j] = half_to_float(halves[j / 2] >> j % 2 * 16 & 0xffffu);
    } else {
        for (uint j = 0; j < STEP; j++)
            x[j] = load(part, DK, row, i + j);
    }
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
    for (uint i = 0; is_seen && i < DK; i += STEP) {
        float k[STEP];
        load_step(part, tid, i, k);
        for (uint j = 0; j < STEP; j++)
            for (uint g = 0; g < HEADS; g++)
                s[g] = fma(queries[g * DK + i + j], k[j], s[g]);
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

/* Block b of the text whose pages begin at `pages`, for a token that sees positions first to last. */
void visit_block(int b, int first, int last, int pages, uint head_kv)
{
    uint tid = gl_LocalInvocationID.x, page = uint(p.pages.d[pages + b]);
    uint from = uint(max(first - b * int(BLOCK), 0)), end = uint(min(last + 1 - b * int(BLOCK), int(BLOCK)));
    uvec2 v = part_address(p.v, page, head_kv);
    score(part_address(p.k, page, head_kv), from, end);
    for (uint g = 0; g < HEADS; g++)
        block[g] = block_softmax[g];
    for (uint c = 0; c < COLUMNS; c++) {
        uint j = tid + c * BLOCK;
        for (uint g = 0; g < HEADS; g++)
            block_values[g * COLUMNS + c] = 0;
        for (uint i = from; j < DV && i < end; i++) {
            float x = load(v, DV, i, j);
            for (uint g = 0; g < HEADS; g++)
                block_values[g * COLUMNS + c] = fma(scores[g * BLOCK + i], x, block_values[g * COLUMNS + c]);
        }
    }
    barrier(); /* the next block's scores come where this one's were */
}

void begin_span()
{
    for (uint g = 0; g < HEADS; g++)
        span[g] = Softmax(NOTHING, 0);
    for (uint i = 0; i < HEADS * COLUMNS; i++)
        span_values[i] = 0;
}

void add_block()
{
    for (uint g = 0; g < HEADS; g++) {
        vec2 f = fold(span[g], block[g]);
        for (uint c = 0; c < COLUMNS; c++) {
            uint i = g * COLUMNS + c;
            span_values[i] = fold_value(f, span_values[i], block_values[i]);
        }
    }
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

/* Where a head's block i of token t is. */
uint block_at(uint t, uint head, uint i)
{
    return ((t * N_HEAD + head) * gl_NumWorkGroups.z + i) * (DV + 2);
}

void leave_block(uint t, uint head, uint n)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint g = 0; g < n; g++) {
        uint at = block_at(t, head + g, gl_WorkGroupID.z);
        for (uint c = 0; c < COLUMNS && tid + c * BLOCK < DV; c++)
            p.blocks.d[at + tid + c * BLOCK] = block_values[g * COLUMNS + c];
        p.blocks.d[at + DV] = block[g].most;
        p.blocks.d[at + DV + 1] = block[g].sum;
    }
}

/* What block i's workgroup has left. */
void take_block(uint t, uint head, uint n, uint i)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint g = 0; g < n; g++) {
        uint at = block_at(t, head + g, i);
        block[g] = Softmax(p.blocks.d[at + DV], p.blocks.d[at + DV + 1]);
        for (uint c = 0; c < COLUMNS && tid + c * BLOCK < DV; c++)
            block_values[g * COLUMNS + c] = p.blocks.d[at + tid + c * BLOCK];
    }
}

void main()
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y;
    uint head_kv = gl_WorkGroupID.x / N_SHARE, head0 = gl_WorkGroupID.x % N_SHARE * HEADS;
    uint n = min(N_GROUP - head0, HEADS), head = head_kv * N_GROUP + head0;
    int pos = p.pos.d[t], first = first_position(pos), pages = p.table.d[t];
    int first_block = first / int(BLOCK), last_block = pos / int(BLOCK);
    uint n_block = uint(last_block - first_block + 1);
    if (IS_SPLIT != 0 && gl_WorkGroupID.z >= n_block)
        return;
    for (uint i = tid; i < HEADS * DK; i += BLOCK) /* of heads that are not there: the last one again */
        queries[i] = p.q.d[(t * N_HEAD + head + min(i / DK, n - 1)) * DK + i % DK];
    barrier();
    if (IS_SPLIT != 0) {
        visit_block(first_block + int(gl_WorkGroupID.z), first, pos, pages, head_kv);
        leave_block(t, head, n);
        if (!last_done(p.done, t * gl_NumWorkGroups.x + gl_WorkGroupID.x, n_block))
            return;
    }
    for (int b = first_block; b <= last_block; b++) {
        bool begins = b == first_block || b % int(SPAN_BLOCKS) == 0;
        if (begins)
            begin_span();
        if (IS_SPLIT != 0)
            take_block(t, head, n, uint(b - first_block));
        else
            visit_block(b, first, pos, pages, head_kv);
        add_block();
        if (b == last_block || b % int(SPAN_BLOCKS) == int(SPAN_BLOCKS) - 1)
            add_span(b / int(SPAN_BLOCKS) == first_block / int(SPAN_BLOCKS));
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
