/* Elements of a cache. */
#include "paged.glsl"

layout(constant_id = 1) const uint CACHE = 0;

/* Element i of a row of dim. */
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
