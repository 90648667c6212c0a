/* A product of a norm: each workgroup norms the row for itself, so that no dispatch need do it before. */
#include "norm.glsl"

/* norm(x), which has k elements, becomes the staged row, with zeros behind it. One workgroup leaves it in out_, too,
 * unless that is null. */
void stage_norm(Floats x, Floats w, float eps, Floats out_, uint k, bool is_writer)
{
    precise float sum = 0;
    for (uint i = gl_LocalInvocationID.x; i < k; i += N_THREAD) {
        staged[i] = x.d[i];
        sum = fma(staged[i], staged[i], sum);
    }
    float s = norm_scale(sum, k, eps);
    for (uint i = gl_LocalInvocationID.x; i < STAGED; i += N_THREAD) {
        staged[i] = i < k ? normed(staged[i], s, w, i) : 0.0;
        if (is_writer && i < k && !is_null(out_))
            out_.d[i] = staged[i];
    }
    barrier();
}
