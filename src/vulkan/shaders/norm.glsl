/* The scale of an RMS norm: a workgroup of 128 threads adds 128 chains of squares in a tree. */
const uint NORM_THREADS = 128;
shared float norm_sums[NORM_THREADS];

/* sum: of the squares of elements tid, tid + 128, ..., in ascending order. */
float norm_scale(float sum, uint n, float eps)
{
    uint tid = gl_LocalInvocationID.x;
    norm_sums[tid] = sum;
    for (uint width = NORM_THREADS / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width)
            norm_sums[tid] += norm_sums[tid + width];
    }
    barrier();
    precise float s = 1.0 / sqrt(norm_sums[0] / float(n) + eps);
    return s;
}

float normed(float x, float s, Floats w, uint i)
{
    precise float y = x * s;
    if (!is_null(w))
        y = y * w.d[i];
    return y;
}
