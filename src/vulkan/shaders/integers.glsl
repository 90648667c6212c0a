/* Activations rounded to eight bits, as the CPU device rounds them (docs/numerics.md), and weights as bytes.
 *
 * A run of 32 activations is three times four dwords: eight of quants, four in each, then the scale of the run's block,
 * the sum of its quants and two that nobody reads. Runs of a row follow each other, and rows follow each other. */
const uint RUN = 32, RUN_FOURS = 3;
const uint BLOCK_RUNS = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K ? 8 : 1; /* runs that share a scale */

/* In how an integer product comes by its runs: it does not, it is a float product; from memory (quantize.comp); it
 * rounds the one row for itself; the same with a row that is staged. */
const uint FLOATS = 0, IN_MEMORY = 1, ROUNDED = 2, ROUNDED_STAGED = 3; /* as enum vk_integers */

uint rounded_four(vec4 x, float inverse)
{
    precise vec4 scaled = x * inverse;
    uvec4 q = uvec4(ivec4(roundEven(clamp(scaled, -127.0, 127.0)))) & 0xffu;
    return q.x | q.y << 8 | q.z << 16 | q.w << 24;
}

int sum_of_bytes(uint x)
{
    ivec4 y = ivec4(x << 24, x << 16, x << 8, x) >> 24;
    return y.x + y.y + y.z + y.w;
}

struct Run {
    uvec4 q[2];
    uint scale; /* a float's bits */
    int sum;
};

float largest(vec4 x[8])
{
    vec4 most = abs(x[0]);
    [[unroll]] for (uint i = 1; i < 8; i++)
        most = max(most, abs(x[i]));
    return max(max(most.x, most.y), max(most.z, most.w));
}

/* Of a run whose block's largest activation is `most`. Smaller blocks than can be scaled become zeros. */
Run rounded_run(vec4 x[8], float most)
{
    precise float inverse = 127.0 / most, scale = most / 127.0;
    if (most < 3.8e-37)
        inverse = scale = 0.0;
    Run r;
    r.sum = 0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint q = rounded_four(x[i], inverse);
        r.q[i / 4][i % 4] = q;
        r.sum += sum_of_bytes(q);
    }
    r.scale = floatBitsToUint(scale);
    return r;
}
