/* A product of a norm: each workgroup norms the row for itself, so that no dispatch need do it before. */
#include "norm.glsl"

/* Elements e to e + 3 of a row of k. */
vec4 four_of(Floats x, uint e, uint k)
{
    if (BY_FOUR != 0)
        return uintBitsToFloat(four_at(uvec2(x), e));
    vec4 y = vec4(0);
    [[unroll]] for (uint j = 0; j < 4; j++)
        if (e + j < k)
            y[j] = x.d[e + j];
    return y;
}

/* norm(x), which has k elements, becomes the staged row, with zeros behind it. One workgroup leaves it in out_, too,
 * unless that is null. */
void stage_norm(Floats x, Floats w, float eps, Floats out_, uint k, bool is_writer)
{
    precise float sum = 0;
    for (uint e = 4 * gl_LocalInvocationID.x; e < STAGED; e += 4 * N_THREAD) {
        vec4 y = four_of(x, e, k);
        stage_four(e / 4, y);
        [[unroll]] for (uint j = 0; j < 4; j++)
            sum = fma(y[j], y[j], sum);
    }
    float s = norm_scale(sum, k, eps);
    for (uint e = 4 * gl_LocalInvocationID.x; e < STAGED; e += 4 * N_THREAD) {
        precise vec4 y = staged_four(e / 4) * s;
        if (!is_null(w))
            y = y * four_of(w, e, k);
        stage_four(e / 4, y);
        if (is_writer && !is_null(out_))
            for (uint j = 0; j < 4 && e + j < k; j++)
                out_.d[e + j] = y[j];
    }
    barrier();
}
