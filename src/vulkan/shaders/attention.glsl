/* What both kernels of ATTENTION share: what they are given, elements of caches, and how a result is finished. */
#include "cache.glsl"
#include "counters.glsl"
#include "softmax.glsl"

layout(constant_id = 2) const uint HEADS = 1; /* query heads of a workgroup, which share a KV head */
layout(constant_id = 3) const uint DK = 1;
layout(constant_id = 4) const uint DV = 1;
layout(constant_id = 5) const uint N_HEAD = 1;
layout(constant_id = 6) const uint N_GROUP = 1; /* query heads of a KV head */
layout(constant_id = 7) const uint HAS_GATE = 0;
layout(constant_id = 8) const uint ACTIVATION = 0;
layout(constant_id = 9) const float SCALE = 1;

layout(constant_id = 14) const uint COUNTER = 0;  /* of positions (counters.glsl) */
layout(constant_id = 15) const uint N_CHOSEN = 0; /* positions, or blocks, that a token sees at most; 0: all */
layout(constant_id = 16) const float SOFTCAP = 0; /* the bound of scores; 0: none */
/* Positions for each entry of a compressed cache, which comes behind the window: what is chosen are entries then, and
 * keys are values. Caches have one part; instead of the bytes to the next one there is where the entries' pages are
 * listed. 0: there is none. */
layout(constant_id = 17) const uint RATIO = 0;
/* What is chosen are, for each KV head, blocks of so many pages; 0: positions, or entries. */
layout(constant_id = 18) const uint CHOSEN_PAGES = 0;

const uint BLOCK = 64, SPAN_BLOCKS = 8, N_SHARE = (N_GROUP + HEADS - 1) / HEADS;

layout(push_constant) uniform Push {
    Floats q;
    Ints pos, table, pages;
    Floats out_, sinks, gate; /* gate: with N_CHOSEN what is chosen instead, [N_CHOSEN] for each token; with CHOSEN_PAGES
                                 for each KV head of each token */
    SharedFloats blocks; /* of single tokens: [DV + 2] for each block of each head of each token */
    SharedWords done;    /* a counter for each token's workgroups but for z */
    Paged k, v; /* v: with RATIO the compressed cache */
    uint m;     /* tokens */
    int window; /* positions that a token sees at most; less than 0: its chunk of so many; 0: all */
} p;

const uint STEP = 8;
struct Step {
    float x[STEP];
};

/* Elements i and on of a row, zeros behind its end. i: a multiple of STEP, which is as many as 16 bytes of halves hold. */
Step load_step(uvec2 part, uint dim, uint row, uint i)
{
    Step s;
    if (CACHE == CACHE_F16 && dim % STEP == 0) {
        uvec4 halves = four_at(part, (row * dim + i) / 2);
        [[unroll]] for (uint j = 0; j < STEP; j++)
            s.x[j] = half_to_float(halves[j / 2] >> j % 2 * 16 & 0xffffu);
    } else {
        for (uint j = 0; j < STEP; j++)
            s.x[j] = dim % STEP == 0 || i + j < dim ? load(part, dim, row, i + j) : 0.0;
    }
    return s;
}

/* A score within its bound. */
float capped(float s)
{
    if (SOFTCAP == 0.0)
        return s;
    precise float y = SOFTCAP * tanh_of(s / SOFTCAP);
    return y;
}

/* The first position that a token at pos sees. */
int first_position(int pos)
{
    if (p.window < 0)
        return pos / -p.window * -p.window;
    return p.window != 0 && pos >= p.window ? pos - p.window + 1 : 0;
}

/* Entries that there are for a token at pos. */
int n_entry(int pos)
{
    return RATIO == 0 ? 0 : (pos + 1) / int(RATIO);
}

/* The page of block b of a text's entries. pages: where its pages are listed. */
uint entry_page(int pages, int b)
{
    return uint(Ints(uvec2(p.k.part_bytes, p.v.part_bytes)).d[pages + b]);
}

/* How many positions, or entries, a token at pos chooses from. */
int n_choice(int pos)
{
    return RATIO == 0 ? pos + 1 : n_entry(pos);
}

/* How many positions a token at pos sees, and entries. */
uint n_visible(int pos)
{
    uint n = uint(pos - first_position(pos) + 1), most = N_CHOSEN == 0 ? 0xffffffffu : N_CHOSEN;
    if (CHOSEN_PAGES != 0) /* its own block is one of them */
        most = (N_CHOSEN - 1) * CHOSEN_PAGES * BLOCK + uint(pos) % (CHOSEN_PAGES * BLOCK) + 1;
    return RATIO == 0 ? min(n, most) : n + min(uint(n_entry(pos)), most);
}

/* How many of these the text's token before pos doesn't see. */
uint n_more(int pos)
{
    return RATIO != 0 && (pos + 1) % int(RATIO) == 0 ? 2 : 1;
}

/* Whether all of n are chosen; then no list is read. */
bool all_chosen(int n)
{
    return N_CHOSEN == 0 || n <= int(N_CHOSEN);
}

/* Element i of the lists of what is chosen. */
int chosen_at(uint i)
{
    return Ints(uvec2(p.gate)).d[i];
}

/* The first place in the ascending list [low, low + N_CHOSEN) that has x or more; low + N_CHOSEN if none has. */
uint first_chosen(uint low, int x)
{
    uint high = low + N_CHOSEN;
    while (low < high) {
        uint middle = (low + high) / 2;
        if (chosen_at(middle) < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool is_listed(uint list, int x)
{
    uint at = first_chosen(list, x);
    return at < list + N_CHOSEN && chosen_at(at) == x;
}

/* Whether a position or an entry is among those chosen for token t, which is at pos. */
bool is_chosen(uint t, int pos, int position)
{
    return all_chosen(n_choice(pos)) || is_listed(t * N_CHOSEN, position);
}

/* Where the list of blocks begins that a KV head of token t sees. */
uint chosen_blocks(uint t, uint head_kv)
{
    return (t * (N_HEAD / N_GROUP) + head_kv) * N_CHOSEN;
}

/* Counts tokens t to end - 1 of a text, for one thread of one of their workgroups: what they see, and what is read of a
 * text once. */
void count_tokens(uint t, uint end)
{
    uint seen = 0, read = 0;
    for (uint i = t; i < end; i++) {
        seen += n_visible(p.pos.d[i]);
        read += n_more(p.pos.d[i]);
    }
    if (t == 0 || p.table.d[t - 1] != p.table.d[t])
        read += n_visible(p.pos.d[t]) - n_more(p.pos.d[t]);
    count_work(COUNTER, seen, read);
}

/* Writes element j of a head of token t. value: the weighed sum of values, not yet divided by the softmax's sum. */
void put_value(uint t, uint head, uint j, Softmax whole, float value)
{
    precise float y = value;
    if (!is_null(p.sinks)) {
        vec2 f = fold(whole, Softmax(p.sinks.d[head], 1));
        y = fold_value(f, y, 0);
    }
    precise float inverse = 1.0 / whole.sum;
    y = y * inverse;
    uint at = (t * N_HEAD + head) * DV + j;
    p.out_.d[at] = HAS_GATE != 0 ? activate(ACTIVATION, 0.0, 0.0, p.gate.d[at], y) : y;
}
