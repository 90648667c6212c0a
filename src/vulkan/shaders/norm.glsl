/* The scale of an RMS norm: the first 128 threads of a workgroup add 128 chains of squares in a tree. */
const uint NORM_THREADS = 128;
shared float norm_sums[NORM_THREADS];

/* The element of a row behind element i in a thread's chain, which begins with 4 tid: four that follow each other, then
 * four of those that are 4 * 128 farther. */
uint norm_next(uint i)
{
    return i % 4 < 3 ? i + 1 : i - 3 + 4 * NORM_THREADS;
}

/* The sum of x over the first 128 threads, in a tree. */
float tree_sum(float x)
{
    uint tid = gl_LocalInvocationID.x;
    if (tid < NORM_THREADS)
        norm_sums[tid] = x;
    for (uint width = NORM_THREADS / 2; width > 0; width /= 2) {
        barrier();
        if (tid < width)
            norm_sums[tid] += norm_sums[tid + width];
    }
    barrier();
    return norm_sums[0];
}

/* The same for a shader's further sums: waits until all threads have read the one before. */
float tree_sum_again(float x)
{
    barrier();
    return tree_sum(x);
}

/* sum: of the squares of a thread's chain, in that order. */
float norm_scale(float sum, uint n, float eps)
{
    precise float s = 1.0 / sqrt(tree_sum(sum) / float(n) + eps);
    return s;
}

float normed(float x, float s, Floats w, uint i)
{
    precise float y = x * s;
    if (!is_null(w))
        y = y * w.d[i];
    return y;
}
