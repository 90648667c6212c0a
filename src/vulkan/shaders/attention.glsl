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
layout(constant_id = 15) const uint N_CHOSEN = 0; /* positions that a token sees at most; 0: all */
layout(constant_id = 16) const float SOFTCAP = 0; /* the bound of scores; 0: none */

const uint BLOCK = 64, SPAN_BLOCKS = 8, N_SHARE = (N_GROUP + HEADS - 1) / HEADS;

layout(push_constant) uniform Push {
    Floats q;
    Ints pos, table, pages;
    Floats out_, sinks, gate; /* gate: with N_CHOSEN what is chosen instead, [N_CHOSEN] for each token */
    SharedFloats blocks; /* of single tokens: [DV + 2] for each block of each head of each token */
    SharedWords done;    /* a counter for each token's workgroups but for z */
    Paged k, v;
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

/* How many positions a token at pos sees. */
uint n_visible(int pos)
{
    return N_CHOSEN != 0 && pos >= int(N_CHOSEN) ? N_CHOSEN : uint(pos - first_position(pos) + 1);
}

/* Whether token t, which is at pos, sees a position before it: what is chosen ascends. */
bool is_chosen(uint t, int pos, int position)
{
    if (N_CHOSEN == 0 || pos < int(N_CHOSEN))
        return true;
    Ints chosen = Ints(uvec2(p.gate));
    uint low = t * N_CHOSEN, end = low + N_CHOSEN, high = end;
    while (low < high) {
        uint middle = (low + high) / 2;
        if (chosen.d[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && chosen.d[low] == position;
}

/* Counts tokens t to end - 1 of a text, for one thread of one of their workgroups: what they see, and what is read of a
 * text once. */
void count_tokens(uint t, uint end)
{
    uint seen = 0, read = end - t;
    for (uint i = t; i < end; i++)
        seen += n_visible(p.pos.d[i]);
    if (t == 0 || p.table.d[t - 1] != p.table.d[t])
        read += n_visible(p.pos.d[t]) - 1;
    count_work(COUNTER, seen, read);
}

/* Writes element j of a head of token t. value: of the whole, which is divided by its softmax's sum here. */
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
    p.out_.d[at] = HAS_GATE != 0 ? activate(ACTIVATION, 0.0, p.gate.d[at], y) : y;
}
