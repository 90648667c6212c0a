/* Activations rounded to eight bits, as the CPU device rounds them (docs/numerics.md), and weights as bytes.
 *
 * A run of 32 activations is three times four dwords: eight of quants, four in each, then the scale of the run's block
 * and the sum of its quants, both as floats, and two that nobody reads. Runs of a row follow each other, and rows follow each other. */
const uint RUN = 32, RUN_FOURS = 3;
const uint BLOCK_RUNS = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K ? 8 : 1; /* runs that share a scale */

/* Where a product's runs come from: there are none, as it is a float product; from memory (quantize.comp); the
 * workgroup rounds its one row; it norms that row and then rounds it. */
const uint FLOATS = 0, IN_MEMORY = 1, ROUNDED = 2, ROUNDED_NORMED = 3; /* as enum vk_integers */

#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
/* OpSDot of SPV_KHR_integer_dot_product, of four bytes in each dword (format 0). */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot_of_bytes(uint a, uint b, spirv_literal int format);
#endif

/* A block's scale, and its inverse, from the block's largest activation. Blocks too small to be scaled become zeros. */
float scale_of(float most)
{
    precise float scale = most / 127.0;
    return most < 3.8e-37 ? 0.0 : scale;
}

float inverse_of(float most)
{
    precise float inverse = 127.0 / most;
    return most < 3.8e-37 ? 0.0 : inverse;
}

float largest(vec4 x[4])
{
    vec4 most = max(max(abs(x[0]), abs(x[1])), max(abs(x[2]), abs(x[3])));
    return max(max(most.x, most.y), max(most.z, most.w));
}

uint rounded_four(vec4 x, float inverse)
{
    precise vec4 scaled = x * inverse;
    uvec4 q = uvec4(ivec4(round_even(clamp(scaled, -127.0, 127.0)))) & 0xffu;
    return q.x | q.y << 8 | q.z << 16 | q.w << 24;
}

/* Sixteen activations, half a run. */
uvec4 rounded_sixteen(vec4 x[4], float inverse)
{
    return uvec4(rounded_four(x[0], inverse), rounded_four(x[1], inverse), rounded_four(x[2], inverse),
                 rounded_four(x[3], inverse));
}

int sum_of_bytes(uvec4 x)
{
#ifdef DOT
    const uint ONES = 0x01010101u;
    return dot_of_bytes(x.x, ONES, 0) + dot_of_bytes(x.y, ONES, 0) + dot_of_bytes(x.z, ONES, 0) +
           dot_of_bytes(x.w, ONES, 0);
#else
    ivec4 y = (ivec4(x << 24) >> 24) + (ivec4(x << 16) >> 24) + (ivec4(x << 8) >> 24) + (ivec4(x) >> 24);
    return y.x + y.y + y.z + y.w;
#endif
}
