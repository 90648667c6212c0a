/* Finds the last of several workgroups, which goes on with what all of them have left in SharedFloats. */
shared bool is_last_done;

/* Whether n workgroups have called this with counter i, which is zero before and after. All threads call it. */
bool last_done(SharedWords counters, uint i, uint n)
{
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        is_last_done = atomicAdd(counters.d[i], 1) == n - 1;
        if (is_last_done)
            counters.d[i] = 0;
    }
    barrier();
    memoryBarrierBuffer();
    return is_last_done;
}
