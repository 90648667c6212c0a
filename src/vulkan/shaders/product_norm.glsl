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
    const uint STRIDE = 4 * N_THREAD;
    const uint LOADS = STAGED % (4 * STRIDE) == 0 ? 4 : 1; /* under way before any is used */
    precise float sum = 0;
    for (uint first = 4 * gl_LocalInvocationID.x; first < STAGED; first += LOADS * STRIDE) {
        vec4 y[LOADS];
        [[unroll]] for (uint i = 0; i < LOADS; i++)
            y[i] = four_of(x, first + i * STRIDE, k);
        for (uint i = 0; i < LOADS; i++) {
            stage_four(first / 4 + i * N_THREAD, y[i]);
            for (uint j = 0; j < 4; j++)
                sum = fma(y[i][j], y[i][j], sum);
        }
    }
    float s = norm_scale(sum, k, eps);
    for (uint first = 4 * gl_LocalInvocationID.x; first < STAGED; first += LOADS * STRIDE) {
        vec4 ws[LOADS];
        [[unroll]] for (uint i = 0; i < LOADS; i++)
            ws[i] = is_null(w) ? vec4(1) : four_of(w, first + i * STRIDE, k);
        for (uint i = 0; i < LOADS; i++) {
            uint e = first + i * STRIDE;
            precise vec4 y = staged_four(e / 4) * s;
            y = y * ws[i]; /* without weights by 1, which is exact */
            stage_four(e / 4, y);
            if (is_writer && !is_null(out_))
                for (uint j = 0; j < 4 && e + j < k; j++)
                    out_.d[e + j] = y[j];
        }
    }
    barrier();
}
