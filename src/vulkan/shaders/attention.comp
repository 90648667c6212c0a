#version 460
#extension GL_GOOGLE_include_directive : require
/* ATTENTION of few tokens: a workgroup of 128 threads takes a token and up to HEADS query heads that share a KV head.
 * Blocks of 64 positions are folded in ascending order into one softmax for each span, spans into the whole
 * (docs/numerics.md). With HAS_GATE the result is multiplied by a gate (ACT_MUL). With RATIO the blocks and spans of the
 * compressed cache come behind those of the positions. With CHOSEN_PAGES those blocks alone are visited that are chosen.
 *
 * IS_SPLIT: each block is a workgroup of its own (z), which leaves [dv] values, the maximum and the sum in `blocks`; the
 * last one folds them. The same operations in the same order, so that the bits are the same.
 *
 * A GPU takes longer to answer a load than to compute with it. STAGED: a block's keys and values are all asked for
 * before any is used, and come to shared memory. Else values of ROWS positions are loaded before any is used. What
 * computes is not unrolled by hints: glslc's own copies of a loop are no longer precise. */
#include "common.glsl"
#include "attention.glsl"
#include "done.glsl"

layout(constant_id = 10) const uint COLUMNS = 1; /* elements of a value that a thread computes */
layout(constant_id = 11) const uint IS_SPLIT = 0;
layout(constant_id = 12) const uint ROWS = 1; /* of values, loaded at a time; divides BLOCK */
layout(constant_id = 13) const uint STAGED = 0;

const uint N_THREAD = 128;
const uint STRIDE = BLOCK + 1; /* of a head's scores, so that heads' are in different banks */
const uint AHEAD = HEADS * COLUMNS > 16 ? 1 : 16 / (HEADS * COLUMNS); /* blocks that are loaded at a time */

/* Of rows in shared memory, in four dwords; an odd stride puts rows into different banks. */
const uint ROW_BYTES = CACHE == CACHE_F32 ? 4 : 2;
const uint K_FOURS = STAGED * DK * ROW_BYTES / 16, V_FOURS = STAGED * DV * ROW_BYTES / 16;
const uint K_STRIDE = K_FOURS | 1, V_STRIDE = V_FOURS | 1;
/* What a thread loads of a block. */
const uint K_LOADS = (K_FOURS * BLOCK + N_THREAD - 1) / N_THREAD, V_LOADS = (V_FOURS * BLOCK + N_THREAD - 1) / N_THREAD;
const uint STAGED_FOURS = STAGED * BLOCK * (K_FOURS > V_FOURS ? K_STRIDE : V_STRIDE);

shared vec4 queries[HEADS * ((DK + 3) / 4)];
shared float scores[HEADS * STRIDE], weights[HEADS * STRIDE];
shared uvec4 staged[STAGED_FOURS + 1];

Softmax block[HEADS], span[HEADS], whole[HEADS];
float block_values[HEADS * COLUMNS], span_values[HEADS * COLUMNS], values[HEADS * COLUMNS];

/* ---- a block's keys and values ----------------------------------------------------------------------------------- */

/* What a thread has loaded: of all rows of a block one after the other, four dwords for each thread by turns. Rows that
 * are not seen are one of those that are: no load has a condition, which would keep it from being under way with
 * others. */
uvec4 row_four(uvec2 part, uint n_fours, uint load, uint from, uint end)
{
    uint i = min(gl_LocalInvocationID.x + load * N_THREAD, BLOCK * n_fours - 1);
    return four_at(part, 4 * (clamp(i / n_fours, from, end - 1) * n_fours + i % n_fours));
}

void stage_four(uint n_fours, uint stride, uint load, uvec4 x)
{
    uint i = gl_LocalInvocationID.x + load * N_THREAD;
    if (i < BLOCK * n_fours)
        staged[i / n_fours * stride + i % n_fours] = x;
}

/* Elements i to i + STEP - 1 of a key. */
Step key_step(uvec2 part, uint row, uint i)
{
    if (STAGED == 0)
        return load_step(part, DK, row, i);
    Step s;
    if (CACHE == CACHE_F16) {
        uvec4 halves = staged[row * K_STRIDE + i / STEP];
        [[unroll]] for (uint j = 0; j < STEP; j++)
            s.x[j] = half_to_float(halves[j / 2] >> j % 2 * 16 & 0xffffu);
    } else {
        [[unroll]] for (uint j = 0; j < STEP; j++)
            s.x[j] = uintBitsToFloat(staged[row * K_STRIDE + i / 4 + j / 4][j % 4]);
    }
    return s;
}

/* Element i of a value. */
float value_at(uint row, uint i)
{
    uint at = CACHE == CACHE_F16 ? i / 2 : i, dword = staged[row * V_STRIDE + at / 4][at % 4];
    return CACHE == CACHE_F16 ? half_to_float(dword >> i % 2 * 16 & 0xffffu) : uintBitsToFloat(dword);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* The score of a row with head g. */
float score(uvec2 part, uint row, uint g)
{
    precise float s = 0;
    for (uint i = 0; i < DK; i += STEP) {
        Step k = key_step(part, row, i);
        for (uint j = 0; j < STEP; j++)
            if (DK % STEP == 0 || i + j < DK)
                s = fma(queries[g * ((DK + 3) / 4) + (i + j) / 4][j % 4], k.x[j], s);
    }
    precise float y = s * SCALE;
    return capped(y);
}

/* Computes scores of rows [from, end) of block b, and from them the weights of values, which are zero for other rows
 * and for those that are not chosen. A thread takes a row with every other head. pos: of the token. all: nothing is
 * chosen. */
void weigh_rows(uvec2 part, int b, int pos, uint from, uint end, bool all)
{
    uint row = gl_LocalInvocationID.x % BLOCK, first = gl_LocalInvocationID.x / BLOCK;
    bool is_seen = row >= from && row < end &&
                   (all || is_chosen(gl_WorkGroupID.y, pos, b * int(BLOCK) + int(row)));
    for (uint g = first; g < HEADS; g += N_THREAD / BLOCK)
        scores[g * STRIDE + row] = is_seen ? score(part, row, g) : NOTHING;
    barrier();
    for (uint g = 0; g < HEADS; g++) {
        float most = NOTHING;
        for (uint i = 0; i < BLOCK; i++)
            most = max(most, scores[g * STRIDE + i]);
        block[g].most = most;
        if (g % (N_THREAD / BLOCK) == first)
            weights[g * STRIDE + row] = is_seen ? exp_of(scores[g * STRIDE + row] - most) : 0.0;
    }
}

/* Adds up rows [from, end) of the values, by their weights, and the weights. */
void add_values(uvec2 part, uint from, uint end)
{
    for (uint c = 0; c < COLUMNS; c++) {
        uint column = min(gl_LocalInvocationID.x + c * N_THREAD, DV - 1);
        precise float sums[HEADS], all[HEADS];
        for (uint g = 0; g < HEADS; g++)
            sums[g] = all[g] = 0;
        for (uint i = from / ROWS * ROWS; i < end; i += ROWS) {
            float x[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                x[r] = STAGED != 0 ? value_at(i + r, column) : load(part, DV, clamp(i + r, from, end - 1), column);
            for (uint r = 0; r < ROWS; r++)
                for (uint g = 0; g < HEADS; g++) {
                    float weight = weights[g * STRIDE + i + r];
                    sums[g] = fma(weight, x[r], sums[g]);
                    all[g] += weight;
                }
        }
        for (uint g = 0; g < HEADS; g++) {
            block_values[g * COLUMNS + c] = sums[g];
            block[g].sum = all[g];
        }
    }
}

/* What a token sees: blocks of positions, the first of which is first_block, then blocks of entries. */
struct View {
    int pos, first_block, n_position_block, n_block;
    int pages; /* where its text's begin */
    uint head_kv;
    int chosen; /* where the list of those begins that are chosen; -1: all blocks of positions are seen */
};

View view_of(uint t)
{
    int pos = p.pos.d[t], first = first_position(pos) / int(BLOCK), n = pos / int(BLOCK) - first + 1;
    View x = View(pos, first, n, n + (n_entry(pos) + int(BLOCK) - 1) / int(BLOCK), p.table.d[t],
                  gl_WorkGroupID.x / N_SHARE, -1);
    if (CHOSEN_PAGES == 0 || all_chosen((n - 1) / int(CHOSEN_PAGES) + 1))
        return x;
    x.chosen = int(chosen_blocks(t, x.head_kv));
    int last = chosen_at(x.chosen + N_CHOSEN - 1) + 1; /* pages behind it don't exist yet */
    x.n_block = x.n_position_block = int(N_CHOSEN * CHOSEN_PAGES) - max(last * int(CHOSEN_PAGES) - n, 0);
    return x;
}

bool is_entry(View x, int i)
{
    return RATIO != 0 && i >= x.n_position_block;
}

/* The number, in its cache, of the i-th block that a token sees. */
int block_of(View x, int i)
{
    if (x.chosen >= 0)
        return chosen_at(x.chosen + i / int(CHOSEN_PAGES)) * int(CHOSEN_PAGES) + i % int(CHOSEN_PAGES);
    return is_entry(x, i) ? i - x.n_position_block : x.first_block + i;
}

/* The i-th block that a token sees. */
void visit_block(View x, int i)
{
    int b = block_of(x, i), first = is_entry(x, i) ? 0 : first_position(x.pos), last = x.pos;
    uint page;
    uvec2 keys, values_of;
    if (is_entry(x, i)) {
        last = n_entry(x.pos) - 1;
        page = entry_page(x.pages, b);
        keys = part_address(p.v, page, 0);
    } else {
        page = uint(p.pages.d[x.pages + b]);
        keys = part_address(p.k, page, RATIO != 0 ? 0 : x.head_kv);
    }
    values_of = RATIO != 0 ? keys : part_address(p.v, page, x.head_kv);
    uint from = uint(max(first - b * int(BLOCK), 0)), end = uint(min(last + 1 - b * int(BLOCK), int(BLOCK)));
    uvec4 k[K_LOADS + 1], v[V_LOADS + 1];
    [[unroll]] for (uint j = 0; j < K_LOADS; j++)
        k[j] = row_four(keys, K_FOURS, j, from, end);
    [[unroll]] for (uint j = 0; j < V_LOADS; j++)
        v[j] = row_four(values_of, V_FOURS, j, from, end);
    [[unroll]] for (uint j = 0; j < K_LOADS; j++)
        stage_four(K_FOURS, K_STRIDE, j, k[j]);
    barrier();
    weigh_rows(keys, b, x.pos, from, end, CHOSEN_PAGES != 0 || (RATIO != 0 && !is_entry(x, i)));
    [[unroll]] for (uint j = 0; j < V_LOADS; j++)
        stage_four(V_FOURS, V_STRIDE, j, v[j]);
    barrier();
    add_values(values_of, from, end);
    barrier(); /* the next block's come where this one's were */
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

/* Where the span of the i-th block ends: behind its last block that the token sees. */
int end_of_span(View x, int i)
{
    int block = block_of(x, i), left = (is_entry(x, i) ? x.n_block : x.n_position_block) - i, n = 1;
    if (x.chosen < 0)
        return i + min(int(SPAN_BLOCKS) - block % int(SPAN_BLOCKS), left);
    while (n < left && block_of(x, i + n) / int(SPAN_BLOCKS) == block / int(SPAN_BLOCKS))
        n++;
    return i + n;
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
        for (uint c = 0; c < COLUMNS && tid + c * N_THREAD < DV; c++)
            p.blocks.d[at + tid + c * N_THREAD] = block_values[g * COLUMNS + c];
        p.blocks.d[at + DV] = block[g].most;
        p.blocks.d[at + DV + 1] = block[g].sum;
    }
}

/* Adds blocks i to end - 1, as their workgroups have left them. Heads that don't exist stand for the last one. */
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
                    x[(a * HEADS + g) * COLUMNS + c] = p.blocks.d[at + min(tid + c * N_THREAD, DV - 1)];
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
    View x = view_of(t);
    uint head0 = gl_WorkGroupID.x % N_SHARE * HEADS;
    uint n = min(N_GROUP - head0, HEADS), head = x.head_kv * N_GROUP + head0;
    if (tid == 0 && gl_WorkGroupID.x == 0 && gl_WorkGroupID.z == 0)
        count_tokens(t, t + 1);
    if (IS_SPLIT != 0 && int(gl_WorkGroupID.z) >= x.n_block)
        return;
    for (uint i = tid; i < HEADS * DK; i += N_THREAD) { /* heads that don't exist stand for the last one */
        uint at = i % DK;
        queries[i / DK * ((DK + 3) / 4) + at / 4][at % 4] = p.q.d[(t * N_HEAD + head + min(i / DK, n - 1)) * DK + at];
    }
    barrier();
    if (IS_SPLIT != 0) {
        visit_block(x, int(gl_WorkGroupID.z));
        leave_block(t, head, n);
        if (!last_done(p.done, t * gl_NumWorkGroups.x + gl_WorkGroupID.x, uint(x.n_block)))
            return;
    }
    int i = 0;
    while (i < x.n_block) {
        int begin = i, end = end_of_span(x, i);
        begin_span();
        if (IS_SPLIT != 0)
            add_blocks(t, head, n, uint(i), uint(end));
        for (; IS_SPLIT == 0 && i < end; i++) {
            visit_block(x, i);
            add_block();
        }
        add_span(begin == 0);
        i = end;
    }
    for (uint g = 0; g < n; g++)
        for (uint c = 0; c < COLUMNS && tid + c * N_THREAD < DV; c++)
            put_value(t, head + g, tid + c * N_THREAD, whole[g], values[g * COLUMNS + c]);
}
