#version 460
#extension GL_GOOGLE_include_directive : require
/* COMPRESS: a thread takes a channel of an entry, position by position: of the run before, whose channels come first in
 * their rows, and of the entry's own. */
#include "common.glsl"
#include "paged.glsl"

layout(constant_id = 1) const bool HAS_GATE = true; /* else it is 0 */

const uint BLOCK = 64;

layout(push_constant) uniform Push {
    Ints at, table, pages;
    Floats bias, y;
    Paged x, gate;
    uint n, width, ratio, m; /* channels; elements of a row; positions of an entry; entries */
} p;

/* The element of a cache that is channel i of position `pos` of entry e's text. */
float load(Paged s, uint e, int pos, uint i)
{
    uint page = uint(p.pages.d[p.table.d[e] + pos / int(BLOCK)]);
    return Floats(part_address(s, page, 0)).d[uint(pos) % BLOCK * p.width + i];
}

float score(uint e, int pos, uint i)
{
    precise float y = (HAS_GATE ? load(p.gate, e, pos, i) : 0.0) + p.bias.d[uint(pos) % p.ratio * p.width + i];
    return y;
}

void main()
{
    uint i = gl_GlobalInvocationID.x, e = row_of_group(), own = p.width - p.n;
    if (i >= p.n || e >= p.m)
        return;
    int end = p.at.d[e] + 1, begin = end - int(p.ratio);
    int first = own != 0 && begin >= int(p.ratio) ? begin - int(p.ratio) : begin;
    float most = score(e, first, first < begin ? i : own + i);
    for (int pos = first + 1; pos < end; pos++)
        most = max(most, score(e, pos, pos < begin ? i : own + i));
    precise float sum = 0, y = 0;
    for (int pos = first; pos < end; pos++) {
        uint from = pos < begin ? i : own + i;
        precise float weight = exp_of(score(e, pos, from) - most);
        sum += weight;
        y = fma(weight, load(p.x, e, pos, from), y);
    }
    p.y.d[e * p.n + i] = y / sum;
}
