#version 460
#extension GL_GOOGLE_include_directive : require
/* ATTENTION of few tokens: a workgroup of 64 threads takes a token and up to HEADS query heads that share a KV head.
 * Blocks of 64 positions are folded in ascending order into one softmax for each span, spans into the whole
 * (docs/numerics.md). With HAS_GATE the result is multiplied by a gate (ACT_MUL).
 *
 * IS_SPLIT: each block is a workgroup of its own (z), which leaves [dv] values, the maximum and the sum in `blocks`; the
 * last one folds them. The same operations in the same order, so that the bits are the same.
 *
 * A GPU takes longer to answer a load than to compute with it: values of ROWS positions are loaded before any is used.
 * What computes is not unrolled by hints: glslc's own copies of a loop are no longer precise. */
#include "common.glsl"
#include "attention.glsl"
#include "done.glsl"

layout(constant_id = 10) const uint COLUMNS = 1; /* elements of a value that a thread computes */
layout(constant_id = 11) const uint IS_SPLIT = 0;

layout(constant_id = 12) const uint ROWS = 1; /* of values, loaded at a time; divides BLOCK / 2 */

const uint SCORES = 2 * ROWS;  /* loaded at a time */
const uint STRIDE = BLOCK + 1; /* of a head's scores, so that heads' are in different banks */
const uint AHEAD = HEADS * COLUMNS > ROWS ? 1 : ROWS / (HEADS * COLUMNS); /* blocks that are loaded at a time */

shared float queries[HEADS * DK], scores[HEADS * STRIDE];
shared Softmax block_softmax[HEADS];

Softmax block[HEADS], span[HEADS], whole[HEADS];
float block_values[HEADS * COLUMNS], span_values[HEADS * COLUMNS], values[HEADS * COLUMNS];

/* Row `row` of the keys with each query. */
void multiply_key(uvec2 part, uint row, precise inout float s[HEADS])
{
    for (uint i = 0; i < DK; i += STEP) {
        Step k = load_step(part, DK, row, i);
        for (uint j = 0; j < STEP; j++)
            for (uint g = 0; g < HEADS; g++)
                if (DK % STEP == 0 || i + j < DK)
                    s[g] = fma(queries[g * DK + i + j], k.x[j], s[g]);
    }
}

/* The scores of rows [from, end) of a block, and their softmaxes' maxima and sums; those of other rows are zero. */
void score(uvec2 part, uint from, uint end)
{
    uint tid = gl_LocalInvocationID.x;
    bool is_seen = tid >= from && tid < end;
    precise float s[HEADS];
    for (uint g = 0; g < HEADS; g++)
        s[g] = 0;
    if (is_seen)
        multiply_key(part, tid, s);
    for (uint g = 0; g < HEADS; g++)
        scores[g * STRIDE + tid] = is_seen ? s[g] * SCALE : NOTHING;
    barrier();
    if (tid < HEADS) {
        float most = NOTHING;
        for (uint i = 0; i < BLOCK; i += SCORES)
            [[unroll]] for (uint j = 0; j < SCORES; j++)
                most = max(most, scores[tid * STRIDE + i + j]);
        block_softmax[tid].most = most;
    }
    barrier();
    for (uint g = 0; g < HEADS; g++)
        scores[g * STRIDE + tid] = is_seen ? exp_of(scores[g * STRIDE + tid] - block_softmax[g].most) : 0.0;
    barrier();
    if (tid < HEADS) {
        precise float sum = 0;
        for (uint i = 0; i < BLOCK; i += SCORES)
            for (uint j = 0; j < SCORES; j++)
                sum += scores[tid * STRIDE + i + j];
        block_softmax[tid].sum = sum;
    }
    barrier();
}

/* What rows [from, end) of values add up to, weighed by their scores. Rows beside these, whose scores are zero, are one
 * of them again: no load has a condition, which would keep it from being under way with others. */
void add_values(uvec2 part, uint from, uint end)
{
    for (uint c = 0; c < COLUMNS; c++) {
        uint column = gl_LocalInvocationID.x + c * BLOCK;
        precise float sums[HEADS];
        for (uint g = 0; g < HEADS; g++)
            sums[g] = 0;
        for (uint i = from / ROWS * ROWS; i < end; i += ROWS) {
            float x[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                x[r] = load(part, DV, clamp(i + r, from, end - 1), min(column, DV - 1));
            for (uint r = 0; r < ROWS; r++)
                for (uint g = 0; g < HEADS; g++)
                    sums[g] = fma(scores[g * STRIDE + i + r], x[r], sums[g]);
        }
        for (uint g = 0; g < HEADS; g++)
            block_values[g * COLUMNS + c] = sums[g];
    }
}

/* Block b of the text whose pages begin at `pages`, for a token that sees positions first to last. */
void visit_block(int b, int first, int last, int pages, uint head_kv)
{
    uint page = uint(p.pages.d[pages + b]);
    uint from = uint(max(first - b * int(BLOCK), 0)), end = uint(min(last + 1 - b * int(BLOCK), int(BLOCK)));
    score(part_address(p.k, page, head_kv), from, end);
    for (uint g = 0; g < HEADS; g++)
        block[g] = block_softmax[g];
    add_values(part_address(p.v, page, head_kv), from, end);
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

/* Adds blocks i to end - 1, as their workgroups have left them. Of heads that are not there: the last one's again. */
void add_blocks(uint t, uint head, uint n, uint i, uint end)
{
    uint tid = gl_LocalInvocationID.x;
    for (; i < end; i += AHEAD) {
        Softmax s[AHEAD * HEADS];
        float x[AHEAD * HEADS * COLUMNS];
        for (uint a = 0; a < AHEAD; a++)
            for (uint g = 0; g < HEADS; g++) {
                uint at = block_at(t, head + min(g, n - 1), min(i + a, end - 1));
                s[a * HEADS + g] = Softmax(p.blocks.d[at + DV], p.blocks.d[at + DV + 1]);
                for (uint c = 0; c < COLUMNS; c++)
                    x[(a * HEADS + g) * COLUMNS + c] = p.blocks.d[at + min(tid + c * BLOCK, DV - 1)];
            }
        for (uint a = 0; a < AHEAD; a++) {
            if (i + a >= end)
                continue;
            for (uint g = 0; g < HEADS; g++)
                block[g] = s[a * HEADS + g];
            for (uint c = 0; c < HEADS * COLUMNS; c++)
                block_values[c] = x[a * HEADS * COLUMNS + c];
            add_block();
        }
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
    int b = first_block;
    while (b <= last_block) {
        int begin = b, end = min(b / int(SPAN_BLOCKS) * int(SPAN_BLOCKS) + int(SPAN_BLOCKS), last_block + 1);
        begin_span();
        if (IS_SPLIT != 0)
            add_blocks(t, head, n, uint(b - first_block), uint(end - first_block));
        for (; IS_SPLIT == 0 && b < end; b++) {
            visit_block(b, first, pos, pages, head_kv);
            add_block();
        }
        add_span(begin == first_block);
        b = end;
    }
    for (uint g = 0; g < n; g++)
        for (uint c = 0; c < COLUMNS && tid + c * BLOCK < DV; c++)
            put_value(t, head + g, tid + c * BLOCK, whole[g], values[g * COLUMNS + c]);
}
