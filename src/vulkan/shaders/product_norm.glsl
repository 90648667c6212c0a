/* A product of a norm: each workgroup norms the row for itself, so that no dispatch need do it before. */
#include "norm.glsl"

/* Loads that are under way before any is used. */
const uint LOADS = 4;

/* Elements e to e + 3 of a row of k. */
vec4 four_of(Floats x, uint e, uint k)
{
    if (BY_FOUR != 0)
        return uintBitsToFloat(four_at(uvec2(x), min(e, k - 4)));
    vec4 y = vec4(0);
    [[unroll]] for (uint j = 0; j < 4; j++)
        if (e + j < k)
            y[j] = x.d[e + j];
    return y;
}

/* What the norm of a row of k multiplies its elements by. */
float norm_of_row(Floats x, float eps, uint k)
{
    const uint STRIDE = 4 * NORM_THREADS;
    uint tid = gl_LocalInvocationID.x;
    precise float sum = 0;
    if (tid < NORM_THREADS)
        for (uint first = 4 * tid; first < STAGED; first += LOADS * STRIDE) {
            vec4 y[LOADS];
            [[unroll]] for (uint i = 0; i < LOADS; i++)
                y[i] = four_of(x, first + i * STRIDE, k);
            for (uint i = 0; i < LOADS; i++)
                for (uint j = 0; j < 4; j++)
                    sum = first + i * STRIDE < STAGED ? fma(y[i][j], y[i][j], sum) : sum;
        }
    return norm_scale(sum, k, eps);
}

/* x * s * w of elements, or without w; exact where s is 1 and w is null. */
vec4 normed_four(vec4 x, float s, bool has_w, vec4 w)
{
    precise vec4 y = x * s;
    y = has_w ? y * w : y;
    return y;
}

void put_normed(Floats out_, uint e, uint k, vec4 y)
{
    for (uint j = 0; j < 4 && e + j < k; j++)
        out_.d[e + j] = y[j];
}

/* norm(x), which has k elements, becomes the staged row, with zeros behind it. One workgroup leaves it in out_, too,
 * unless that is null. */
void stage_norm(Floats x, Floats w, float eps, Floats out_, uint k, bool is_writer)
{
    const uint STRIDE = 4 * N_THREAD;
    float s = norm_of_row(x, eps, k);
    bool is_written = is_writer && !is_null(out_), has_w = !is_null(w);
    w = has_w ? w : x; /* so that no load has a condition */
    for (uint first = 4 * gl_LocalInvocationID.x; first < STAGED; first += LOADS * STRIDE) {
        vec4 xs[LOADS], ws[LOADS];
        [[unroll]] for (uint i = 0; i < LOADS; i++) {
            xs[i] = four_of(x, first + i * STRIDE, k);
            ws[i] = four_of(w, first + i * STRIDE, k);
        }
        for (uint i = 0; i < LOADS; i++) {
            uint e = first + i * STRIDE;
            if (e >= STAGED)
                continue;
            vec4 y = normed_four(xs[i], s, has_w, ws[i]);
            stage_four(e / 4, y);
            if (is_written)
                put_normed(out_, e, k, y);
        }
    }
    barrier();
}
