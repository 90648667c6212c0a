#version 460
#extension GL_GOOGLE_include_directive : require
/* ATTENTION of a prompt: a workgroup takes up to QUERIES queries, of HEADS heads that share a KV head and of tokens that
 * follow each other, so that keys and values are loaded once for all of them. What a query adds up, and in which order,
 * is what it is in attention.comp, to the bit; blocks that a token does not see, or of which it has chosen nothing, are
 * none of its own.
 *
 * Thread (part, four) has queries 4 four to 4 four + 3: in the first threads with positions 4 part to 4 part + 3 of the
 * block, then in all of them with elements 4 part to 4 part + 3 of the values, and of their second half. */
#include "common.glsl"
#include "attention.glsl"

const uint QUERIES = 32, FOURS = QUERIES / 4, TOKENS = QUERIES / HEADS;
const uint N_THREAD = gl_WorkGroupSize.x;              /* 128, or more of large heads */
const uint COLUMNS = N_THREAD, N_PART = N_THREAD / FOURS; /* elements of values: those of the workgroup (z) */
const uint HALVES = DV > COLUMNS / 2 ? 2 : 1, SUMS = 4 * HALVES;
const uint SLICE = 32;                       /* elements of keys and queries that lie in shared memory at a time */
const uint ROWS = BLOCK * SLICE / COLUMNS;   /* and rows of values */
const uint BLOCK_FOURS = BLOCK / 4, ROW_FOURS = COLUMNS / 4;

shared vec4 part_q[SLICE * FOURS];        /* [element][queries] */
shared vec4 part_kv[SLICE * BLOCK_FOURS]; /* [element][positions] of keys, [position][elements] of values */
shared vec4 scores[BLOCK * FOURS];        /* [position][queries] */
shared Softmax block_softmax[QUERIES];
shared uvec2 seen_of[TOKENS]; /* what tokens see of the block, a bit for each row */

uvec2 seen[4]; /* what the thread's queries see of it */
int span_at[4]; /* which span is at hand; NO_SPAN: none yet */
bool has_whole[4];
Softmax span[4], whole[4];
vec4 span_values[SUMS], values[SUMS]; /* [half][query] */

const int NO_SPAN = -1, ENTRY_SPANS = 1 << 30; /* from ENTRY_SPANS on: of entries */

uint my_four()
{
    return gl_LocalInvocationID.x % FOURS;
}

uint my_part()
{
    return gl_LocalInvocationID.x / FOURS;
}

uint token_of(uint query)
{
    return gl_WorkGroupID.y * TOKENS + query / HEADS;
}

uint head_of(uint query)
{
    return gl_WorkGroupID.x / N_SHARE * N_GROUP + gl_WorkGroupID.x % N_SHARE * HEADS + query % HEADS;
}

/* Whether there is such a query: of a token, and of the KV head. */
bool is_query(uint query)
{
    return query < TOKENS * HEADS && token_of(query) < p.m && gl_WorkGroupID.x % N_SHARE * HEADS + query % HEADS < N_GROUP;
}

void put_component(uint at, float x)
{
    part_kv[at / 4][at % 4] = x;
}

/* Elements i and on of the queries, and of the keys. */
void load_slice(uvec2 keys, uint i, uint n_row)
{
    for (uint e = gl_LocalInvocationID.x; e < QUERIES * (SLICE / 4); e += N_THREAD) {
        uint query = e % QUERIES, j = e / QUERIES * 4, at = (token_of(query) * N_HEAD + head_of(query)) * DK + i + j;
        bool is = is_query(query);
        for (uint c = 0; c < 4; c++)
            part_q[(j + c) * FOURS + query / 4][query % 4] = is && i + j + c < DK ? p.q.d[at + c] : 0.0;
    }
    for (uint e = gl_LocalInvocationID.x; e < BLOCK * (SLICE / STEP); e += N_THREAD) {
        uint row = e % BLOCK, j = e / BLOCK * STEP;
        Step s;
        if (row < n_row && i + j < DK)
            s = load_step(keys, DK, row, i + j);
        for (uint c = 0; c < STEP; c++)
            put_component((j + c) * BLOCK + row, row < n_row && i + j < DK ? s.x[c] : 0.0);
    }
}

/* Products of the thread's positions with its queries. */
void multiply_keys(uvec2 keys, uint n_row, precise inout vec4 s[4])
{
    for (uint i = 0; i < DK; i += SLICE) {
        barrier(); /* all are done with what is in shared memory */
        load_slice(keys, i, n_row);
        barrier();
        if (my_part() < BLOCK_FOURS)
            for (uint j = 0; j < min(SLICE, DK - i); j++) {
                vec4 q = part_q[j * FOURS + my_four()], k = part_kv[j * BLOCK_FOURS + my_part()];
                for (uint r = 0; r < 4; r++)
                    s[r] = fma(vec4(k[r]), q, s[r]);
            }
    }
}

bool is_seen(uint g, uint row)
{
    return (seen[g][row / 32] >> row % 32 & 1u) != 0;
}

/* Leaves the scores of a block, and their maxima and sums. Loops of steps that are alike are not unrolled: that saves a
 * quarter of the code, and few threads run most of them. */
void score(uvec2 keys, uint n_row)
{
    uint tid = gl_LocalInvocationID.x;
    bool is_mine = my_part() < BLOCK_FOURS;
    precise vec4 s[4];
    for (uint r = 0; r < 4; r++)
        s[r] = vec4(0);
    multiply_keys(keys, n_row, s);
    if (is_mine)
        for (uint r = 0; r < 4; r++) {
            uint row = 4 * my_part() + r;
            vec4 y;
            for (uint g = 0; g < 4; g++)
                y[g] = is_seen(g, row) ? capped(s[r][g] * SCALE) : NOTHING;
            scores[row * FOURS + my_four()] = y;
        }
    barrier();
    if (tid < QUERIES) {
        float most = NOTHING;
        [[dont_unroll]] for (uint i = 0; i < BLOCK; i += 16)
            for (uint j = 0; j < 16; j++)
                most = max(most, scores[(i + j) * FOURS + tid / 4][tid % 4]);
        block_softmax[tid].most = most;
    }
    barrier();
    if (is_mine)
        [[dont_unroll]] for (uint r = 0; r < 4; r++) {
            uint row = 4 * my_part() + r, at = row * FOURS + my_four();
            vec4 y = scores[at];
            for (uint g = 0; g < 4; g++)
                y[g] = is_seen(g, row) ? exp_of(y[g] - block_softmax[4 * my_four() + g].most) : 0.0;
            scores[at] = y;
        }
    barrier();
    if (tid < QUERIES) {
        precise float sum = 0;
        [[dont_unroll]] for (uint i = 0; i < BLOCK; i += 16)
            for (uint j = 0; j < 16; j++)
                sum += scores[(i + j) * FOURS + tid / 4][tid % 4];
        block_softmax[tid].sum = sum;
    }
}

void load_rows(uvec2 part, uint row0, uint n_row)
{
    uint column0 = gl_WorkGroupID.z * COLUMNS;
    for (uint e = gl_LocalInvocationID.x; e < ROWS * (COLUMNS / STEP); e += N_THREAD) {
        uint j = e % (COLUMNS / STEP) * STEP, row = e / (COLUMNS / STEP);
        Step s;
        bool is = row0 + row < n_row && column0 + j < DV;
        if (is)
            s = load_step(part, DV, row0 + row, column0 + j);
        for (uint c = 0; c < STEP; c++)
            put_component(row * COLUMNS + j + c, is ? s.x[c] : 0.0);
    }
}

/* Adds up the block's values, weighed by their scores. Positions that are not seen are left out, as their values may be
 * NaN. */
void add_values(uvec2 part, uint n_row, precise inout vec4 sums[SUMS])
{
    for (uint row0 = 0; row0 < n_row; row0 += ROWS) {
        barrier();
        load_rows(part, row0, n_row);
        barrier();
        for (uint r = 0; r < min(ROWS, n_row - row0); r++) {
            vec4 weight = scores[(row0 + r) * FOURS + my_four()];
            for (uint h = 0; h < HALVES; h++) {
                vec4 x = part_kv[r * ROW_FOURS + h * N_PART + my_part()];
                for (uint g = 0; g < 4; g++)
                    if (weight[g] != 0.0)
                        sums[4 * h + g] = fma(vec4(weight[g]), x, sums[4 * h + g]);
            }
        }
    }
}

/* Folds a query's span into those before it; the first is taken as it is. */
void add_span(uint g)
{
    vec2 f = vec2(0, 1);
    if (has_whole[g])
        f = fold(whole[g], span[g]);
    else
        whole[g] = span[g];
    for (uint h = 0; h < HALVES; h++)
        for (uint c = 0; c < 4; c++)
            values[4 * h + g][c] = has_whole[g] ? fold_value(f, values[4 * h + g][c], span_values[4 * h + g][c])
                                                : span_values[4 * h + g][c];
    has_whole[g] = true;
}

/* Adds a block, which is of that span, to a query that sees it. */
void add_block(uint g, int of_span, vec4 sums[SUMS])
{
    if (seen[g] == uvec2(0))
        return;
    if (of_span != span_at[g]) {
        if (span_at[g] != NO_SPAN)
            add_span(g);
        span_at[g] = of_span;
        span[g] = Softmax(NOTHING, 0);
        for (uint h = 0; h < HALVES; h++)
            span_values[4 * h + g] = vec4(0);
    }
    vec2 f = fold(span[g], block_softmax[4 * my_four() + g]);
    for (uint h = 0; h < HALVES; h++)
        for (uint c = 0; c < 4; c++)
            span_values[4 * h + g][c] = fold_value(f, span_values[4 * h + g][c], sums[4 * h + g][c]);
}

/* A block's bits with `from` to end - 1 set. */
uvec2 bits_between(int from, int end)
{
    uvec2 x = uvec2(0);
    for (uint i = 0; i < 2; i++) {
        int low = clamp(from - 32 * int(i), 0, 32), high = clamp(end - 32 * int(i), 0, 32);
        if (high > low)
            x[i] = 0xffffffffu >> (32 - (high - low)) << low;
    }
    return x;
}

/* What token t has chosen of block b, of positions or of entries. */
uvec2 chosen_of(uint t, int pos, int b)
{
    if (CHOSEN_PAGES != 0) {
        uint list = chosen_blocks(t, gl_WorkGroupID.x / N_SHARE);
        bool all = all_chosen(pos / int(BLOCK * CHOSEN_PAGES) + 1);
        return uvec2(all || is_listed(list, b / int(CHOSEN_PAGES)) ? 0xffffffffu : 0);
    }
    if (all_chosen(n_choice(pos)))
        return uvec2(0xffffffffu);
    uvec2 x = uvec2(0);
    for (uint i = first_chosen(t * N_CHOSEN, b * int(BLOCK)); i < (t + 1) * N_CHOSEN; i++) {
        int row = chosen_at(i) - b * int(BLOCK);
        if (row >= int(BLOCK))
            break;
        x[row / 32] |= 1u << row % 32;
    }
    return x;
}

/* What token t sees of block b. */
uvec2 seen_by(uint t, int b, bool is_entry)
{
    int pos = p.pos.d[t], first = is_entry ? 0 : first_position(pos), last = is_entry ? n_entry(pos) - 1 : pos;
    uvec2 x = bits_between(first - b * int(BLOCK), last + 1 - b * int(BLOCK));
    if (x != uvec2(0) && N_CHOSEN != 0 && (RATIO == 0 || is_entry))
        x &= chosen_of(t, pos, b);
    return x;
}

/* Block b of a text's positions or entries, with its tokens t to end - 1. */
void visit_block(uint t, uint end, int pages, int b, bool is_entry)
{
    barrier(); /* all are done with what tokens see of the block before */
    uint tid = gl_LocalInvocationID.x, mine = gl_WorkGroupID.y * TOKENS + tid;
    if (tid < TOKENS)
        seen_of[tid] = mine >= t && mine < end ? seen_by(mine, b, is_entry) : uvec2(0);
    barrier();
    uvec2 any = uvec2(0);
    for (uint i = 0; i < TOKENS; i++)
        any |= seen_of[i];
    if (any == uvec2(0))
        return;
    for (uint g = 0; g < 4; g++) {
        uint query = 4 * my_four() + g;
        seen[g] = is_query(query) ? seen_of[query / HEADS] : uvec2(0);
    }
    uint n_row = any.y != 0 ? 33 + findMSB(any.y) : 1 + findMSB(any.x), head_kv = gl_WorkGroupID.x / N_SHARE;
    uint page = is_entry ? entry_page(pages, b) : uint(p.pages.d[pages + b]);
    uvec2 keys = is_entry ? part_address(p.v, page, 0) : part_address(p.k, page, RATIO != 0 ? 0 : head_kv);
    precise vec4 sums[SUMS];
    for (uint i = 0; i < SUMS; i++)
        sums[i] = vec4(0);
    score(keys, n_row);
    add_values(RATIO != 0 ? keys : part_address(p.v, page, head_kv), n_row, sums);
    for (uint g = 0; g < 4; g++)
        add_block(g, (is_entry ? ENTRY_SPANS : 0) + b / int(SPAN_BLOCKS), sums);
}

/* Tokens t to end - 1, which are of one text, whose pages begin at `pages`. */
void visit_text(uint t, uint end, int pages)
{
    int first = 0x7fffffff, last = -1;
    for (uint i = t; i < end; i++) {
        first = min(first, first_position(p.pos.d[i]));
        last = max(last, p.pos.d[i]);
    }
    int from = first / int(BLOCK), n = last / int(BLOCK) + 1 - from, n_all = n + (n_entry(last) + int(BLOCK) - 1) / int(BLOCK);
    for (int i = 0; i < n_all; i++) { /* in one place, as compilers copy what is called */
        bool is_entry = RATIO != 0 && i >= n;
        visit_block(t, end, pages, is_entry ? i - n : from + i, is_entry);
    }
}

void main()
{
    uint t = gl_WorkGroupID.y * TOKENS, end = min(t + TOKENS, p.m);
    for (uint g = 0; g < 4; g++) {
        span_at[g] = NO_SPAN;
        has_whole[g] = false;
    }
    while (t < end) {
        uint next = t + 1;
        int pages = p.table.d[t];
        while (next < end && p.table.d[next] == pages)
            next++;
        if (gl_LocalInvocationID.x == 0 && gl_WorkGroupID.x == 0 && gl_WorkGroupID.z == 0)
            count_tokens(t, next);
        visit_text(t, next, pages);
        t = next;
    }
    for (uint g = 0; g < 4; g++)
        if (span_at[g] != NO_SPAN)
            add_span(g);
    for (uint g = 0; g < 4; g++)
        for (uint h = 0; h < HALVES; h++)
            for (uint c = 0; c < 4; c++) {
                uint query = 4 * my_four() + g, j = gl_WorkGroupID.z * COLUMNS + h * (COLUMNS / 2) + 4 * my_part() + c;
                if (is_query(query) && j < DV)
                    put_value(token_of(query), head_of(query), j, whole[g], values[4 * h + g][c]);
            }
}
