#version 460
#extension GL_GOOGLE_include_directive : require
/* EMBED: a thread decodes four weights of a row and scales them. (Four neighbouring rows are decoded together; the
 * others are dropped.) The matrix may come in parts of part_rows rows. */
#include "common.glsl"
#include "types.glsl"

layout(push_constant) uniform Push {
    Ints ids;
    Addresses parts;
    Floats out_;
    uint k, part_rows;
    float scale;
    uint m;
} p;

void main()
{
    uint quad_at = gl_GlobalInvocationID.x, t = row_of_group(), e = 4 * quad_at;
    if (e >= p.k || t >= p.m)
        return;
    uint row = uint(p.ids.d[t]), in_part = row % p.part_rows;
    Words w = Words(address_at(p.parts.d[row / p.part_rows], in_part / ROWS, 4 * group_dwords(p.k)));
    uint row_of = in_part % MINE, i = e % UNIT / 4;
    begin_unit(w, in_part % ROWS - row_of, e / UNIT);
    begin_step(i % STEPS);
    mat4 y = weights(i % STEPS, i / STEPS);
    for (uint j = 0; j < 4 && e + j < p.k; j++)
        p.out_.d[t * p.k + e + j] = y[j][row_of] * p.scale;
}
